"""The body of an MPUB: ``int32 count``, then ``count`` times ``int32 size`` and that many bytes.

The TCP command puts an ``int32 total`` before it; binary ``/mpub`` over HTTP does not.
Source: MPUB in docs/protocol.md.
"""

from nsqpy.columns import column, is_constant
from nsqpy.errors import ErrorCode, ProtocolError

__all__ = ["check_mpub_start", "split_mpub"]


def check_mpub_start(payload: bytes, max_msg_size: int, max_body_size: int) -> int:
    """Check the count, and the first size if it is there yet; return the count.

    Raises:
        ProtocolError: E_BAD_BODY or E_BAD_MESSAGE.
    """
    if len(payload) < 4:
        raise ProtocolError(ErrorCode.BAD_BODY, "MPUB failed to read message count")
    count = int.from_bytes(payload[:4], "big", signed=True)
    if not 1 <= count <= (max_body_size - 4) // 5:
        raise ProtocolError(ErrorCode.BAD_BODY, f"MPUB invalid message count {count}")
    if len(payload) >= 8:
        _check_size(0, int.from_bytes(payload[4:8], "big", signed=True), max_msg_size)
    return count


def split_mpub(
    payload: bytes, max_msg_size: int, max_body_size: int, *, exact: bool = True
) -> list[bytes]:
    """The bodies in a complete MPUB payload; with ``exact``, bytes left over are an error.

    Raises:
        ProtocolError: E_BAD_BODY or E_BAD_MESSAGE; nothing of the payload may be used then.
    """
    count = check_mpub_start(payload, max_msg_size, max_body_size)
    size = int.from_bytes(payload[4:8], "big", signed=True) if len(payload) >= 8 else 0
    stride = 4 + size
    end = 4 + stride * count
    if (
        size > 0
        and len(payload) == end
        and is_constant(payload, 4, stride=stride, width=4, count=count)
    ):
        return column(payload, 8, stride=stride, width=size, count=count)
    bodies = []
    at = 4
    for index in range(count):
        head = payload[at : at + 4]
        if len(head) < 4:
            reason = f"MPUB failed to read message({index}) body size"
            raise ProtocolError(ErrorCode.BAD_MESSAGE, reason)
        size = int.from_bytes(head, "big", signed=True)
        if not 0 < size <= max_msg_size:
            _check_size(index, size, max_msg_size)
        body = payload[at + 4 : at + 4 + size]
        if len(body) < size:
            raise ProtocolError(ErrorCode.BAD_MESSAGE, "MPUB failed to read message body")
        bodies.append(body)
        at += 4 + size
    if exact and at != len(payload):
        # The original reads on and takes what is left for the next command.
        reason = f"MPUB invalid body size {len(payload)}, its messages take {at}"
        raise ProtocolError(ErrorCode.BAD_BODY, reason)
    return bodies


def _check_size(index: int, size: int, max_msg_size: int) -> None:
    if size <= 0:
        reason = f"MPUB invalid message({index}) body size {size}"
        raise ProtocolError(ErrorCode.BAD_MESSAGE, reason)
    if size > max_msg_size:
        reason = f"MPUB message too big {size} > {max_msg_size}"
        raise ProtocolError(ErrorCode.BAD_MESSAGE, reason)
