"""The acknowledgements of one segment: an append-only file of number ranges beside it.

One group is written for each flush, whatever it holds::

    0       4       8
    | count | crc   | count x (offset u32, length u32)

``offset`` counts records from the segment's first. ``crc`` is CRC-32C of the ranges. A group that
is cut off or damaged ends the journal: what came after it is delivered once more, never lost.
A range of length 0 is the seal of a segment: that many records it has, and no more.
"""

import struct
from collections.abc import Sequence

import google_crc32c

from nsqpy.storage.files import File, Files

__all__ = ["JOURNAL_SUFFIX", "Journal"]

JOURNAL_SUFFIX = ".journal"
_GROUP = struct.Struct(">II")
_RANGE_BYTES = 8


class Journal:
    """Opened with the first acknowledgement; ``file`` is None until then."""

    __slots__ = ("_files", "_size", "file", "path")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._size = 0
        self.path = path
        self.file: File | None = None

    def append(self, ranges: Sequence[int]) -> File:
        """Write one group; ``ranges`` is offset, length, offset, length and so on.

        Raises:
            OSError: nothing of the group counts.
        """
        if self.file is None:
            self.file = self._open()
        group = _encode_group(ranges)
        self.file.write_at([group], self._size)
        self._size += len(group)
        return self.file

    def _open(self) -> File:
        file = self._files.open(self.path, create=True)
        try:
            if file.size() > self._size:
                # Groups behind a damaged one would count again as soon as what is written over
                # it ends where they begin; their numbers may be those of other records by then.
                file.truncate(self._size)
        except OSError:
            file.close()
            raise
        return file

    def replay(self) -> list[tuple[int, int]]:
        """All ranges ever acknowledged, from the file; what follows is appended after them."""
        content = self._files.read_whole(self.path)
        ranges: list[tuple[int, int]] = []
        at = 0
        while at + _GROUP.size <= len(content):
            count, crc = _GROUP.unpack_from(content, at)
            stop = at + _GROUP.size + count * _RANGE_BYTES
            packed = content[at + _GROUP.size : stop]
            if stop > len(content) or google_crc32c.value(packed) != crc:
                break
            flat = struct.unpack(f">{2 * count}I", packed)
            ranges.extend(zip(flat[0::2], flat[1::2], strict=True))
            at = stop
        self._size = at
        return ranges

    def rewrite(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Replace the whole file by one group; before anything is appended.

        Raises:
            OSError: the old file stands.
        """
        assert self.file is None
        group = _encode_group([number for one in ranges for number in one])
        self._files.replace_whole(self.path, group)
        self._size = len(group)


def _encode_group(ranges: Sequence[int]) -> bytes:
    packed = struct.pack(f">{len(ranges)}I", *ranges)
    return _GROUP.pack(len(ranges) // 2, google_crc32c.value(packed)) + packed
