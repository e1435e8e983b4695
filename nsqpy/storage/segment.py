"""One append-only file of blocks, and which of its records are acknowledged.

The file starts with 16 bytes, ``NQSEG001`` and the number of its first record (big-endian), which
its name repeats; blocks follow back to back.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from nsqpy.errors import CorruptionError
from nsqpy.storage.block import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    BlockHeader,
    decode_block,
    parse_block_header,
)
from nsqpy.storage.files import File, Files
from nsqpy.storage.journal import JOURNAL_SUFFIX, Journal

__all__ = ["SEGMENT_HEADER_BYTES", "SEGMENT_SUFFIX", "BadStretch", "Segment", "StoredBlock"]

SEGMENT_HEADER_BYTES = 16
SEGMENT_SUFFIX = ".segment"
_HEADER = struct.Struct(">8sQ")
_MAGIC = b"NQSEG001"
_SCAN_BYTES = 1024 * 1024


class StoredBlock(NamedTuple):
    """A block that passed its checksums; ``stop`` is the offset behind it."""

    header: BlockHeader
    frames: bytes
    offset: int
    stop: int


class BadStretch(NamedTuple):
    """Bytes that are no block; the next header that can be trusted is at ``stop``."""

    offset: int
    stop: int
    reason: str


class Segment:
    """Records ``first_number`` to ``first_number + records``; ``outstanding`` are not yet acked.

    ``pending`` holds the acknowledgements that are not in the journal yet.
    """

    __slots__ = (
        "_files",
        "acked",
        "file",
        "first_number",
        "journal",
        "outstanding",
        "path",
        "pending",
        "records",
        "sealed",
        "size",
    )

    def __init__(self, files: Files, directory: str, first_number: int) -> None:
        self._files = files
        base = f"{directory}/{first_number:020d}"
        self.path = base + SEGMENT_SUFFIX
        self.journal = Journal(files, base + JOURNAL_SUFFIX)
        self.first_number = first_number
        self.file: File | None = None
        self.size = 0
        self.records = 0
        self.outstanding = 0
        self.sealed = False
        self.acked: bytearray | None = None
        self.pending: list[int] = []

    @property
    def stop_number(self) -> int:
        return self.first_number + self.records

    def opened(self) -> File:
        if self.file is None:
            self.file = self._files.open(self.path, create=True)
        return self.file

    def append(self, buffers: Sequence[bytes], size: int, records: int) -> File:
        """Write blocks of ``size`` bytes at the end.

        Raises:
            OSError: the segment is as it was.
        """
        file = self.opened()
        head = b""
        if self.size == 0:
            head = _HEADER.pack(_MAGIC, self.first_number)
            buffers = [head, *buffers]
        try:
            file.write_at(buffers, self.size)
        except OSError:
            # Whole blocks may have been written, which must not be found after a crash. Where
            # cutting them off fails too, their numbers tell that they are not the log's.
            with suppress(OSError):
                file.truncate(self.size)
            raise
        self.size += len(head) + size
        self.records += records
        self.outstanding += records
        return file

    def acknowledge(self, offset: int, count: int) -> None:
        """Mark ``count`` records from ``offset`` on (counted from the first) as done."""
        stop = offset + count
        if self.acked is None:
            self.acked = bytearray(self.records)
        elif len(self.acked) < stop:
            self.acked.extend(bytes(self.records - len(self.acked)))
        assert stop <= len(self.acked), "acknowledged what was never written"
        assert not self.acked.count(1, offset, stop), "acknowledged twice"
        self.acked[offset:stop] = b"\x01" * count
        self.outstanding -= count
        pending = self.pending
        if pending and pending[-2] + pending[-1] == offset:
            pending[-1] += count
        else:
            pending += (offset, count)

    def acknowledge_rest(self, offset: int, stop: int) -> int:
        """Mark the records ``offset`` to ``stop`` as done, whichever are not; returns how many
        those were."""
        count = stop - offset - self.acked_count(offset, stop)
        if count:
            acked = self.acked if self.acked is not None else bytearray(self.records)
            acked.extend(bytes(self.records - len(acked)))
            acked[offset:stop] = b"\x01" * (stop - offset)
            self.acked = acked
            self.outstanding -= count
            self.pending += (offset, stop - offset)
        return count

    def is_acked(self, offset: int) -> bool:
        return self.acked is not None and offset < len(self.acked) and self.acked[offset] == 1

    def acked_count(self, offset: int, stop: int) -> int:
        """How many of the records ``offset`` to ``stop`` are acknowledged."""
        return self.acked.count(1, offset, stop) if self.acked else 0

    def flush(self) -> File | None:
        """Write pending acknowledgements to the journal; they stay pending if that fails."""
        if not self.pending:
            return None
        file = self.journal.append(self.pending)
        self.pending = []
        return file

    def seal(self) -> File | None:
        """Write down how many records there are, before the segment behind this one is deleted:
        from then on the next one's number does not tell any more.

        Raises:
            OSError: it is not written down.
        """
        if self.sealed:
            return None
        file = self.journal.append([self.records, 0])
        self.sealed = True
        return file

    def replay_journal(self) -> None:
        """Read which records are acknowledged.

        The device may have kept an acknowledgement and lost the record. It is struck out, or it
        would be taken for one of the record that gets the number next.

        Raises:
            OSError: the journal cannot be read, or not be corrected.
        """
        ranges = self.journal.replay()
        for offset, count in ranges:
            if not count:
                self.sealed = True
                self.records = min(self.records, offset)
        records = self.records
        valid = [
            (offset, min(count, records - offset) if count else 0)
            for offset, count in ranges
            if offset < records or not count
        ]
        if valid != ranges:
            self.journal.rewrite(valid)
        done = bytearray(records)
        for offset, count in valid:
            done[offset : offset + count] = b"\x01" * count
        self.acked = done
        self.outstanding = records - done.count(1)

    def blocks(self, offset: int, max_bytes: int) -> Iterator[StoredBlock | BadStretch]:
        """What stands from ``offset`` on, about ``max_bytes`` of it but at least one item."""
        file = self.opened()
        want = min(max_bytes, self.size - offset)
        buffer = file.read_at(want, offset)
        if not buffer:
            yield BadStretch(offset, self.size, "file is cut off")
        at = 0
        while at < len(buffer):
            try:
                header = parse_block_header(buffer, at, self.path, offset + at)
                stop = at + BLOCK_HEADER_BYTES + header.length
                if stop > len(buffer) and offset + stop <= self.size:
                    if at:
                        return
                    buffer = file.read_at(stop, offset)
                frames = buffer[at + BLOCK_HEADER_BYTES : stop]
                if len(frames) < header.length:
                    raise CorruptionError(self.path, offset + at, "block is cut off")
            except CorruptionError as error:
                if at and len(buffer) - at < BLOCK_HEADER_BYTES and offset + want < self.size:
                    return  # only the buffer ends here
                bad_stop = self._next_header(offset + at + 1)
                yield BadStretch(offset + at, bad_stop, error.reason)
                return
            yield StoredBlock(header, frames, offset + at, offset + stop)
            at = stop

    def _next_header(self, offset: int) -> int:
        """The offset of the next trustworthy header at or behind ``offset``, or the end."""
        file = self.opened()
        while offset < self.size:
            buffer = file.read_at(min(_SCAN_BYTES, self.size - offset), offset)
            if not buffer:
                break
            at = buffer.find(BLOCK_MAGIC)
            while at >= 0:
                head = file.read_at(BLOCK_HEADER_BYTES, offset + at)
                try:
                    parse_block_header(head, 0, self.path, offset + at)
                except CorruptionError:
                    at = buffer.find(BLOCK_MAGIC, at + 1)
                else:
                    return offset + at
            # A header may lie across the edge of two reads.
            offset += max(len(buffer) - BLOCK_HEADER_BYTES, 1)
        return self.size

    def recover(self) -> list[BadStretch]:
        """Find the valid end after a crash, take it as ``size``, and count the records.

        Returns the damage behind the end; ``trim`` must follow. The end of a write that was torn
        is none, nor are zeros, which is what a power cut may leave of one.
        """
        whole = self.opened().size()
        self.size = whole
        self.records = 0
        bad: list[BadStretch] = []
        end = offset = min(SEGMENT_HEADER_BYTES, whole)
        while offset < whole:
            for item in self.blocks(offset, _SCAN_BYTES):
                offset = item.stop
                if isinstance(item, BadStretch):
                    bad.append(item)
                    break
                try:
                    decode_block(item.header, item.frames, self.path, item.offset)
                except CorruptionError as error:
                    bad.append(BadStretch(item.offset, item.stop, error.reason))
                    continue
                first_number = item.header.first_number
                if first_number < self.stop_number:
                    continue  # left over from a write that failed
                end = item.stop
                bad = []
                self.records = first_number + item.header.records - self.first_number
        self.size = end if end > SEGMENT_HEADER_BYTES else 0
        self.outstanding = self.records
        return [stretch for stretch in bad if not self._is_torn(stretch)]

    def _is_torn(self, stretch: BadStretch) -> bool:
        data = self.opened().read_at(stretch.stop - stretch.offset, stretch.offset)
        if len(data) < BLOCK_HEADER_BYTES or not data.strip(b"\0"):
            return True
        try:
            header = parse_block_header(data, 0, self.path, stretch.offset)
        except CorruptionError:
            return False
        return BLOCK_HEADER_BYTES + header.length > len(data)

    def trim(self) -> int:
        """Cut off what is behind the end that ``recover`` found; returns how many bytes."""
        file = self.opened()
        whole = file.size()
        end = max(self.size, min(SEGMENT_HEADER_BYTES, whole))
        if end < whole:
            file.truncate(end)
        return whole - end
