"""The messages of a queue that are ready: a bounded window in memory, the rest in the log.

Topics and channels each have one. At ``disk`` and ``fsync`` everything durable is in the log, and
the window is a part of it that is also in memory; at ``memory`` the log holds only what the window
had no room for. While something in the log is unread, new messages queue up behind it.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from nsqpy.errors import StorageError
from nsqpy.message import Batch
from nsqpy.storage.diskqueue import DiskQueue

__all__ = ["NOT_STORED", "Run", "Window", "store_changed"]

NOT_STORED = -1


class Run:
    """Messages ``start`` to ``stop`` of ``batch``, in one place of one queue.

    Message ``start`` is record ``number`` of ``log``, the others follow; NOT_STORED if they are
    in memory only. ``raised`` means that the log still has them with fewer attempts.
    """

    __slots__ = ("batch", "log", "number", "raised", "start", "stop")

    def __init__(
        self,
        batch: Batch,
        start: int,
        stop: int,
        number: int = NOT_STORED,
        log: DiskQueue | None = None,
        raised: bool = False,
    ) -> None:
        self.batch = batch
        self.start = start
        self.stop = stop
        self.number = number
        self.log = log
        self.raised = raised

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> "Run":
        """A stretch of this run; ``start`` and ``stop`` count from its first message."""
        number = self.number + start if self.number != NOT_STORED else NOT_STORED
        base = self.start
        return Run(self.batch, base + start, base + stop, number, self.log, self.raised)

    def compact(self) -> None:
        """Put the messages into a batch of their own, if they keep one alive that is more than
        eight times as large."""
        batch, start, stop = self.batch, self.start, self.stop
        if 8 * batch.size_bytes(start, stop) < len(batch.data):
            self.batch = batch.slice(start, stop)
            self.start, self.stop = 0, stop - start

    def again(self, deliver_at_ns: int = 0) -> "Run":
        """The same records, each with one attempt more."""
        batch = self.batch.raised(self.start, self.stop, deliver_at_ns)
        return Run(batch, 0, len(batch), self.number, self.log, self.number != NOT_STORED)

    def acknowledge(self, start: int, stop: int) -> None:
        """Messages ``start`` to ``stop``, counted from the run's first, are done with."""
        if self.log is not None and self.number != NOT_STORED:
            self.log.acknowledge(self.number + start, stop - start)

    def move(self) -> None:
        """All of it now stands in another log."""
        if self.log is not None and self.number != NOT_STORED:
            self.log.move(self.number, self.stop - self.start)


