"""One TCP connection: transport to parser to session, and one write a turn.

Decisions are the session's. What is decided here is only how many bytes may wait where: a client
that does not read is not sent to, one that floods is not read.
"""

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, cast

from nsqpy.clock import Clock
from nsqpy.core.broker import Broker
from nsqpy.core.session import Session
from nsqpy.daemon.heartbeats import Fault, Heartbeats
from nsqpy.errors import ErrorCode, ProtocolError, TransformError
from nsqpy.net.layers import Layers
from nsqpy.net.limits import ConnectionLimit
from nsqpy.net.tls import TLSStage
from nsqpy.protocol.commands import CommandParser
from nsqpy.protocol.frames import OK_FRAME, error_frame
from nsqpy.protocol.identify import Features
from nsqpy.protocol.transforms import DeflateStage, SnappyStage

if TYPE_CHECKING:
    import ssl

__all__ = ["Connection", "Connections"]

log = logging.getLogger(__name__)

# Of ``max_unsent_size``, above which a consumer gets no more messages: until this part of it is
# left, and up to this multiple, which only replies and errors can reach. Beyond that the client is
# not read from until it has read.
_UNSENT_LOW_PART = 4
_UNSENT_STOP_TIMES = 4
# Publishes that wait for their fsync; one read more may come on top.
UNSETTLED_HIGH_BYTES = 4 * 1024 * 1024
# Replies, and bytes read since the last flush: the loop may read a socket dozens of times a round,
# the smallest publishes come a hundred thousand to two megabytes, and everybody else would wait.
OUT_HIGH_COUNT = 4096
READ_HIGH_BYTES = 256 * 1024


