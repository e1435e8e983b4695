"""The messages of a channel that wait for their time.

Those due soon are in memory, as many as a window holds; in their log they are in the one called
near. What is due later than ``NEAR_MS``, or has no room, waits on disk in a ``TimerWheel`` and
comes to memory shortly before its time. Nothing is ever handed out before it is due.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from nsqpy.clock import MILLISECOND, SECOND, Instant
from nsqpy.core.deadlines import NEVER, DeadlineHeap
from nsqpy.core.disk_health import RETRY_NS
from nsqpy.core.window import Run, store_changed
from nsqpy.errors import StorageError
from nsqpy.message import Batch
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.timers import NEAR_MS, StoredRange, TimerWheel

__all__ = ["DeferredMessages", "Stored"]

# What is due on disk is a matter of the wall clock, which may be set: it is asked this often.
_LOOK_MAX_NS = 60 * SECOND
# One turn takes as many steps on disk, or brings as many messages to memory.
_STEPS_MAX = 16
_STEP_MESSAGES = 1024


class _Waiting:
    """Messages in memory."""

    __slots__ = ("deadline_ns", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.deadline_ns = NEVER


@dataclass(slots=True)
class Stored:
    """What ``store`` did: messages that ``keep`` takes into memory, and some that are on disk."""

    runs: list[Run] = field(default_factory=list)
    far: list[StoredRange] = field(default_factory=list)


class DeferredMessages:
    """``limit`` messages are kept in memory, give or take one batch. Without ``near`` and
    ``far``, the logs, there are no more; with ``log_all`` every message is in one of them."""

    def __init__(
        self, near: DiskQueue | None, far: TimerWheel | None, *, limit: int, log_all: bool
    ) -> None:
        self._near = near
        self._far = far
        self._limit = limit
        self._log_all = log_all
        self._heap: DeadlineHeap[_Waiting] = DeadlineHeap()
        self._in_memory = 0
        self._look_ns = NEVER  # when to look at ``far``; monotonic
        self.dropped_count = 0

    @property
    def count(self) -> int:
        return self._in_memory + (self._far.count if self._far is not None else 0)

    @property
    def bad_blocks(self) -> int:
        near = self._near.bad_blocks if self._near is not None else 0
        return near + (self._far.bad_blocks if self._far is not None else 0)

    def soonest_ns(self) -> int:
        """When ``take_due`` or ``advance`` next has something to do, monotonic, or NEVER."""
        soonest_ns = self._heap.soonest_ns()
        if soonest_ns == NEVER or self._look_ns == NEVER:
            return max(soonest_ns, self._look_ns)
        return min(soonest_ns, self._look_ns)

    def next_due_ns(self, now: Instant) -> int:
        """When the next message is due, monotonic, or its slot begins; NEVER if there is none."""
        due_ns = self._heap.soonest_ns()
        start_ms = self._far.soonest_ms if self._far is not None else None
        if start_ms is None:
            return due_ns
        far_ns = now.monotonic_ns + start_ms * MILLISECOND - now.wall_ns
        return far_ns if due_ns == NEVER else min(due_ns, far_ns)

    # -- in ---------------------------------------------------------------------------------

    def restore(self, now: Instant) -> None:
        """Take up what the logs hold from before; called once, before anything else.

        Raises:
            StorageError: a log cannot be read.
        """
        if self._near is None or self._far is None:
            return
        while self._near.unread:
            for stored in self._near.read():
                self._wait(
                    Run(stored.batch, stored.start, stored.stop, stored.number, self._near), now
                )
        self._far.open()
        self._plan(now)

    def store(self, batches: Sequence[Batch], now: Instant) -> Stored:
        """Put batches on disk as far as they have to be there; ``keep`` or ``undo`` must follow.

        Raises:
            StorageError: none is stored.
        """
        near: list[Batch] = []
        far: list[Batch] = []
        taken = 0
        for batch in batches:
            if self._is_near(batch.deliver_at_ns, taken, now):
                near.append(batch)
                taken += len(batch)
            elif self._far is not None:
                far.append(batch)
            else:
                self.dropped_count += len(batch)
        stored = Stored([Run(batch, 0, len(batch)) for batch in near])
        if far and self._far is not None:
            stored.far = self._far.append(far, now.wall_ns // MILLISECOND)
        if near and self._log_all and self._near is not None:
            try:
                number = self._near.append(near, held=True)
            except StorageError:
                self.undo(stored)
                raise
            for run in stored.runs:
                run.number, run.log = number, self._near
                number += len(run)
        return stored

    def _is_near(self, deliver_at_ns: int, taken: int, now: Instant) -> bool:
        """Whether memory is the place, when ``taken`` more messages are in it already."""
        room = self._limit - self._in_memory - taken
        if self._far is None:
            return room > 0
        # One half is left for what comes from the disk, or that would have to be split finely.
        return room > self._limit // 2 and deliver_at_ns - now.wall_ns < NEAR_MS * MILLISECOND

    def undo(self, stored: Stored) -> None:
        for run in stored.runs:
            run.acknowledge(0, len(run))
        if self._far is not None:
            self._far.undo(stored.far)

    def keep(self, stored: Stored, now: Instant) -> None:
        for run in stored.runs:
            self._wait(run, now)
        if stored.far:
            self._plan(now)

    def again(self, run: Run, delay_ns: int, now: Instant) -> None:
        """Messages whose delivery failed wait for the next one, with one attempt more.

        Raises:
            StorageError: not stored. They wait in memory; after a crash they come early.
        """
        run = run.again(now.wall_ns + delay_ns)
        near = self._is_near(run.batch.deliver_at_ns, 0, now)
        if self._far is None or (near and not self._log_all):
            self._wait(run, now)
            return
        try:
            stored = self.store([run.batch], now)
        except StorageError:
            self._wait(run, now)
            raise
        run.move()
        self.keep(stored, now)

    def hold(self, run: Run, deadline_ns: int) -> None:
        """Keep messages in memory until ``deadline_ns``, monotonic, where they are on disk."""
        self._heap.add(_Waiting(run), deadline_ns)
        self._in_memory += len(run)

    def _wait(self, run: Run, now: Instant) -> None:
        delay_ns = max(run.batch.deliver_at_ns - now.wall_ns, 0)
        self.hold(run, now.monotonic_ns + delay_ns)

    # -- out --------------------------------------------------------------------------------

    def take_due(self, now: Instant) -> list[Run]:
        """The messages in memory whose time has come, in its order."""
        runs = []
        while (waiting := self._heap.pop_due(now.monotonic_ns)) is not None:
            runs.append(waiting.run)
            self._in_memory -= len(waiting.run)
        return runs

    def advance(self, now: Instant) -> None:
        """Take the next steps of what is on disk towards memory.

        Raises:
            StorageError: the disk refused; it is tried again in a while.
        """
        if self._far is None:
            return
        full = self._in_memory + _STEP_MESSAGES
        for _ in range(_STEPS_MAX):
            due = self._look_ns != NEVER and self._look_ns <= now.monotonic_ns
            if not due or self._in_memory >= full:
                break
            try:
                self._step(self._far, now)
            except StorageError:
                self.retry_later([], now)
                raise

    def _step(self, far: TimerWheel, now: Instant) -> None:
        taken = far.advance(now.wall_ns // MILLISECOND, self._limit - self._in_memory)
        if taken is not None:
            queue_log, runs = taken
            for stored in runs:
                self._wait(
                    Run(stored.batch, stored.start, stored.stop, stored.number, queue_log), now
                )
        self._plan(now)

    def retry_later(self, runs: Sequence[Run], now: Instant) -> None:
        """The disk refused: wait for a while with what is due, and with what is on disk."""
        for run in runs:
            self.hold(run, now.monotonic_ns + RETRY_NS)
        if self._look_ns != NEVER:
            self._look_ns = now.monotonic_ns + RETRY_NS

    def _plan(self, now: Instant) -> None:
        look_ms = self._far.look_ms if self._far is not None else None
        if look_ms is None:
            self._look_ns = NEVER
        else:
            wait_ns = max(look_ms * MILLISECOND - now.wall_ns, 0)
            self._look_ns = now.monotonic_ns + min(wait_ns, _LOOK_MAX_NS)

    # -- end --------------------------------------------------------------------------------

    def clear(self) -> list[Run]:
        """Take everything out of memory; the logs are as they were."""
        self._in_memory = 0
        return [waiting.run for waiting in self._heap.clear()]

    def empty(self) -> None:
        """Forget every message."""
        self.clear()
        if self._near is not None:
            self._near.empty()
        if self._far is not None:
            self._far.empty()
        self._look_ns = NEVER

    def close(self) -> None:
        """Stop for good and lose nothing.

        Raises:
            StorageError: not everything could be stored; all files are closed.
        """
        runs = self.clear()
        with ExitStack() as closing:  # each is closed, whatever befalls the other
            if self._far is not None:
                closing.callback(self._far.close)
            if self._near is not None:
                closing.callback(self._near.close)
                store_changed(self._near, runs)

    # -- for tests --------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """What is in memory, soonest first."""
        return [waiting.run for waiting in self._heap.items()]

    def waiting(self) -> dict[DiskQueue, int]:
        """How many messages each log holds that are not in memory."""
        waiting = {} if self._near is None else {self._near: self._near.unread}
        return waiting | (self._far.waiting if self._far is not None else {})
