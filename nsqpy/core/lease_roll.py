"""Which leases a channel has: by id, who lives until when, and who has ended."""

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Generic, TypeVar

from nsqpy.clock import Instant
from nsqpy.core.deadlines import NEVER, DeadlineHeap
from nsqpy.core.lease import ENDED_KEPT_NS, ENDED_MAX, Lease, LeaseGoneError, LeaseState
from nsqpy.storage.diskqueue import DiskQueue

__all__ = ["LeaseRoll"]

Owner = TypeVar("Owner")


class LeaseRoll(Generic[Owner]):
    """The leases of ``owner``. ``owners`` holds every id of the daemon, and whose it is."""

    def __init__(self, owner: Owner, owners: dict[str, Owner]) -> None:
        self._owner = owner
        self._owners = owners
        self._leases: dict[str, Lease] = {}
        self._busy: dict[Lease, None] = {}
        self._ended: dict[Lease, None] = {}  # in the order of their ends
        self._expiries: DeadlineHeap[Lease] = DeadlineHeap()

    # -- what there is ----------------------------------------------------------------------

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def __contains__(self, lease: Lease) -> bool:
        return self._leases.get(lease.id) is lease

    def get(self, lease_id: str) -> Lease | None:
        return self._leases.get(lease_id)

    @property
    def living_count(self) -> int:
        return len(self._leases) - len(self._ended)

    @property
    def busy(self) -> Iterable[Lease]:
        """Those that hold something, living or not."""
        return self._busy.keys()

    def find(self, lease_id: str) -> Lease:
        """The living lease of that name.

        Raises:
            LeaseGoneError: it has ended, or there is none.
        """
        lease = self._leases.get(lease_id)
        if lease is None or lease.state is LeaseState.TAKING:
            raise LeaseGoneError(lease_id, "unknown")
        if lease.state is not LeaseState.LEASED:
            lease.told = True
            raise LeaseGoneError(lease_id, lease.state)
        return lease

    # -- coming and going -------------------------------------------------------------------

    def keep(self, lease: Lease, queue_log: DiskQueue | None) -> None:
        """A lease that has begun, or one from before; ``queue_log`` is what it holds."""
        lease.log = queue_log
        self._leases[lease.id] = lease
        self._owners[lease.id] = self._owner
        if queue_log is not None:
            self._busy[lease] = None
        if not lease.is_living:
            self._ended[lease] = None
            lease.told = True

    def order_ended(self) -> None:
        """Put those that ended in the order of their ends; once, after a start."""
        self._ended = dict.fromkeys(sorted(self._ended, key=attrgetter("ended_ns")))

    def end(self, lease: Lease) -> None:
        """It lives no more; its id is remembered."""
        self._unwatch(lease)
        self._ended.pop(lease, None)
        self._ended[lease] = None

    def let_go(self, lease: Lease) -> None:
        """It holds nothing any more."""
        self._busy.pop(lease, None)

    def forget(self, lease: Lease) -> None:
        """Its id may be used again."""
        del self._leases[lease.id]
        del self._owners[lease.id]
        self._ended.pop(lease, None)

    def outdated(self, now: Instant) -> Iterator[Lease]:
        """Some that may be forgotten: they ended long ago, or are too many."""
        for lease in list(islice(self._ended, 8)):
            old = now.wall_ns - lease.ended_ns > ENDED_KEPT_NS
            if not old and len(self._ended) <= ENDED_MAX:
                break
            if lease.log is None and not lease.sources:
                yield lease

    def clear(self) -> None:
        """Forget all of them, and let go of their logs."""
        for lease in self:
            if lease.log is not None:
                lease.log.abandon()
            del self._owners[lease.id]
        self._leases, self._busy, self._ended = {}, {}, {}

    # -- deadlines --------------------------------------------------------------------------

    def soonest_ns(self) -> int:
        """When the next one expires, or NEVER."""
        return self._expiries.soonest_ns()

    def watch(self, lease: Lease, now: Instant) -> None:
        """Have it expire when it says."""
        deadline_ns = now.monotonic_ns + max(lease.expires_ns - now.wall_ns, 0)
        self._unwatch(lease)
        self._expiries.add(lease, deadline_ns)

    def _unwatch(self, lease: Lease) -> None:
        if lease.deadline_ns != NEVER:
            self._expiries.discard(lease)

    def pop_due(self, now: Instant) -> Lease | None:
        """One whose time is over, each once."""
        return self._expiries.pop_due(now.monotonic_ns)

    def unwatch_all(self) -> None:
        self._expiries.clear()
