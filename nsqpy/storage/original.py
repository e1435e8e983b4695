"""The original's files: how its disk queues stand in a data directory, to read and to write.

::

    <name>.diskqueue.000000.dat     records back to back, numbered from 0
    <name>.diskqueue.meta.dat       depth \\n read file,position \\n write file,position \\n

    0        4             12         14    30
    | length | timestamp   | attempts | id  | body ...      ``length`` counts from the timestamp on

``<name>`` is ``topic``, or ``topic:channel`` (``topic;channel`` from Windows). There is no
checksum: a length is believed if it is within bounds. ``attempts`` is how often the message has
been delivered, ours is what the next delivery will show: one more. Integers are big-endian.
Source: nsqio/go-diskqueue.
"""

import re
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from nsqpy.clock import SECOND
from nsqpy.message import BATCH_MAX_BYTES, BATCH_MAX_MESSAGES, FRAME_HEADER_BYTES, Batch
from nsqpy.storage.files import File, Files
from nsqpy.storage.segment import BadStretch

__all__ = [
    "OriginalQueue",
    "OriginalWriter",
    "Positions",
    "StoredBatch",
    "encode_meta",
    "find_queues",
    "parse_meta",
    "plausible_timestamp",
    "read_records",
    "remaining_files",
]

_NAME = re.compile(r"(.+)\.diskqueue\.(?:([0-9]{6,})|meta)\.dat")
_META = re.compile(rb"(-?[0-9]+)\n([0-9]+),([0-9]+)\n([0-9]+),([0-9]+)\n?")
_ID = re.compile(rb"(?=[0-9a-f]{16})")  # every position, also within a longer run of digits

_LENGTH = struct.Struct(">i")
_RECORD = struct.Struct(">iqH")  # length, timestamp, attempts
_FRAME = struct.Struct(">iiqH")  # size, type, timestamp, attempts
_MESSAGE_TYPE = 2
_HEADER_BYTES = 26  # of what the length counts: timestamp, attempts, id
_RECORD_ID_AT = 14
_FRAME_EXTRA_BYTES = 4  # a frame is a record and its type
_ATTEMPTS_WRAP = 1 << 16
_READ_BYTES = 512 * 1024
# Older or later than any message there can be: the first release, and the year 2100.
_EARLIEST_NS = 1_293_840_000 * SECOND
_LATEST_NS = 4_102_444_800 * SECOND


class Positions(NamedTuple):
    """What the meta file says: file numbers, and bytes into these files."""

    depth: int
    read_file: int
    read_position: int
    write_file: int
    write_position: int


class OriginalQueue(NamedTuple):
    """The files of one queue; ``channel`` is None for a topic's own. ``numbers`` are sorted."""

    prefix: str
    topic: str
    channel: str | None
    numbers: list[int]
    has_meta: bool

    @property
    def meta_name(self) -> str:
        return f"{self.prefix}.diskqueue.meta.dat"

    def data_name(self, number: int) -> str:
        return f"{self.prefix}.diskqueue.{number:06d}.dat"

    @property
    def file_names(self) -> list[str]:
        names = [self.data_name(number) for number in self.numbers]
        return [*names, self.meta_name] if self.has_meta else names


class StoredBatch(NamedTuple):
    """Records read from a file, as frames; ``offset`` is where the first of them stands."""

    batch: Batch
    offset: int

    def record_offsets(self) -> list[int]:
        """Where each record stands in the file."""
        starts = list(self.batch.offsets)[:-1]
        return [
            self.offset + start - _FRAME_EXTRA_BYTES * index for index, start in enumerate(starts)
        ]


