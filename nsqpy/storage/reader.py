"""Where a log is read, and what is done about damage on the way.

Blocks are read in order and joined into batches again; what is acknowledged is left out, what is
damaged is set aside and passed over.
"""

from collections.abc import Callable
from typing import NamedTuple

from nsqpy.errors import CorruptionError
from nsqpy.message import Batch, decode_batch
from nsqpy.storage.bad_blocks import BadBlocks
from nsqpy.storage.block import decode_block
from nsqpy.storage.segment import SEGMENT_HEADER_BYTES, BadStretch, Segment, StoredBlock

__all__ = ["LogReader", "StoredRun"]

JOIN_MAX_BYTES = 16 * 1024  # larger blocks are batches enough: joining them only copies


class StoredRun(NamedTuple):
    """Messages ``start`` to ``stop`` of ``batch``; the first of them is record ``number``."""

    batch: Batch
    start: int
    stop: int
    number: int


class LogReader:
    """A place in a log: ``offset`` in ``segment``, where record ``number`` or a later one stands.

    The place means something only while the log has unread records; whoever appends the first of
    them says where they begin. ``discard_rest`` takes a first and a stop number of records that
    will not come, and returns how many of them are owed to anybody.
    """

    __slots__ = ("_bad_blocks", "_discard_rest", "number", "offset", "segment")

    def __init__(self, bad_blocks: BadBlocks, discard_rest: Callable[[int, int], int]) -> None:
        self._bad_blocks = bad_blocks
        self._discard_rest = discard_rest
        self.segment: Segment | None = None
        self.offset = SEGMENT_HEADER_BYTES
        self.number = 1

    def start(self, segment: Segment, offset: int, number: int) -> None:
        """Read on from a block of ``segment`` that begins with record ``number``."""
        self.segment = segment
        self.offset = offset
        self.number = number

    def enter(self, segment: Segment) -> None:
        """Read on from the beginning of ``segment``."""
        self.start(segment, SEGMENT_HEADER_BYTES, segment.first_number)

    def is_through(self, segment: Segment) -> bool:
        """Whether ``segment`` is not being read, or all of it has been."""
        return segment is not self.segment or self.offset >= segment.size

    def end_segment(self) -> None:
        """All of the segment has been read: records that did not come were in damaged blocks."""
        assert self.segment is not None
        self._give_up(self.segment, self.segment.stop_number)

    def read(self, max_bytes: int, runs: list[StoredRun]) -> None:
        """Append the next messages of the segment to ``runs``, about ``max_bytes`` of them.

        Raises:
            OSError: it cannot be read on; what is in ``runs`` counts.
        """
        segment = self.segment
        assert segment is not None
        joined = _JoinedBlocks(runs)
        try:
            for item in segment.blocks(self.offset, max_bytes):
                if isinstance(item, BadStretch):
                    self._bad_blocks.set_aside(segment, item)
                else:
                    try:
                        self._take(segment, item, joined)
                    except CorruptionError as error:
                        bad = BadStretch(item.offset, item.stop, error.reason)
                        self._bad_blocks.set_aside(segment, bad)
                self.offset = item.stop
        finally:
            joined.end()

    def _take(self, segment: Segment, block: StoredBlock, joined: "_JoinedBlocks") -> None:
        header, offset = block.header, block.offset
        batch = decode_block(header, block.frames, segment.path, offset)
        number = header.first_number
        if not self.number <= number <= segment.stop_number - header.records:
            reason = f"record {number} does not belong here"
            raise CorruptionError(segment.path, offset, reason)
        self._give_up(segment, number)
        self.number = number + header.records
        first = number - segment.first_number
        acked = segment.acked_count(first, first + header.records)
        if acked == 0:
            joined.add(batch, number)
        elif acked < header.records:
            joined.end()
            joined.runs.extend(_live_runs(segment, batch, number))

    def _give_up(self, segment: Segment, stop: int) -> None:
        """Records up to ``stop`` that have not come were in what is damaged, or is gone."""
        if self.number < stop:
            lost = self._discard_rest(self.number, stop)
            if lost:
                self._bad_blocks.note_lost(segment, lost)
            self.number = stop


class _JoinedBlocks:
    """Joins neighbouring small blocks, so that single publishes are read back as batches."""

    __slots__ = ("_count", "_deliver_at_ns", "_number", "_parts", "_size", "runs")

    def __init__(self, runs: list[StoredRun]) -> None:
        self.runs = runs
        self._parts: list[Batch] = []
        self._number = self._count = self._size = self._deliver_at_ns = 0

    def add(self, batch: Batch, number: int) -> None:
        size = len(batch.data)
        fits = (
            self._parts
            and number == self._number + self._count
            and batch.deliver_at_ns == self._deliver_at_ns
            and self._size + size <= JOIN_MAX_BYTES
        )
        if not fits:
            self.end()
            self._number, self._count, self._size = number, 0, 0
            self._deliver_at_ns = batch.deliver_at_ns
        self._parts.append(batch)
        self._count += len(batch)
        self._size += size

    def end(self) -> None:
        if not self._parts:
            return
        if len(self._parts) == 1:
            batch = self._parts[0]
        else:
            data = b"".join([part.data for part in self._parts])
            batch = decode_batch(data, self._count, self._deliver_at_ns)
        self.runs.append(StoredRun(batch, 0, self._count, self._number))
        self._parts = []


def _live_runs(segment: Segment, batch: Batch, number: int) -> list[StoredRun]:
    """The stretches of ``batch`` that are not acknowledged."""
    runs: list[StoredRun] = []
    first = number - segment.first_number
    start: int | None = None
    for index in range(len(batch)):
        if segment.is_acked(first + index):
            if start is not None:
                runs.append(StoredRun(batch, start, index, number + start))
                start = None
        elif start is None:
            start = index
    if start is not None:
        runs.append(StoredRun(batch, start, len(batch), number + start))
    return runs
