"""HTTP as the daemons share it: routes, replies in the original's form, listeners.

A daemon gives ``HTTPServer`` a table ``{path: {method: Route}}``; a handler takes a ``Request``
and returns a ``Reply``, or raises ``HTTPError``. Unknown paths, wrong methods, ``OPTIONS`` and
unclean paths are answered here, by the same rules for every daemon. A path ending in ``/*``
takes any one segment there, which is then ``Request.segment``.

This stands on aiohttp's low-level server. A reply is encoded here and written as it is: measured
with an empty handler, a ``POST /pub`` costs 28 us of processor time that way, 42 us with aiohttp's
``Response`` and 49 us with its ``Application`` as well.

Source: reference nsqd 4.1; internal/http_api; julienschmidt/httprouter for redirects.
"""

import asyncio
import logging
import re
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from posixpath import normpath
from typing import cast
from urllib.parse import unquote, unquote_plus

from aiohttp import web

from nsqpy.gojson import JSON, go_json
from nsqpy.names import is_valid_name
from nsqpy.net.limits import ConnectionLimit
from nsqpy.net.listeners import Listener, listen_tcp, listen_unix, shown_address
from nsqpy.net.sendfile import FilePart, open_parts, send_parts
from nsqpy.scalars import format_duration

__all__ = [
    "EMPTY",
    "OK",
    "ClosedRouter",
    "FileReply",
    "HTTPError",
    "HTTPServer",
    "Handler",
    "Reply",
    "Request",
    "Route",
    "Router",
    "argument",
    "json_reply",
    "legal_name",
    "log_request",
    "parse_query",
    "text_reply",
]

log = logging.getLogger(__name__)

_NSQ_HEADER = ("X-Nsq-Content-Type", "nsq; version=1.0")
_JSON_TYPE = "application/json; charset=utf-8"
_TEXT_TYPE = "text/plain; charset=utf-8"

# --- replies ---


class Reply:
    """A status, headers and a body, encoded once; may be sent any number of times.

    ``close`` ends the connection after it.
    """

    __slots__ = ("body", "close", "head", "status")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        headers: Iterable[tuple[str, str]] = (),
        *,
        close: bool = False,
    ) -> None:
        self.head = _encode_head(status, headers, len(body))
        self.body = body
        self.status = status
        self.close = close

    def encode(self, *, http10: bool, keep_alive: bool, with_body: bool = True) -> bytes:
        """The bytes on the wire. ``with_body`` is false for HEAD."""
        if http10:
            version, connection = b"HTTP/1.0", _KEEP_ALIVE if keep_alive else _END
        else:
            version, connection = b"HTTP/1.1", _END if keep_alive else _CLOSE
        parts = (version, self.head, _date(), connection, self.body if with_body else b"")
        return b"".join(parts)


