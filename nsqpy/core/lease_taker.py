"""How messages come out of a channel into a lease: one lease at a time, a step at a time."""

import logging
from collections import deque
from collections.abc import Callable

from nsqpy.core.lease import Lease, LeaseRequest, LeaseSource, add_range
from nsqpy.core.window import NOT_STORED, Run
from nsqpy.errors import NSQError, StorageError
from nsqpy.message import Batch
from nsqpy.storage.block import BLOCK_HEADER_BYTES
from nsqpy.storage.diskqueue import DiskQueue

__all__ = ["ChannelGoneError", "LeaseTaker"]

log = logging.getLogger(__name__)

# What one step moves: some 2 ms.
STEP_MESSAGES = 2048
STEP_BYTES = 512 * 1024
_RANGES_MAX = 8192  # more sources than this and the lease is cut short


class ChannelGoneError(NSQError):
    """The channel is deleted, or the daemon stops."""

    def __str__(self) -> str:
        return "channel is gone"


class LeaseTaker:
    """Requests, in their order, and the lease that is being taken. ``make`` makes one, ``begin``
    has its steps taken."""

    __slots__ = ("_begin", "_make", "_waiting", "lease", "source")

    def __init__(
        self, make: Callable[[LeaseRequest], Lease], begin: Callable[[Lease], None]
    ) -> None:
        self._make = make
        self._begin = begin
        self.source: LeaseSource
        self._waiting: deque[LeaseRequest] = deque()
        self.lease: Lease | None = None

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def add(self, request: LeaseRequest) -> None:
        self._waiting.append(request)
        self.rouse()

    def rouse(self) -> None:
        """Begin with the next request, if there are messages; who need not wait is told if not."""
        if self.lease is not None or not self._waiting:
            return
        depth = self.source.ready_count()
        if not depth:
            hopeless = [request for request in self._waiting if not request.patient]
            self._waiting = deque(request for request in self._waiting if request.patient)
            for request in hopeless:
                request.complete(None)
            return
        first = self._waiting[0]
        same = [request for request in self._waiting if request.lease_id == first.lease_id]
        for request in same:
            self._waiting.remove(request)
        try:
            lease = self._make(first)
        except StorageError as error:
            for request in same:
                request.complete(None, error)
            return
        lease.requests = same
        lease.wanted = min(first.terms.max_messages, depth)
        self.lease = lease
        self._begin(lease)

    def copy(self, lease: Lease) -> bool:
        """Copy the next messages into the lease's log; whether there may be more of them.

        Raises:
            StorageError: what was copied so far stands.
        """
        terms, queue_log = lease.terms, lease.log
        assert terms is not None
        assert queue_log is not None
        room = min(lease.wanted - lease.count, STEP_MESSAGES)
        room_bytes = min(terms.max_bytes - lease.frame_bytes, STEP_BYTES)
        if room <= 0 or room_bytes <= 0 or len(lease.sources) >= _RANGES_MAX:
            return False
        runs = self.source.take_ready(room, room_bytes)
        if not runs:  # they were damaged, or have only moved to the channel's own log
            return self.source.ready_count() > 0
        self._append(lease, queue_log, runs)
        return True

    def _append(self, lease: Lease, queue_log: DiskQueue, runs: list[Run]) -> None:
        batches = []
        for run in runs:
            batch = run.batch.slice(run.start, run.stop)
            batches.append(Batch(batch.data, batch.offsets))  # a time that has come is no more
        try:
            queue_log.append(batches, held=False)
        except StorageError:
            self.source.put_back(runs)
            raise
        for run, batch in zip(runs, batches, strict=True):
            self._note_source(lease, run)
            size = BLOCK_HEADER_BYTES + len(batch.data)
            lease.splits.add(size, len(run))
            lease.size += size
            lease.frame_bytes += len(batch.data)
            lease.count += len(run)

    def _note_source(self, lease: Lease, run: Run) -> None:
        if run.raised or run.number == NOT_STORED:
            lease.changed.append(run)
        if run.number == NOT_STORED:
            return
        lease.held += len(run)
        sources = lease.sources
        first, stop = run.number, run.number + len(run)
        if sources and sources[-1][1] < first and self.source.log.is_done(sources[-1][1], first):
            sources[-1][1] = first
        add_range(sources, first, stop)

    def end(self, lease: Lease, *, wait_again: bool) -> None:
        """The lease has come about, or not; whoever still waits for one may be next. With
        ``wait_again`` nothing was there to take."""
        assert lease is self.lease
        self.lease = None
        requests, lease.requests = lease.requests, []
        for request in requests:
            if wait_again and request.patient:
                self._waiting.append(request)
            else:
                request.complete(None)
        self.rouse()

    def refuse(self) -> None:
        """Nobody gets a lease any more."""
        waiting, self._waiting = [*self._waiting], deque()
        if self.lease is not None:
            waiting += self.lease.requests
            self.lease.requests = []
        gone = ChannelGoneError()
        for request in waiting:
            request.complete(None, gone)
