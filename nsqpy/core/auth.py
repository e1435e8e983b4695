"""Who may publish and subscribe: what a connection was granted, and whom it is asked of. No I/O.

A session hands the secret of an AUTH to the daemon's ``Authenticator``, which answers with a
``Grant``: by the rules of an AUTH server, or by the token file. Source: docs/security.md;
internal/auth/authorizations.go.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import re2

from nsqpy.clock import SECOND, Instant
from nsqpy.core.deadlines import NEVER
from nsqpy.patterns import TopicTrie
from nsqpy.tokens import Role, Token

__all__ = [
    "Applicant",
    "Authenticator",
    "Grant",
    "ServerGrant",
    "TokenGrant",
    "parse_server_grant",
]

_PERMISSIONS = {"publish": Role.PUBLISH, "subscribe": Role.CONSUME}
_DECISIONS_MAX = 1000
_TTL_MAX_S = 100 * 365 * 24 * 3600


class Applicant(NamedTuple):
    """Who wants to be let in. ``remote_ip`` is empty on a Unix socket, ``common_name`` without a
    client certificate."""

    secret: bytes
    remote_ip: str
    tls: bool = False
    common_name: str = ""


class Grant(Protocol):
    """What a connection may do. ``expires_ns`` is monotonic, or NEVER."""

    @property
    def identity(self) -> str: ...

    @property
    def identity_url(self) -> str: ...

    @property
    def permission_count(self) -> int:
        """0: it may do nothing."""

    @property
    def expires_ns(self) -> int: ...

    def allows(self, role: Role, topic: str, channel: str = "") -> bool: ...


class Authenticator(Protocol):
    """Knows whom a secret belongs to."""

    def ask(self, applicant: Applicant, on_done: Callable[[Grant | None, Instant], None]) -> None:
        """Call ``on_done`` once, perhaps before this returns; None: refused."""


# --- AUTH servers ---

# A search takes RE2 time that is linear in the name, whatever the pattern. These bound the rest:
# compiling, what a pattern may take in memory, and how many of them one decision needs.
_PATTERNS_MAX = 1000
_PATTERN_MAX_CHARACTERS = 4096
_PATTERN_MAX_BYTES = 256 * 1024


class Pattern(Protocol):
    """A compiled pattern of RE2, the original's syntax too."""

    def search(self, text: str) -> object | None: ...


@dataclass(frozen=True, slots=True)
class Authorization:
    """One rule of an AUTH server's answer; patterns are searched for, not anchored."""

    permissions: frozenset[Role]
    topic: Pattern
    channels: tuple[Pattern, ...]

    def allows(self, role: Role, topic: str, channel: str) -> bool:
        return (
            role in self.permissions
            and self.topic.search(topic) is not None
            and any(pattern.search(channel) is not None for pattern in self.channels)
        )


@dataclass(slots=True, kw_only=True)
class ServerGrant:
    """An AUTH server's answer, good until ``expires_ns``."""

    identity: str
    identity_url: str
    authorizations: tuple[Authorization, ...]
    expires_ns: int
    _decisions: dict[tuple[Role, str, str], bool] = field(default_factory=dict)

    @property
    def permission_count(self) -> int:
        return len(self.authorizations)

    def allows(self, role: Role, topic: str, channel: str = "") -> bool:
        """For publishing the channel is empty, so the channels must hold something that is
        found in an empty text."""
        asked = (role, topic, channel)
        decision = self._decisions.get(asked)
        if decision is None:
            if len(self._decisions) >= _DECISIONS_MAX:
                self._decisions.clear()
            decision = any(rule.allows(*asked) for rule in self.authorizations)
            self._decisions[asked] = decision
        return decision


def parse_server_grant(body: bytes, now_ns: int) -> ServerGrant:
    """What an AUTH server answered.

    Raises:
        ValueError: it is not an answer; the text says why, for the log.
    """
    try:
        document = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("not an object")
    ttl_s = document.get("ttl")
    if not isinstance(ttl_s, int) or isinstance(ttl_s, bool) or ttl_s <= 0:
        raise ValueError(f"invalid TTL {ttl_s!r} (must be > 0)")
    authorizations = _authorizations(_list(document, "authorizations"))
    return ServerGrant(
        identity=_text(document, "identity"),
        identity_url=_text(document, "identity_url"),
        authorizations=authorizations,
        expires_ns=now_ns + min(ttl_s, _TTL_MAX_S) * SECOND,
    )


def _authorizations(documents: list[object]) -> tuple[Authorization, ...]:
    found: list[Authorization] = []
    count = 0
    for document in documents:
        if not isinstance(document, dict):
            raise ValueError("an authorization is not an object")
        topic = _text(document, "topic")
        channels = dict.fromkeys(map(_source, _list(document, "channels")))
        count += 1 + len(channels)
        if count > _PATTERNS_MAX:
            raise ValueError(f"more than {_PATTERNS_MAX} patterns")
        found.append(
            Authorization(_permissions(document), _pattern(topic), tuple(map(_pattern, channels)))
        )
    return tuple(found)


def _permissions(document: dict[str, object]) -> frozenset[Role]:
    permissions = _list(document, "permissions")
    for permission in permissions:
        if permission not in ("publish", "subscribe"):
            raise ValueError(f"unknown permission {permission!r}")
    return frozenset(_PERMISSIONS[str(permission)] for permission in permissions)


def _source(pattern: object) -> str:
    if not isinstance(pattern, str):
        raise ValueError("a pattern is not text")
    return pattern


def _pattern_options() -> re2.Options:
    options = re2.Options()
    options.max_mem = _PATTERN_MAX_BYTES
    options.never_capture = True
    options.log_errors = False  # it would write to stderr by itself
    return options


_OPTIONS = _pattern_options()


def _pattern(source: str) -> Pattern:
    if len(source) > _PATTERN_MAX_CHARACTERS:
        raise ValueError(f"a pattern of more than {_PATTERN_MAX_CHARACTERS} characters")
    try:
        pattern: Pattern = re2.compile(source, _OPTIONS)
    except UnicodeEncodeError:
        raise ValueError("a pattern is not text") from None
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        raise ValueError(f"unable to compile {source!r}: {reason}") from None
    return pattern


def _text(document: dict[str, object], key: str) -> str:
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is not text")
    return value


def _list(document: dict[str, object], key: str) -> list[object]:
    value = document.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{key} is not a list")
    return value


# --- tokens ---


class TokenGrant:
    """A token of the token file. The connection is cut when the file no longer has it."""

    def __init__(self, token: Token) -> None:
        self.token = token
        self.identity = token.name
        self.identity_url = ""
        self.permission_count = len(token.patterns)
        self.expires_ns = NEVER
        self._topics = TopicTrie(token.patterns)

    @property
    def everywhere(self) -> bool:
        """Whether the topics are all that there can be: what concerns the node asks for that."""
        return ">" in self.token.patterns

    def sees(self, topic: str) -> bool:
        return self._topics.matches(topic)

    def allows(self, role: Role, topic: str, channel: str = "") -> bool:
        """``admin`` may also do what the other roles may."""
        roles = self.token.roles
        held = role in roles or Role.ADMIN in roles or role is Role.OBSERVE
        return held and self._topics.matches(topic)
