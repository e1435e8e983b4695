"""From received messages to the user's code: the four ways to handle them.

A plain handler runs in the turn of the event loop that received the message, in slices, and
costs no task. An async one runs in tasks that take message after message. A batch handler gets
what one read brought. An iteration is the user's own loop.

A handler that returns finishes its messages, one that raises requeues them, and a message that
was answered by hand, or that was told ``disable_auto_response``, is left alone.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeGuard, TypeVar

from nsqpy.client.message import Message

__all__ = [
    "AsyncHandling",
    "BatchHandler",
    "BatchHandling",
    "Handler",
    "Handling",
    "Iteration",
    "PlainHandling",
    "Settler",
    "is_async",
]

log = logging.getLogger(__name__)

Handler = Callable[[Message], None] | Callable[[Message], Awaitable[None]]
BatchHandler = Callable[[list[Message]], None] | Callable[[list[Message]], Awaitable[None]]

Item = TypeVar("Item")

# How long user code may keep the event loop before others get their turn.
_SLICE_S = 0.005


class Settler(Protocol):
    """Gives the automatic answer: the consumer."""

    def succeed(self, messages: Iterable[Message]) -> None:
        """Finish those that nobody has answered, unless they are to be left alone."""

    def fail(self, messages: Iterable[Message], error: BaseException) -> None:
        """Requeue those that nobody has answered, unless they are to be left alone."""


class Handling(Protocol):
    """One way to handle messages. ``take`` is called on the event loop and does not wait."""

    def take(self, messages: list[Message]) -> None:
        """Messages of one connection, as they came."""

    async def wait_idle(self) -> None:
        """Wait until everything that was taken has been handled."""

    def cancel(self) -> list[Message]:
        """Stop at once; return what was taken and not begun."""


def is_async(handler: Callable[..., object]) -> TypeGuard[Callable[..., Awaitable[None]]]:
    """True for a coroutine function, and for an object whose ``__call__`` is one."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - asked for its kind, not called
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def _refuse_result(result: object) -> None:
    """A plain handler that returns an awaitable has done nothing yet: it must not pass."""
    if inspect.iscoroutine(result):
        result.close()
    if inspect.isawaitable(result):
        raise TypeError("the handler returned an awaitable: write it as `async def`")


class PlainHandling:
    """Calls a plain function for each message, in slices of a few milliseconds."""

    def __init__(self, handler: Callable[[Message], object], settler: Settler) -> None:
        self._handler = handler
        self._settler = settler
        self._loop = asyncio.get_running_loop()
        self._backlog: deque[Message] = deque()
        self._scheduled = False
        self._idle = asyncio.Event()
        self._idle.set()

    def take(self, messages: list[Message]) -> None:
        self._backlog += messages
        if not self._scheduled:
            self._run()

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def cancel(self) -> list[Message]:
        left = list(self._backlog)
        self._backlog.clear()
        self._idle.set()
        return left

    def _run(self) -> None:
        self._scheduled = False
        handler, backlog, time = self._handler, self._backlog, self._loop.time
        until_s = time() + _SLICE_S
        done: list[Message] = []
        while backlog:
            message = backlog.popleft()
            try:
                result = handler(message)
                if result is not None:
                    _refuse_result(result)
            except Exception as error:
                # What went well before it is told first: the backoff goes by the order.
                self._settler.succeed(done)
                done = []
                self._settler.fail((message,), error)
            else:
                done.append(message)
            if time() >= until_s:
                break
        self._settler.succeed(done)
        if backlog:
            self._scheduled = True
            self._idle.clear()
            self._loop.call_soon(self._run)
        else:
            self._idle.set()


