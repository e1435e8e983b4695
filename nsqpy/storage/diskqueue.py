"""One queue's log: append, read back, acknowledge, replay.

The log is a directory of segments. New batches go to the end of the last one; one reader goes
through them from the front; what is done with is acknowledged by number, in any order. A segment
whose records are all acknowledged is deleted. Numbers rise by one for each record and are never
used again while the log is open.

The log does not decide when anything is synced: ``take_unsynced`` hands out the files that need
it, and the caller syncs them wherever it likes. Source: docs/storage.md.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from nsqpy.errors import StorageError
from nsqpy.message import Batch
from nsqpy.storage.bad_blocks import BadBlocks
from nsqpy.storage.block import BLOCK_HEADER_BYTES, encode_block_header
from nsqpy.storage.files import File, Files
from nsqpy.storage.open_files import OpenFiles
from nsqpy.storage.reader import LogReader, StoredRun
from nsqpy.storage.recovery import find_segments, next_number
from nsqpy.storage.segment import SEGMENT_HEADER_BYTES, Segment

__all__ = ["READ_BYTES", "DiskQueue", "LogListener", "Moves", "Region"]

log = logging.getLogger(__name__)

READ_BYTES = 512 * 1024
UNLINK_MIN_BYTES = 1024 * 1024  # to unlink more than this takes too long to wait for


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
        self._listener = listener
        self._open_files = OpenFiles(
            sync_every=sync_every,
            note_unsynced=partial(listener.note_unsynced, self),
            note_overdue=partial(listener.note_sync_overdue, self),
            note_unlinked=listener.note_unlinked,
        )
        self._bad_blocks = BadBlocks(files, name)
        self._reader = LogReader(self._bad_blocks, self.discard_rest)
        self._segments: list[Segment] = []
        self._first_numbers: list[int] = []
        self._next_number = 1
        self._acked: dict[Segment, None] = {}
        self.on_drained: Callable[[], None] | None = None
        self._generation = 0
        self._moves: list[tuple[int, int]] = []
        self.moved_count = 0
        self.depth = 0
        self.unread = 0
        self.flush_count = 0  # that left nothing pending

    @property
    def bad_blocks(self) -> int:
        """Damaged stretches that were set aside, from ``open`` on."""
        return self._bad_blocks.count

    # -- start ------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the directory, or find what a previous process left in it: every record without
        an acknowledgement is unread.

        Raises:
            StorageError: the directory cannot be read.
        """
        try:
            self._files.make_directory(self._directory)
            self._segments = find_segments(
                self._files, self._directory, self._name, self._bad_blocks
            )
        except OSError as error:
            raise StorageError.of(self._directory, error) from error
        self._next_number = next_number(self._segments)
        self._first_numbers = [segment.first_number for segment in self._segments]
        self.depth = self.unread = sum(segment.outstanding for segment in self._segments)
        if self._segments:
            self._reader.enter(self._segments[0])
        self._delete_finished()

    def settle(self) -> None:
        """Sync what ``open`` found, for whoever is about to do something for good because of it:
        the process that wrote it may have been killed before it could.

        Raises:
            StorageError: some of it may not be on the device.
        """
        try:
            for segment in self._segments:
                segment.opened().sync()
                if segment is not self._segments[-1]:
                    self._open_files.let_go(segment)
        except OSError as error:
            raise StorageError.of(self._directory, error) from error

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
            offset = segment.size or SEGMENT_HEADER_BYTES
            file = segment.append(buffers, size, records)
        except OSError as error:
            raise StorageError.of(self._directory, error) from error
        self._open_files.note_write(file)
        self._next_number = number + records
        self.depth += records
        if not held:
            if not self.unread:
                self._reader.start(segment, offset, number)
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
        if self._segments and (not self.unread or self._reader.is_through(last)):
            self._open_files.let_go(last)  # the reader opens it again if it gets there
        self._segments.append(segment)
        self._first_numbers.append(segment.first_number)
        self._delete_finished()
        return segment

    # -- read back --------------------------------------------------------------------------

    def read(self, max_bytes: int = READ_BYTES) -> list[StoredRun]:
        """The next messages in order, about ``max_bytes`` of them; empty only at the end.

        A block that is damaged is set aside and passed over.

        Raises:
            StorageError: nothing can be read; the next call tries again.
        """
        runs: list[StoredRun] = []
        reader = self._reader
        try:
            while self.unread and not runs:
                segment = reader.segment
                assert segment is not None
                if reader.is_through(segment):
                    self._next_segment(segment)
                else:
                    reader.read(max_bytes, runs)
        except OSError as error:
            if not runs:  # what was read before counts; the next call meets the error again
                raise StorageError.of(self._directory, error) from error
        self.unread -= sum(run.stop - run.start for run in runs)
        return runs

    def _next_segment(self, done: Segment) -> None:
        self._reader.end_segment()
        index = bisect_right(self._first_numbers, done.first_number)
        if index == len(self._segments):
            assert not self.unread, "unread records behind the end of the log"
            return
        self._reader.enter(self._segments[index])
        self._open_files.let_go(done)
        self._delete_finished()

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
        if not self.unread:
            return 0
        first = max(first, self._reader.number)
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
                raise StorageError.of(self._directory, error) from error
            if file is not None:
                self._open_files.note_write(file)
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
        for segment in finished:
            if segment.size >= UNLINK_MIN_BYTES:
                with suppress(OSError):  # while it is open, only its name goes
                    segment.opened()
            self._drop(segment)
        self._segments = keep
        self._first_numbers = [segment.first_number for segment in keep]
        current = self._reader.segment
        if current is not None and current in finished:
            self._reader.enter(keep[bisect_right(self._first_numbers, current.first_number)])

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
            self._open_files.note_write(file)
        return True

    def _drop(self, segment: Segment) -> None:
        self._acked.pop(segment, None)
        # The segment goes first: a journal without a segment is harmless, the reverse redelivers.
        paths = [segment.path]
        if segment.journal.file is not None or segment.acked is not None:
            paths.append(segment.journal.path)
        self._open_files.give_up(segment)
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
        return self._open_files.take()

    def end_sync(self, files: Sequence[File], *, safe: bool) -> None:
        """``files`` are on the device, or have to be synced again."""
        self._open_files.end_sync(files, safe=safe)

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
            raise StorageError.of(self._directory, error) from error
        if file is not None:
            self._open_files.note_write(file)

    def regions(self) -> list[Region]:
        """Where its blocks stand, in order."""
        head = SEGMENT_HEADER_BYTES
        return [Region(entry.path, head, entry.size - head) for entry in self._segments]

    def abandon(self) -> None:
        """Forget every record and let go of the files, which are for somebody else to remove."""
        for segment in self._segments:
            self._open_files.give_up(segment)
        self._segments = []
        self.on_drained = None
        self.empty()

    def rest(self) -> None:
        """Close every file; it is opened again when it is needed."""
        for segment in self._segments:
            self._open_files.let_go(segment)

    def empty(self) -> None:
        """Forget every record, delivered or not. Numbers go on."""
        for segment in self._segments:
            self._drop(segment)
        self._segments, self._first_numbers, self._acked = [], [], {}
        self.depth = self.unread = 0
        self._generation += 1
        self._moves, self.moved_count = [], 0

    def sync(self) -> None:
        """Return when everything written so far is on the device.

        Raises:
            StorageError: some of it may not be.
        """
        try:
            self._open_files.sync()
        except OSError as error:
            raise StorageError.of(self._directory, error) from error

    def close(self) -> None:
        """Flush, sync and let go of the files.

        Raises:
            StorageError: what is not on the device may come again after a crash.
        """
        try:
            self.flush()
            self.sync()
        finally:
            self._open_files.close(self._segments)
