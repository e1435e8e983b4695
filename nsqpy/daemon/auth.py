"""Asking whom a secret belongs to: the token file first, then AUTH servers over HTTP.

Nothing here writes a secret to the log, nor a URL or a text of a library that may hold one.
Source: docs/security.md; internal/auth/authorizations.go.
"""

import asyncio
import json
import logging
import stat
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from ssl import SSLContext
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from nsqpy.clock import SECOND, Clock, Instant
from nsqpy.core.auth import (
    Applicant,
    Grant,
    ServerGrant,
    TokenGrant,
    parse_server_grant,
)
from nsqpy.core.session import Session
from nsqpy.errors import ConfigError, ConnectionClosed
from nsqpy.gojson import go_json
from nsqpy.net.http_client import HTTPClient
from nsqpy.net.tls import ClientTLS
from nsqpy.tokens import TOKEN_FILE_MAX_BYTES, Token, TokenBook, TokenFileError, parse_tokens

if TYPE_CHECKING:
    from nsqpy.config import NsqdConfig

__all__ = ["AuthServers", "Gatekeeper", "load_tokens", "make_gatekeeper"]

log = logging.getLogger(__name__)

_ACCEPT = {"Accept": "application/vnd.nsq; version=1.0"}
_ANSWER_MAX_BYTES = 1024 * 1024
_REASON_MAX_CHARACTERS = 200

_OnDone = Callable[[Grant | None, Instant], None]


def load_tokens(path: Path) -> TokenBook:
    """Read the token file.

    Raises:
        TokenFileError: it cannot be read or understood, or anybody could write to it.
    """
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(path.stat().st_mode) & stat.S_IWOTH:
                raise TokenFileError(f"{path} can be written by every user")
            content = file.read(TOKEN_FILE_MAX_BYTES + 1)
    except OSError as error:
        raise TokenFileError(f"open {path}: {(error.strerror or str(error)).lower()}") from error
    if len(content) > TOKEN_FILE_MAX_BYTES:
        raise TokenFileError(f"{path} is larger than {TOKEN_FILE_MAX_BYTES} bytes")
    try:
        return parse_tokens(content.decode())
    except UnicodeDecodeError as error:
        raise TokenFileError(f"{path} is not UTF-8 at byte {error.start}") from None
    except TokenFileError as error:
        raise TokenFileError(f"{path}, {error}") from error


def make_gatekeeper(config: "NsqdConfig", clock: Clock) -> "Gatekeeper | None":
    """Who is asked about secrets; None if nobody has to have one. Inside a running event loop.

    Raises:
        ConfigError: the token file, or the authorities of AUTH servers, cannot be used.
    """
    book = None
    if config.auth_token_file:
        try:
            book = load_tokens(Path(config.auth_token_file))
        except TokenFileError as error:
            option = "--auth-token-file"
            raise ConfigError(option, config.auth_token_file, f"{option}: {error}") from error
        log.info("AUTH: %d tokens in %s", len(book), config.auth_token_file)
    servers = None
    if config.auth_http_addresses:
        tls = ClientTLS(root_ca_file=config.tls_root_ca_file, min_version=config.tls_min_version)
        servers = AuthServers(config.auth_http_addresses, config, clock, Random(), tls.context())
    return Gatekeeper(clock, book, servers) if book is not None or servers is not None else None


class Gatekeeper:
    """The daemon's ``Authenticator``. ``book`` is replaced when the token file is read again."""

    def __init__(
        self, clock: Clock, book: TokenBook | None = None, servers: "AuthServers | None" = None
    ) -> None:
        self._clock = clock
        self._servers = servers
        self.book = book

    def find(self, secret: bytes) -> TokenGrant | None:
        """What the token file grants, if there is one and the secret is in it."""
        token = self.book.find(secret) if self.book is not None else None
        return None if token is None else _grant_of(token)

    def ask(self, applicant: Applicant, on_done: _OnDone) -> None:
        grant = self.find(applicant.secret)
        if grant is None and self._servers is not None:
            self._servers.ask(applicant, on_done)
        else:
            on_done(grant, self._clock.now())

    async def stop(self) -> None:
        if self._servers is not None:
            await self._servers.stop()

    def reload(self, path: Path, sessions: Iterable[Session]) -> None:
        """Take up a changed token file, and cut off whoever came with a token that has changed
        or gone. A file that cannot be used changes nothing."""
        try:
            self.book = load_tokens(path)
        except TokenFileError as error:
            log.error("AUTH: the tokens stay as they were - %s", error)
            return
        cut = [session for session in sessions if not self.still_grants(session.grant)]
        for session in cut:
            session.cut()
        log.info("AUTH: %d tokens, %d connections cut", len(self.book), len(cut))

    def still_grants(self, grant: Grant | None) -> bool:
        """False for a token that has left the file, or may do something else now."""
        if not isinstance(grant, TokenGrant):
            return True
        return self.book is not None and self.book.holds(grant.token)


