"""aiohttp's connections, as the server wants them: bounded in number, and in how long a request
may take to begin."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import StreamReader, web

from nsqpy.net.http.replies import HTTPError, text_reply
from nsqpy.net.limits import ConnectionLimit

__all__ = ["SENT", "SENT_LAST", "Connection", "Connections"]

log = logging.getLogger(__name__)

_BAD_REQUEST = text_reply("400 Bad Request", 400, nsq=False)
_BUSY = HTTPError(503, "TOO_MANY_CONNECTIONS").reply()

# aiohttp has a timer for every idle connection; the original keeps them for ever.
_IDLE_MAX_S = 365 * 24 * 3600
# A client that begins a request has to go on with it.
_HEAD_MAX_S = 30.0
# How long the rest of a refused body is still read, so that the peer gets to see why.
_LINGER_S = 1.0


class _Sent(web.StreamResponse):
    """Tells aiohttp that the reply is on its way, and whether to go on reading. Stateless."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        return

    async def write_eof(self, data: bytes = b"") -> None:
        return


SENT = _Sent(keep_alive=True)
SENT_LAST = _Sent(keep_alive=False)


class Connection(web.RequestHandler):
    """aiohttp's connection, with the original's words for bytes that are no HTTP.

    ``head_since_s`` is when the head of a request was begun that is not complete, on the event
    loop's clock; 0 if there is none. A new connection is taken for one. ``half_closed``: the
    client has sent all it will. The server counts ``answered`` requests.
    """

    __slots__ = ("_last_body", "answered", "half_closed", "head_since_s", "limit")

    _last_body: StreamReader
    answered: int
    half_closed: bool
    head_since_s: float
    limit: ConnectionLimit | None

    def begin(self, now_s: float, limit: ConnectionLimit | None) -> None:
        """What aiohttp's constructor does not know of."""
        self.answered = 0
        self.half_closed = False
        self.head_since_s = now_s
        self.limit = limit

    def ends(self) -> bool:
        """Whether the request at hand is the last there will be."""
        return self.half_closed and self._request_count - self.answered <= 1

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
        count = self._request_count
        super().data_received(data)
        if self._request_count != count:
            self._last_body = self._messages[-1][1]
            self.head_since_s = 0.0
        elif not self.head_since_s and count == self.answered:
            self.head_since_s = self._loop.time()

    def eof_received(self) -> bool:  # type: ignore[override] # asyncio's may say so
        """Answer what was asked in full, unlike aiohttp. Over TLS no transport can do that."""
        idle = self._request_count == self.answered
        if idle or not self._last_body.is_eof() or self.transport is None:
            return False
        self.half_closed = self.transport.get_extra_info("sslcontext") is None
        return self.half_closed

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        # Not the text: it quotes the line, which may be the one that holds a token.
        log.debug("HTTP: bad request from %s: %s", request.remote, type(exc).__name__)
        if self.transport is not None:
            self.transport.write(_BAD_REQUEST.encode(http10=False, keep_alive=False))
        return SENT_LAST


class Connections(web.Server):
    """The open connections; ``handler`` gets each request, its head parsed.

    Bodies are taken as they are: the original does not decompress, and a small compressed body
    must not become a large one.
    """

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
        connection = Connection(self, loop=self._loop, **self._kwargs)
        connection.begin(self._loop.time(), self._limit)
        return connection

    def sweep(self, now_s: float) -> None:
        """End connections whose request takes too long to begin."""
        oldest_s = now_s - _HEAD_MAX_S
        for connection in self.connections:
            if isinstance(connection, Connection) and 0 < connection.head_since_s < oldest_s:
                connection.force_close()
