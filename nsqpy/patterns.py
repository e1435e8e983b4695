"""Topic patterns: a trie of tokens that says which patterns a topic's name matches.

A name is tokens with dots between. In a pattern ``*`` stands for one token, whatever it is, and
``>`` at the end for one token or more: ``orders.*`` matches ``orders.eu``, and ``orders.>``
matches ``orders.eu.paid`` too; neither matches ``orders``. Source: NATS, subject wildcards.

``#ephemeral`` belongs to a name's last token: ``orders.*`` matches ``orders.eu#ephemeral``, and
``*.eu`` does not; ``*.eu#ephemeral`` does. Legal names may have empty tokens (``a..b``); those
are tokens like others, but a pattern with one is taken for a slip. Names hold neither ``*`` nor
``>``, so a pattern is known by these.
"""

from collections.abc import Iterable

from nsqpy.errors import LocalProtocolError
from nsqpy.names import is_valid_name

__all__ = ["TopicTrie", "check_pattern", "is_pattern"]

_ONE = "*"
_REST = ">"
_PATTERN_MAX_BYTES = 64  # as for names, whose tokens have at least the length of a wildcard


def is_pattern(text: str) -> bool:
    return _ONE in text or _REST in text


def check_pattern(pattern: str) -> None:
    """Hold a pattern, or a plain name, against the rules.

    Raises:
        LocalProtocolError: it can match no legal name, or a wildcard is out of place.
    """
    if reason := _fault(pattern):
        raise LocalProtocolError(f'topic pattern "{pattern}" is not valid: {reason}')


def _fault(pattern: str) -> str:
    """What is wrong with a pattern; empty if nothing is."""
    if not is_pattern(pattern):
        return "" if is_valid_name(pattern) else "it is no topic's name"
    if len(pattern) > _PATTERN_MAX_BYTES:
        return f"it is longer than {_PATTERN_MAX_BYTES} characters"
    *before, last = pattern.split(".")
    if _REST in before:
        return '">" must be the last token'
    for token in (*before, last):
        if not token:
            return "a token is empty"
        if token not in (_ONE, _REST) and is_pattern(token):
            return f'"{token}" mixes a wildcard with text'
    plain = [token for token in (*before, last) if token not in (_ONE, _REST)]
    if not all(is_valid_name(token) for token in plain) or any("#" in token for token in before):
        return "it holds what no topic's name may hold"
    return ""


class _Node:
    """What may follow a number of tokens. ``here`` and ``rest`` are whole patterns."""

    __slots__ = ("children", "here", "rest")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.here: str | None = None
        self.rest: str | None = None


class TopicTrie:
    """Patterns, and plain names, of which one look finds all that match a topic."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._root = _Node()
        for pattern in patterns:
            self.add(pattern)

    def add(self, pattern: str) -> None:
        """Know one pattern more.

        Raises:
            LocalProtocolError: as ``check_pattern``.
        """
        check_pattern(pattern)
        *before, last = pattern.split(".")
        node = self._root
        for token in before:
            node = node.children.setdefault(token, _Node())
        if last == _REST:
            node.rest = pattern
        else:
            node.children.setdefault(last, _Node()).here = pattern

    def match(self, topic: str) -> list[str]:
        """The patterns that match ``topic``, in no particular order."""
        found: list[str] = []
        nodes = [self._root]
        for token in topic.split("."):
            found += [node.rest for node in nodes if node.rest is not None]
            nodes = [
                node.children[branch]
                for node in nodes
                for branch in (token, _ONE)
                if branch in node.children
            ]
        found += [node.here for node in nodes if node.here is not None]
        return found

    def matches(self, topic: str) -> bool:
        return bool(self.match(topic))
