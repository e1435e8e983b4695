"""Publish to one nsqd or to any of several.

::

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"one")
        await producer.publish("orders", b"later", defer_ms=5000)
        await producer.publish_many("orders", [b"two", b"three"])

A call returns when nsqd has said OK. Calls made at the same time share a connection and a
write. A connection lost takes its outstanding calls with it: they raise ``ConnectionClosed``,
and what they published may have been stored all the same, so who publishes again may publish
twice.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from nsqpy.client.connection import (
    ClientConnection,
    open_connection,
    parse_address,
    reconnect_delays_s,
)
from nsqpy.client.options import ClientOptions, Setting, client_options
from nsqpy.errors import ConnectionClosed, LocalProtocolError, NSQError, ServerError
from nsqpy.names import is_valid_name
from nsqpy.protocol import requests
from nsqpy.protocol.frames import MessageFields

__all__ = ["Producer", "ProducerStats"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProducerStats:
    messages_published: int
    calls_failed: int
    calls_outstanding: int
    connections: int


class _PooledConnection:
    """The connection to one address: made when asked for, made again when lost.

    Replies carry no id, so the outstanding calls are a queue: each reply is for the oldest.
    """

    def __init__(self, address: str, options: ClientOptions, outstanding_max: int) -> None:
        self.connection: ClientConnection | None = None
        self.outstanding: deque[asyncio.Future[bytes]] = deque()
        self._address = address
        self._options = options
        self._outstanding_max = outstanding_max
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._opening: asyncio.Task[None] | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._stopped = False

    def open(self) -> "asyncio.Task[None]":
        """Connect, unless it is connected; all who ask at the same time share one attempt.

        The task raises ConnectionClosed or ServerError, as ``open_connection`` does. Nobody
        may cancel it.
        """
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            # Whoever waited may be gone: the failure must not be reported as unseen.
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._opening

    @property
    def has_room(self) -> bool:
        """True if a call may be made: few enough wait, and nsqd reads what is written."""
        return (
            self.connection is not None
            and self.connection.writable
            and len(self.outstanding) < self._outstanding_max
        )

    def call(self, data: bytes) -> asyncio.Future[bytes]:
        assert self.connection is not None
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.outstanding:
            self.connection.send(data)
        else:
            self.connection.send_now(data)
        self.outstanding.append(reply)
        return reply

    async def wait_room(self) -> None:
        """Wait until a call may be made, or the connection is lost."""
        while self.connection is not None and not self.has_room:
            if not self.connection.writable:
                await self.connection.wait_writable()
                continue
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                if waiting.done() and not waiting.cancelled():
                    self._wake_one()  # the room it was woken for is another's
                raise

    async def stop(self) -> None:
        self._stopped = True
        tasks = [task for task in (self._reconnecting, self._opening) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.connection is not None:
            connection = self.connection
            connection.close("stopped")
            await connection.wait_closed()

    # What the connection tells (ConnectionOwner).

    def messages_received(
        self, connection: ClientConnection, messages: list[MessageFields]
    ) -> None:
        connection.abort("nsqd sent messages to a producer")

    def response_received(self, connection: ClientConnection, data: bytes) -> None:
        reply = self._take_oldest(connection)
        if reply is not None and not reply.done():
            reply.set_result(data)

    def error_received(self, connection: ClientConnection, error: ServerError) -> None:
        reply = self._take_oldest(connection)
        if reply is not None and not reply.done():
            reply.set_exception(error)

    def connection_closed(self, connection: ClientConnection, reason: str) -> None:
        self.connection = None
        outstanding, self.outstanding = self.outstanding, deque()
        for reply in outstanding:
            if not reply.done():
                reply.set_exception(ConnectionClosed(f"{self._address}: {reason}"))
        while self._waiting:
            self._wake_one()
        if not self._stopped:
            log.warning("(%s) connection lost: %s", self._address, reason)
            self._reconnect_later()

    def _take_oldest(self, connection: ClientConnection) -> asyncio.Future[bytes] | None:
        if not self.outstanding:
            connection.abort("nsqd replied to nothing")
            return None
        reply = self.outstanding.popleft()
        self._wake_one()
        return reply

    def _wake_one(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    async def _open(self) -> None:
        try:
            if self.connection is None:
                self.connection = await open_connection(self._address, self._options, self)
        except asyncio.CancelledError:
            # Only ``stop`` cancels it. Those who share the attempt were not cancelled.
            raise ConnectionClosed(f"{self._address}: stopped") from None
        except NSQError:
            self._reconnect_later()
            raise
        finally:
            self._opening = None

    def _reconnect_later(self) -> None:
        if not self._stopped and (self._reconnecting is None or self._reconnecting.done()):
            self._reconnecting = asyncio.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        for delay_s in reconnect_delays_s(self._options):
            await asyncio.sleep(delay_s)
            try:
                await asyncio.shield(self.open())
            except NSQError as error:
                log.warning("(%s) cannot connect: %s", self._address, error)
            else:
                return


class Producer:
    """Publishes over one connection to each address, used in turn while they are open.

    It connects at the first call. A lost connection is made again in the background, and by
    the next call if none is left.

    Args:
        nsqd: TCP addresses, ``host:port``.
        outstanding_max: calls that may wait for their reply on each connection; further ones
            wait for room.
        options: what ``settings`` change; by default go-nsq's defaults.
        settings: client options by name, such as ``dial_timeout="5s"``.

    Raises:
        LocalProtocolError: no address is given, or no call may be outstanding.
        ConfigError: an option is unknown or out of range, or an address is none.
    """

    def __init__(
        self,
        *nsqd: str,
        outstanding_max: int = 1000,
        options: ClientOptions | None = None,
        **settings: Setting,
    ) -> None:
        if not nsqd:
            raise LocalProtocolError("give the address of at least one nsqd")
        if outstanding_max < 1:
            raise LocalProtocolError(f"outstanding_max {outstanding_max} is below 1")
        effective = client_options(settings, options)
        for address in nsqd:
            parse_address(address)
        self._pool = [
            _PooledConnection(address, effective, outstanding_max)
            for address in dict.fromkeys(nsqd)
        ]
        self._turn = 0
        self._stopped = False
        self._published = self._failed = 0

    async def publish(self, topic: str, body: bytes, *, defer_ms: int = 0) -> None:
        """Publish one message; with ``defer_ms``, for delivery after that long.

        Raises:
            ServerError: nsqd refused it.
            ConnectionClosed: no nsqd can be reached, or the connection was lost.
            LocalProtocolError: the name is not legal, the body is empty, the delay is below 0,
                or the producer was stopped.
        """
        _check(topic, (body,))
        if defer_ms < 0:
            raise LocalProtocolError(f"defer_ms {defer_ms} is below 0")
        if defer_ms:
            await self._call(requests.dpub(topic, defer_ms, body), 1)
        else:
            await self._call(requests.pub(topic, body), 1)

    async def publish_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish messages with one MPUB; nsqd takes all of them or none.

        It takes at most ``max-body-size`` (5 MiB by default) at once.

        Raises:
            ServerError, ConnectionClosed, LocalProtocolError: as ``publish``.
        """
        _check(topic, bodies)
        if bodies:
            await self._call(requests.mpub(topic, bodies), len(bodies))

    async def ping(self) -> None:
        """Prove that an nsqd can be reached and takes this client.

        Raises:
            ConnectionClosed, ServerError: none does.
        """
        pooled = await self._choose()
        if pooled.connection is not None:
            pooled.connection.send(requests.NOP)

    async def stop(self) -> None:
        """Close; outstanding calls fail with ``ConnectionClosed``, later ones are refused."""
        self._stopped = True
        for pooled in self._pool:
            await pooled.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def stats(self) -> ProducerStats:
        return ProducerStats(
            messages_published=self._published,
            calls_failed=self._failed,
            calls_outstanding=sum(len(pooled.outstanding) for pooled in self._pool),
            connections=sum(pooled.connection is not None for pooled in self._pool),
        )

    async def _call(self, data: bytes, messages: int) -> None:
        try:
            pooled = await self._choose()
            await pooled.call(data)
        except NSQError:
            self._failed += 1
            raise
        self._published += messages

    async def _choose(self) -> _PooledConnection:
        """The next connection that is open and has room for a call."""
        while True:
            if self._stopped:
                raise LocalProtocolError("the producer was stopped")
            for _ in self._pool:
                self._turn += 1
                pooled = self._pool[self._turn % len(self._pool)]
                if pooled.has_room:
                    return pooled
            full = [pooled for pooled in self._pool if pooled.connection is not None]
            if full:
                await full[self._turn % len(full)].wait_room()
            else:
                await self._wait_open()

    async def _wait_open(self) -> None:
        """Try every address at once; return when the first answers.

        Raises:
            ConnectionClosed: none does.
        """
        pending = {pooled.open() for pooled in self._pool}
        failures: list[BaseException] = []
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                failure = task.exception()
                if failure is None:
                    return
                failures.append(failure)
        reasons = "; ".join(sorted(str(failure) for failure in failures))
        raise ConnectionClosed(f"no open connections: {reasons}") from failures[0]


def _check(topic: str, bodies: Sequence[bytes]) -> None:
    """Refuse here what nsqd would refuse by closing, which fails other calls too."""
    if not is_valid_name(topic):
        raise LocalProtocolError(f'topic name "{topic}" is not valid')
    if not all(bodies):
        raise LocalProtocolError("a message body is empty")
