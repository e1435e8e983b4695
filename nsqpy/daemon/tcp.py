"""One TCP connection: transport to parser to session, and one write a turn.

Decisions are the session's. What is decided here is only how many bytes may wait where: a client
that does not read is not sent to, one that floods is not read.
"""

import asyncio
import logging
from typing import cast

from nsqpy.clock import Clock
from nsqpy.core.broker import Broker
from nsqpy.core.session import Session
from nsqpy.daemon.heartbeats import Heartbeats
from nsqpy.protocol.commands import CommandParser
from nsqpy.protocol.identify import Features

__all__ = ["Connection", "Connections"]

log = logging.getLogger(__name__)

# Above the first a consumer gets no more messages; above the second, which only replies and
# errors can reach, the client is not read from until it has read.
WRITE_HIGH_BYTES = 1024 * 1024
WRITE_LOW_BYTES = 256 * 1024
WRITE_STOP_BYTES = 4 * 1024 * 1024
# Publishes that wait for their fsync; one read more may come on top.
UNSETTLED_HIGH_BYTES = 4 * 1024 * 1024
# Replies in one round of the loop, which may read the same socket several times.
OUT_HIGH_COUNT = 4096


class Connections:
    """Every open connection, and those with something to write at the end of this turn."""

    def __init__(self, broker: Broker, clock: Clock, heartbeats: Heartbeats) -> None:
        self.broker = broker
        self.clock = clock
        self.heartbeats = heartbeats
        self.open: dict[Connection, None] = {}
        self.waiting: dict[Connection, None] = {}

    def make(self) -> "Connection":
        return Connection(self)

    def flush(self, now_ns: int) -> None:
        """Write what each connection is owed, once."""
        waiting, self.waiting = self.waiting, {}
        for connection in waiting:
            connection.flush(now_ns)

    def close_all(self) -> None:
        """Close every connection, also those that never said anything."""
        self.flush(self.clock.now().monotonic_ns)
        for connection in list(self.open):
            connection.finish()


class Connection(asyncio.Protocol):
    """``sent_ns`` and ``received_ns`` are when bytes last went each way, for the heartbeats."""

    __slots__ = (
        "_connections",
        "_parser",
        "_reading",
        "_session",
        "_taken_bytes",
        "_transport",
        "_written_bytes",
        "blocked_since_ns",
        "deadline_ns",
        "received_ns",
        "sent_ns",
    )

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._reading = True
        self._transport: asyncio.Transport
        self._session: Session
        self._written_bytes = self._taken_bytes = 0
        self.blocked_since_ns = 0
        self.deadline_ns = -1
        config = connections.broker.config
        self._parser = CommandParser(
            max_msg_size=config.max_msg_size,
            max_body_size=config.max_body_size,
            max_defer_ms=config.max_defer_timeout_ns // 1_000_000,
        )

    @property
    def heartbeat_interval_ns(self) -> int:
        return self._session.features.heartbeat_interval_ns

    def __str__(self) -> str:
        return self._session.remote_address

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do what asyncio.Transport says without being one.
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        connections = self._connections
        broker = connections.broker
        now = connections.clock.now()
        self.sent_ns = self.received_ns = now.monotonic_ns
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and peer:
            host, address = peer[0], _address(peer[0], peer[1])
        else:
            host, address = "", "@"  # a Unix socket
        features = Features(
            client_id=host,
            hostname=host,
            output_buffer_timeout_ns=broker.config.output_buffer_timeout_ns,
            msg_timeout_ns=broker.config.msg_timeout_ns,
        )
        self._session = Session(broker, features, address, now)
        self._session.on_output = self._note_output
        broker.sessions[self._session] = None
        connections.open[self] = None
        log.info("TCP: new client(%s)", address)

    def data_received(self, data: bytes) -> None:
        try:
            self._receive(data)
        except Exception:
            # A bug of ours in one connection's work: it ends, the others go on.
            log.critical("[%s] - internal error", self, exc_info=True)
            self._transport.abort()

    def _receive(self, data: bytes) -> None:
        connections = self._connections
        now = connections.clock.now()
        self.received_ns = now.monotonic_ns
        session = self._session
        interval_ns = session.features.heartbeat_interval_ns
        session.receive(self._parser.feed(data), now)
        unwatched = self.deadline_ns < 0 and self._parser.started
        if unwatched or session.features.heartbeat_interval_ns != interval_ns:
            connections.heartbeats.watch(self)
        if session.unsettled_bytes > UNSETTLED_HIGH_BYTES or len(session.out) > OUT_HIGH_COUNT:
            self._pause_reading()

    def eof_received(self) -> bool:
        self._session.receive(self._parser.eof(), self._connections.clock.now())
        self._session.end()
        return True  # the transport stays until what is owed is written

    def connection_lost(self, exc: Exception | None) -> None:
        connections = self._connections
        connections.open.pop(self, None)
        connections.waiting.pop(self, None)
        connections.heartbeats.forget(self)
        connections.broker.sessions.pop(self._session, None)
        self._session.disconnected()
        self._session.on_output = _nothing
        log.debug("TCP: client(%s) gone: %s", self, exc or "closed")

    def pause_writing(self) -> None:
        self.blocked_since_ns = self._connections.clock.now().monotonic_ns
        self._taken_bytes = self._written_bytes - self._transport.get_write_buffer_size()
        self._session.set_blocked(True)

    def resume_writing(self) -> None:
        self.blocked_since_ns = 0
        self._session.set_blocked(False)
        self._resume_reading()

    def _note_output(self) -> None:
        connections = self._connections
        if not connections.waiting:
            connections.broker.rouse()
        connections.waiting[self] = None

    def flush(self, now_ns: int) -> None:
        """Write everything the session has ready, in one go."""
        session, transport = self._session, self._transport
        out = session.out
        if out:
            session.out = []
            self.sent_ns = now_ns
            data = out[0] if len(out) == 1 else b"".join(out)
            self._written_bytes += len(data)
            transport.write(data)
            if self.blocked_since_ns and transport.get_write_buffer_size() > WRITE_STOP_BYTES:
                self._pause_reading()
        if session.finished:
            self.finish()
        elif not self._reading and session.unsettled_bytes < UNSETTLED_HIGH_BYTES:
            self._resume_reading()

    def note_progress(self, now_ns: int) -> None:
        """A client that takes something, however slowly, is not one that does not read."""
        taken = self._written_bytes - self._transport.get_write_buffer_size()
        if self.blocked_since_ns and taken > self._taken_bytes:
            self.blocked_since_ns = now_ns
        self._taken_bytes = taken

    def beat(self, now_ns: int) -> None:
        """Send a heartbeat now: unlike messages it does not wait for the end of a turn."""
        self._session.heartbeat()
        self._connections.waiting.pop(self, None)
        self.flush(now_ns)

    def finish(self) -> None:
        """Close once everything written has gone out; a peer that does not read gets no grace."""
        if self._transport.is_closing():
            return
        if self.blocked_since_ns:
            self._transport.abort()
        else:
            self._transport.close()

    def abort(self, why: str) -> None:
        log.info("TCP: client(%s) %s, closing", self, why)
        self._transport.abort()

    def _pause_reading(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        blocked = self._transport.get_write_buffer_size() > WRITE_STOP_BYTES
        if not self._reading and not blocked and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _nothing() -> None:
    """The connection is gone."""
