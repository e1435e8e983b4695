"""Message ids: 64 bits of time, node and sequence, as 16 lower-case hex digits.

``(t - 1288834974288) << 22 | node_id << 12 | sequence`` with ``t`` = Unix nanoseconds >> 20 and a
sequence of 12 bits. Ids rise strictly within one factory; there is one for each topic. Where more
are wanted than one ``t`` holds, or the clock went back, the factory runs ahead of the clock
instead of waiting for it. Source: nsqd/guid.go.
"""

import sys
from array import array

__all__ = ["GUIDFactory"]

_EPOCH = 1288834974288
_SEQUENCE_BITS = 12
_SEQUENCE_COUNT = 1 << _SEQUENCE_BITS
_TIME_SHIFT = 22
_TICK_SHIFT = 20
_SWAP = sys.byteorder == "little"


class GUIDFactory:
    """Draws ids in batches. ``node_id`` is 0 to 1023."""

    __slots__ = ("_node_bits", "_sequence", "_tick")

    def __init__(self, node_id: int) -> None:
        assert 0 <= node_id < 1024
        self._node_bits = node_id << _SEQUENCE_BITS
        self._tick = 0
        self._sequence = 0

    def draw(self, count: int, wall_ns: int) -> bytes:
        """The next ``count`` ids, 16 bytes each, back to back."""
        tick = (wall_ns >> _TICK_SHIFT) - _EPOCH
        if tick > self._tick:
            self._tick = tick
            self._sequence = 0
        if count == 1 and self._sequence < _SEQUENCE_COUNT:
            guid = self._tick << _TIME_SHIFT | self._node_bits | self._sequence
            self._sequence += 1
            return b"%016x" % guid
        guids = array("Q")
        while count:
            if self._sequence == _SEQUENCE_COUNT:
                self._tick += 1
                self._sequence = 0
            part = min(count, _SEQUENCE_COUNT - self._sequence)
            first = self._tick << _TIME_SHIFT | self._node_bits | self._sequence
            guids.extend(range(first, first + part))
            self._sequence += part
            count -= part
        if _SWAP:
            guids.byteswap()
        return guids.tobytes().hex().encode()
