"""How the messages of a lease that was released, or has expired, go back into the queue."""

from collections.abc import Callable
from functools import partial

from nsqpy.clock import Instant
from nsqpy.core.lease import Lease, LeaseSource, add_range
from nsqpy.core.lease_taker import STEP_BYTES, STEP_MESSAGES
from nsqpy.core.lease_work import LeaseWork
from nsqpy.core.window import Run

__all__ = ["LeaseReturner"]

_RETURNED_MAX = 8192  # ranges that a late commit can still find
_DYING_MAX = 4096  # dead letters that are not stored yet hold back the next step


class LeaseReturner:
    """A step at a time, as ``work`` takes them. ``scrap`` is called when a lease's log owes
    nothing any more."""

    def __init__(self, work: LeaseWork, scrap: Callable[[Lease], None]) -> None:
        self._work = work
        self._scrap = scrap
        self.source: LeaseSource

    def begin(self, lease: Lease) -> None:
        self._work.add(self._return, lease)

    def begin_when_safe(self, lease: Lease) -> None:
        """Once its end is written down for good."""
        self._work.add_when_safe(self._return, lease)

    def _return(self, lease: Lease, now: Instant) -> None:
        """Put the next messages back into the queue, where they wait behind the others."""
        queue_log = lease.log
        # Only what is not owed by the channel's log any more may be put there again.
        if queue_log is None or "sources" in lease.records:
            return
        moved = 0
        while moved < STEP_MESSAGES:
            if self.source.dying_count >= _DYING_MAX:
                break
            if not lease.stranded:
                lease.stranded = [
                    Run(found.batch, found.start, found.stop, found.number, queue_log)
                    for found in queue_log.read(STEP_BYTES // 4)
                ]
            if not lease.stranded:
                break
            moved += self._return_run(lease, lease.stranded[0], now)
        if lease.stranded or queue_log.unread:
            self._work.add(self._return, lease)
        elif queue_log.depth:
            queue_log.on_drained = partial(self._scrap, lease)
        else:
            self._scrap(lease)

    def _return_run(self, lease: Lease, run: Run, now: Instant) -> int:
        first, stop = self.source.give_back(run, lease.state, now)
        del lease.stranded[0]
        if first == stop or len(lease.returned) >= _RETURNED_MAX:
            lease.told = True  # not all of it can be found again
        else:
            add_range(lease.returned, first, stop)
        return len(run)

    def take_out(self, lease: Lease) -> int:
        """Acknowledge what has gone back and nobody has been given since, and what is still to
        go; returns how many messages that are.

        Raises:
            StorageError: that is not on disk yet.
        """
        acknowledged = self.source.take_out(lease.returned)
        if lease.log is not None:
            acknowledged += lease.leased_count
            for run in lease.stranded:
                run.acknowledge(0, len(run))
            lease.stranded = []
            lease.log.discard_rest(0, lease.count + 1)
            lease.log.flush()
        lease.returned = []
        return acknowledged
