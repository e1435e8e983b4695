"""Frames: what nsqd sends. Bytes in, frames out for clients; frame bytes back for servers.

A frame on the wire, integers big-endian (source: Framing in docs/protocol.md)::

    | int32 size | int32 type | data             |
    | 4 + n      | 0, 1 or 2  | n bytes          |

The data of a message frame (type 2)::

    | int64 timestamp_ns | uint16 attempts | 16 bytes id | body |
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

__all__ = [
    "CLOSE_WAIT_FRAME",
    "HEARTBEAT_FRAME",
    "OK_FRAME",
    "BadFrame",
    "ErrorFrame",
    "Frame",
    "FrameParser",
    "FrameType",
    "MessageFields",
    "MessageFrames",
    "ResponseFrame",
    "error_frame",
    "response_frame",
]


class FrameType(IntEnum):
    RESPONSE = 0
    ERROR = 1
    MESSAGE = 2


_HEADER = struct.Struct(">iI")
_HEADER_BYTES = 8
_MESSAGE_HEADER = struct.Struct(">iIqH16s")
_MESSAGE_HEADER_BYTES = 34
_MESSAGE_SIZE_MIN = 30  # the smallest size field of a message frame: type, fields, empty body
_SIZE_BYTES = 4

# What the first four bytes of an HTTP answer give when they are read as a frame's size.
_HTTP_AS_SIZE = 1213486160


def response_frame(data: bytes) -> bytes:
    return _HEADER.pack(_SIZE_BYTES + len(data), FrameType.RESPONSE) + data


def error_frame(data: bytes) -> bytes:
    """``data`` is the code, a space and the reason, as nsqd writes them."""
    return _HEADER.pack(_SIZE_BYTES + len(data), FrameType.ERROR) + data


OK_FRAME = response_frame(b"OK")
CLOSE_WAIT_FRAME = response_frame(b"CLOSE_WAIT")
HEARTBEAT_FRAME = response_frame(b"_heartbeat_")


# A plain tuple, because there is one for each message received:
# (timestamp_ns, attempts, id of 16 bytes, body).
MessageFields = tuple[int, int, bytes, bytes]


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    data: bytes


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    data: bytes


@dataclass(frozen=True, slots=True)
class MessageFrames:
    """A run of message frames with nothing in between, in the order they came."""

    messages: list[MessageFields]


@dataclass(frozen=True, slots=True)
class BadFrame:
    """The peer's fault. It is the last frame a parser gives; nothing after it can be read."""

    reason: str


Frame = ResponseFrame | ErrorFrame | MessageFrames | BadFrame


class FrameParser:
    """Cuts what nsqd sends into frames, however the bytes are split.

    A read that holds many message frames gives one ``MessageFrames``. Bytes of an unfinished
    frame are kept as they came and joined once, when the frame is complete, so a large body
    costs one copy and not one a read. ``frame_size_max_bytes`` bounds a frame's size field;
    0 sets no bound but that of the field itself.
    """

    __slots__ = ("_failed", "_frame_size_max_bytes", "_missing_bytes", "_waiting")

    def __init__(self, frame_size_max_bytes: int = 0) -> None:
        self._frame_size_max_bytes = frame_size_max_bytes
        self._waiting: list[bytes] = []
        self._missing_bytes = 0
        self._failed = False

    def feed(self, data: bytes) -> list[Frame]:
        """Take what was read; return the frames that are now complete.

        A peer's fault is the last frame, ``BadFrame``, so that what came before it still
        counts; afterwards everything fed is ignored.
        """
        if self._failed:
            return []
        if self._waiting:
            self._waiting.append(data)
            self._missing_bytes -= len(data)
            if self._missing_bytes > 0:
                return []
            data = b"".join(self._waiting)
            self._waiting = []
        return self._cut(data)

    def _cut(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        at, end = 0, len(data)
        while end - at >= _HEADER_BYTES:
            size, frame_type = _HEADER.unpack_from(data, at)
            reason = self._fault(size, frame_type)
            if reason:
                self._failed = True
                frames.append(BadFrame(reason))
                return frames
            after = at + _SIZE_BYTES + size
            if after > end:
                break
            if frame_type == FrameType.MESSAGE:
                messages, at = self._message_run(data, at, end)
                frames.append(MessageFrames(messages))
                continue
            content = data[at + _HEADER_BYTES : after]
            if frame_type == FrameType.RESPONSE:
                frames.append(ResponseFrame(content))
            else:
                frames.append(ErrorFrame(content))
            at = after
        if at < end:
            self._keep(data[at:])
        return frames

    def _message_run(self, data: bytes, at: int, end: int) -> tuple[list[MessageFields], int]:
        """The complete, faultless message frames from ``at`` on, and where they stop.

        The caller has checked the first. The hot path of every consumer: one unpack and one
        slice a message.
        """
        messages: list[MessageFields] = []
        take, unpack = messages.append, _MESSAGE_HEADER.unpack_from
        size_max = self._frame_size_max_bytes or _HTTP_AS_SIZE - 1
        last = end - _MESSAGE_HEADER_BYTES
        while at <= last:
            size, frame_type, timestamp_ns, attempts, message_id = unpack(data, at)
            after = at + _SIZE_BYTES + size
            if after > end or frame_type != 2 or not _MESSAGE_SIZE_MIN <= size <= size_max:
                break
            take((timestamp_ns, attempts, message_id, data[at + _MESSAGE_HEADER_BYTES : after]))
            at = after
        return messages, at

    def _fault(self, size: int, frame_type: int) -> str | None:
        if size == _HTTP_AS_SIZE:
            return "this is an HTTP port: give the TCP address of nsqd"
        if size < _SIZE_BYTES:
            return f"frame size {size} is too small"
        if self._frame_size_max_bytes and size > self._frame_size_max_bytes:
            return f"frame size {size} is over the limit of {self._frame_size_max_bytes}"
        if frame_type > FrameType.MESSAGE:
            return f"unknown frame type {frame_type}"
        if frame_type == FrameType.MESSAGE and size < _MESSAGE_SIZE_MIN:
            return f"message frame of size {size} is too short"
        return None

    def _keep(self, rest: bytes) -> None:
        self._waiting = [rest]
        needed = _HEADER_BYTES
        if len(rest) >= _HEADER_BYTES:
            needed = _SIZE_BYTES + int(_HEADER.unpack_from(rest)[0])
        self._missing_bytes = needed - len(rest)
