"""JSON as Go writes and reads it: tools compare and grep replies, and clients rely on leniency.

Written: no white space; keys in the order given; ``<``, ``>``, ``&``, U+2028 and U+2029 escaped,
all other Unicode raw; floats in shortest form without ``.0``. Read: keys in any case, null as
absent, whole numbers of 64 bits. Source: Go's encoding/json.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

__all__ = [
    "JSON",
    "boolean_field",
    "go_json",
    "go_number",
    "integer_field",
    "parse_object",
    "text_field",
]

JSON: TypeAlias = bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"] | None

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

# None of these can stand outside a string, so the finished text can be treated as a whole.
_ESCAPED = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_TO_ESCAPE = re.compile("[<>&\u2028\u2029]")
# What ``surrogateescape`` made of bytes that are no UTF-8; Go writes the replacement character.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_INT64_MAX = (1 << 63) - 1

T = TypeVar("T", str, bool)


def go_json(value: JSON) -> bytes:
    """Encode ``value``; no newline at the end. Floats have been through ``go_number``.

    Raises:
        ValueError: not a number or infinite, which JSON cannot say.
    """
    text = _ENCODE(value)
    text = _TO_ESCAPE.sub(lambda found: _ESCAPED[found[0]], text)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _LONE_SURROGATE.sub(r"\\ufffd", text).encode()


def go_number(value: float) -> int | float:
    """The number that prints as Go's shortest form: an integer if it is one."""
    return int(value) if value.is_integer() else value


def parse_object(body: bytes) -> dict[str, object]:
    """The keys of a JSON object, in lower case; empty for ``null``.

    Raises:
        ValueError, TypeError, RecursionError: it is none.
    """
    document = json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse_constant)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise TypeError("not an object")
    return {key.lower(): value for key, value in document.items() if value is not None}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def text_field(given: Mapping[str, object], key: str) -> str:
    """Empty if it is absent. Raises TypeError: it is no string."""
    # JSON can say half a surrogate pair, UTF-8 cannot: Go takes the replacement character.
    return _LONE_SURROGATE.sub("\ufffd", _typed(given, key, str, ""))


def boolean_field(given: Mapping[str, object], key: str) -> bool:
    """False if it is absent. Raises TypeError: it is no boolean."""
    return _typed(given, key, bool, False)


def _typed(given: Mapping[str, object], key: str, kind: type[T], default: T) -> T:
    value = given.get(key, default)
    if not isinstance(value, kind):
        raise TypeError(f"{key} is not {kind.__name__}")
    return value


def integer_field(given: Mapping[str, object], key: str, maximum: int = _INT64_MAX) -> int:
    """0 if it is absent. Raises TypeError or ValueError: no integer, or out of range."""
    value = given.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{key} is not an integer")
    if not -maximum - 1 <= value <= maximum:
        raise ValueError(f"{key} is out of range")
    return value
