"""The server: listeners, and everything from a parsed request to the bytes of its reply."""

import asyncio
import logging
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from aiohttp import web

from nsqpy.net.http.connections import SENT, SENT_LAST, Connections
from nsqpy.net.http.files import FileReply
from nsqpy.net.http.replies import HTTPError, Reply
from nsqpy.net.http.requests import Request
from nsqpy.net.http.routes import Handler, Route, Router
from nsqpy.net.limits import ConnectionLimit
from nsqpy.net.listeners import Listener, listen_tcp, listen_unix

if TYPE_CHECKING:
    from nsqpy.net.http.connections import Connection

__all__ = ["HTTPServer"]

log = logging.getLogger(__name__)

_INTERNAL_ERROR = HTTPError(500, "INTERNAL_ERROR").reply()
# Replies beyond this that the peer has not taken yet hold back its next request.
_UNSENT_MAX_BYTES = 64 * 1024
# A client has to take the replies that hold it back.
_REPLY_MAX_S = 60.0
_SWEEP_EVERY_S = 5.0


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
        self._connections = Connections(self._answer, limit)
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
        connection = cast("Connection", raw.protocol)
        keep_alive = raw.keep_alive and not reply.close
        if connection.half_closed:
            keep_alive = keep_alive and not connection.ends()
        transport = raw.transport
        if transport is not None:
            with_body = raw.method != "HEAD"
            transport.write(
                reply.encode(
                    http10=raw.version < (1, 1), keep_alive=keep_alive, with_body=with_body
                )
            )
        if isinstance(reply, FileReply):
            await reply.send(raw)
        elif transport is not None and transport.get_write_buffer_size() > _UNSENT_MAX_BYTES:
            await _drain(raw, transport)
        if connection.half_closed:  # perhaps while the reply was taken
            keep_alive = keep_alive and not connection.ends()
        connection.answered += 1
        return SENT if keep_alive else SENT_LAST

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
