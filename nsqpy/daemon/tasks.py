"""What makes the core move: the turn, the timer and the sync.

The router, the message pump, the dispatch of messages and their deadlines are steps of one
callback here, ``Turn.run``, which the loop calls once after each round of socket reads: routing
every topic, pumping every topic, dispatching every channel and then writing once to every
connection. A task per topic would cost two wake-ups through futures for each publish and leave the
order of the steps to chance; the turn costs one callback for the whole daemon, and a simulation
can take the same steps by hand. See docs/architecture.md.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from nsqpy.clock import Clock
from nsqpy.core.broker import Broker
from nsqpy.core.deadlines import NEVER
from nsqpy.core.group_commit import SyncWork
from nsqpy.core.trash import Trash
from nsqpy.daemon.heartbeats import Heartbeats
from nsqpy.daemon.tcp import Connections
from nsqpy.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Turn"]

log = logging.getLogger(__name__)


class Turn:
    """Runs the broker's turns on an event loop. ``wake`` may be called from anywhere on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._broker: Broker
        self._connections: Connections
        self._heartbeats: Heartbeats
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = NEVER
        self._sync: asyncio.Task[None] | None = None
        self._removal: asyncio.Task[None] | None = None
        self._scheduled = False
        self.on_synced: Callable[[float], None] = _nobody  # told how many seconds it took
        self._stopped = True  # until the start: queues that are being loaded want a turn too
        self.failure: asyncio.Future[None] = loop.create_future()

    def start(self, broker: Broker, connections: Connections, heartbeats: Heartbeats) -> None:
        self._broker = broker
        self._connections = connections
        self._heartbeats = heartbeats
        self._stopped = False
        self.wake()

    def wake(self) -> None:
        """Have a turn after what the loop is doing now."""
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._run)

    async def stop(self) -> None:
        """No more turns; a sync and a removal under way are waited for."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._sync, self._removal):
            if task is not None:
                await task

    def _run(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        try:
            self._turn()
        except Exception as error:
            # A bug of ours. Going on with state that may be wrong could lose messages: stop, as
            # after a crash, and let the next start read the log.
            log.critical("the turn failed", exc_info=True)
            self._stopped = True
            if not self.failure.done():
                self.failure.set_exception(error)

    def _turn(self) -> None:
        broker = self._broker
        now = self._clock.now()
        broker.turn(now)
        self._connections.flush(now.monotonic_ns)
        if self._sync is None and broker.sync_due(now):
            self._sync = self._loop.create_task(self._run_sync(broker.begin_sync()))
        if self._removal is None and broker.trash:
            self._removal = self._loop.create_task(self._remove(broker.trash.take()))
        if broker.deadlines_changed or self._heartbeats.changed or self._timer is None:
            self._set_timer(now.monotonic_ns)

    def _set_timer(self, now_ns: int) -> None:
        """Sleep exactly to the next deadline; a timer that would come sooner does no harm."""
        next_ns = self._broker.next_deadline_ns()
        beat_ns = self._heartbeats.soonest_ns()
        if next_ns == NEVER or (beat_ns != NEVER and beat_ns < next_ns):
            next_ns = beat_ns
        if next_ns == NEVER or (self._timer is not None and now_ns < self._timer_ns <= next_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns = next_ns
        # The loop's timers count in milliseconds: round up, so that one wake-up is enough.
        delay_s = max((next_ns - now_ns + 999_999) // 1_000_000, 0) / 1000
        self._timer = self._loop.call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._heartbeats.run(self._clock.now().monotonic_ns)
        self.wake()

    async def _remove(self, trash: Trash) -> None:
        await self._loop.run_in_executor(None, trash.run)
        self._removal = None
        self.wake()

    async def _run_sync(self, work: SyncWork) -> None:
        """Group commit: everyone who waits by now is served by this one round of syncs."""
        error: StorageError | None = None
        started_s = self._loop.time()
        try:
            await self._loop.run_in_executor(None, work.run)
        except StorageError as failure:
            error = failure
        self._sync = None
        if work.files:
            self.on_synced(self._loop.time() - started_s)
        self._broker.end_sync(work, error)
        self.wake()


def _nobody(duration_s: float) -> None:
    """Does not want to know."""
