"""Deflate and snappy as stages of a stream: bytes in, bytes out, both directions at once.

A stage has one peer. ``encode`` makes wire bytes that the peer can read to the last byte at once;
``feed`` takes wire bytes however they are cut, and ``read`` hands out what they say, a bounded
piece at a time, so that a small read from a socket never becomes a large one in memory.

Source: IDENTIFY in docs/protocol.md; RFC 1951; google/snappy, framing_format.txt.
"""

import zlib

import cramjam
import google_crc32c

from nsqpy.errors import TransformError

__all__ = ["DeflateStage", "SnappyStage"]

_RAW = -zlib.MAX_WBITS  # no zlib header, no checksum


class DeflateStage:
    """Raw deflate, one continuous stream a direction, flushed after every ``encode``.

    It holds some 300 kB, most of it the compressor's.
    """

    def __init__(self, level: int = 6) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, _RAW)
        self._decompressor = zlib.decompressobj(_RAW)
        self._held = b""
        self.ended = False  # the peer has closed its stream; what follows is ignored

    def encode(self, data: bytes) -> bytes:
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def feed(self, data: bytes) -> None:
        self._held = self._held + data if self._held else data

    def read(self, max_bytes: int) -> bytes:
        """What has arrived, no more than ``max_bytes``; empty when there is nothing more.

        Raises:
            TransformError: this is no deflate stream.
        """
        if self.ended:
            return b""
        try:
            data = self._decompressor.decompress(self._held, max_bytes)
        except zlib.error as error:
            raise TransformError("deflate", str(error)) from error
        self._held = self._decompressor.unconsumed_tail
        self.ended = self._decompressor.eof
        return data

    def end(self) -> bytes:
        """Nothing: as the original's, our stream ends with the connection."""
        return b""


# --- snappy ---
#
#   chunk = type (1 byte) . size of the rest (3 bytes, little endian) . rest
#
#   0xff        stream identifier "sNaPpY": first of all, and again as often as the peer likes
#   0x00, 0x01  masked CRC-32C of the plain text (4 bytes, little endian) . compressed, or plain
#   0xfe        padding; 0x80 to 0xfd: to be skipped; 0x02 to 0x7f: cannot be skipped

_STREAM_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _PLAIN, _FIRST_SKIPPABLE, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF
_PLAIN_MAX_BYTES = 65536
_HEADER_BYTES, _CRC_BYTES = 4, 4
# The format's own bound on what so much plain text can become.
_DATA_MAX_BYTES = _CRC_BYTES + 32 + _PLAIN_MAX_BYTES + _PLAIN_MAX_BYTES // 6


class SnappyStage:
    """The framing format; every ``encode`` makes whole chunks."""

    def __init__(self) -> None:
        self._identified = False  # by us
        self._peer_identified = False
        self._held = bytearray()
        self._wanted = _HEADER_BYTES  # so much has to be held before there is anything to do
        self._to_skip = 0
        self.ended = False  # never: such a stream ends with the connection

    def encode(self, data: bytes) -> bytes:
        parts = [] if self._identified else [_STREAM_IDENTIFIER]
        self._identified = True
        steps = range(0, len(data), _PLAIN_MAX_BYTES)
        parts += [_chunk(data[at : at + _PLAIN_MAX_BYTES]) for at in steps]
        return b"".join(parts)

    def feed(self, data: bytes) -> None:
        self._held += data

    def read(self, max_bytes: int) -> bytes:
        """What has arrived in whole chunks; empty when there is none.

        Stops once there is ``max_bytes``, of which the last chunk may make 64 KiB more.

        Raises:
            TransformError: this is no snappy stream, or a chunk was damaged.
        """
        parts: list[bytes] = []
        size = at = 0
        held = self._held
        while size < max_bytes:
            if self._to_skip:
                skipped = min(self._to_skip, len(held) - at)
                self._to_skip -= skipped
                at += skipped
            if len(held) - at < self._wanted:
                break
            kind = held[at]
            length = int.from_bytes(held[at + 1 : at + _HEADER_BYTES], "little")
            self._check_chunk(kind, length)
            if _FIRST_SKIPPABLE <= kind < _IDENTIFIER:
                self._to_skip = length
                at += _HEADER_BYTES
                continue
            end = at + _HEADER_BYTES + length
            if end > len(held):
                self._wanted = end - at
                break
            self._wanted = _HEADER_BYTES
            plain = self._take(kind, bytes(held[at + _HEADER_BYTES : end]))
            parts.append(plain)
            size += len(plain)
            at = end
        del held[:at]
        return b"".join(parts)

    def end(self) -> bytes:
        """Nothing: such a stream ends with the connection."""
        return b""

    def _check_chunk(self, kind: int, length: int) -> None:
        """Refuse a chunk by its header, before any of it is waited for."""
        if kind == _IDENTIFIER:
            self._peer_identified = True
            if length == len(_STREAM_IDENTIFIER) - _HEADER_BYTES:
                return
            raise TransformError("snappy", "bad stream identifier")
        if not self._peer_identified:
            raise TransformError("snappy", "no stream identifier")
        if kind in (_COMPRESSED, _PLAIN):
            maximum = _DATA_MAX_BYTES if kind == _COMPRESSED else _CRC_BYTES + _PLAIN_MAX_BYTES
            if not _CRC_BYTES <= length <= maximum:
                raise TransformError("snappy", f"chunk of {length} bytes")
        elif kind < _FIRST_SKIPPABLE:
            raise TransformError("snappy", f"chunk of unknown type {kind}")

    def _take(self, kind: int, content: bytes) -> bytes:
        if kind == _IDENTIFIER:
            if content != _STREAM_IDENTIFIER[_HEADER_BYTES:]:
                raise TransformError("snappy", "bad stream identifier")
            return b""
        plain = content[_CRC_BYTES:]
        if kind == _COMPRESSED:
            plain = _decompress(plain)
        if _masked_crc(plain) != content[:_CRC_BYTES]:
            raise TransformError("snappy", "checksum does not match")
        return plain


def _chunk(plain: bytes) -> bytes:
    """One data chunk; what does not shrink by an eighth stays plain, as in the original."""
    compressed = bytes(cramjam.snappy.compress_raw(plain))
    kind, rest = _COMPRESSED, compressed
    if len(compressed) >= len(plain) - len(plain) // 8:
        kind, rest = _PLAIN, plain
    header = bytes([kind]) + (_CRC_BYTES + len(rest)).to_bytes(3, "little")
    return header + _masked_crc(plain) + rest


def _decompress(compressed: bytes) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(compressed) > _PLAIN_MAX_BYTES:
            raise TransformError("snappy", f"chunk of more than {_PLAIN_MAX_BYTES} plain bytes")
        return bytes(cramjam.snappy.decompress_raw(compressed))
    except cramjam.DecompressionError as error:
        raise TransformError("snappy", str(error)) from error


def _masked_crc(plain: bytes) -> bytes:
    crc: int = google_crc32c.value(plain)
    rotated = (crc >> 15) | (crc << 17)
    return ((rotated + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")
