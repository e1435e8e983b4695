"""Scalar settings as Go writes them: text in, value out, and durations back to text.

Every parser raises ``ValueError`` with the reason that Go's flag package would give.
"""

import math
import re
from collections.abc import Callable
from enum import Enum
from typing import TypeVar

__all__ = [
    "boolean",
    "duration_ns",
    "format_duration",
    "in_int64",
    "integer",
    "number",
    "one_of",
    "text",
]

_INT64_MAX = 2**63 - 1
_PARSE_ERROR = "parse error"
_RANGE_ERROR = "value out of range"

_EnumType = TypeVar("_EnumType", bound=Enum)


def text(raw: str) -> str:
    return raw


_BOOLEANS = dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "FALSE", "False"), False
)


def boolean(raw: str) -> bool:
    """One of Go's twelve spellings."""
    if raw not in _BOOLEANS:
        raise ValueError(_PARSE_ERROR)
    return _BOOLEANS[raw]


_INTEGER = re.compile(r"[+-]?[0-9][0-9a-zA-Z_]*", re.ASCII)
_LEADING_ZERO = re.compile(r"^([+-]?)0([0-9_])", re.ASCII)


def integer(raw: str) -> int:
    """A Go integer: decimal, ``0x``, ``0o`` (or a leading zero), ``0b``; ``_`` between digits."""
    if not _INTEGER.fullmatch(raw):
        raise ValueError(_PARSE_ERROR)
    try:
        value = int(_LEADING_ZERO.sub(r"\g<1>0o\2", raw, count=1), 0)
    except ValueError:
        raise ValueError(_PARSE_ERROR) from None
    return in_int64(value)


def in_int64(value: int) -> int:
    if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
        raise ValueError(_RANGE_ERROR)
    return value


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def number(raw: str) -> float:
    if not _NUMBER.fullmatch(raw):
        raise ValueError(_PARSE_ERROR)
    value = float(raw)
    if math.isinf(value):
        raise ValueError(_RANGE_ERROR)
    return value


_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, the micro sign
    "μs": 1_000,  # U+03BC, the Greek letter: Go takes both
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DURATION_PART = re.compile(r"(\d+)?(?:\.(\d*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)


def duration_ns(raw: str) -> int:
    """Nanoseconds of a Go duration: ``250ms``, ``1h30m``, ``-1.5s``; without a unit, only ``0``."""
    sign = -1 if raw.startswith("-") else 1
    rest = raw[1:] if raw[:1] in ("+", "-") else raw
    if rest == "0":
        return 0
    total = position = 0
    while part := _DURATION_PART.match(rest, position):
        whole, fraction, unit = part.group(1) or "", part.group(2) or "", _UNITS_NS[part.group(3)]
        if not whole and not fraction:
            break
        total += int(whole or "0") * unit + int(fraction or "0") * unit // 10 ** len(fraction)
        position = part.end()
    if position == 0 or position != len(rest) or total > _INT64_MAX:
        raise ValueError(_PARSE_ERROR)
    return sign * total


def format_duration(value_ns: int) -> str:
    """The duration as Go prints it: ``0s``, ``250ms``, ``1m0s``, ``1h30m0s``."""
    sign, rest = ("-", -value_ns) if value_ns < 0 else ("", value_ns)
    for unit, limit_ns in (("ns", 1_000), ("µs", 1_000_000), ("ms", 1_000_000_000)):
        if 0 < rest < limit_ns:
            return f"{sign}{_decimal(rest, _UNITS_NS[unit])}{unit}"
    minutes, seconds_ns = divmod(rest, _UNITS_NS["m"])
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_decimal(seconds_ns, _UNITS_NS['s'])}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(value: int, unit: int) -> str:
    whole, fraction = divmod(value, unit)
    digits = str(fraction).zfill(len(str(unit)) - 1).rstrip("0") if fraction else ""
    return f"{whole}.{digits}" if digits else str(whole)


def one_of(choices: type[_EnumType]) -> Callable[[str], _EnumType]:
    """A parser for an enum of strings, whose values are what the user writes."""

    def parse(raw: str) -> _EnumType:
        for choice in choices:
            if choice.value == raw:
                return choice
        raise ValueError("must be one of " + ", ".join(str(choice.value) for choice in choices))

    return parse
