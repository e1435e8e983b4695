"""Drain: take no more messages, leave the directory, let consumers finish, and then stop."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from nsqpy.clock import SECOND, Clock
from nsqpy.core.drain import remainders, waits
from nsqpy.scalars import format_duration

if TYPE_CHECKING:
    from nsqpy.core.broker import Broker
    from nsqpy.gojson import JSON

__all__ = ["DEFAULT_TIMEOUT_NS", "Drain"]

log = logging.getLogger(__name__)

# Of a drain that nobody gave a time.
DEFAULT_TIMEOUT_NS = 60 * SECOND
# How often it looks: every channel is counted then, which nothing should have to do on the way
# of a message.
_LOOK_S = 0.1
_LINES_MAX = 100


class Drain:
    """One daemon's, of which there is one at most. Made inside a running event loop.

    ``leave`` is called when it begins. ``ended`` is set when it is time to stop.
    """

    def __init__(self, broker: "Broker", clock: Clock, leave: Callable[[], None]) -> None:
        self._broker = broker
        self._clock = clock
        self._leave = leave
        self._deadline_ns = 0
        self._task: asyncio.Task[None] | None = None
        self._sooner = asyncio.Event()
        self.ended = asyncio.Event()

    @property
    def begun(self) -> bool:
        return self._task is not None

    def begin(self, timeout_ns: int) -> None:
        """Drain for ``timeout_ns`` at most, from now. If it drains already, this moves its end."""
        self._deadline_ns = self._clock.now().monotonic_ns + timeout_ns
        if self._task is not None:
            return
        self._broker.draining = True
        self._leave()
        log.info(
            "DRAIN: no more publishes are taken, consumers have %s to empty their channels",
            format_duration(timeout_ns),
        )
        self._task = asyncio.create_task(self._run())

    def hasten(self) -> None:
        """End it now, however much is left."""
        if self._task is not None and not self.ended.is_set():
            log.info("DRAIN: told not to wait any longer")
            self._deadline_ns = 0
            self._sooner.set()

    async def stop(self) -> None:
        """End it now, and say what is left."""
        self.hasten()
        if self._task is not None:
            await self._task

    def status(self) -> "dict[str, JSON]":
        """Progress. ``deadline`` is Unix time in seconds, 0 if it does not drain."""
        left = list(remainders(self._broker))
        deadline_s = 0
        if self._task is not None:
            now = self._clock.now()
            left_ns = max(self._deadline_ns - now.monotonic_ns, 0)
            deadline_s = -(-(now.wall_ns + left_ns) // SECOND)
        return {
            "draining": self._task is not None,
            "depth": sum(found.depth for found in left),
            "in_flight": sum(found.in_flight for found in left),
            "deferred": sum(found.deferred for found in left),
            "leased": sum(found.leased for found in left),
            "deadline": deadline_s,
        }

    async def _run(self) -> None:
        began_ns = self._clock.now().monotonic_ns
        try:
            while self._clock.now().monotonic_ns < self._deadline_ns:
                if not waits(self._broker, self._clock.now(), self._deadline_ns):
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._sooner.wait()
        except Exception:
            log.critical("DRAIN: internal error", exc_info=True)
        self._report(self._clock.now().monotonic_ns - began_ns)
        self.ended.set()

    def _report(self, elapsed_ns: int) -> None:
        left = sorted(remainders(self._broker), key=lambda found: -found.total)
        for found in islice(left, _LINES_MAX):
            log.info(
                "DRAIN: %s leaves depth %d, in flight %d, deferred %d, leased %d",
                f"{found.topic}:{found.channel}" if found.channel else f"TOPIC({found.topic})",
                *(found.depth, found.in_flight, found.deferred, found.leased),
            )
        if len(left) > _LINES_MAX:
            log.info("DRAIN: and %d more topics and channels", len(left) - _LINES_MAX)
        total = sum(found.total for found in left)
        log.info(
            "DRAIN: ended after %s, %d messages are left for the next start",
            *(format_duration(elapsed_ns), total),
        )
