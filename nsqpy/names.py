"""Legal topic and channel names. One rule serves both.

1 to 64 bytes of letters, digits, ``.``, ``_``, ``-``, optionally followed by ``#ephemeral``,
which counts toward the 64. Source: Names in docs/protocol.md.
"""

import re
from functools import lru_cache
from typing import NewType

__all__ = ["ChannelName", "TopicName", "decode_name", "is_ephemeral", "is_valid_name"]

TopicName = NewType("TopicName", str)
ChannelName = NewType("ChannelName", str)

_NAME = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?", re.ASCII)
_NAME_MAX_BYTES = 64


def is_valid_name(name: str) -> bool:
    return len(name) <= _NAME_MAX_BYTES and _NAME.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    return name.endswith("#ephemeral")


@lru_cache(maxsize=4096)
def decode_name(raw: bytes) -> str | None:
    """The name in a command line, or None if it is not legal. Cached: it runs for every PUB."""
    try:
        name = raw.decode("ascii")
    except UnicodeDecodeError:
        return None
    return name if is_valid_name(name) else None