class Window:
    """``limit`` messages at most are kept in memory ahead of need, give or take one batch."""

    __slots__ = ("_drop_oldest", "_limit", "_log", "_log_all", "_runs", "count", "dropped_count")

    def __init__(
        self, log: DiskQueue | None, *, limit: int, log_all: bool, drop_oldest: bool = False
    ) -> None:
        self._log = log
        self._drop_oldest = drop_oldest
        self._log_all = log_all
        self._limit = limit
        self._runs: deque[Run] = deque()
        self.count = 0
        self.dropped_count = 0

    @property
    def depth(self) -> int:
        return self.count + self._log.unread if self._log is not None else self.count

    def is_empty(self) -> bool:
        return not self.count and (self._log is None or not self._log.unread)

    @property
    def backend_depth(self) -> int:
        return self._log.unread if self._log is not None else 0

    @property
    def oldest_ns(self) -> int | None:
        """When the first message was published, in wall nanoseconds; 0 if there is none, None if
        it is not in memory."""
        if self._runs:
            run = self._runs[0]
            return run.batch.published(run.start, run.start + 1)[0][0]
        return 0 if self.is_empty() else None

    def put(self, batches: Sequence[Batch], spare: int = 0) -> None:
        """Take batches at the tail.

        Without a log, what does not fit is dropped and counted: the newest, or the oldest if
        that was asked for. ``spare`` is room beyond the limit, for consumers that wait.

        Raises:
            StorageError: none of it was taken.
        """
        log = self._log
        if log is None:
            self._put_or_drop(batches, spare)
            return
        fits = not log.unread and self.count < self._limit
        if self._log_all or not fits:
            number = log.append(batches, held=fits)
            if fits:
                for batch in batches:
                    count = len(batch)
                    self._runs.append(Run(batch, 0, count, number, log))
                    self.count += count
                    number += count
        else:
            for batch in batches:
                self._runs.append(Run(batch, 0, len(batch)))
                self.count += len(batch)

    def _put_or_drop(self, batches: Sequence[Batch], spare: int) -> None:
        limit = self._limit + spare
        for batch in batches:
            count = len(batch)
            if not self._drop_oldest:
                count = min(count, max(limit - self.count, 0))
                self.dropped_count += len(batch) - count
            if count:
                self._runs.append(Run(batch, 0, count))
                self.count += count
        while self._drop_oldest and self.count > limit:
            run = self._runs.popleft()
            count = min(len(run), self.count - limit)
            if count < len(run):
                self._runs.appendleft(run.part(count, len(run)))
            self.count -= count
            self.dropped_count += count

    def put_run(self, run: Run) -> None:
        """Take messages at the tail that this queue already owes: requeued, or due."""
        self._runs.append(run)
        self.count += len(run)

    def split(self, runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
        """Runs that there is room for, and the others; without a log there is always room."""
        room = self._limit - self.count
        fitting: list[Run] = []
        others: list[Run] = []
        for run in runs:
            (fitting if room > 0 or self._log is None else others).append(run)
            room -= len(run)
        return fitting, others

    def put_back(self, runs: Sequence[Run]) -> None:
        """Return what ``take`` gave, to the front."""
        self._runs.extendleft(reversed(runs))
        self.count += sum(map(len, runs))

    def take(self, limit: int, max_bytes: int) -> list[Run]:
        """Up to ``limit`` messages from the front and about ``max_bytes``, at least one.

        Raises:
            StorageError: the window is empty and the log cannot be read; nothing is taken.
        """
        taken: list[Run] = []
        runs = self._runs
        while limit > 0 and max_bytes > 0:
            if not runs:
                if self._log is None or not self._log.unread:
                    break
                try:
                    self._fill(self._log)
                except StorageError:
                    if taken:
                        break  # the next call meets the error again
                    raise
                continue
            run = runs[0]
            start, stop = run.start, min(run.stop, run.start + limit)
            stop = run.batch.fit(start, stop, max_bytes)
            size = run.batch.size_bytes(start, stop)
            if taken and size > max_bytes:
                break
            if stop == run.stop:
                runs.popleft()
                taken.append(run)
            else:
                taken.append(run.part(0, stop - start))
                runs[0] = run.part(stop - start, len(run))
            limit -= stop - start
            max_bytes -= size
            self.count -= stop - start
        return taken

    def take_own(self, limit: int, max_bytes: int) -> list[Run]:
        """As ``take``, of messages that are in the queue's own log, or in none. Those from another
        log move to its end first.

        Raises:
            StorageError: nothing is taken.
        """
        runs = self.take(limit, max_bytes)
        own: list[Run] = []
        strangers: list[Run] = []
        for run in runs:
            strange = run.log is not self._log and run.number != NOT_STORED
            (strangers if strange else own).append(run)
        if strangers:
            try:
                self.store(strangers)
            except StorageError:
                self.put_back(runs)
                raise
        return own

    def store(self, runs: Sequence[Run], *, raised: bool = False) -> int:
        """Move messages from wherever they are to the end of the queue's log, to be read back
        later; with one attempt more if ``raised``. Returns the number of the first.

        Raises:
            StorageError: they are where they were.
        """
        assert self._log is not None
        batches = []
        for run in runs:
            batch = run.batch
            if raised:
                batches.append(batch.raised(run.start, run.stop))
            else:
                batch = batch.slice(run.start, run.stop)
                batches.append(Batch(batch.data, batch.offsets))  # a time that has come is no more
        number = self._log.append(batches, held=False)
        for run in runs:
            run.move()
        return number

    def _fill(self, log: DiskQueue) -> None:
        for stored in log.read():
            run = Run(stored.batch, stored.start, stored.stop, stored.number, log)
            self._runs.append(run)
            self.count += len(run)

    def drop(self, ranges: Sequence[list[int]]) -> int:
        """Acknowledge what is in memory of the records in ``ranges`` of the queue's log, each a
        first and a stop; returns how many they were."""
        ordered = sorted(ranges)
        firsts = [first for first, _ in ordered]
        runs, self._runs = self._runs, deque()
        dropped = 0
        for run in runs:
            at = 0
            if run.log is self._log and run.number != NOT_STORED:
                base, end = run.number, run.number + len(run)
                for first, stop in ordered[max(bisect_right(firsts, base) - 1, 0) :]:
                    if first >= end:
                        break
                    start, stop = max(first - base, at), min(stop, end) - base
                    if start < stop:
                        if at < start:
                            self._runs.append(run.part(at, start))
                        run.acknowledge(start, stop)
                        dropped += stop - start
                        at = stop
            if at < len(run):
                self._runs.append(run.part(at, len(run)) if at else run)
        self.count -= dropped
        return dropped

    def runs(self) -> list[Run]:
        """What is in memory, in order."""
        return list(self._runs)

    def clear(self) -> list[Run]:
        """Take everything out of memory; the log is the caller's to empty."""
        runs = list(self._runs)
        self._runs.clear()
        self.count = 0
        return runs


def store_changed(queue_log: DiskQueue, runs: Sequence[Run]) -> None:
    """Append to a log those runs that no log has, or only with fewer attempts, and once they are
    on the device, acknowledge what they were before.

    Raises:
        StorageError: what they were before still stands.
    """
    changed = [run for run in runs if run.raised or run.number == NOT_STORED]
    if changed:
        batches = [run.batch.slice(run.start, run.stop) for run in changed]
        queue_log.append(batches, held=False)
        queue_log.sync()
        for run in changed:
            run.acknowledge(0, len(run))