class Connections:
    """Every open connection, and those with something to write at the end of this turn.

    ``tls_context`` may be changed at any time; it counts for handshakes that begin later.
    """

    def __init__(self, broker: Broker, clock: Clock, heartbeats: Heartbeats) -> None:
        self.broker = broker
        self.clock = clock
        self.heartbeats = heartbeats
        self.tls_context: ssl.SSLContext | None = None
        self.open: dict[Connection, None] = {}
        self.waiting: dict[Connection, None] = {}
        self.limit = ConnectionLimit("TCP", broker.config.max_connections)
        self.cut_off: Counter[str] = Counter()  # by the kind of fault

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
        "_read_bytes",
        "_reading",
        "_session",
        "_taken_bytes",
        "_transport",
        "_unsent_stop_bytes",
        "_written_bytes",
        "blocked_since_ns",
        "deadline_ns",
        "received_ns",
        "sent_ns",
        "write_timeout_ns",
    )

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._reading = True
        self._read_bytes = 0  # since the last flush
        self._transport: asyncio.Transport
        self._session: Session
        self._written_bytes = self._taken_bytes = 0
        self.blocked_since_ns = 0
        self.deadline_ns = -1
        config = connections.broker.config
        self._unsent_stop_bytes = config.max_unsent_size * _UNSENT_STOP_TIMES
        self.write_timeout_ns = config.write_timeout_ns
        self._parser = CommandParser(
            max_msg_size=config.max_msg_size,
            max_body_size=config.max_body_size,
            max_defer_ms=config.max_defer_timeout_ns // 1_000_000,
        )
        if config.tls_required:
            self._parser.require_tls()

    @property
    def heartbeat_interval_ns(self) -> int:
        return self._session.features.heartbeat_interval_ns

    def __str__(self) -> str:
        return self._session.remote_address

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do what asyncio.Transport says without being one.
        self._transport = transport = cast("asyncio.Transport", transport)
        connections = self._connections
        broker = connections.broker
        unsent_bytes = broker.config.max_unsent_size
        transport.set_write_buffer_limits(unsent_bytes, unsent_bytes // _UNSENT_LOW_PART)
        socket = transport.get_extra_info("socket")
        if connections.limit.refuses(socket.fileno(), len(connections.open)):
            transport.abort()
            return
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
        self._parser.auth_first = broker.authenticator is not None
        broker.sessions[self._session] = None
        connections.open[self] = None
        connections.heartbeats.watch(self)
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
        session = self._session
        interval_ns = session.features.heartbeat_interval_ns
        commands = self._parser.feed(data)
        if commands:  # a body that comes byte by byte is no sign of life, as in the original
            self.received_ns = now.monotonic_ns
        session.receive(commands, now)
        if session.features.heartbeat_interval_ns != interval_ns:
            connections.heartbeats.watch(self)
        full = session.unsettled_bytes > UNSETTLED_HIGH_BYTES or len(session.out) > OUT_HIGH_COUNT
        self._read_bytes += len(data)
        if self._read_bytes > READ_HIGH_BYTES:
            full = True
            self._note_output()  # to be read from again at the end of the turn
        if full or session.asking:
            self._pause_reading()

    def eof_received(self) -> bool:
        self._session.receive(self._parser.eof(), self._connections.clock.now())
        self._session.end()
        return True  # the transport stays until what is owed is written

    def connection_lost(self, exc: Exception | None) -> None:
        connections = self._connections
        if self not in connections.open:
            return  # one too many
        del connections.open[self]
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
        if self in self._connections.open:
            self._connections.heartbeats.watch(self)

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
        self._read_bytes = 0
        out = session.out
        if out:
            session.out = []
            self.sent_ns = now_ns
            data = out[0] if len(out) == 1 else b"".join(out)
            self._written_bytes += len(data)
            transport.write(data)
            if (
                self.blocked_since_ns
                and transport.get_write_buffer_size() > self._unsent_stop_bytes
            ):
                self._pause_reading()
        if session.finished:
            self.finish()
        elif session.upgrading:
            if session.upgrade_due:
                self._upgrade()
        elif not self._reading and session.unsettled_bytes < UNSETTLED_HIGH_BYTES:
            self._resume_reading()

    def note_progress(self, now_ns: int) -> None:
        """A client that takes something, however slowly, is not one that does not read; one that
        waits for the authenticator cannot be heard."""
        if self._session.asking:
            self.received_ns = now_ns
        taken = self._written_bytes - self._transport.get_write_buffer_size()
        if self.blocked_since_ns and taken > self._taken_bytes:
            self.blocked_since_ns = now_ns
        self._taken_bytes = taken

    def beat(self, now_ns: int) -> None:
        """Send a heartbeat now: unlike messages it does not wait for the end of a turn."""
        if self._session.upgrading or not self._parser.started:
            return  # nothing may come before the magic, or between IDENTIFY's reply and new layers
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

    def abort(self, why: Fault) -> None:
        log.info("TCP: client(%s) %s, closing", self, why.value)
        connections = self._connections
        connections.cut_off[why.name.lower()] += 1
        if why is Fault.SLOW:
            # It has not read its messages, so there is no answer to wait for.
            self._session.give_back(connections.clock.now())
        self._transport.abort()

    # The layers that IDENTIFY granted: TLS, then one compression, each with an OK of its own.

    def _upgrade(self) -> None:
        """Begin, now that the reply is written. What the client sent too early is dropped."""
        self._resume_reading()
        layers = Layers(self._transport, self, self._broken)
        self._transport = layers
        tls = self._session.features.tls
        self._parser.restart(tls=tls)
        if tls:
            context = self._connections.tls_context
            assert context is not None  # or it would not have been granted
            stage = TLSStage(context, server_side=True)
            layers.start_tls(stage, partial(self._secured, layers, stage))
        else:
            self._compress(layers)

    def _secured(self, layers: Layers, stage: TLSStage, failure: TransformError | None) -> None:
        session = self._session
        if failure is not None:
            error = ProtocolError(ErrorCode.IDENTIFY_FAILED, f"IDENTIFY failed {failure}")
            self._connections.broker.log_client_error(session.remote_address, error)
            layers.write_clear(error_frame(str(error).encode()))
            self.finish()
            return
        details = stage.details()
        session.tls_version = details.version
        session.tls_cipher_suite = details.cipher_suite
        session.tls_common_name = details.common_name
        layers.write(OK_FRAME)
        self._compress(layers)

    def _compress(self, layers: Layers) -> None:
        features = self._session.features
        if features.snappy or features.deflate:
            layers.add(SnappyStage() if features.snappy else DeflateStage(features.deflate_level))
            layers.write(OK_FRAME)
        self.sent_ns = self._connections.clock.now().monotonic_ns
        self._session.upgraded()

    def _broken(self, error: TransformError) -> None:
        log.info("TCP: client(%s) sent a broken stream, closing - %s", self, error)
        self.finish()

    def _pause_reading(self) -> None:
        if self._reading and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        blocked = self._transport.get_write_buffer_size() > self._unsent_stop_bytes
        blocked = blocked or self._session.asking
        if not self._reading and not blocked and not self._transport.is_closing():
            self._reading = True
            self._transport.resume_reading()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _nothing() -> None:
    """The connection is gone."""
