"""Producer and consumer for code that has no event loop.

::

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("orders", b"one")

    with Consumer("orders", "archive", nsqd="127.0.0.1:4150", max_in_flight=200) as consumer:
        for message in consumer:
            store(message.body)

The connections live on an event loop in a thread of their own, so heartbeats are answered
however long the caller takes with a message. Every method may be called from any thread.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from nsqpy.client import consumer as aio_consumer
from nsqpy.client import message as aio_message
from nsqpy.client import producer as aio_producer
from nsqpy.client.consumer import ConsumerStats
from nsqpy.client.options import ClientOptions, Setting, client_options
from nsqpy.client.producer import ProducerStats

__all__ = ["Consumer", "Message", "Producer"]

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class _LoopThread:
    """An event loop that runs in a thread until it is stopped."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the caller was interrupted; of what has ended, this is no change
            raise

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    @property
    def stopped(self) -> bool:
        return self._loop.is_closed()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Producer:
    """As ``nsqpy.Producer``, with calls that block."""

    def __init__(
        self,
        *nsqd: str,
        lookupd: str | Sequence[str] = (),
        prefer_local: bool = False,
        tries: int = 3,
        outstanding_max: int = 1000,
        options: ClientOptions | None = None,
        **settings: Setting,
    ) -> None:
        self._producer = aio_producer.Producer(
            *nsqd,
            lookupd=lookupd,
            prefer_local=prefer_local,
            tries=tries,
            outstanding_max=outstanding_max,
            options=options,
            **settings,
        )
        self._thread = _LoopThread("nsqpy-producer")

    def publish(self, topic: str, body: bytes, *, defer_ms: int = 0) -> None:
        self._thread.run(self._producer.publish(topic, body, defer_ms=defer_ms))

    def publish_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        self._thread.run(self._producer.publish_many(topic, bodies))

    def ping(self) -> None:
        self._thread.run(self._producer.ping())

    def stats(self) -> ProducerStats:
        return self._producer.stats()

    def stop(self) -> None:
        if not self._thread.stopped:
            self._thread.run(self._producer.stop())
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class Message:
    """As ``nsqpy.client.message.Message``; answers are handed to the loop's thread."""

    __slots__ = ("_inner", "_thread", "auto_response")

    def __init__(self, inner: aio_message.Message, thread: _LoopThread) -> None:
        self._inner = inner
        self._thread = thread
        self.auto_response = True

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def id(self) -> bytes:
        return self._inner.id

    @property
    def body(self) -> bytes:
        return self._inner.body

    @property
    def timestamp_ns(self) -> int:
        return self._inner.timestamp_ns

    @property
    def attempts(self) -> int:
        return self._inner.attempts

    @property
    def topic(self) -> str:
        return self._inner.topic

    @property
    def nsqd_address(self) -> str:
        return self._inner.nsqd_address

    def disable_auto_response(self) -> None:
        self.auto_response = False

    def finish(self) -> None:
        self._thread.call(self._inner.finish)

    def requeue(self, delay_ms: int | None = None, *, backoff: bool = True) -> None:
        inner = self._inner
        self._thread.call(lambda: inner.requeue(delay_ms, backoff=backoff))

    def touch(self) -> None:
        self._thread.call(self._inner.touch)


class Consumer:
    """As ``nsqpy.Consumer`` without a handler: iterate over it, or ``run`` a handler.

    What was handed out is finished when the next is asked for, and when the ``with`` block is
    left; it is requeued when the block is left by an exception.
    """

    def __init__(
        self,
        topic: str | Sequence[str],
        channel: str,
        *,
        nsqd: str | Sequence[str] = (),
        lookupd: str | Sequence[str] = (),
        failed_message: Callable[[aio_message.Message], object] | None = None,
        options: ClientOptions | None = None,
        **settings: Setting,
    ) -> None:
        self._consumer = aio_consumer.Consumer(
            topic,
            channel,
            nsqd=nsqd,
            lookupd=lookupd,
            failed_message=failed_message,
            options=client_options(settings, options),
        )
        self._thread = _LoopThread("nsqpy-consumer")
        self._unseen: deque[aio_message.Message] = deque()
        self._held: list[Message] = []

    def start(self) -> None:
        """Connect to every nsqd given; raises as ``nsqpy.Consumer.start`` does."""
        try:
            self._thread.run(self._consumer.start())
        except BaseException:
            self._thread.stop()
            raise

    def stop(self) -> None:
        """Stop for good, in the thread that consumes; raises nothing."""
        self._leave(None)

    def request_stop(self) -> None:
        """Begin to stop: the loop over the consumer ends. For other threads and signals."""
        self._thread.call(self._consumer.request_stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave(error)

    def __iter__(self) -> Iterator[Message]:
        for batch in self._fetch(None):
            self._unseen += batch
            while self._unseen:
                message = Message(self._unseen.popleft(), self._thread)
                self._held = [message]
                yield message
                self._settle(None)

    def batches(self, max_messages: int | None = None) -> Iterator[list[Message]]:
        for batch in self._fetch(max_messages):
            messages = [Message(inner, self._thread) for inner in batch]
            self._held = messages
            yield messages
            self._settle(None)

    def run(self, handler: Callable[[Message], object]) -> None:
        """Call ``handler`` with each message until the consumer stops.

        One that raises has its message requeued, and the consumer slows down.
        """
        for message in self:
            try:
                handler(message)
            except Exception as error:
                log.warning("%r failed and is requeued", message, exc_info=error)
                self._settle(error)

    def set_max_in_flight(self, max_in_flight: int) -> None:
        self._thread.call(self._consumer.set_max_in_flight, max_in_flight)

    def pause(self) -> None:
        self._thread.call(self._consumer.pause)

    def unpause(self) -> None:
        self._thread.call(self._consumer.unpause)

    def stats(self) -> ConsumerStats:
        return self._consumer.stats()

    def _fetch(self, max_messages: int | None) -> Iterator[list[aio_message.Message]]:
        batches = self._consumer.batches(max_messages)
        while batch := self._thread.run(_next_batch(batches)):
            yield batch

    def _settle(self, error: BaseException | None) -> None:
        held, self._held = self._held, []
        left = [message._inner for message in held if message.auto_response]
        if left:
            self._thread.call(_finish_all if error is None else _requeue_all, left)

    def _leave(self, error: BaseException | None) -> None:
        if self._thread.stopped:
            return
        self._settle(error)
        self._thread.call(_hand_back, list(self._unseen))
        self._unseen.clear()
        self._thread.run(self._consumer.__aexit__(None, None, None))
        self._thread.stop()


async def _next_batch(
    batches: AsyncIterator[list[aio_message.Message]],
) -> list[aio_message.Message]:
    """The next batch, to be answered by the caller's thread; empty at the end."""
    batch: list[aio_message.Message] = await anext(batches, [])
    for message in batch:
        message.disable_auto_response()
    return batch


def _finish_all(messages: Sequence[aio_message.Message]) -> None:
    for message in messages:
        message.finish()


def _requeue_all(messages: Sequence[aio_message.Message]) -> None:
    for message in messages:
        message.requeue()


def _hand_back(messages: Sequence[aio_message.Message]) -> None:
    for message in messages:
        message.requeue(0, backoff=False)
