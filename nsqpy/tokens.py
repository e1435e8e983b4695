"""The token file: who may do what, by the hashes of secrets.

One token a line, four fields with blanks between, ``#`` before a remark::

    # name     hash of the token        roles            topics
    billing    sha256:5e884898da28...   publish,consume  orders.*,invoices
    scraper    sha256:2c26b46b68ff...   observe          >

The hash is plain SHA-256, on purpose. What slow hashes (scrypt, argon2) protect is a secret that
can be guessed; a token is 256 random bits, which nobody guesses at any speed. A slow one would
cost the event loop some 50 ms each time somebody connects or calls, with or without a right to:
a way to stop the daemon. So a token is made by ``nsqpy token`` and never chosen by a person.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from nsqpy.errors import LocalProtocolError
from nsqpy.patterns import TopicTrie

__all__ = [
    "TOKEN_FILE_MAX_BYTES",
    "TOKEN_PREFIX",
    "Role",
    "Token",
    "TokenBook",
    "TokenFileError",
    "hash_token",
    "make_token",
    "parse_tokens",
    "token_line",
]

# Lets scanners for leaked secrets, and people, see what it is.
TOKEN_PREFIX = "nsqpy_"
TOKEN_FILE_MAX_BYTES = 1024 * 1024

_ALGORITHM = "sha256:"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")


class Role(StrEnum):
    """What a token is good for, on the topics that its patterns match.

    Each lets its holder see the figures of those topics; ``observe`` is nothing but that.
    """

    PUBLISH = "publish"
    CONSUME = "consume"
    ADMIN = "admin"
    OBSERVE = "observe"


class TokenFileError(LocalProtocolError):
    """The file, or what is to become a line of it, says something that cannot be."""


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the file. Two are equal if they allow the same to the same secret."""

    name: str
    digest: str
    roles: frozenset[Role]
    patterns: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise TokenFileError(f"{self.name!r} is no name for a token")
        if not _HASH.fullmatch(self.digest):
            raise TokenFileError(f"the hash of {self.name} is not {_ALGORITHM} and 64 hex digits")
        if not self.roles or not self.patterns:
            raise TokenFileError(f"{self.name} has no roles or no topics")


class TokenBook:
    """Every token that is good now, by its hash."""

    def __init__(self, tokens: Mapping[str, Token]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, name: str) -> bool:
        return any(token.name == name for token in self._tokens.values())

    def find(self, secret: bytes) -> Token | None:
        """The token whose secret this is.

        How long the search takes says something about hashes, not about secrets.
        """
        return self._tokens.get(hash_token(secret))

    def holds(self, token: Token) -> bool:
        """Whether it is still in the file, and unchanged."""
        return self._tokens.get(token.digest) == token


def hash_token(secret: bytes) -> str:
    return _ALGORITHM + sha256(secret).hexdigest()


def token_line(token: Token) -> str:
    """As it stands in the file, without a newline."""
    roles = ",".join(role.value for role in Role if role in token.roles)
    return f"{token.name} {token.digest} {roles} {','.join(token.patterns)}"


def parse_tokens(text: str) -> TokenBook:
    """Read a whole file.

    Raises:
        TokenFileError: a line that is not understood, named by its number. Nothing of the
            text goes into the error but names: a secret may stand there by mistake.
    """
    tokens: dict[str, Token] = {}
    names: set[str] = set()
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        try:
            token = _parse_line(fields)
        except LocalProtocolError as error:
            raise TokenFileError(f"line {number}: {error}") from error
        if token.digest in tokens or token.name in names:
            raise TokenFileError(f"line {number}: {token.name} is there twice")
        tokens[token.digest] = token
        names.add(token.name)
    return TokenBook(tokens)


def _parse_line(fields: list[str]) -> Token:
    if len(fields) != 4:
        raise TokenFileError("must be: name hash roles topics")
    name, digest, roles, patterns = fields
    return make_token(name, digest, roles.split(","), patterns.split(","))


def make_token(name: str, digest: str, roles: list[str], patterns: list[str]) -> Token:
    """Check what stands in a line.

    Raises:
        LocalProtocolError: which of it cannot be.
    """
    known = {role.value for role in Role}
    if not known.issuperset(roles):
        raise TokenFileError(f"roles are some of {','.join(known_role for known_role in Role)}")
    TopicTrie(patterns)
    return Token(name, digest, frozenset(map(Role, roles)), tuple(patterns))
