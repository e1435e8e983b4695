"""How the channel's log lets go of what leases have taken out of it.

What a lease has is acknowledged there. The journal's record of where it came from goes only when
that is on disk: after a crash it says what is still to be acknowledged.
"""

from collections.abc import Callable

from nsqpy.clock import Instant
from nsqpy.core.lease import Lease, LeaseSource
from nsqpy.core.lease_store import LeaseStore
from nsqpy.core.lease_work import LeaseWork
from nsqpy.errors import StorageError

__all__ = ["LeaseSettler"]


class LeaseSettler:
    """A step at a time, as ``work`` takes them. ``settled`` is called when all is over."""

    def __init__(
        self, name: str, store: LeaseStore, work: LeaseWork, settled: Callable[[Lease], None]
    ) -> None:
        self._name = name
        self._store = store
        self._work = work
        self._settled_at_last = settled
        self._flushes: dict[Lease, int] = {}  # of the channel's log, when it was acknowledged
        self.source: LeaseSource

    def begin(self, lease: Lease) -> None:
        self._work.add(self._seal, lease)

    def _seal(self, lease: Lease, now: Instant) -> None:
        if lease.log is not None:
            lease.log.seal()
            lease.log.rest()
        self._flushes[lease] = self.source.log.flush_count
        self._work.add(self._settle, lease)

    def _settle(self, lease: Lease, now: Instant) -> None:
        """Acknowledge what was taken, a segment in a step: its file may go by that."""
        queue_log = self.source.log
        if lease.sources:
            self._acknowledge_some(lease)
            self._flushes[lease] = queue_log.flush_count
            self._work.add(self._settle, lease)
        elif queue_log.is_flushed or queue_log.flush_count > self._flushes[lease]:
            self._work.add_when_safe(self._settled, lease)
        else:
            self._work.add(self._check_flushed, lease)

    def _acknowledge_some(self, lease: Lease) -> None:
        first, stop = lease.sources[0]
        lease.sources[0][0], count = self.source.log.acknowledge_rest(first, stop)
        lease.held -= count
        if lease.sources[0][0] >= stop:
            del lease.sources[0]

    def _check_flushed(self, lease: Lease, now: Instant) -> None:
        """The turn in between has written the acknowledgements, unless the disk refused them."""
        queue_log = self.source.log
        if not queue_log.is_flushed and queue_log.flush_count == self._flushes[lease]:
            raise StorageError(self._name, "acknowledgements are not written yet")
        self._work.add_when_safe(self._settled, lease)

    def _settled(self, lease: Lease, now: Instant) -> None:
        self._store.supersede(lease, "sources")
        self._flushes.pop(lease, None)
        self._settled_at_last(lease)

    def settle_at_start(self, lease: Lease) -> None:
        """All at once. Where the channel's log has lost its files, its numbers begin anew: this is
        over before anything is written to it.

        Raises:
            StorageError: it is not on disk yet.
        """
        queue_log = self.source.log
        for first, stop in lease.sources:
            queue_log.discard_rest(first, stop)
        if lease.log is not None:
            lease.log.seal()
            lease.log.rest()
        queue_log.flush()
        queue_log.sync()
        self._store.supersede(lease, "sources")
        self._store.sync()

    def settle_at_end(self, lease: Lease) -> None:
        """All at once; the channel's log is flushed and closed after this. Raises StorageError."""
        if lease.log is not None:
            lease.log.seal()
        while lease.sources:
            self._acknowledge_some(lease)

    def clear(self) -> None:
        """No lease is settled any more."""
        self._flushes.clear()
