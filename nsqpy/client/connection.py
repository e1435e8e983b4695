"""One connection to nsqd: handshake, frames, liveness, and one write a turn of the event loop.

What is sent during a turn is joined and written once, FINs last. Heartbeats are answered here,
so that they never wait for a handler.
"""

import asyncio
import json
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Protocol, cast

from nsqpy.client.options import ClientOptions
from nsqpy.clock import SECOND
from nsqpy.errors import ConfigError, ConnectionClosed, ServerError, TransformError
from nsqpy.net.layers import Layers
from nsqpy.net.tls import TLSStage
from nsqpy.protocol import requests
from nsqpy.protocol.frames import (
    BadFrame,
    ErrorFrame,
    Frame,
    FrameParser,
    MessageFields,
    MessageFrames,
    ResponseFrame,
)
from nsqpy.protocol.transforms import DeflateStage, SnappyStage

__all__ = [
    "ClientConnection",
    "ConnectionOwner",
    "open_connection",
    "parse_address",
    "reconnect_delays_s",
]

log = logging.getLogger(__name__)

_HANDSHAKE_TIMEOUT_S = 5.0
_GREETING_MAX_BYTES = 64 * 1024
_RECONNECT_FIRST_S = 1.0
# What an nsqd too old to negotiate allows. Source: go-nsq conn.go.
_OLD_MAX_RDY_COUNT = 2500
_MESSAGE_OVERHEAD_BYTES = 30  # frame type and message fields: what size counts beside the body


class ConnectionOwner(Protocol):
    """Whoever a connection tells what it receives. Called on the event loop; must not wait."""

    def messages_received(
        self, connection: "ClientConnection", messages: list[MessageFields]
    ) -> None: ...

    def response_received(self, connection: "ClientConnection", data: bytes) -> None: ...

    def error_received(self, connection: "ClientConnection", error: ServerError) -> None: ...

    def connection_closed(self, connection: "ClientConnection", reason: str) -> None:
        """Called once, and only for a connection that ``open_connection`` has returned."""