@lru_cache(maxsize=1024)
def _grant_of(token: Token) -> TokenGrant:
    # Kept, since over HTTP it is asked for with every call.
    return TokenGrant(token)


class AuthServers:
    """``--auth-http-address``: asked from a random one on, the next if one fails.

    A connection has one question at a time, and aiohttp some hundred for all; time and size of
    each are bounded. Made and used inside a running event loop.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        config: "NsqdConfig",
        clock: Clock,
        random: Random,
        tls: SSLContext | None = None,
    ) -> None:
        self._urls = [one if "://" in one else f"http://{one}/auth" for one in addresses]
        self._post = config.auth_http_request_method == "post"
        self._clock = clock
        self._random = random
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = HTTPClient(
            config.http_client_request_timeout_ns / SECOND,
            _ACCEPT,
            connect_timeout_s=config.http_client_connect_timeout_ns / SECOND,
            tls=tls,
        )

    def ask(self, applicant: Applicant, on_done: _OnDone) -> None:
        task = asyncio.get_running_loop().create_task(self._run(applicant, on_done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Whoever still waits for an answer gets none."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()

    async def _run(self, applicant: Applicant, on_done: _OnDone) -> None:
        grant: Grant | None = None
        try:
            grant = await self._ask_any(applicant)
        except Exception:
            # Not its text: it may hold the URL, and so the secret.
            log.error("AUTH: internal error while asking the servers")
        on_done(grant, self._clock.now())

    async def _ask_any(self, applicant: Applicant) -> ServerGrant | None:
        first = self._random.randrange(len(self._urls))
        for url in self._urls[first:] + self._urls[:first]:
            try:
                return await self._ask_one(url, applicant)
            except (ConnectionClosed, ValueError) as error:
                log.warning("AUTH: %s failed - %s", _shown(url), _reason(error))
        return None

    async def _ask_one(self, url: str, applicant: Applicant) -> ServerGrant:
        """Raises: ConnectionClosed; ValueError for an answer that is none."""
        status, body = await self._send(url, applicant)
        if status == 403 and (secure := _https_url(url, body)):
            status, body = await self._send(secure, applicant)
        if status != 200:
            raise _AnswerError(f"status {status}")
        try:
            return parse_server_grant(body, self._clock.now().monotonic_ns)
        except ValueError as error:
            raise _AnswerError(f"invalid answer: {str(error)[:_REASON_MAX_CHARACTERS]}") from None

    async def _send(self, url: str, applicant: Applicant) -> tuple[int, bytes]:
        fields: list[tuple[str, str | bytes]] = [
            ("common_name", applicant.common_name),
            ("remote_ip", applicant.remote_ip),
            ("secret", applicant.secret),
            ("tls", "true" if applicant.tls else "false"),
        ]
        if not self._post:
            mark = "&" if "?" in url else "?"
            return await self._client.get(f"{url}{mark}{urlencode(fields)}", _ANSWER_MAX_BYTES)
        document = {
            name: [value if isinstance(value, str) else value.decode(errors="replace")]
            for name, value in fields
        }
        return await self._client.post_json(url, go_json(document), _ANSWER_MAX_BYTES)


class _AnswerError(ValueError):
    """Its text is ours, and safe to log."""


def _reason(error: Exception) -> str:
    """Why, without what a library may have put there: the URL has the secret in it."""
    cause = error.__cause__
    if isinstance(error, _AnswerError) or cause is None or isinstance(cause, OSError):
        return str(error)
    return type(cause).__name__


def _shown(url: str) -> str:
    """Where it is, without user, password and query."""
    place = urlsplit(url)
    return f"{place.scheme}://{place.netloc.rpartition('@')[2]}{place.path}"


def _https_url(url: str, body: bytes) -> str | None:
    """Where a server that wants TLS is to be asked instead. Source: internal/http_api."""
    try:
        port = json.loads(body)["https_port"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    place = urlsplit(url)
    if place.scheme != "http" or not isinstance(port, int) or not 0 < port < 65536:
        return None
    host = f"[{place.hostname}]" if ":" in (place.hostname or "") else place.hostname
    return place._replace(scheme="https", netloc=f"{host}:{port}").geturl()