def find_queues(names: Iterable[str]) -> list[OriginalQueue]:
    """The queues that files in a directory belong to; ``.bad`` and ``.tmp`` files to none."""
    found: dict[str, tuple[list[int], list[str]]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None:
            numbers, metas = found.setdefault(match[1], ([], []))
            if match[2] is None:
                metas.append(name)
            else:
                numbers.append(int(match[2]))
    queues = []
    for prefix, (numbers, metas) in sorted(found.items()):
        topic, *channel = re.split("[:;]", prefix, maxsplit=1)
        queue = OriginalQueue(
            prefix, topic, channel[0] if channel else None, sorted(numbers), bool(metas)
        )
        queues.append(queue)
    return queues


def parse_meta(content: bytes) -> Positions:
    """Raises ValueError: not what the original writes, or its positions make no sense."""
    match = _META.fullmatch(content)
    if match is None:
        raise ValueError("positions cannot be read")
    positions = Positions(*map(int, match.groups()))
    read = (positions.read_file, positions.read_position)
    if read > (positions.write_file, positions.write_position):
        raise ValueError("read position is behind the write position")
    return positions


def encode_meta(positions: Positions) -> bytes:
    depth, read_file, read_position, write_file, write_position = positions
    return f"{depth}\n{read_file},{read_position}\n{write_file},{write_position}\n".encode()


def remaining_files(queue: OriginalQueue, positions: Positions | None) -> list[tuple[int, int]]:
    """The numbers of the files to read, each with the offset to begin at.

    What stands behind the write position was written after the last save of the positions and
    counts too. Without positions everything does: rather twice than never.
    """
    if positions is None:
        return [(number, 0) for number in queue.numbers]
    return [
        (number, positions.read_position if number == positions.read_file else 0)
        for number in queue.numbers
        if number >= positions.read_file
    ]


def plausible_timestamp(timestamp_ns: int) -> bool:
    """Whether a message can have been published then."""
    return _EARLIEST_NS <= timestamp_ns < _LATEST_NS


# --- reading ---


def read_records(
    file: File, offset: int, body_max_bytes: int, *, resume: bool = False
) -> Iterator[StoredBatch | BadStretch]:
    """The records from ``offset`` on, as batches of bounded size.

    A length that is out of bounds, or a record that is cut off, ends the file; with ``resume``
    it goes on where the next record seems to begin, by its timestamp and id. Raises OSError.
    """
    size = file.size()
    if offset > size:
        yield BadStretch(size, offset, "file is cut off")
    want = _READ_BYTES
    while offset < size:
        data = file.read_at(want, offset)
        want = _READ_BYTES
        at = 0
        while (taken := _take(data, at, body_max_bytes)) is not None:
            batch, stop = taken
            yield StoredBatch(batch, offset + at)
            at = stop
        offset += at
        reason = _why_not(data, at, size - offset, body_max_bytes)
        if reason:
            following = _next_record(file, offset + 1, size, body_max_bytes) if resume else size
            yield BadStretch(offset, following, reason)
            offset = following
        elif at == 0:
            want = _LENGTH.size + _LENGTH.unpack_from(data)[0]


def _take(data: bytes, at: int, body_max_bytes: int) -> tuple[Batch, int] | None:
    """The whole records at ``data[at:]`` as a batch, and where they end; None if there are none."""
    parts: list[bytes] = []
    offsets = [0]
    end = len(data)
    while at + _HEADER_BYTES + _LENGTH.size <= end:
        length, timestamp_ns, attempts = _RECORD.unpack_from(data, at)
        stop = at + _LENGTH.size + length
        in_bounds = _HEADER_BYTES <= length <= _HEADER_BYTES + body_max_bytes
        full = len(parts) == 2 * BATCH_MAX_MESSAGES or offsets[-1] >= BATCH_MAX_BYTES
        if not in_bounds or stop > end or full:
            break
        attempts = (attempts + 1) % _ATTEMPTS_WRAP
        parts.append(
            _FRAME.pack(length + _FRAME_EXTRA_BYTES, _MESSAGE_TYPE, timestamp_ns, attempts)
        )
        parts.append(data[at + _RECORD_ID_AT : stop])
        offsets.append(offsets[-1] + length + _LENGTH.size + _FRAME_EXTRA_BYTES)
        at = stop
    return (Batch(b"".join(parts), offsets), at) if parts else None


def _why_not(data: bytes, at: int, left: int, body_max_bytes: int) -> str:
    """Why no record stands at ``data[at:]``, with ``left`` bytes of the file from there on.

    Empty if there may be one, and only the buffer ends, or if it is the end of the file.
    """
    if not left or (data and at == len(data)):
        return ""
    if at + _LENGTH.size > len(data):
        # The next read begins here: then it is the file that ends.
        return "" if at else "record is cut off"
    (length,) = _LENGTH.unpack_from(data, at)
    if not _HEADER_BYTES <= length <= _HEADER_BYTES + body_max_bytes:
        return f"invalid message size ({length})"
    return "record is cut off" if _LENGTH.size + length > left else ""


def _next_record(file: File, offset: int, size: int, body_max_bytes: int) -> int:
    """Where the next record seems to begin, at or behind ``offset``; or the end of the file."""
    overlap = _LENGTH.size + _HEADER_BYTES
    while offset < size:
        data = file.read_at(_READ_BYTES, offset)
        for match in _ID.finditer(data, _RECORD_ID_AT):
            at = match.start() - _RECORD_ID_AT
            length, timestamp_ns, _ = _RECORD.unpack_from(data, at)
            fits = length <= min(_HEADER_BYTES + body_max_bytes, size - offset - at - _LENGTH.size)
            if fits and length >= _HEADER_BYTES and plausible_timestamp(timestamp_ns):
                return offset + at
        if len(data) <= overlap:
            break
        offset += len(data) - overlap + 1  # one may lie across the edge of two reads
    return size


# --- writing ---


class OriginalWriter:
    """Writes one queue into a directory that has nothing of it yet."""

    def __init__(self, files: Files, directory: str, prefix: str, max_bytes_per_file: int) -> None:
        self._files = files
        self._directory = directory
        self._queue = OriginalQueue(prefix, "", None, [], True)
        self._max_bytes = max_bytes_per_file
        self._file: File | None = None
        self._number = 0
        self._position = 0
        self._buffers: list[bytes] = []
        self._buffered = 0
        self.depth = 0

    def write(self, batch: Batch) -> None:
        """Append every message of ``batch``; raises OSError."""
        data = batch.data
        for start, stop in pairwise(batch.offsets):
            size, _, timestamp_ns, attempts = _FRAME.unpack_from(data, start)
            length = size - _FRAME_EXTRA_BYTES
            end = self._position + self._buffered
            if end and end + _LENGTH.size + length > self._max_bytes:
                self._roll()
            attempts = (attempts - 1) % _ATTEMPTS_WRAP
            self._buffers.append(_RECORD.pack(length, timestamp_ns, attempts))
            self._buffers.append(data[start + _FRAME.size : stop])
            self._buffered += stop - start - _FRAME_EXTRA_BYTES
            self.depth += 1
        self._flush()

    def close(self) -> None:
        """Sync, and write the positions that make it a queue. Raises OSError."""
        if self._file is None:
            return
        self._end_file()
        positions = Positions(self.depth, 0, 0, self._number, self._position)
        path = f"{self._directory}/{self._queue.meta_name}"
        self._files.replace_whole(path, encode_meta(positions))

    def _roll(self) -> None:
        self._flush()
        self._end_file()
        self._number += 1
        self._position = 0

    def _flush(self) -> None:
        if not self._buffers:
            return
        if self._file is None:
            path = f"{self._directory}/{self._queue.data_name(self._number)}"
            self._file = self._files.open(path, create=True)
        self._file.write_at([b"".join(self._buffers)], self._position)
        self._position += self._buffered
        self._buffers, self._buffered = [], 0

    def _end_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.sync()
            finally:
                file.close()


assert _LENGTH.size + _FRAME_EXTRA_BYTES + _HEADER_BYTES == FRAME_HEADER_BYTES