class ClientConnection(asyncio.Protocol):
    """One connection. Made by ``open_connection``, which does the handshake.

    ``in_flight`` counts the messages received here and not answered; ``finish`` and ``requeue``
    lower it. ``address`` is as the user, or a directory, wrote it; ``topic`` is a consumer's.
    """

    def __init__(
        self, address: str, options: ClientOptions, owner: ConnectionOwner, topic: str
    ) -> None:
        self.address = address
        self.topic = topic
        self.in_flight = 0
        self.max_rdy_count = _OLD_MAX_RDY_COUNT
        self.opened = False
        self._options = options
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        size_max = options.max_msg_size_bytes
        self._parser = FrameParser(size_max + _MESSAGE_OVERHEAD_BYTES if size_max else 0)
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[bytes] | None = None
        # While layers may still change, frames are taken one by one: what follows a reply may
        # belong to another layer.
        self._greeting = True
        self._early = b""
        self._out: list[bytes] = []
        self._finished: list[bytes] = []
        self._flush_scheduled = False
        self._closing_when_idle = False
        self._reason = "closed by nsqd"
        self._closed = asyncio.Event()
        self._read_s = self._loop.time()
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._writable: asyncio.Future[None] | None = None

    # What the owner does.

    def send(self, data: bytes) -> None:
        """Write at the end of this turn, with whatever else is sent until then."""
        self._out.append(data)
        self._schedule_flush()

    def send_now(self, data: bytes) -> None:
        """Write at once; for one who waits for the answer with nothing else to send."""
        self._out.append(data)
        self._flush()

    def finish(self, message_id: bytes) -> None:
        self._finished.append(message_id)
        self.in_flight -= 1
        self._schedule_flush()

    def finish_many(self, message_ids: list[bytes]) -> None:
        self._finished += message_ids
        self.in_flight -= len(message_ids)
        self._schedule_flush()

    def requeue(self, message_id: bytes, delay_ms: int) -> None:
        self.in_flight -= 1
        self.send(requests.req(message_id, delay_ms))

    async def request(self, data: bytes) -> bytes:
        """Send a command and wait for its response; for the handshake and SUB.

        Raises:
            ServerError: nsqd answered with an error frame.
            ConnectionClosed: it went away, or did not answer within 5 s.
        """
        self.send(data)
        return await self._answer(data.removeprefix(requests.MAGIC).split(maxsplit=1)[0].decode())

    async def _answer(self, command: str) -> bytes:
        """The next response. Raises: as ``request``."""
        assert self._reply is None
        self._reply = self._loop.create_future()
        self._take_early()
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                return await self._reply
        except TimeoutError:
            raise ConnectionClosed(f"{self.address}: no answer to {command}") from None
        finally:
            self._reply = None

    @property
    def writable(self) -> bool:
        """False while nsqd does not read what was written."""
        return self._writable is None

    async def wait_writable(self) -> None:
        """Wait until nsqd reads again. Returns too when the connection is lost."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def close_when_idle(self) -> None:
        """Close as soon as everything in flight is answered; that may be now."""
        self._closing_when_idle = True
        self._schedule_flush()

    def close(self, reason: str = "closed") -> None:
        """Write what is waiting, then close."""
        self._reason = reason
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once; what is not written is lost."""
        self._reason = reason
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def identify(self) -> None:
        """Introduce the client, take what nsqd allows, put the layers in place, show the secret.

        Raises:
            ServerError: nsqd refused it.
            ConnectionClosed: it went away, did not answer, has no TLS where that is wanted, is
                not who it should be, or wants a secret where there is none.
        """
        fields = self._options.identify_fields()
        reply = await self.request(requests.MAGIC + requests.identify(fields))
        # "OK" is from an nsqd that does not negotiate.
        features = self._features(reply) if reply.startswith(b"{") else {}
        await self._upgrade(features)
        if features.get("auth_required"):
            if not self._options.auth_secret:
                raise ConnectionClosed(f"{self.address}: auth required, and no auth_secret is set")
            await self.request(requests.auth(self._options.auth_secret))

    def _features(self, reply: bytes) -> dict[str, object]:
        try:
            features = json.loads(reply)
            self.max_rdy_count = int(features.get("max_rdy_count", _OLD_MAX_RDY_COUNT))
        except (ValueError, TypeError) as error:
            raise ConnectionClosed(f"{self.address}: bad reply to IDENTIFY: {error}") from error
        return dict(features)

    async def _upgrade(self, features: Mapping[str, object]) -> None:
        """TLS, then one compression, each with an OK from nsqd through the new layer."""
        options = self._options
        if options.tls_v1 and not features.get("tls_v1"):
            # go-nsq goes on in clear, for everybody on the way to read.
            raise ConnectionClosed(f"{self.address}: nsqd has no TLS, and tls_v1 wants it")
        deflate = options.deflate and bool(features.get("deflate"))
        snappy = options.snappy and bool(features.get("snappy"))
        if options.tls_v1 or deflate or snappy:
            assert self._transport is not None
            layers = Layers(self._transport, self, self._broken)
            self._transport = layers
            if options.tls_v1:
                await self._secure(layers)
            if deflate:
                layers.add(DeflateStage(options.deflate_level), self._pop_early())
                await self._answer("deflate")
            if snappy:
                layers.add(SnappyStage(), self._pop_early())
                await self._answer("snappy")
        self._greeting = False
        early = self._pop_early()
        if early:
            self.data_received(early)

    async def _secure(self, layers: Layers) -> None:
        where = parse_address(self.address)
        # A Unix socket has no host in its address: it is this one.
        host = "localhost" if isinstance(where, str) else where[0]
        try:
            # The files are read each time: they may have been renewed since.
            context = self._options.tls.context()
            stage = TLSStage(context, server_side=False, server_hostname=host)
        except (ConfigError, ValueError) as error:
            raise ConnectionClosed(f"{self.address}: {error}") from error
        layers.start_tls(stage, self._handshaken, self._pop_early())
        await self._answer("TLS handshake")
        await self._answer("TLS")

    def _handshaken(self, error: TransformError | None) -> None:
        assert self._reply is not None
        if self._reply.done():
            return
        if error is None:
            self._reply.set_result(b"")
        else:
            self._reply.set_exception(ConnectionClosed(f"{self.address}: {error}"))

    def _broken(self, error: TransformError) -> None:
        self._give_up(str(error))

    def _give_up(self, reason: str) -> None:
        """Close at once, unless that is under way for another reason."""
        if self._transport is not None and not self._transport.is_closing():
            self.abort(reason)

    def _pop_early(self) -> bytes:
        early, self._early = self._early, b""
        return early

    def _take_early(self) -> None:
        """Take the frames that have come, up to the reply that is waited for."""
        while self._reply is not None and not self._reply.done() and len(self._early) >= 4:
            end = 4 + int.from_bytes(self._early[:4], "big")
            if len(self._early) < end <= _GREETING_MAX_BYTES:
                return
            data, self._early = self._early[:end], self._early[end:]
            for frame in self._parser.feed(data):
                self._receive(frame)
            if end > _GREETING_MAX_BYTES:
                self._give_up(f"a reply of {end} bytes in the handshake")

    # What asyncio does.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._read_s = self._loop.time()
        self._arm_read_timer()

    def data_received(self, data: bytes) -> None:
        self._read_s = self._loop.time()
        if self._greeting:
            self._early += data
            self._take_early()
            return
        for frame in self._parser.feed(data):
            self._receive(frame)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        self._arm_write_timer()

    def resume_writing(self) -> None:
        self._release_writers()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set()
        if error is not None:
            self._reason = _reason(error)
        self._release_writers()
        if self._read_timer is not None:
            self._read_timer.cancel()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionClosed(f"{self.address}: {self._reason}"))
        if self.opened:
            self._owner.connection_closed(self, self._reason)

    def _receive(self, frame: Frame) -> None:
        match frame:
            case MessageFrames():
                self.in_flight += len(frame.messages)
                self._owner.messages_received(self, frame.messages)
            case ResponseFrame(b"_heartbeat_"):
                self.send(requests.NOP)
            case ResponseFrame():
                if self._reply is not None and not self._reply.done():
                    self._reply.set_result(frame.data)
                else:
                    self._owner.response_received(self, frame.data)
            case ErrorFrame():
                code, _, reason = frame.data.decode(errors="replace").partition(" ")
                error = ServerError(code, reason)
                if self._reply is not None and not self._reply.done():
                    self._reply.set_exception(error)
                else:
                    self._owner.error_received(self, error)
            case BadFrame():
                self.abort(frame.reason)

    def _schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._finished:
            self._out.append(requests.fin_many(self._finished))
            self._finished = []
        out, self._out = self._out, []
        if self._transport is None or self._transport.is_closing():
            return
        if out:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._closing_when_idle and self.in_flight <= 0:
            self._reason = "closed"
            self._transport.close()

    def _arm_read_timer(self) -> None:
        """Close when nothing was read for the read timeout, heartbeats included.

        With heartbeats off silence means nothing, and there is no such limit.
        """
        if self._options.heartbeat_interval_ns <= 0 or self._closed.is_set():
            return
        deadline_s = self._read_s + self._options.read_timeout_ns / SECOND
        if self._loop.time() >= deadline_s:
            self.abort(f"nothing read for {self._options.read_timeout_ns / SECOND:g}s")
            return
        self._read_timer = self._loop.call_at(deadline_s, self._arm_read_timer)

    def _arm_write_timer(self, left_bytes: int | None = None) -> None:
        """Close when a paused transport wrote nothing at all for the write timeout."""
        assert self._transport is not None
        now_left_bytes = self._transport.get_write_buffer_size()
        if left_bytes is not None and now_left_bytes >= left_bytes:
            self.abort(f"nothing written for {self._options.write_timeout_ns / SECOND:g}s")
            return
        self._write_timer = self._loop.call_later(
            self._options.write_timeout_ns / SECOND, self._arm_write_timer, now_left_bytes
        )

    def _release_writers(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None


async def open_connection(
    address: str, options: ClientOptions, owner: ConnectionOwner, topic: str = ""
) -> ClientConnection:
    """Connect to ``host:port``, ``[ipv6]:port`` or the path of a Unix socket, and IDENTIFY.

    Raises:
        ConnectionClosed: nobody answers there, or not with the protocol.
        ServerError: nsqd refused IDENTIFY.
        ConfigError: the address is none.
    """
    connection = ClientConnection(address, options, owner, topic)
    try:
        async with asyncio.timeout(options.dial_timeout_ns / SECOND):
            await _dial(connection, address, options)
    except TimeoutError:
        waited = f"{options.dial_timeout_ns / SECOND:g}s"
        raise ConnectionClosed(f"{address}: no connection within {waited}") from None
    except (OSError, ValueError) as error:  # the latter for a host that no name server takes
        raise ConnectionClosed(f"{address}: {_reason(error)}") from error
    try:
        await connection.identify()
    except BaseException:
        connection.abort("handshake failed")
        raise
    connection.opened = True
    return connection


async def _dial(connection: ClientConnection, address: str, options: ClientOptions) -> None:
    loop = asyncio.get_running_loop()
    where = parse_address(address)
    if isinstance(where, str):
        await loop.create_unix_connection(lambda: connection, where)
        return
    local = parse_address(options.local_addr) if options.local_addr else None
    if isinstance(local, str):
        raise ConfigError("local_addr", local, f"local_addr {local} is not host:port")
    await loop.create_connection(lambda: connection, *where, local_addr=local)


def _reason(error: Exception) -> str:
    """The system's word for it: asyncio's own text repeats the address."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number is not None and number > 0 else str(error)


def parse_address(address: str) -> tuple[str, int] | str:
    """Host and port, or the path of a Unix socket.

    Raises:
        ConfigError: it is neither.
    """
    if "/" in address:
        return address
    host, separator, port = address.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError("address", address, f'address "{address}" is not host:port')
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def reconnect_delays_s(options: ClientOptions) -> Iterator[float]:
    """How long to wait before each try to reconnect: 1 s, doubling up to the poll interval.

    go-nsq waits the whole ``lookupd_poll_interval`` (a minute) each time; a daemon that was
    merely restarted is found again much sooner this way.
    """
    longest_s = options.lookupd_poll_interval_ns / SECOND
    delay_s = _RECONNECT_FIRST_S
    while True:
        yield min(delay_s, longest_s)
        delay_s = min(2 * delay_s, longest_s)
