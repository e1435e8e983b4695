"""JSON as Go's encoder writes it, which is what tools that compare or grep replies have seen.

No white space; keys in the order given; ``<``, ``>``, ``&``, U+2028 and U+2029 escaped, all other
Unicode raw; floats in shortest form without ``.0``. Source: reference nsqd 4.1.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

__all__ = ["JSON", "go_json", "go_number"]

JSON: TypeAlias = bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"] | None

_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

# None of these can stand outside a string, so the finished text can be treated as a whole.
_ESCAPED = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_TO_ESCAPE = re.compile("[<>&\u2028\u2029]")
# What ``surrogateescape`` made of bytes that are no UTF-8; Go writes the replacement character.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


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
