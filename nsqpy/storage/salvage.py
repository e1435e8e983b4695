"""Read one file of messages without changing anything: ours or the original's, sound or damaged.

A queue's log is opened by ``DiskQueue``, which mends as it goes. This is for everything else: a
``.bad`` file, a segment on its own, a data directory that must stay as it is.
"""

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from nsqpy.errors import CorruptionError
from nsqpy.message import FRAME_HEADER_BYTES, Batch
from nsqpy.storage.block import BLOCK_HEADER_BYTES, BLOCK_MAGIC, decode_block
from nsqpy.storage.files import File, Files
from nsqpy.storage.journal import JOURNAL_SUFFIX, Journal
from nsqpy.storage.original import StoredBatch, plausible_timestamp, read_records
from nsqpy.storage.segment import SEGMENT_HEADER_BYTES, SEGMENT_SUFFIX, BadStretch, Segment

__all__ = ["Found", "holds_messages", "salvage"]

_READ_BYTES = 1024 * 1024
_MAGIC = b"NQSEG001"
_OURS = re.compile(r"([0-9]+)\.segment(\.[0-9]+\.bad)?")
_ORIGINALS = re.compile(r".+\.diskqueue\.[0-9]{6,}\.dat(\.bad)?")
_ID = re.compile(rb"(?=[0-9a-f]{16})")
_ID_AT = 18
_FRAME = struct.Struct(">iiqH")  # size, type, timestamp, attempts
_MESSAGE_TYPE = 2
_SIZE_BYTES = 4


class Found(NamedTuple):
    """Messages, and where each stands in the file. Not ``verified``: no checksum vouches for it."""

    batch: Batch
    offsets: list[int]
    verified: bool


def holds_messages(name: str) -> bool:
    """Whether a file of this name, in a data directory, holds messages: not positions, say."""
    return _OURS.fullmatch(name) is not None or _ORIGINALS.fullmatch(name) is not None


def salvage(
    files: Files,
    path: str,
    *,
    body_max_bytes: int,
    unacknowledged: bool = False,
    unverified: bool = False,
) -> Iterator[Found | BadStretch]:
    """Every record of a file, and every stretch that is damaged.

    ``body_max_bytes`` bounds what is believed of the original's records, which have no checksum.
    ``unacknowledged`` leaves out what the journal beside a segment acknowledges. ``unverified``
    also gives records of a damaged block, as far as they look whole. Raises OSError.
    """
    file = files.open(path)
    try:
        name = path.rpartition("/")[2]
        head = file.read_at(SEGMENT_HEADER_BYTES, 0)
        match = _OURS.fullmatch(name)
        if match is None and not head.startswith((_MAGIC, BLOCK_MAGIC)):
            yield from _original(file, body_max_bytes)
            return
        # A .bad file is what stood at an offset, without the segment's header.
        begins = head.startswith(_MAGIC) or (match is not None and match[2] is None)
        if begins and head and not head.startswith(_MAGIC):
            yield BadStretch(0, len(head), "no segment starts here")
        done = _acknowledged(files, path) if unacknowledged and begins else b""
        first_number = int(match[1]) if match is not None else int.from_bytes(head[8:], "big")
        segment = Segment(files, "", first_number)
        segment.path, segment.file, segment.size = path, file, file.size()
        yield from _blocks(segment, SEGMENT_HEADER_BYTES if begins else 0, done, unverified)
    finally:
        file.close()


def _original(file: File, body_max_bytes: int) -> Iterator[Found | BadStretch]:
    for item in read_records(file, 0, body_max_bytes, resume=True):
        if isinstance(item, StoredBatch):
            yield Found(item.batch, item.record_offsets(), False)
        elif item.stop - item.offset == file.size():
            reason = f"holds no message of nsqpy's or the original's ({item.reason})"
            yield item._replace(reason=reason)
        else:
            yield item


def _acknowledged(files: Files, path: str) -> bytearray:
    """A byte for each record of the segment, 1 where its journal acknowledges it."""
    done = bytearray()
    try:
        ranges = Journal(files, path.removesuffix(SEGMENT_SUFFIX) + JOURNAL_SUFFIX).replay()
    except FileNotFoundError:
        return done
    for offset, count in ranges:
        done.extend(bytes(max(0, offset + count - len(done))))
        done[offset : offset + count] = b"\x01" * count
    return done


def _blocks(
    segment: Segment, offset: int, done: bytes | bytearray, unverified: bool
) -> Iterator[Found | BadStretch]:
    expected = 0
    while offset < segment.size:
        for item in segment.blocks(offset, _READ_BYTES):
            offset = item.stop
            bad = item if isinstance(item, BadStretch) else None
            if not isinstance(item, BadStretch):
                number = item.header.first_number
                try:
                    if number < expected:
                        reason = f"record {number} is left over from a write that failed"
                        raise CorruptionError(segment.path, item.offset, reason)
                    batch = decode_block(item.header, item.frames, segment.path, item.offset)
                except CorruptionError as error:
                    bad = BadStretch(item.offset, item.stop, error.reason)
                else:
                    expected = number + len(batch)
                    frames_at = item.offset + BLOCK_HEADER_BYTES
                    first = number - segment.first_number
                    yield from _owed(batch, frames_at, first, done)
            if bad is not None:
                yield bad
                if unverified:
                    yield from _loose_frames(segment.opened(), bad)


def _owed(batch: Batch, frames_at: int, first: int, done: bytes | bytearray) -> Iterator[Found]:
    """The stretches of ``batch`` without an acknowledgement."""
    count = len(batch)
    start = 0
    while start < count:
        if done[first + start : first + start + 1] == b"\x01":
            start += 1
            continue
        stop = start
        while stop < count and done[first + stop : first + stop + 1] != b"\x01":
            stop += 1
        offsets = [frames_at + at for at in batch.offsets[start:stop]]
        yield Found(batch.slice(start, stop), offsets, True)
        start = stop


def _loose_frames(file: File, stretch: BadStretch) -> Iterator[Found]:
    """What looks like message frames in damaged bytes."""
    data = file.read_at(stretch.stop - stretch.offset, stretch.offset)
    at = 0
    while (at := _next_frame(data, at)) >= 0:
        stop = at + _SIZE_BYTES + _FRAME.unpack_from(data, at)[0]
        yield Found(Batch(data[at:stop], [0, stop - at]), [stretch.offset + at], False)
        at = stop


def _next_frame(data: bytes, start: int) -> int:
    for match in _ID.finditer(data, start + _ID_AT):
        at = match.start() - _ID_AT
        size, kind, timestamp_ns, _ = _FRAME.unpack_from(data, at)
        fits = FRAME_HEADER_BYTES - _SIZE_BYTES <= size <= len(data) - at - _SIZE_BYTES
        if fits and kind == _MESSAGE_TYPE and plausible_timestamp(timestamp_ns):
            return at
    return -1
