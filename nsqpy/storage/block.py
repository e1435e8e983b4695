"""A block: one batch of messages as it stands in a segment.

::

    0      4    5    6          8       12       16            24            32      36      40
    | NQB1 | v  |kind| reserved | count | length | deliver_at  | first_number| crc   | hcrc  |
    | frames, back to back: ``length`` bytes, ``count`` of them                              |

``kind`` 1 is messages to deliver at once, 2 is messages due at ``deliver_at`` (Unix ns). Record
``i`` of the block has number ``first_number + i``; numbers are what the journal acknowledges.
``crc`` is CRC-32C of the frames, ``hcrc`` of the header up to it: a length is believed only after
the header's own checksum, and after a damaged block the next header can be found and trusted.
Integers are big-endian.
"""

import struct
from typing import NamedTuple

import google_crc32c

from nsqpy.errors import CorruptionError
from nsqpy.message import FRAME_HEADER_BYTES, Batch, decode_batch

__all__ = [
    "BLOCK_HEADER_BYTES",
    "BLOCK_MAGIC",
    "BlockHeader",
    "decode_block",
    "encode_block_header",
    "parse_block_header",
]

BLOCK_HEADER_BYTES = 40
BLOCK_MAGIC = b"NQB1"
_VERSION = 1
_KIND_MESSAGES = 1
_KIND_DEFERRED = 2
_HEADER = struct.Struct(">4sBBHIIqQI")
_CRC = struct.Struct(">I")
_crc32c = google_crc32c.value


class BlockHeader(NamedTuple):
    """What the header says; sizes in bytes, ``deliver_at_ns`` wall time or 0."""

    records: int
    length: int
    deliver_at_ns: int
    first_number: int
    crc: int


def encode_block_header(batch: Batch, first_number: int) -> bytes:
    """The 40 bytes that go before ``batch.data``."""
    deliver_at_ns = batch.deliver_at_ns
    head = _HEADER.pack(
        BLOCK_MAGIC,
        _VERSION,
        _KIND_DEFERRED if deliver_at_ns else _KIND_MESSAGES,
        0,
        len(batch.offsets) - 1,
        len(batch.data),
        deliver_at_ns,
        first_number,
        _crc32c(batch.data),
    )
    return head + _CRC.pack(_crc32c(head))


def parse_block_header(data: bytes, at: int, path: str, offset: int) -> BlockHeader:
    """Read the header at ``data[at:]``, which stands at ``offset`` in the file ``path``.

    Raises:
        CorruptionError: cut off, or not a header that this version wrote.
    """
    head = data[at : at + BLOCK_HEADER_BYTES]
    if len(head) < BLOCK_HEADER_BYTES:
        raise CorruptionError(path, offset, "block header is cut off")
    (magic, version, kind, _, count, length, deliver_at_ns, first_number, crc) = (
        _HEADER.unpack_from(head)
    )
    if magic != BLOCK_MAGIC:
        raise CorruptionError(path, offset, "no block starts here")
    if _CRC.unpack_from(head, _HEADER.size)[0] != _crc32c(head[: _HEADER.size]):
        raise CorruptionError(path, offset, "checksum of the block header does not match")
    if version != _VERSION or kind not in (_KIND_MESSAGES, _KIND_DEFERRED):
        raise CorruptionError(path, offset, f"block version {version} kind {kind} is unknown")
    if not count or length < count * FRAME_HEADER_BYTES:
        raise CorruptionError(path, offset, f"{count} messages do not fit into {length} bytes")
    return BlockHeader(count, length, deliver_at_ns, first_number, crc)


def decode_block(header: BlockHeader, frames: bytes, path: str, offset: int) -> Batch:
    """The batch whose frames follow ``header``.

    Raises:
        CorruptionError: cut off, checksum wrong, or the frames do not add up.
    """
    if len(frames) < header.length:
        raise CorruptionError(path, offset, "block is cut off")
    if _crc32c(frames) != header.crc:
        raise CorruptionError(path, offset, "checksum of the block does not match")
    try:
        return decode_batch(frames, header.records, header.deliver_at_ns)
    except ValueError as error:
        raise CorruptionError(path, offset, str(error)) from error