class _Workers(Generic[Item]):
    """Tasks that handle what is in ``backlog``, at most ``limit`` at once.

    They are started in bursts: if handlers turn out not to wait for anything, the first task
    does all the work, and few were made in vain.
    """

    _BURST = 32

    def __init__(self, handle: Callable[[Item], Awaitable[None]], limit: int | None) -> None:
        self.backlog: deque[Item] = deque()
        self._handle = handle
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()
        self._unstarted = 0

    def start(self) -> None:
        wanted = min(len(self.backlog), self._BURST) - self._unstarted
        if self._limit is not None:
            wanted = min(wanted, self._limit - len(self._tasks))
        for _ in range(wanted):
            task = asyncio.create_task(self._run())
            self._unstarted += 1
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def wait_idle(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> list[Item]:
        left = list(self.backlog)
        self.backlog.clear()
        for task in self._tasks:
            task.cancel()
        return left

    async def _run(self) -> None:
        self._unstarted -= 1
        backlog = self.backlog
        while backlog:
            item = backlog.popleft()
            if backlog and not self._unstarted:
                self.start()
            await self._handle(item)


class AsyncHandling:
    """Awaits a coroutine function for each message, ``concurrency`` at a time.

    ``None`` means as many as are in flight, which RDY bounds.
    """

    def __init__(
        self,
        handler: Callable[[Message], Awaitable[None]],
        settler: Settler,
        concurrency: int | None,
    ) -> None:
        self._handler = handler
        self._settler = settler
        self._workers: _Workers[Message] = _Workers(self._handle, concurrency)

    def take(self, messages: list[Message]) -> None:
        self._workers.backlog += messages
        self._workers.start()

    async def wait_idle(self) -> None:
        await self._workers.wait_idle()

    def cancel(self) -> list[Message]:
        return self._workers.cancel()

    async def _handle(self, message: Message) -> None:
        try:
            await self._handler(message)
        except asyncio.CancelledError as error:
            self._settler.fail((message,), error)
            raise
        except Exception as error:
            self._settler.fail((message,), error)
        else:
            self._settler.succeed((message,))


class BatchHandling:
    """Gives a function the list of messages that one read brought.

    An async one is awaited, ``concurrency`` lists at a time; a plain one is called at once.
    """

    def __init__(self, handler: BatchHandler, settler: Settler, concurrency: int | None) -> None:
        self._handler = handler
        self._is_async = is_async(handler)
        self._settler = settler
        self._workers: _Workers[list[Message]] = _Workers(self._handle, concurrency)

    def take(self, messages: list[Message]) -> None:
        if self._is_async:
            self._workers.backlog.append(messages)
            self._workers.start()
            return
        try:
            result = self._handler(messages)
            if result is not None:
                _refuse_result(result)
        except Exception as error:
            self._settler.fail(messages, error)
        else:
            self._settler.succeed(messages)

    async def wait_idle(self) -> None:
        await self._workers.wait_idle()

    def cancel(self) -> list[Message]:
        return [message for messages in self._workers.cancel() for message in messages]

    async def _handle(self, messages: list[Message]) -> None:
        handler = self._handler
        assert is_async(handler)
        try:
            await handler(messages)
        except asyncio.CancelledError as error:
            self._settler.fail(messages, error)
            raise
        except Exception as error:
            self._settler.fail(messages, error)
        else:
            self._settler.succeed(messages)


class Iteration:
    """The user's own loop, one at a time, over single messages or over batches.

    What was handed out is finished when the next is asked for. ``end`` tells that nothing
    more will come.
    """

    def __init__(self, settler: Settler) -> None:
        self._settler = settler
        self._loop = asyncio.get_running_loop()
        self._backlog: deque[Message] = deque()
        self._held: list[Message] = []
        self._holder: asyncio.Task[object] | None = None
        self._ended = False
        self._changed = asyncio.Event()
        self._resumed_s = 0.0

    def take(self, messages: list[Message]) -> None:
        self._backlog += messages
        self._changed.set()

    async def wait_idle(self) -> None:
        while self._backlog or self._held:
            await self._wait_change()

    def cancel(self) -> list[Message]:
        left = list(self._backlog)
        self._backlog.clear()
        self._changed.set()
        return left

    def end(self) -> None:
        """No message will come any more: the loop ends when the backlog is used up."""
        self._ended = True
        self._changed.set()

    @property
    def held_here(self) -> bool:
        """True if the calling task is the one whose loop body is running."""
        return bool(self._held) and self._holder is asyncio.current_task()

    def settle(self, error: BaseException | None = None) -> None:
        """Answer what was handed out: finish it, or requeue it for an error."""
        held, self._held = self._held, []
        if not held:
            return
        if error is None:
            self._settler.succeed(held)
        else:
            self._settler.fail(held, error)
        self._changed.set()

    async def messages(self) -> AsyncIterator[Message]:
        while await self._wait_more():
            message = self._backlog.popleft()
            self._held = [message]
            yield message

    async def batches(self, max_messages: int | None) -> AsyncIterator[list[Message]]:
        while await self._wait_more():
            batch = self._take_batch(max_messages)
            self._held = batch
            yield batch

    def _take_batch(self, max_messages: int | None) -> list[Message]:
        backlog = self._backlog
        if max_messages is None or len(backlog) <= max_messages:
            batch = list(backlog)
            backlog.clear()
            return batch
        return [backlog.popleft() for _ in range(max_messages)]

    async def _wait_more(self) -> bool:
        """Finish what was handed out and wait for more; False if nothing will come."""
        self._holder = asyncio.current_task()
        self.settle()
        if self._backlog and self._loop.time() - self._resumed_s >= _SLICE_S:
            # A loop that never waits must not keep heartbeats and answers from going out.
            await asyncio.sleep(0)
            self._resumed_s = self._loop.time()
        while not self._backlog:
            if self._ended:
                return False
            await self._wait_change()
            self._resumed_s = self._loop.time()
        return True

    async def _wait_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
