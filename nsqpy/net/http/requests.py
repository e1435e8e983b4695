"""What is asked: the query's parameters, headers, and a body with bounds on size and time."""

import asyncio
import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote_plus

from aiohttp import web

from nsqpy.names import is_valid_name
from nsqpy.net.http.replies import HTTPError
from nsqpy.net.listeners import shown_address
from nsqpy.scalars import format_duration

__all__ = ["Request", "argument", "legal_name", "log_request", "parse_query"]

log = logging.getLogger(__name__)

# A client that begins a body has to go on with it.
_BODY_MAX_S = 60.0
_BAD_QUERY = re.compile(r"%(?![0-9A-Fa-f]{2})|;")


@lru_cache(maxsize=256)
def parse_query(query: str) -> Mapping[str, str]:
    """The parameters of a query string; of several with one name the first counts.

    Bytes that are no UTF-8 become surrogates, which no legal name has. Cached, since publishers
    send the same query over and over.

    Raises:
        HTTPError: 400 INVALID_REQUEST for a stray ``%``, or a ``;``.
    """
    if _BAD_QUERY.search(query):
        raise HTTPError(400, "INVALID_REQUEST")
    found: dict[str, str] = {}
    for part in query.split("&"):
        if part:
            name, _, value = part.partition("=")
            found.setdefault(_decode(name), _decode(value))
    return found


def _decode(text: str) -> str:
    return unquote_plus(text, errors="surrogateescape")


def argument(query: Mapping[str, str], name: str) -> str:
    """An argument that must be there, though it may be empty.

    Raises:
        HTTPError: 400 MISSING_ARG_...
    """
    value = query.get(name)
    if value is None:
        raise HTTPError(400, f"MISSING_ARG_{name.upper()}")
    return value


def legal_name(query: Mapping[str, str], name: str) -> str:
    """An argument that must be there and be a legal topic or channel name.

    Raises:
        HTTPError: 400 MISSING_ARG_... or INVALID_ARG_...
    """
    value = argument(query, name)
    if not is_valid_name(value):
        raise HTTPError(400, f"INVALID_ARG_{name.upper()}")
    return value


class Request:
    """What a handler sees of a request."""

    __slots__ = ("_query", "_raw", "method", "segment")

    def __init__(self, raw: web.BaseRequest, query: str, segment: str) -> None:
        self._raw = raw
        self._query = query
        self.method = raw.method
        self.segment = segment

    @property
    def target(self) -> str:
        """Path and query as they came."""
        return self._raw.raw_path

    @property
    def range(self) -> str | None:
        """The ``Range`` header."""
        return self._raw.headers.get("Range")

    @property
    def peer(self) -> str:
        """``host:port``, or ``@`` for a Unix socket."""
        transport = self._raw.transport
        peer = None if transport is None else transport.get_extra_info("peername")
        if not isinstance(peer, tuple):
            return "@"
        return shown_address(*peer[:2])

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters. Raises: as ``parse_query``."""
        return parse_query(self._query)

    def header(self, name: str) -> str:
        """A header's value, empty if there is none."""
        return self._raw.headers.get(name, "")

    @property
    def has_body(self) -> bool:
        """Whether some of the request's body has not come yet, or has not been looked at."""
        return self._raw.body_exists

    def refuse_length_over(self, max_bytes: int, code: str) -> None:
        """Look at the announced length only, before anything of the body is read.

        Raises:
            HTTPError: 413 with ``code``; the connection ends.
        """
        length = self._raw.content_length
        if length is not None and length > max_bytes:
            raise HTTPError(413, code, close=True)

    async def body(self, max_bytes: int, code: str) -> bytes:
        """The whole body, of which no more than ``max_bytes`` and a read is ever held.

        Raises:
            HTTPError: 413 with ``code`` when it is longer; 400 INVALID_REQUEST when its chunks
                make no sense; 408 REQUEST_TIMEOUT when it takes a minute. The connection ends.
        """
        self.refuse_length_over(max_bytes, code)
        content = self._raw.content
        try:
            if content.is_eof():
                data = content.read_nowait()
            else:
                async with asyncio.timeout(_BODY_MAX_S):
                    data = await self._rest(max_bytes)
        except web.RequestPayloadError:
            raise HTTPError(400, "INVALID_REQUEST", close=True) from None
        except TimeoutError:
            raise HTTPError(408, "REQUEST_TIMEOUT", close=True) from None
        if len(data) > max_bytes:
            raise HTTPError(413, code, close=True)
        return data

    async def _rest(self, max_bytes: int) -> bytes:
        raw = self._raw
        if raw.headers.get("Expect", "").lower() == "100-continue" and raw.transport is not None:
            raw.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts: list[bytes] = []
        size = 0
        while size <= max_bytes and (part := await raw.content.readany()):
            parts.append(part)
            size += len(part)
        return b"".join(parts)


def log_request(request: Request, status: int, elapsed_ns: int) -> None:
    """The original's line for a request; for ``HTTPServer``."""
    log.info(
        "%d %s %s (%s) %s",
        *(status, request.method, request.target, request.peer, format_duration(elapsed_ns)),
    )
