"""Message frames to Arrow record batches, without a look at single messages where they permit it.

The columns are cut by stride where all frames have one size; otherwise the frames are found one
by one, and only their heads and bodies are sliced. PyArrow is imported here only, and this module
only when rows are made: the rest says in words when PyArrow is missing.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from struct import Struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nsqpy.columns import column, is_constant
from nsqpy.errors import NSQError
from nsqpy.message import FRAME_HEADER_BYTES, ID_BYTES

__all__ = ["ARROW_SCHEMA", "BATCH_MAX_ROWS", "FramesError", "Rows"]

BATCH_MAX_ROWS = 10_000

# Compared with the first batch to the letter: names, order, types and nullability.
ARROW_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("body", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("attempts", pa.int32()),
        pa.field("topic", pa.string()),
        pa.field("channel", pa.string()),
        pa.field("node", pa.string()),
    ]
)

_SIZE = Struct(">i")
_SIZE_BYTES = 4
_TIMESTAMP_AT, _ATTEMPTS_AT, _ID_AT = 8, 16, 18


class FramesError(NSQError):
    """The stream of a lease is not what it should be."""


class Rows:
    """Record batches of the messages of one topic and channel at one node."""

    def __init__(self, topic: str, channel: str, node: str) -> None:
        self._constants = [
            pa.array([value] * BATCH_MAX_ROWS, pa.string()) for value in (topic, channel, node)
        ]

    def batches(self, pieces: Iterable[bytes]) -> Iterator[Any]:
        """Batches of at most ``BATCH_MAX_ROWS`` rows, from pieces of whole messages.

        Raises:
            FramesError: these are no message frames, or one is cut off.
        """
        for data in pieces:
            for start, end, starts in _runs(data):
                yield self._batch(data, start, end, starts)

    def _batch(self, data: bytes, start: int, end: int, starts: Sequence[int]) -> Any:  # noqa: ANN401 - PyArrow has no types
        count = len(starts)
        if isinstance(starts, range):
            stride = starts.step
            body_bytes = stride - FRAME_HEADER_BYTES
            heads, head_stride, at = data, stride, start
            bodies = _column(data, start + FRAME_HEADER_BYTES, stride, body_bytes, count)
            body_ends: Iterable[int] = range(0, body_bytes * count + 1, body_bytes or 1)
            if not body_bytes:
                body_ends = [0] * (count + 1)
        else:
            stops = [*starts[1:], end]
            heads = b"".join([data[at : at + FRAME_HEADER_BYTES] for at in starts])
            head_stride, at = FRAME_HEADER_BYTES, 0
            bodies = b"".join(
                [data[a + FRAME_HEADER_BYTES : b] for a, b in zip(starts, stops, strict=True)]
            )
            body_ends = accumulate(
                [b - a - FRAME_HEADER_BYTES for a, b in zip(starts, stops, strict=True)], initial=0
            )
        ids = _column(heads, at + _ID_AT, head_stride, ID_BYTES, count)
        timestamps = _column(heads, at + _TIMESTAMP_AT, head_stride, 8, count)
        attempts = _column(heads, at + _ATTEMPTS_AT, head_stride, 2, count)
        id_ends = range(0, ID_BYTES * count + 1, ID_BYTES)
        nanoseconds = _integers("q", timestamps, pa.int64(), count)
        columns = [
            _texts(pa.string(), ids, id_ends, count),
            _texts(pa.binary(), bodies, body_ends, count),
            pc.divide(nanoseconds, 1000).view(pa.timestamp("us", tz="UTC")),
            _integers("H", attempts, pa.uint16(), count).cast(pa.int32()),
            *(constant.slice(0, count) for constant in self._constants),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


def _runs(data: bytes) -> Iterator[tuple[int, int, Sequence[int]]]:
    """Where whole frames stand in ``data``: start and end, and the start of each.

    The starts are a ``range`` when all frames have one size.
    """
    length = len(data)
    stride = _frame_bytes(data, 0)
    count = length // stride
    if count * stride == length and is_constant(data, 0, stride=stride, width=4, count=count):
        for first in range(0, count, BATCH_MAX_ROWS):
            start, end = first * stride, min(count, first + BATCH_MAX_ROWS) * stride
            yield start, end, range(start, end, stride)
        return
    starts: list[int] = []
    start = at = 0
    while at < length:
        if len(starts) == BATCH_MAX_ROWS:
            yield start, at, starts
            start, starts = at, []
        starts.append(at)
        at += _frame_bytes(data, at)
    if at > length:
        raise FramesError(f"a message is cut off: {at - length} bytes are missing")
    yield start, at, starts


def _frame_bytes(data: bytes, at: int) -> int:
    if len(data) - at < FRAME_HEADER_BYTES:
        raise FramesError("a message is cut off in its header")
    size: int = _SIZE.unpack_from(data, at)[0]
    if size + _SIZE_BYTES < FRAME_HEADER_BYTES:
        raise FramesError(f"{size} is not the size of a message")
    return size + _SIZE_BYTES


def _column(data: bytes, at: int, stride: int, width: int, count: int) -> bytes:
    return b"".join(column(data, at, stride=stride, width=width, count=count))


def _texts(kind: Any, data: bytes, ends: Iterable[int], count: int) -> Any:  # noqa: ANN401
    offsets = pa.py_buffer(array("i", ends))
    return pa.Array.from_buffers(kind, count, [None, offsets, pa.py_buffer(data)])


def _integers(code: str, data: bytes, kind: Any, count: int) -> Any:  # noqa: ANN401
    """Big-endian integers as an Arrow array."""
    values = array(code, data)
    if sys.byteorder == "little":
        values.byteswap()
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(values)])
