"""Consume a channel from one nsqd or many, those given and those that lookupd knows.

::

    async def handle(message: Message) -> None:
        await store(message.body)

    async with Consumer("orders", "archive", handle, nsqd="127.0.0.1:4150", max_in_flight=200):
        await asyncio.sleep(3600)

or, without a handler::

    async with Consumer("orders", "archive", nsqd="127.0.0.1:4150") as consumer:
        async for message in consumer:
            print(message.body)

The topic may be a pattern, over the topics that lookupd knows::

    Consumer("orders.*", "archive", handle, lookupd="127.0.0.1:4161")

A message is finished when its handler returns, or when the loop asks for the next one; it is
requeued, and the consumer slows down, when the handler or the loop raises.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence, ValuesView
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from nsqpy.client.connection import ClientConnection
from nsqpy.client.connector import Connector
from nsqpy.client.handling import (
    AsyncHandling,
    BatchHandler,
    BatchHandling,
    Handler,
    Handling,
    Iteration,
    PlainHandling,
    is_async,
)
from nsqpy.client.message import Message
from nsqpy.client.options import ClientOptions, Setting, client_options
from nsqpy.client.rdy import ReadyControl, Signal
from nsqpy.clock import SECOND
from nsqpy.errors import LocalProtocolError, ServerError
from nsqpy.protocol import requests
from nsqpy.protocol.frames import MessageFields

__all__ = ["Consumer", "ConsumerStats", "Message"]

log = logging.getLogger(__name__)

# After this long a stop is forced. Source: go-nsq consumer.go, Stop.
_STOP_TIMEOUT_S = 30.0
# The share of its RDY that a connection may have in flight before it counts as starved.
_STARVED_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    messages_received: int
    messages_finished: int
    messages_requeued: int
    messages_in_flight: int
    connections: int


class Consumer:
    """Messages of one channel, from every nsqd given, and from those that lookupd tells of.

    Args:
        topic: its name, or a pattern such as ``orders.*`` or ``orders.>``, which needs lookupd
            and follows topics as they appear; or several of these. ``message.topic`` tells
            which one a message is of.
        channel: its name, on each topic.
        handler: called for each message: a plain function, or a coroutine function. A plain
            one must not block, as it runs on the event loop.
        nsqd: TCP addresses, ``host:port``. The consumer starts when all of them take it.
        lookupd: HTTP addresses of every nsqlookupd, ``host:port`` or URLs. The consumer starts
            without waiting for any answer, and connects to what is found then and later.
        batch_handler: instead of ``handler``: called with the list of messages that one read
            brought. The fastest way.
        failed_message: called with each message that exceeds ``max_attempts``, which is
            finished without being handled.
        concurrency: how many coroutine handlers run at once; by default as many as there are
            messages in flight.
        options: what ``settings`` change; by default go-nsq's defaults.
        settings: client options by name, such as ``max_in_flight=200``.

    Raises:
        LocalProtocolError: a name or pattern is not legal, two handlers are given, or neither
            nsqd nor lookupd.
        ConfigError: an option is unknown or out of range, or an address is none.
    """

    def __init__(
        self,
        topic: str | Sequence[str],
        channel: str,
        handler: Handler | None = None,
        *,
        nsqd: str | Sequence[str] = (),
        lookupd: str | Sequence[str] = (),
        batch_handler: BatchHandler | None = None,
        failed_message: Callable[[Message], object] | None = None,
        concurrency: int | None = None,
        options: ClientOptions | None = None,
        **settings: Setting,
    ) -> None:
        if handler is not None and batch_handler is not None:
            raise LocalProtocolError("give a handler or a batch_handler, not both")
        topics = _several(topic)
        self.topic = ",".join(topics)
        self.channel = channel
        self._options = client_options(settings, options)
        self._connector = Connector(
            topics, channel, _several(nsqd), _several(lookupd), self._options, self
        )
        self._handler = handler
        self._batch_handler = batch_handler
        self._failed_message = failed_message
        self._concurrency = concurrency
        self._timer: asyncio.TimerHandle | None = None
        self._started = False
        self._stopping = False
        self._no_connection = asyncio.Event()
        self._stopped = asyncio.Event()
        self._drain_task: asyncio.Task[None] | None = None
        self._paused_max_in_flight: int | None = None
        self._received = self._finished = self._requeued = 0

    async def start(self) -> None:
        """Connect to every nsqd given, ask lookupd, and begin. Called by ``async with``.

        Raises:
            ConnectionClosed: an nsqd cannot be reached.
            ServerError: an nsqd refused IDENTIFY or SUB.
            LocalProtocolError: it was started before.
        """
        if self._started:
            raise LocalProtocolError("a consumer starts once")
        self._started = True
        self._loop = asyncio.get_running_loop()
        self._handling = self._choose_handling()
        self._control: ReadyControl[ClientConnection] = ReadyControl(
            self._options.max_in_flight,
            self._options.ready_options(),
            random.Random(),
            self._now_ns(),
        )
        try:
            await self._connector.start()
        except BaseException:
            self._stopping = True
            await self._end("start failed")
            raise

    def request_stop(self) -> None:
        """Begin to stop, for good; ``wait_stopped`` waits for the end. For use in handlers."""
        if self._started and not self._stopping:
            self._stopping = True
            self._connector.halt()
            if isinstance(self._handling, Iteration):
                self._handling.end()
            for connection in self._connections():
                connection.send(requests.CLS)
            self._drain_task = asyncio.create_task(self._drain())

    async def stop(self) -> None:
        """Stop for good: CLS, answer what is in flight, close. Forced after 30 s.

        In a handler, which it would wait for, use ``request_stop``. In the body of a loop over
        the consumer it finishes what the loop holds, as asking for the next would.
        """
        if not self._started:
            return
        if isinstance(self._handling, Iteration) and self._handling.held_here:
            self._handling.settle()
        self.request_stop()
        await self._stopped.wait()

    async def wait_stopped(self) -> None:
        await self._stopped.wait()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._started and isinstance(self._handling, Iteration):
            # The loop was left: what it held is answered, what it never saw goes back.
            self._handling.settle(error)
            self._hand_back(self._handling.cancel())
            self._handling.end()
        await self.stop()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self._iteration().messages()

    def batches(self, max_messages: int | None = None) -> AsyncIterator[list[Message]]:
        """Iterate over lists of what has come; for consumers without a handler."""
        return self._iteration().batches(max_messages)

    async def connect(self, address: str) -> None:
        """Consume from one more nsqd.

        Raises:
            ConnectionClosed, ServerError: as ``start``.
            LocalProtocolError: the consumer has stopped.
        """
        self._require_running()
        await self._connector.add(address)

    def disconnect(self, address: str) -> None:
        """Leave one nsqd at once, without CLS: what is in flight there will time out.

        One that lookupd lists comes back with its next answer.
        """
        self._connector.remove(address)

    @property
    def max_in_flight(self) -> int:
        return self._control.max_in_flight if self._started else self._options.max_in_flight

    def set_max_in_flight(self, max_in_flight: int) -> None:
        """Change how many messages may be in flight, over all nsqd; 0 pauses."""
        self._require_running()
        if max_in_flight < 0:
            raise LocalProtocolError(f"max_in_flight {max_in_flight} is below 0")
        self._paused_max_in_flight = None
        self._write_ready(self._control.set_max_in_flight(max_in_flight, self._now_ns()))

    def pause(self) -> None:
        """Ask for no more messages, and stay connected."""
        self._require_running()
        if self._paused_max_in_flight is None:
            before = self._control.max_in_flight
            self.set_max_in_flight(0)
            self._paused_max_in_flight = before

    def unpause(self) -> None:
        self._require_running()
        if self._paused_max_in_flight is not None:
            self.set_max_in_flight(self._paused_max_in_flight)

    @property
    def is_starved(self) -> bool:
        """True if a connection has nearly all it may have in flight.

        For those who collect messages before they answer: answer now, or no more will come.
        """
        return any(
            connection.in_flight > 0
            and connection.in_flight >= int(self._control.ready_count(connection) * _STARVED_SHARE)
            for connection in self._connections()
        )

    def stats(self) -> ConsumerStats:
        return ConsumerStats(
            messages_received=self._received,
            messages_finished=self._finished,
            messages_requeued=self._requeued,
            messages_in_flight=sum(connection.in_flight for connection in self._connections()),
            connections=len(self._connections()),
        )

    # Answers: from messages (AnswerSink) and from the handling (Settler). The backoff is told
    # first, so that RDY is written before the answer that frees a place.

    def finish_message(self, message: Message) -> None:
        self._signal(Signal.SUCCESS)
        self._finished += 1
        message.connection.finish(message.id)

    def requeue_message(self, message: Message, delay_ms: int | None, backoff: bool) -> None:
        self._signal(Signal.FAILURE if backoff else Signal.CONTINUE)
        self._requeued += 1
        if delay_ms is None:
            delay_ms = self._options.requeue_delay_ms(message.attempts)
        message.connection.requeue(message.id, delay_ms)

    def touch_message(self, message: Message) -> None:
        message.connection.send(requests.touch(message.id))

    def succeed(self, messages: Iterable[Message]) -> None:
        if self._control.in_backoff:
            for message in messages:
                if message.auto_response:
                    message.finish()
            return
        finished: dict[ClientConnection, list[bytes]] = {}
        for message in messages:
            if message.auto_response and not message.answered:
                message.answered = True
                connection = message.connection
                if connection in finished:
                    finished[connection].append(message.id)
                else:
                    finished[connection] = [message.id]
        for connection, message_ids in finished.items():
            self._finished += len(message_ids)
            connection.finish_many(message_ids)

    def fail(self, messages: Iterable[Message], error: BaseException) -> None:
        for message in messages:
            if message.auto_response and not message.answered:
                log.warning("%s %r failed and is requeued", self.name, message, exc_info=error)
                message.requeue()

    # What connections tell (ConnectionOwner).

    def messages_received(
        self, connection: ClientConnection, messages: list[MessageFields]
    ) -> None:
        self._received += len(messages)
        self._control.received(connection, self._now_ns())
        received = [Message(self, connection, fields) for fields in messages]
        limit = self._options.max_attempts
        if limit and max(fields[1] for fields in messages) > limit:
            exceeding = [message for message in received if message.attempts > limit]
            received = [message for message in received if message.attempts <= limit]
            self._give_up(exceeding)
        if self._stopping and isinstance(self._handling, Iteration):
            self._hand_back(received)  # sent before nsqd saw CLS; the loop may be over
        elif received:
            self._handling.take(received)

    def response_received(self, connection: ClientConnection, data: bytes) -> None:
        if data == b"CLOSE_WAIT":
            self._control.close(connection)
            connection.close_when_idle()

    def error_received(self, connection: ClientConnection, error: ServerError) -> None:
        # A failed FIN, REQ or TOUCH came too late; after any other error nsqd closes.
        log.warning("%s (%s) %s", self.name, connection.address, error)

    def connection_closed(self, connection: ClientConnection, reason: str) -> None:
        if not self._connector.release(connection):
            return
        self._control.remove(connection)
        self._arm_timer()
        if self._stopping:
            if not self._connections():
                self._no_connection.set()
        elif not self._connector.reconnect(connection, reason):
            self.target_given_up()

    # What the connector tells (ConnectorOwner).

    @property
    def name(self) -> str:
        return f"[{self.topic}/{self.channel}]"

    def connection_made(self, connection: ClientConnection) -> None:
        if self._options.max_in_flight > connection.max_rdy_count:
            log.warning(
                "%s (%s) max_in_flight %d is above what nsqd allows a connection, %d",
                self.name,
                connection.address,
                self._options.max_in_flight,
                connection.max_rdy_count,
            )
        self._write_ready(self._control.add(connection, connection.max_rdy_count, self._now_ns()))

    def target_given_up(self) -> None:
        self._write_ready(self._control.share_again(self._now_ns()))

    # Within.

    def _connections(self) -> ValuesView[ClientConnection]:
        return self._connector.connections.values()

    def _now_ns(self) -> int:
        return int(self._loop.time() * SECOND)

    def _choose_handling(self) -> Handling:
        if self._batch_handler is not None:
            return BatchHandling(self._batch_handler, self, self._concurrency)
        if self._handler is None:
            return Iteration(self)
        if is_async(self._handler):
            return AsyncHandling(self._handler, self, self._concurrency)
        return PlainHandling(self._handler, self)

    def _require_running(self) -> None:
        if not self._started or self._stopping:
            raise LocalProtocolError("the consumer is not running")

    def _iteration(self) -> Iteration:
        if not self._started:
            raise LocalProtocolError("the consumer was not started")
        if not isinstance(self._handling, Iteration):
            raise LocalProtocolError("a consumer with a handler cannot be iterated over")
        return self._handling

    def _give_up(self, messages: list[Message]) -> None:
        for message in messages:
            log.warning("%s giving up %r", self.name, message)
            if self._failed_message is not None:
                try:
                    self._failed_message(message)
                except Exception:
                    log.exception("%s failed_message raised for %r", self.name, message)
            message.finish()

    def _hand_back(self, messages: list[Message]) -> None:
        """Give what nobody has begun to the next consumer: at once, and as no failure."""
        for message in messages:
            if not message.answered:
                message.answered = True
                self._requeued += 1
                message.connection.requeue(message.id, 0)

    def _signal(self, signal: Signal) -> None:
        if signal is Signal.SUCCESS and not self._control.in_backoff:
            return
        self._write_ready(self._control.signal(signal, self._now_ns()))

    def _write_ready(self, changes: list[tuple[ClientConnection, int]]) -> None:
        for connection, ready_count in changes:
            connection.send(requests.rdy(ready_count))
        self._arm_timer()

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._stopping:
            deadline_s = self._control.next_deadline_ns() / SECOND
            self._timer = self._loop.call_at(deadline_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        # The loop may call a timer early by the clock's resolution.
        now_ns = max(self._now_ns(), self._control.next_deadline_ns())
        self._write_ready(self._control.tick(now_ns))

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                if self._connections():
                    await self._no_connection.wait()
                await self._handling.wait_idle()
        except TimeoutError:
            log.warning("%s stop was forced after %gs", self.name, _STOP_TIMEOUT_S)
        await self._end("stopped")

    async def _end(self, reason: str) -> None:
        """Leave nothing behind: no timer, no task, no connection."""
        if self._timer is not None:
            self._timer.cancel()
        await self._connector.stop()
        self._hand_back(self._handling.cancel())
        await asyncio.sleep(0)  # cancelled handlers requeue what they held
        for connection in list(self._connections()):
            connection.close(reason)
        self._stopped.set()


def _several(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given
