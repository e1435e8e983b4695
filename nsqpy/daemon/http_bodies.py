"""What requests to the HTTP API carry, taken apart; no I/O.

Every refusal is an ``HTTPError`` with the original's status and code.
Source: nsqd/http.go, doPUB and doMPUB.
"""

import re

from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.errors import ProtocolError
from nsqpy.net.http import HTTPError
from nsqpy.protocol.mpub import split_mpub
from nsqpy.scalars import duration_ns

__all__ = ["BOOLEANS", "defer_ns", "drain_timeout_ns", "split_lines", "split_records"]

BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

_DECIMAL = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DECIMAL_MAX_CHARACTERS = 20
_DRAIN_MAX_NS = 24 * 3600 * SECOND


def defer_ns(raw: str, max_ns: int) -> int:
    """``defer`` as nanoseconds: whole milliseconds from 0 to the longest delay allowed.

    Raises:
        HTTPError: 400 INVALID_DEFER.
    """
    if len(raw) <= _DECIMAL_MAX_CHARACTERS and _DECIMAL.fullmatch(raw):
        delay_ns = int(raw) * MILLISECOND
        if 0 <= delay_ns <= max_ns:
            return delay_ns
    raise HTTPError(400, "INVALID_DEFER")


def drain_timeout_ns(raw: str) -> int:
    """``timeout`` of a drain as nanoseconds: a duration as flags take it, up to a day.

    Raises:
        HTTPError: 400 INVALID_TIMEOUT.
    """
    try:
        timeout_ns = duration_ns(raw)
    except ValueError:
        timeout_ns = -1
    if not 0 <= timeout_ns <= _DRAIN_MAX_NS:
        raise HTTPError(400, "INVALID_TIMEOUT")
    return timeout_ns


def split_lines(body: bytes, max_msg_size: int) -> list[bytes]:
    """The messages of a text ``/mpub``: one a line; empty lines are none, ``\\r`` is content.

    Raises:
        HTTPError: 413 MSG_TOO_BIG if any line is; nothing may be published then.
    """
    messages = list(filter(None, body.split(b"\n")))
    if max(map(len, messages), default=0) > max_msg_size:
        raise HTTPError(413, "MSG_TOO_BIG")
    return messages


def split_records(body: bytes, max_msg_size: int, max_body_size: int) -> list[bytes]:
    """The messages of a binary ``/mpub``; what follows the last one is ignored.

    Raises:
        HTTPError: 413 BAD_BODY or BAD_MESSAGE; nothing may be published then.
    """
    try:
        return split_mpub(body, max_msg_size, max_body_size, exact=False)
    except ProtocolError as error:
        raise HTTPError(413, error.code.removeprefix("E_")) from error
