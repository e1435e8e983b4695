"""One queue's log: append, read back, acknowledge, replay.

The log is a directory of segments. New batches go to the end of the last one; one reader goes
through them from the front; what is done with is acknowledged by number, in any order. A segment
whose records are all acknowledged is deleted. Numbers rise by one for each record and are never
used again while the log is open.

The log does not decide when anything is synced: ``take_unsynced`` hands out the files that need
it, and the caller syncs them wherever it likes. Source: DESIGN 3; docs/storage.md.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from nsqpy.errors import CorruptionError, StorageError
from nsqpy.message import FRAME_HEADER_BYTES, Batch, decode_batch
from nsqpy.storage.block import BLOCK_HEADER_BYTES, BlockHeader, decode_block, encode_block_header
from nsqpy.storage.files import File, Files
from nsqpy.storage.journal import JOURNAL_SUFFIX, Journal
from nsqpy.storage.segment import SEGMENT_HEADER_BYTES, SEGMENT_SUFFIX, BadStretch, Segment

__all__ = ["READ_BYTES", "DiskQueue", "LogListener", "Moves", "Region", "StoredRun"]

log = logging.getLogger(__name__)

READ_BYTES = 512 * 1024
UNLINK_MIN_BYTES = 1024 * 1024  # to unlink more than this takes too long to wait for
JOIN_MAX_BYTES = 16 * 1024  # larger blocks are batches enough: joining them only copies


class StoredRun(NamedTuple):
    """Messages ``start`` to ``stop`` of ``batch``; the first of them is record ``number``."""

    batch: Batch
    start: int
    stop: int
    number: int


class LogListener(Protocol):
    """Whoever decides when a log is flushed and synced."""

    def note_acked(self, queue_log: "DiskQueue") -> None:
        """Acknowledgements wait for ``flush``."""

    def note_unsynced(self, queue_log: "DiskQueue") -> None:
        """Files have been written since the last ``take_unsynced``."""

    def note_sync_overdue(self, queue_log: "DiskQueue") -> None:
        """``sync_every`` writes have been made since."""

    def note_moved(self, queue_log: "DiskQueue") -> None:
        """Records that now stand in another log wait for ``take_moves`` and ``end_moves``."""

    def note_unlinked(self, file: File) -> None:
        """A file without a name is to be closed; a large one where that may take a while, for it
        is then that its blocks are freed."""


class Region(NamedTuple):
    """``length`` bytes of the file ``path``, from ``offset`` on."""

    path: str
    offset: int
    length: int


class Moves(NamedTuple):
    """Records that stand in another log too; ``ranges`` are first number and count."""

    generation: int
    ranges: list[tuple[int, int]]


class DiskQueue:
    """A log in ``directory``; ``name`` is how log lines call it.

    ``depth`` counts records not acknowledged, ``unread`` those of them that ``read`` has not
    handed out yet, ``moved_count`` those that stand in another log too. ``on_drained`` is called
    at the end of a ``flush`` that leaves nothing in the log.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        name: str,
        segment_max_bytes: int,
        sync_every: int,
        listener: LogListener,
    ) -> None:
        self._files = files
        self._directory = directory
        self._name = name
        self._segment_max_bytes = segment_max_bytes
        self._sync_every = sync_every
        self._listener = listener
        self._segments: list[Segment] = []
        self._first_numbers: list[int] = []
        self._next_number = 1
        self._cursor = 0  # index of the segment being read
        self._cursor_offset = SEGMENT_HEADER_BYTES
        self._cursor_number = 1
        self._acked: dict[Segment, None] = {}
        self._unsynced: dict[File, None] = {}
        self._syncing: set[File] = set()
        self._resting: dict[Segment, None] = {}  # to be closed once they are synced
        self._retired: list[File] = []  # of deleted segments: to be closed after this sync
        self.on_drained: Callable[[], None] | None = None
        self._generation = 0
        self._moves: list[tuple[int, int]] = []
        self.moved_count = 0
        self.depth = 0
        self.unread = 0
        self.bad_blocks = 0
        self.flush_count = 0  # that left nothing pending
        self._operations = 0

    # -- start ------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the directory, or find what a previous process left in it: every record without
        an acknowledgement is unread.

        Raises:
            StorageError: the directory cannot be read.
        """
        try:
            self._replay()
        except OSError as error:
            raise StorageError(self._directory, error.strerror or str(error)) from error

    def _replay(self) -> None:
        self._files.make_directory(self._directory)
        names = self._files.list_directory(self._directory)
        journals = {name for name in names if name.endswith(JOURNAL_SUFFIX)}
        for name in names:
            number = name.removesuffix(SEGMENT_SUFFIX)
            if number != name and number.isdecimal():
                self._segments.append(Segment(self._files, self._directory, int(number)))
        for segment, following in zip(self._segments, self._segments[1:], strict=False):
            file = segment.opened()
            segment.size = file.size()
            # Only sealed segments may be followed by a gap, but a power cut may take the seal.
            gap_free = following.first_number - segment.first_number
            segment.records = min(gap_free, segment.size // FRAME_HEADER_BYTES)
            segment.outstanding = segment.records
            segment.file = None
            file.close()
        if self._segments:
            last = self._segments[-1]
            cut = last.recover()
            if cut:
                log.warning("%s: cut %d torn bytes off %s", self._name, cut, last.path)
            self._next_number = last.stop_number
        for segment in self._segments:
            name = segment.journal.path.rpartition("/")[2]
            if name in journals:
                journals.remove(name)
                segment.replay_journal()
        if self._segments and last.sealed:  # what was behind it has gone: begin a new one
            self._next_number = max(last.stop_number, last.first_number + 1)
        for name in journals:  # of segments that were deleted: their numbers may come again
            self._files.remove(f"{self._directory}/{name}")
        self._first_numbers = [segment.first_number for segment in self._segments]
        self.depth = self.unread = sum(segment.outstanding for segment in self._segments)
        if self._segments:
            self._cursor_number = self._first_numbers[0]
        self._delete_finished()

    # -- append -----------------------------------------------------------------------------

    def append(self, batches: Sequence[Batch], *, held: bool) -> int:
        """Store batches, one block each, in one write; return the first record's number.

        Numbers go on from there without a gap. With ``held`` the caller keeps the messages in
        memory and ``read`` will pass over them; that is only possible when nothing is unread.

        Raises:
            StorageError: nothing of it is stored.
        """
        assert not held or not self.unread
        number = self._next_number
        buffers: list[bytes] = []
        size = records = 0
        for batch in batches:
            buffers.append(encode_block_header(batch, number + records))
            buffers.append(batch.data)
            size += BLOCK_HEADER_BYTES + len(batch.data)
            records += len(batch.offsets) - 1
        try:
            segment = self._segment_for(size)
            file = segment.append(buffers, size, records)
        except OSError as error:
            raise StorageError(self._directory, error.strerror or str(error)) from error
        self._note_write(file)
        self._next_number = number + records
        self.depth += records
        if held:
            self._cursor = len(self._segments) - 1
            self._cursor_offset = segment.size
            self._cursor_number = self._next_number
        else:
            self.unread += records
        return number

    def _segment_for(self, size: int) -> Segment:
        """The segment that takes the next ``size`` bytes: the last one, or a new one."""
        if self._segments:
            last = self._segments[-1]
            fits = not last.size or last.size + size <= self._segment_max_bytes
            if fits and not last.sealed:
                return last
        segment = Segment(self._files, self._directory, self._next_number)
        segment.opened()
        if not self._segments:
            self._cursor, self._cursor_offset = 0, SEGMENT_HEADER_BYTES
            self._cursor_number = self._next_number
        elif self._cursor < len(self._segments) - 1 or self._cursor_offset >= last.size:
            self._let_go(last)  # the reader opens it again if it gets there
        self._segments.append(segment)
        self._first_numbers.append(segment.first_number)
        self._delete_finished()
        return segment

    def _note_write(self, file: File) -> None:
        if not self._unsynced:
            self._listener.note_unsynced(self)
        self._unsynced[file] = None
        self._operations += 1
        if self._operations == self._sync_every:
            self._listener.note_sync_overdue(self)

    # -- read back --------------------------------------------------------------------------

    def read(self, max_bytes: int = READ_BYTES) -> list[StoredRun]:
        """The next messages in order, about ``max_bytes`` of them; empty only at the end.

        A block that is damaged is set aside and passed over.

        Raises:
            StorageError: nothing can be read; the next call tries again.
        """
        runs: list[StoredRun] = []
        try:
            while self.unread and not runs:
                segment = self._segments[self._cursor]
                if self._cursor_offset >= segment.size:
                    self._next_segment()
                else:
                    self._read_segment(segment, max_bytes, runs)
        except OSError as error:
            if not runs:  # what was read before counts; the next call meets the error again
                raise StorageError(self._directory, error.strerror or str(error)) from error
        return runs

    def _next_segment(self) -> None:
        done = self._segments[self._cursor]
        lost = done.stop_number - self._cursor_number
        if lost > 0:  # its last blocks were damaged
            self._give_up(done, self._cursor_number, lost)
            self._cursor_number = done.stop_number
        if done is self._segments[-1]:
            assert not self.unread, "unread records behind the end of the log"
            return
        self._cursor += 1
        self._cursor_offset = SEGMENT_HEADER_BYTES
        self._cursor_number = self._segments[self._cursor].first_number
        self._let_go(done)
        self._delete_finished()

    def _read_segment(self, segment: Segment, max_bytes: int, runs: list[StoredRun]) -> None:
        joined = _JoinedBlocks(runs)
        try:
            for item in segment.blocks(self._cursor_offset, max_bytes):
                if isinstance(item, BadStretch):
                    self._set_aside(segment, item.offset, item.stop, item.reason)
                else:
                    try:
                        self._take_block(segment, item.header, item.frames, item.offset, joined)
                    except CorruptionError as error:
                        self._set_aside(segment, item.offset, item.stop, error.reason)
                self._cursor_offset = item.stop
        finally:
            joined.end()

    def _take_block(
        self,
        segment: Segment,
        header: BlockHeader,
        frames: bytes,
        offset: int,
        joined: "_JoinedBlocks",
    ) -> None:
        batch = decode_block(header, frames, segment.path, offset)
        number = header.first_number
        if not self._cursor_number <= number <= segment.stop_number - header.records:
            reason = f"record {number} does not belong here"
            raise CorruptionError(segment.path, offset, reason)
        if number > self._cursor_number:
            self._give_up(segment, self._cursor_number, number - self._cursor_number)
        self._cursor_number = number + header.records
        first = number - segment.first_number
        acked = segment.acked_count(first, first + header.records)
        self.unread -= header.records - acked
        if acked == 0:
            joined.add(batch, number)
        elif acked < header.records:
            joined.end()
            joined.runs.extend(_live_runs(segment, batch, number))

    def _set_aside(self, segment: Segment, offset: int, stop: int, reason: str) -> None:
        """Keep damaged bytes in a ``.bad`` file beside the segment, for salvage."""
        damaged = segment.opened().read_at(stop - offset, offset)
        self.bad_blocks += 1
        path = f"{segment.path}.{offset}.bad"
        log.error(
            "%s: %s at byte %d: %s; set aside in %s", self._name, segment.path, offset, reason, path
        )
        try:
            self._files.replace_whole(path, damaged)
        except OSError as error:
            # On a full disk the messages behind the damage matter more than the damage.
            log.error("%s: cannot write %s: %s", self._name, path, error)

    def _give_up(self, segment: Segment, number: int, count: int) -> None:
        """Records whose block is damaged will never be delivered: nobody waits for them."""
        for record in range(number, number + count):
            if not segment.is_acked(record - segment.first_number):
                self.discard(record, 1)

    # -- acknowledge ------------------------------------------------------------------------

    def acknowledge(self, number: int, count: int) -> None:
        """``count`` records from ``number`` on are done with. On disk after the next flush."""
        self.depth -= count
        if not self._acked:
            self._listener.note_acked(self)
        while count:
            index = bisect_right(self._first_numbers, number) - 1
            segment = self._segments[index]
            part = min(count, segment.stop_number - number)
            segment.acknowledge(number - segment.first_number, part)
            self._acked[segment] = None
            number += part
            count -= part

    def acknowledge_rest(self, first: int, stop: int) -> tuple[int, int]:
        """Of the records ``first`` to ``stop``, none unread, acknowledge those that are not yet,
        as far as they stand in one segment.

        Returns where to go on, and how many they were.
        """
        index = max(bisect_right(self._first_numbers, first) - 1, 0)
        for segment in self._segments[index : index + 2]:
            start = max(first, segment.first_number)
            end = min(stop, segment.stop_number)
            if start < end:
                base = segment.first_number
                count = segment.acknowledge_rest(start - base, end - base)
                if count:
                    if not self._acked:
                        self._listener.note_acked(self)
                    self._acked[segment] = None
                    self.depth -= count
                return end, count
        return stop, 0

    def discard_rest(self, first: int, stop: int) -> int:
        """The records ``first`` to ``stop`` that are unread will never be handed out; returns
        how many they were."""
        first = max(first, self._cursor_number)
        total = 0
        while first < stop:
            first, count = self.acknowledge_rest(first, stop)
            total += count
        self.unread -= total
        return total

    def is_done(self, first: int, stop: int) -> bool:
        """Whether the records ``first`` to ``stop`` are all acknowledged."""
        index = max(bisect_right(self._first_numbers, first) - 1, 0)
        for segment in self._segments[index:]:
            base = segment.first_number
            if base >= stop:
                break
            start, end = max(first, base), min(stop, segment.stop_number)
            if start < end and segment.acked_count(start - base, end - base) < end - start:
                return False
        return True

    @property
    def is_flushed(self) -> bool:
        """Whether every acknowledgement has been written."""
        return not self._acked

    def discard(self, number: int, count: int) -> None:
        """``count`` records from ``number`` on, all unread, will never be handed out."""
        self.unread -= count
        self.acknowledge(number, count)

    def move(self, number: int, count: int) -> None:
        """``count`` records from ``number`` on now stand in another log.

        They are acknowledged here once the other log is as safe as it has to be: after a power
        cut it is better to find them twice than nowhere.
        """
        if not self._moves:
            self._listener.note_moved(self)
        self._moves.append((number, count))
        self.moved_count += count

    def take_moves(self) -> Moves:
        """What has been moved since the last call; ``end_moves`` must follow."""
        moves, self._moves = self._moves, []
        return Moves(self._generation, moves)

    def end_moves(self, moves: Moves, *, safe: bool) -> None:
        """Acknowledge what was moved, or keep it for the next call of ``take_moves``."""
        if moves.generation != self._generation:
            return  # the log has been emptied meanwhile
        for number, count in moves.ranges:
            self.moved_count -= count
            if safe:
                self.acknowledge(number, count)
            else:
                self.move(number, count)

    def flush(self) -> None:
        """Write what was acknowledged since the last flush, one write a segment.

        Raises:
            StorageError: what could not be written stays pending.
        """
        last = self._segments[-1] if self._segments else None
        if any(not segment.outstanding and segment is not last for segment in self._acked):
            self._delete_finished()
        # What could not be deleted needs its journal like the others.
        while self._acked:
            segment = next(iter(self._acked))
            try:
                file = segment.flush()
            except OSError as error:
                raise StorageError(self._directory, error.strerror or str(error)) from error
            if file is not None:
                self._note_write(file)
            del self._acked[segment]
        self.flush_count += 1
        if self.on_drained is not None and not self.depth:
            self.on_drained()

    def _delete_finished(self) -> None:
        """Delete segments without anything outstanding; never the one being written."""
        last = len(self._segments) - 1
        keep: list[Segment] = []
        finished: dict[Segment, None] = {}
        for index, segment in enumerate(self._segments):
            if index == last or segment.outstanding or not self._seal(keep):
                keep.append(segment)
            else:
                finished[segment] = None
        if not finished:
            return
        current = self._segments[self._cursor]
        for segment in finished:
            if segment.size >= UNLINK_MIN_BYTES:
                with suppress(OSError):  # while it is open, only its name goes
                    segment.opened()
            self._drop(segment)
        position = bisect_right([segment.first_number for segment in keep], current.first_number)
        if current not in finished:
            self._cursor = position - 1
        else:
            self._cursor = position
            self._cursor_offset = SEGMENT_HEADER_BYTES
            self._cursor_number = keep[position].first_number
        self._segments = keep
        self._first_numbers = [segment.first_number for segment in keep]

    def _seal(self, kept: Sequence[Segment]) -> bool:
        """Whether the segment behind ``kept`` may go: the last of them knows where it ends."""
        if not kept:
            return True
        try:
            file = kept[-1].seal()
        except OSError as error:
            log.error("%s: cannot seal %s: %s", self._name, kept[-1].path, error)
            return False
        if file is not None:
            self._note_write(file)
        return True

    def _drop(self, segment: Segment) -> None:
        self._acked.pop(segment, None)
        self._resting.pop(segment, None)
        # The segment goes first: a journal without a segment is harmless, the reverse redelivers.
        paths = [segment.path]
        if segment.journal.file is not None or segment.acked is not None:
            paths.append(segment.journal.path)
        self._hand_off(segment)
        for path in paths:
            try:
                self._files.remove(path)
            except FileNotFoundError:
                pass  # a journal that never had to be written
            except OSError as error:
                log.error("%s: cannot delete %s: %s", self._name, path, error)

    # -- sync and close ---------------------------------------------------------------------

    def take_unsynced(self) -> list[File]:
        """The files written since the last call; ``end_sync`` must follow."""
        files = list(self._unsynced)
        self._unsynced = {}
        self._syncing.update(files)
        self._operations = 0
        return files

    def end_sync(self, files: Sequence[File], *, safe: bool) -> None:
        """``files`` are on the device, or have to be synced again."""
        self._syncing.difference_update(files)
        retired, self._retired = self._retired, []
        if not safe:
            for file in files:
                if file not in retired:
                    self._note_write(file)
        for file in retired:
            self._listener.note_unlinked(file)
        resting, self._resting = self._resting, {}
        for segment in resting:
            self._let_go(segment)

    @property
    def is_sealed(self) -> bool:
        """Whether ``seal`` was called, by this process or one before."""
        return bool(self._segments) and self._segments[-1].sealed

    def seal(self) -> None:
        """Write down that this is all: nothing is appended any more.

        Raises:
            StorageError: it is not written down.
        """
        try:
            file = self._segments[-1].seal() if self._segments else None
        except OSError as error:
            raise StorageError(self._directory, error.strerror or str(error)) from error
        if file is not None:
            self._note_write(file)

    def regions(self) -> list[Region]:
        """Where its blocks stand, in order."""
        head = SEGMENT_HEADER_BYTES
        return [Region(entry.path, head, entry.size - head) for entry in self._segments]

    def abandon(self) -> None:
        """Forget every record and let go of the files, which are for somebody else to remove."""
        for segment in self._segments:
            self._hand_off(segment)
        self._segments = []
        self._resting = {}
        self.on_drained = None
        self.empty()

    def rest(self) -> None:
        """Close every file; it is opened again when it is needed."""
        for segment in self._segments:
            self._let_go(segment)

    def _let_go(self, segment: Segment) -> None:
        """Close a segment that is neither written nor read, once it needs no sync."""
        holders: tuple[Segment | Journal, ...] = (segment, segment.journal)
        for holder in holders:
            if holder.file in self._syncing or holder.file in self._unsynced:
                self._resting[segment] = None
            elif holder.file is not None:
                holder.file.close()
                holder.file = None

    def _hand_off(self, segment: Segment) -> None:
        """The files of a segment that is or will be deleted are the listener's to close."""
        for file in (segment.file, segment.journal.file):
            if file is not None:
                self._unsynced.pop(file, None)
                if file in self._syncing:
                    self._retired.append(file)
                else:
                    self._listener.note_unlinked(file)
        segment.file = segment.journal.file = None

    def _retire(self, file: File) -> None:
        # A descriptor that a sync in another thread is using must not be closed under it.
        if file in self._syncing:
            self._retired.append(file)
        else:
            file.close()

    def empty(self) -> None:
        """Forget every record, delivered or not. Numbers go on."""
        for segment in self._segments:
            self._drop(segment)
        self._segments, self._first_numbers, self._acked = [], [], {}
        self._cursor, self._cursor_offset = 0, SEGMENT_HEADER_BYTES
        self._cursor_number = self._next_number
        self.depth = self.unread = 0
        self._generation += 1
        self._moves, self.moved_count = [], 0

    def sync(self) -> None:
        """Return when everything written so far is on the device.

        Raises:
            StorageError: some of it may not be.
        """
        try:
            for file in self._unsynced:
                file.sync()
        except OSError as error:
            raise StorageError(self._directory, error.strerror or str(error)) from error

    def close(self) -> None:
        """Flush, sync and let go of the files.

        Raises:
            StorageError: what is not on the device may come again after a crash.
        """
        try:
            self.flush()
            self.sync()
        finally:
            for segment in self._segments:
                for open_file in (segment.file, segment.journal.file):
                    if open_file is not None:
                        self._retire(open_file)
                segment.file = segment.journal.file = None
            self._unsynced.clear()


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