def _encode_head(status: int, headers: Iterable[tuple[str, str]], length: int) -> bytes:
    lines = [f" {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers]
    # No reply to 204 has a length.
    lines += [f"Content-Length: {length}"] if status != HTTPStatus.NO_CONTENT else []
    lines.append("Date: ")
    # Targets that are no UTF-8 come as surrogates and may go into Location.
    return "\r\n".join(lines).encode(errors="surrogateescape")


class FileReply(Reply):
    """Its body is ``length`` bytes of ``parts`` back to back, from ``offset`` on, or what a range
    of the request leaves of them; ``on_sent(offset, length)`` is called when they are sent. For
    one use.

    Raises:
        HTTPError: 416 with the length, for a range that is beyond it.
        OSError: a file cannot be opened.
    """

    __slots__ = ("_length", "_offset", "_on_sent", "_opened")

    def __init__(
        self,
        parts: Sequence[FilePart],
        requested: str | None,
        on_sent: Callable[[int, int], None],
    ) -> None:
        size = sum(part.length for part in parts)
        found = parse_range(requested, size) if requested is not None else None
        headers = [("Content-Type", "application/octet-stream"), ("Accept-Ranges", "bytes")]
        start, stop = (0, size) if found is None else found
        status = 200
        if found is not None:
            status = 206
            headers.append(("Content-Range", f"bytes {start}-{stop - 1}/{size}"))
        super().__init__(status)
        self.head = _encode_head(status, headers, stop - start)
        self._offset, self._length = start, stop - start
        self._on_sent = on_sent
        self._opened = open_parts(_cut_parts(parts, start, stop))

    async def send(self, raw: web.BaseRequest, transport: asyncio.Transport) -> None:
        """Send the body behind the head, which is on its way.

        Raises:
            ConnectionError: the peer went away.
        """
        transport.set_write_buffer_limits(0)
        try:
            await raw.writer.drain()
            await send_parts(transport, self._opened)
        finally:
            transport.set_write_buffer_limits()
        self._on_sent(self._offset, self._length)


_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """First and stop of the one range of bytes that a ``Range`` header asks for; None if it makes
    no sense or has several, which is as if there was none. Source: RFC 9110, 14.2.

    Raises:
        RangeError: there are no such bytes.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(size - int(last), 0), size
    else:
        start, stop = int(first), size if not last else min(int(last) + 1, size)
        if last and int(last) < start:
            return None
    if start >= stop:
        raise RangeError(size)
    return start, stop


def _cut_parts(parts: Sequence[FilePart], start: int, stop: int) -> list[FilePart]:
    found: list[FilePart] = []
    at = 0
    for path, offset, length in parts:
        first, last = max(start - at, 0), min(stop - at, length)
        if first < last:
            found.append(FilePart(path, offset + first, last - first))
        at += length
    return found


_END = b"\r\n\r\n"
_KEEP_ALIVE = b"\r\nConnection: keep-alive\r\n\r\n"
_CLOSE = b"\r\nConnection: close\r\n\r\n"

_date_cache = (0, b"")


def _date() -> bytes:
    global _date_cache
    now_s = int(time.time())
    if _date_cache[0] != now_s:
        _date_cache = (now_s, formatdate(now_s, usegmt=True).encode())
    return _date_cache[1]


def text_reply(body: str | bytes, status: int = 200, *, nsq: bool = True) -> Reply:
    """Plain text; ``nsq`` adds the API's own header, which ``/ping`` and ``/debug`` go without."""
    data = body.encode(errors="surrogateescape") if isinstance(body, str) else body
    headers = [("Content-Type", _TEXT_TYPE)]
    return Reply(status, data, [*headers, _NSQ_HEADER] if nsq else headers)


def json_reply(
    value: JSON | bytes,
    status: int = 200,
    *,
    close: bool = False,
    headers: Iterable[tuple[str, str]] = (),
) -> Reply:
    """JSON, encoded here unless it is bytes already."""
    data = value if isinstance(value, bytes) else go_json(value)
    return Reply(status, data, [("Content-Type", _JSON_TYPE), _NSQ_HEADER, *headers], close=close)


OK = text_reply("OK")
EMPTY = Reply(200, headers=[_NSQ_HEADER])


class HTTPError(Exception):
    """A refusal with the original's code word, such as ``TOPIC_NOT_FOUND``.

    ``close`` ends the connection, for when the rest of the request is not going to be read.
    ``headers`` are more than every refusal has.
    """

    def __init__(
        self,
        status: int,
        code: str,
        *,
        close: bool = False,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(status, code, close)
        self.status = status
        self.code = code
        self.close = close
        self.headers = headers

    def __str__(self) -> str:
        return f"{self.status} {self.code}"

    def reply(self) -> Reply:
        message = {"message": self.code}
        return json_reply(message, self.status, close=self.close, headers=self.headers)


class RangeError(HTTPError):
    """There are only ``size`` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(416, "RANGE_NOT_SATISFIABLE")
        self.size = size

    def reply(self) -> Reply:
        headers = [("Content-Type", _JSON_TYPE), ("Content-Range", f"bytes */{self.size}")]
        return Reply(416, go_json({"message": self.code}), headers)


# --- requests ---

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


# --- routes ---

Handler = Callable[[Request], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Route:
    """What answers one method of one path; ``logged`` is off for what comes by the thousand."""

    handler: Handler
    logged: bool = True


_Methods = Mapping[str, Route]
_NO_METHODS: _Methods = {}


class Router:
    """From method and path to a route, or to the reply for a request that has none."""

    def __init__(self, routes: Mapping[str, _Methods]) -> None:
        self._exact = {path: methods for path, methods in routes.items() if path[-2:] != "/*"}
        self._open = {path[:-1]: methods for path, methods in routes.items() if path[-2:] == "/*"}
        self._by_lower = {path.lower(): path for path in self._exact}
        self._open_by_lower = {prefix.lower(): prefix for prefix in self._open}

    def find(self, path: str) -> tuple[_Methods, str]:
        """What answers ``path``, by method, and its last segment if that was left open."""
        if "%" in path:
            path = unquote(path, errors="surrogateescape")
        if (methods := self._exact.get(path)) is not None:
            return methods, ""
        prefix, segment = _cut(path)
        return self._open.get(prefix, _NO_METHODS) if segment else _NO_METHODS, segment

    def refusal(self, method: str, path: str, query: str) -> Reply:
        """The answer to a request for which ``find`` has no route: 301, 307, 404, 405 or 200."""
        if (clean := self._clean(method, path)) is not None:
            location = f"{clean}?{query}" if query else clean
            return Reply(301 if method == "GET" else 307, headers=[("Location", location)])
        methods, _ = self.find(path)
        if not methods:
            return HTTPError(404, "NOT_FOUND").reply()
        allow = ("Allow", ", ".join(sorted({*methods, "OPTIONS"})))
        if method == "OPTIONS":
            return Reply(200, headers=[allow])
        body = HTTPError(405, "METHOD_NOT_ALLOWED").reply().body
        return Reply(405, body, [allow, ("Content-Type", _JSON_TYPE), _NSQ_HEADER])

    def _clean(self, method: str, path: str) -> str | None:
        """The path that ``path`` seems to mean, if it has the method; None if it means itself."""
        clean = "/" + normpath(path).lstrip("/")
        for candidate in (clean, clean + "/"):
            known = self._by_lower.get(candidate.lower())
            if known is None:
                prefix, segment = _cut(candidate)
                found = self._open_by_lower.get(prefix.lower()) if segment else None
                known = None if found is None else found + segment
            if known is not None and known != path and method in self.find(known)[0]:
                return known
        return None


class ClosedRouter(Router):
    """Has one answer, whatever is asked."""

    def __init__(self, reply: Reply) -> None:
        super().__init__({})
        self._reply = reply

    def refusal(self, method: str, path: str, query: str) -> Reply:
        return self._reply


def _cut(path: str) -> tuple[str, str]:
    head, slash, segment = path.rpartition("/")
    return head + slash, segment


# --- serving ---

_BAD_REQUEST = Reply(400, b"400 Bad Request", [("Content-Type", _TEXT_TYPE)], close=True)
_INTERNAL_ERROR = HTTPError(500, "INTERNAL_ERROR").reply()
# Replies beyond this that the peer has not taken yet hold back its next request.
_UNSENT_MAX_BYTES = 64 * 1024


class _Sent(web.StreamResponse):
    """Tells aiohttp that the reply is on its way, and whether to go on reading. Stateless."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        return

    async def write_eof(self, data: bytes = b"") -> None:
        return


class _Protocol(web.RequestHandler):
    """aiohttp's connection, with the original's words for bytes that are no HTTP.

    ``head_since_s`` is when the head of a request was begun that is not complete, on the event
    loop's clock; 0 if there is none. A new connection is taken for one.
    """

    __slots__ = ("head_since_s", "limit")

    head_since_s: float
    limit: ConnectionLimit | None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        manager = self._manager
        descriptor = transport.get_extra_info("socket").fileno()
        if (
            manager is not None
            and self.limit is not None
            and self.limit.refuses(descriptor, len(manager.connections))
        ):
            cast("asyncio.Transport", transport).write(_BUSY.encode(http10=False, keep_alive=False))
            transport.close()
            return
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages or self._current_request is not None:
            self.head_since_s = 0.0
        elif not self.head_since_s:
            self.head_since_s = self._loop.time()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        log.debug("HTTP: bad request from %s: %s", request.remote, message)
        if self.transport is not None:
            self.transport.write(_BAD_REQUEST.encode(http10=False, keep_alive=False))
        return _SENT_LAST


_BUSY = HTTPError(503, "TOO_MANY_CONNECTIONS", close=True).reply()
_SENT = _Sent(keep_alive=True)
_SENT_LAST = _Sent(keep_alive=False)


# aiohttp has a timer for every idle connection; the original keeps them for ever.
_IDLE_MAX_S = 365 * 24 * 3600
# A client that begins something has to go on with it: a head, a body, the reading of a reply.
_HEAD_MAX_S = 30.0
_BODY_MAX_S = 60.0
_REPLY_MAX_S = 60.0
_SWEEP_EVERY_S = 5.0
# How long the rest of a refused body is still read, so that the peer gets to see why.
_LINGER_S = 1.0


class _Connections(web.Server):
    """Bodies are taken as they are: the original does not decompress, and a small compressed
    body must not become a large one."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        limit: ConnectionLimit | None,
    ) -> None:
        super().__init__(
            handler,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=_IDLE_MAX_S,
            lingering_time=_LINGER_S,
        )
        self._limit = limit

    def __call__(self) -> web.RequestHandler:
        connection = _Protocol(self, loop=self._loop, **self._kwargs)
        connection.limit = self._limit
        connection.head_since_s = self._loop.time()
        return connection

    def sweep(self, now_s: float) -> None:
        """End connections whose request takes too long to begin."""
        oldest_s = now_s - _HEAD_MAX_S
        for connection in self.connections:
            if isinstance(connection, _Protocol) and 0 < connection.head_since_s < oldest_s:
                connection.force_close()


class HTTPServer:
    """Serves a table of routes on any number of addresses.

    ``on_request(request, status, elapsed_ns)`` hears of every request whose route is logged, and
    of those without a route. ``errors`` counts refusals by their code. Made and used inside a
    running event loop.
    """

    def __init__(
        self,
        routes: Mapping[str, Mapping[str, Route]] | Router,
        on_request: Callable[[Request, int, int], None],
        limit: ConnectionLimit | None = None,
    ) -> None:
        self._router = routes if isinstance(routes, Router) else Router(routes)
        self._on_request = on_request
        self._connections = _Connections(self._answer, limit)
        self.limit = limit
        self.errors: Counter[str] = Counter()
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep()
        self._listeners: list[Listener] = []
        self._tls_listeners: list[Listener] = []

    async def listen(
        self, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Accept connections, with ``tls`` as HTTPS; return the address really listened on.

        Raises:
            OSError: as ``listeners.listen_tcp``, which says what empty hosts and port 0 mean.
        """
        listener = await listen_tcp(self._connections, host, port, tls)
        (self._listeners if tls is None else self._tls_listeners).append(listener)
        return listener.host, listener.port

    async def listen_unix(self, path: Path) -> None:
        """Accept connections on a Unix socket; ``stop`` removes the file.

        Raises:
            OSError: as ``listeners.listen_unix``.
        """
        self._listeners.append(await listen_unix(self._connections, path))

    async def renew_tls(self, context: ssl.SSLContext) -> None:
        """Use ``context`` for the HTTPS connections to come. Raises: as ``Listener.renew_tls``."""
        for listener in self._tls_listeners:
            await listener.renew_tls(self._connections, context)

    @property
    def connection_count(self) -> int:
        return len(self._connections.connections)

    def sweep(self, now_s: float) -> None:
        """End what has taken too long by ``now_s``, on the event loop's clock."""
        self._connections.sweep(now_s)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self.sweep(loop.time())
        self._sweeper = loop.call_later(_SWEEP_EVERY_S, self._sweep)

    async def stop(self, grace_s: float = 1.0) -> None:
        """Stop listening, let requests under way end within ``grace_s``, close connections."""
        for listener in (*self._listeners, *self._tls_listeners):
            listener.close()
        self._listeners.clear()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._tls_listeners.clear()
        self._connections.pre_shutdown()
        await self._connections.shutdown(grace_s)

    async def _answer(self, raw: web.BaseRequest) -> web.StreamResponse:
        """Everything from a parsed request head to the bytes of the reply."""
        started_ns = time.monotonic_ns()
        target = raw.raw_path
        if not target.startswith("/"):
            target = _origin_form(target)
        path, _, query = target.partition("?")
        methods, segment = self._router.find(path)
        route = methods.get(raw.method)
        request = Request(raw, query, segment)
        if route is None:
            reply = self._router.refusal(raw.method, path, query)
        else:
            reply = await self._reply_of(route.handler, request)
        if route is None or route.logged:
            self._on_request(request, reply.status, time.monotonic_ns() - started_ns)
        keep_alive = raw.keep_alive and not reply.close
        transport = raw.transport
        if transport is not None:
            with_body = raw.method != "HEAD"
            transport.write(
                reply.encode(
                    http10=raw.version < (1, 1), keep_alive=keep_alive, with_body=with_body
                )
            )
            if isinstance(reply, FileReply):
                await reply.send(raw, transport)
            elif transport.get_write_buffer_size() > _UNSENT_MAX_BYTES:
                await _drain(raw, transport)
        return _SENT if keep_alive else _SENT_LAST

    async def _reply_of(self, handler: Handler, request: Request) -> Reply:
        try:
            return await handler(request)
        except HTTPError as error:
            self.errors[error.code.partition(" ")[0]] += 1
            return error.reply()
        except ConnectionError:
            raise  # the peer went away: aiohttp ends the connection, nobody is left to answer
        except Exception:
            log.exception("HTTP: %s %s failed", request.method, request.target)
            self.errors["INTERNAL_ERROR"] += 1
            return _INTERNAL_ERROR


async def _drain(raw: web.BaseRequest, transport: asyncio.Transport) -> None:
    """Wait until the peer has taken the reply; one that does not is cut off."""
    try:
        async with asyncio.timeout(_REPLY_MAX_S):
            await raw.writer.drain()
    except TimeoutError:
        transport.abort()


def _origin_form(target: str) -> str:
    """``/path`` of ``http://host/path``, which clients send to a proxy."""
    _, _, rest = target.partition("://")
    return "/" + rest.partition("/")[2]
