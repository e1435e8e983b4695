"""Who may publish and subscribe: what a connection was granted, and whom it is asked of. No I/O.

A session hands the secret of an AUTH to the daemon's ``Authenticator``, which answers with a
``Grant``: by the rules of an AUTH server, or by the token file. Source: reference nsqd 7;
internal/auth/authorizations.go.
"""

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

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


@dataclass(frozen=True, slots=True)
class Authorization:
    """One rule of an AUTH server's answer; patterns are searched for, not anchored."""

    permissions: frozenset[Role]
    topic: re.Pattern[str]
    channels: tuple[re.Pattern[str], ...]

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
    return ServerGrant(
        identity=_text(document, "identity"),
        identity_url=_text(document, "identity_url"),
        authorizations=tuple(map(_authorization, _list(document, "authorizations"))),
        expires_ns=now_ns + min(ttl_s, _TTL_MAX_S) * SECOND,
    )


def _authorization(document: object) -> Authorization:
    if not isinstance(document, dict):
        raise ValueError("an authorization is not an object")
    permissions = _list(document, "permissions")
    for permission in permissions:
        if permission not in ("publish", "subscribe"):
            raise ValueError(f"unknown permission {permission!r}")
    return Authorization(
        frozenset(_PERMISSIONS[str(permission)] for permission in permissions),
        _pattern(_text(document, "topic")),
        tuple(map(_pattern, _list(document, "channels"))),
    )


def _pattern(source: object) -> re.Pattern[str]:
    if not isinstance(source, str):
        raise ValueError("a pattern is not text")
    try:
        # What Python's syntax reads otherwise than RE2's, it warns of: then nobody gets in.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return re.compile(source, re.ASCII)
    except (re.error, FutureWarning, DeprecationWarning, OverflowError, RecursionError) as error:
        raise ValueError(f"unable to compile {source!r}: {error}") from error


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
