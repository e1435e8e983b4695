"""The one encoding of a message, and batches of it.

A message is encoded once, when it arrives, as the bytes of its wire frame; the same bytes are
what the channels of a topic share, what the log stores and what a consumer is sent::

    0        4        8            16         18        34
    | size   | type=2 | timestamp  | attempts | id      | body ...
    | int32  | int32  | int64 ns   | uint16   | 16 hex  |

``size`` counts what follows it. ``attempts`` is what the *next* delivery will show, so a frame is
sent as it stands and encoded again only when that delivery failed. All integers are big-endian.

Source: Framing in docs/protocol.md.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NewType, cast

from nsqpy.columns import column, is_constant

__all__ = [
    "BATCH_MAX_BYTES",
    "BATCH_MAX_MESSAGES",
    "FRAME_HEADER_BYTES",
    "ID_BYTES",
    "Batch",
    "MessageID",
    "decode_batch",
    "encode_batch",
]

MessageID = NewType("MessageID", bytes)

ID_BYTES = 16
FRAME_HEADER_BYTES = 34
_SIZE_BYTES = 4
_TIMESTAMP_AT = 8
_ATTEMPTS_AT = 16
_ID_AT = 18
_MESSAGE_TYPE = 2
_ATTEMPTS_WRAP = 1 << 16

_HEAD = struct.Struct(">iiqH")  # everything before the id
_TIMESTAMP = struct.Struct(">q")
_ATTEMPTS = struct.Struct(">H")
_SIZE = struct.Struct(">i")

# A batch is never cut up in memory, so one message still owed keeps its whole batch alive:
# these bounds are what that costs at most.
BATCH_MAX_MESSAGES = 1024
BATCH_MAX_BYTES = 256 * 1024


class Batch:
    """Message frames back to back; immutable and shared by everyone who owes them.

    ``offsets`` has one entry more than there are messages: message ``i`` is
    ``data[offsets[i]:offsets[i + 1]]``. ``deliver_at_ns`` is wall time, 0 for at once.
    """

    __slots__ = ("data", "deliver_at_ns", "offsets")

    def __init__(self, data: bytes, offsets: Sequence[int], deliver_at_ns: int = 0) -> None:
        self.data = data
        self.offsets = offsets
        self.deliver_at_ns = deliver_at_ns

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def frames(self, start: int, stop: int) -> bytes:
        """The frames of messages ``start`` to ``stop``; no copy when that is all of them."""
        if start == 0 and stop == len(self.offsets) - 1:
            return self.data
        return self.data[self.offsets[start] : self.offsets[stop]]

    def ids(self, start: int, stop: int) -> list[MessageID]:
        offsets, data = self.offsets, self.data
        if isinstance(offsets, range):
            at = offsets[start] + _ID_AT
            ids = column(data, at, stride=offsets.step, width=ID_BYTES, count=stop - start)
        else:
            ids = [data[at + _ID_AT : at + FRAME_HEADER_BYTES] for at in offsets[start:stop]]
        return cast("list[MessageID]", ids)

    def size_bytes(self, start: int, stop: int) -> int:
        return self.offsets[stop] - self.offsets[start]

    def body_bytes(self, start: int, stop: int) -> int:
        return self.size_bytes(start, stop) - (stop - start) * FRAME_HEADER_BYTES

    def slice(self, start: int, stop: int) -> "Batch":
        """Messages ``start`` to ``stop`` as a batch of their own."""
        if start == 0 and stop == len(self):
            return self
        base = self.offsets[start]
        offsets: Sequence[int]
        if isinstance(self.offsets, range):
            offsets = self.offsets[: stop - start + 1]
        else:
            offsets = [at - base for at in self.offsets[start : stop + 1]]
        return Batch(self.data[base : self.offsets[stop]], offsets, self.deliver_at_ns)

    def fit(self, start: int, stop: int, max_bytes: int) -> int:
        """The largest end in ``start + 1`` to ``stop`` that stays within ``max_bytes``.

        At least one message is taken, or one larger than the bound would never move.
        """
        offsets = self.offsets
        limit = offsets[start] + max_bytes
        if offsets[stop] <= limit:
            return stop
        low, high = start + 1, stop
        while low < high:
            middle = (low + high + 1) // 2
            if offsets[middle] <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def published(self, start: int, stop: int) -> list[tuple[int, int]]:
        """When messages ``start`` to ``stop`` were published, in wall nanoseconds, and how many
        each time: one pair, for what was published together has one timestamp."""
        first, last = self._timestamp(start), self._timestamp(stop - 1)
        if first == last:
            return [(first, stop - start)]
        return [(self._timestamp(index), 1) for index in range(start, stop)]

    def _timestamp(self, index: int) -> int:
        timestamp_ns: int = _TIMESTAMP.unpack_from(self.data, self.offsets[index] + _TIMESTAMP_AT)[
            0
        ]
        return timestamp_ns

    def attempts(self, index: int) -> int:
        attempts: int = _ATTEMPTS.unpack_from(self.data, self.offsets[index] + _ATTEMPTS_AT)[0]
        return attempts

    def raised(self, start: int, stop: int, deliver_at_ns: int = 0) -> "Batch":
        """Messages ``start`` to ``stop`` encoded again, each with one attempt more.

        Attempts wrap to 0 after 65535, as they do on the wire.
        """
        base = self.offsets[start]
        data = bytearray(self.data[base : self.offsets[stop]])
        offsets = [at - base for at in self.offsets[start : stop + 1]]
        for at in offsets[:-1]:
            (attempts,) = _ATTEMPTS.unpack_from(data, at + _ATTEMPTS_AT)
            _ATTEMPTS.pack_into(data, at + _ATTEMPTS_AT, (attempts + 1) % _ATTEMPTS_WRAP)
        return Batch(bytes(data), offsets, deliver_at_ns)


@lru_cache(maxsize=1024)
def _even_offsets(stride: int, count: int) -> range:
    # Shared: a million messages of one size need one of these, not a million.
    return range(0, stride * count + 1, stride)


def encode_batch(
    bodies: Sequence[bytes], ids: bytes, timestamp_ns: int, deliver_at_ns: int = 0
) -> Batch:
    """Encode bodies as frames for their first delivery.

    ``ids`` is 16 ASCII bytes a body, back to back; ``timestamp_ns`` is wall time.
    """
    count = len(bodies)
    assert len(ids) == count * ID_BYTES
    if count == 1:
        body = bodies[0]
        stride = FRAME_HEADER_BYTES + len(body)
        data = _HEAD.pack(stride - _SIZE_BYTES, _MESSAGE_TYPE, timestamp_ns, 1) + ids + body
        return Batch(data, _even_offsets(stride, 1), deliver_at_ns)
    sizes = list(map(len, bodies))
    distinct = set(sizes)
    heads = {
        size: _HEAD.pack(size + FRAME_HEADER_BYTES - _SIZE_BYTES, _MESSAGE_TYPE, timestamp_ns, 1)
        for size in distinct
    }
    parts: list[bytes] = [b""] * (3 * count)
    parts[0::3] = [heads[size] for size in sizes]
    parts[1::3] = column(ids, 0, stride=ID_BYTES, width=ID_BYTES, count=count)
    parts[2::3] = bodies
    offsets: Sequence[int]
    if len(distinct) == 1:
        offsets = _even_offsets(FRAME_HEADER_BYTES + sizes[0], count)
    else:
        offsets = list(accumulate([size + FRAME_HEADER_BYTES for size in sizes], initial=0))
    return Batch(b"".join(parts), offsets, deliver_at_ns)


def decode_batch(data: bytes, count: int, deliver_at_ns: int = 0) -> Batch:
    """Find the frames in ``data`` again, which a checksum has already vouched for.

    Raises:
        ValueError: ``data`` is not exactly ``count`` message frames.
    """
    stride = int.from_bytes(data[:_SIZE_BYTES], "big") + _SIZE_BYTES
    even = stride >= FRAME_HEADER_BYTES and stride * count == len(data)
    if even and (count == 1 or is_constant(data, 0, stride=stride, width=_SIZE_BYTES, count=count)):
        return Batch(data, _even_offsets(stride, count), deliver_at_ns)
    offsets = [0]
    at, end = 0, len(data)
    while at < end:
        if end - at < FRAME_HEADER_BYTES:
            raise ValueError(f"frame at {at} is cut off")
        size: int = _SIZE.unpack_from(data, at)[0]
        if size < FRAME_HEADER_BYTES - _SIZE_BYTES:
            raise ValueError(f"frame at {at} is too short")
        at += _SIZE_BYTES + size
        offsets.append(at)
    if at != end or len(offsets) != count + 1:
        raise ValueError(f"{len(offsets) - 1} frames found, not {count}")
    return Batch(data, offsets, deliver_at_ns)
