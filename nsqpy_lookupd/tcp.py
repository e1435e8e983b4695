"""TCP connections: transport to parser to session.

A daemon with thousands of topics announces all of them in one go, and after a partition hundreds
of daemons do so at once. What they send is therefore only put by when it is read, and handled in
small pieces, by turns, for no longer than ``TURN_NS`` in one round of the event loop: HTTP
requests are answered in between. What daemons that have gone leave behind is swept up in the same
turns.
"""

import asyncio
import logging
from collections import deque
from typing import cast

from nsqpy.clock import MILLISECOND, Clock, Instant
from nsqpy.net.limits import ConnectionLimit
from nsqpy.net.listeners import shown_address
from nsqpy.protocol.lookup import LookupParser
from nsqpy_lookupd.session import Directory, LookupSession

__all__ = ["Connection", "Connections"]

log = logging.getLogger(__name__)

TURN_NS = MILLISECOND // 4
_PIECE_BYTES = 128
# Read but not handled; above this a connection is not read from.
_UNREAD_HIGH_BYTES = 16 * 1024
# Replies that the peer has not taken; above this its commands wait.
_WRITE_HIGH_BYTES = 64 * 1024
# Of the file descriptors a quarter is left to HTTP: whoever crowds in here stops no lookups.
_RESERVED_PART = 4


class Connections:
    """Every open connection, and those whose bytes wait to be handled."""

    def __init__(self, directory: Directory, clock: Clock) -> None:
        self.directory = directory
        self.open: dict[Connection, None] = {}
        # One for all, since what was read is copied at once.
        self.read_buffer = memoryview(bytearray(_UNREAD_HIGH_BYTES))
        self.limit = ConnectionLimit("TCP", 0, _RESERVED_PART)
        self._clock = clock
        self._waiting: deque[Connection] = deque()
        self._due = False

    def make(self) -> "Connection":
        return Connection(self)

    def enqueue(self, connection: "Connection") -> None:
        """Handle what the connection has read, when it is its turn."""
        self._waiting.append(connection)
        self.wake()

    def wake(self) -> None:
        """See to a turn. There is none while it is not known yet what to answer an IDENTIFY."""
        has_work = self._waiting or self.directory.registry.needs_sweep
        if has_work and not self._due and self.directory.identity:
            self._due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._due = False
        now = self._clock.now()
        end_ns = now.monotonic_ns + TURN_NS
        self.directory.sweep()
        while self._waiting and now.monotonic_ns < end_ns:
            self._waiting.popleft().handle(now)
            now = self._clock.now()
        self.wake()

    def close_all(self) -> None:
        """Close every connection at once, as the original does: no farewell."""
        for connection in list(self.open):
            connection.abort()


class Connection(asyncio.BufferedProtocol):
    """``handle`` is called once for each time the connection put itself in the queue."""

    __slots__ = (
        "_at_eof",
        "_blocked",
        "_connections",
        "_parser",
        "_queued",
        "_reading",
        "_session",
        "_transport",
        "_unread",
    )

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._parser = LookupParser()
        self._session: LookupSession
        self._transport: asyncio.Transport
        self._unread = bytearray()
        self._reading = True
        self._at_eof = self._blocked = self._queued = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do what asyncio.Transport says without being one.
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        connections = self._connections
        descriptor = transport.get_extra_info("socket").fileno()
        if connections.limit.refuses(descriptor, len(connections.open)):
            transport.abort()
            return
        address = shown_address(*transport.get_extra_info("peername")[:2])
        self._session = LookupSession(connections.directory, address)
        connections.open[self] = None
        log.info("TCP: new client(%s)", address)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._connections.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._unread += self._connections.read_buffer[:nbytes]
        if len(self._unread) >= _UNREAD_HIGH_BYTES:
            self._reading = False
            self._transport.pause_reading()
        self._enqueue()

    def eof_received(self) -> bool:
        self._at_eof = True
        self._enqueue()
        return True  # the transport stays until what came before has been answered

    def connection_lost(self, exc: Exception | None) -> None:
        if self not in self._connections.open:
            return  # one too many
        del self._connections.open[self]
        self._session.finished = True
        self._leave()
        log.debug("TCP: client(%s) gone: %s", self._session.remote_address, exc or "closed")

    def pause_writing(self) -> None:
        self._blocked = True

    def resume_writing(self) -> None:
        self._blocked = False
        self._enqueue()

    def _enqueue(self) -> None:
        has_work = self._unread or self._at_eof
        if has_work and not (self._queued or self._blocked or self._session.finished):
            self._queued = True
            self._connections.enqueue(self)

    def handle(self, now: Instant) -> None:
        """Handle the next piece of what was read, and queue for the one after it."""
        self._queued = False
        if self._session.finished:
            return
        try:
            self._handle(now)
        except Exception:
            # A bug of ours in one connection's work: it ends, the others go on.
            log.critical("[%s] - internal error", self._session.remote_address, exc_info=True)
            self.abort()

    def _handle(self, now: Instant) -> None:
        session, unread = self._session, self._unread
        if unread:
            piece = bytes(unread[:_PIECE_BYTES])
            del unread[:_PIECE_BYTES]
            session.receive(self._parser.feed(piece), now)
        elif self._at_eof:
            session.receive(self._parser.eof(), now)
            session.finished = True
        if session.out:
            self._transport.write(b"".join(session.out))
            session.out.clear()
        if session.finished:
            return self._finish()
        if not self._reading and len(unread) < _UNREAD_HIGH_BYTES // 2:
            self._reading = True
            self._transport.resume_reading()
        self._enqueue()
        return None

    def _finish(self) -> None:
        """Close once everything written has gone out; a peer that does not read gets no grace."""
        self._leave()
        if self._blocked:
            self._transport.abort()
        else:
            self._transport.close()

    def _leave(self) -> None:
        self._session.disconnected()
        self._connections.wake()

    def abort(self) -> None:
        self._session.finished = True
        self._transport.abort()
