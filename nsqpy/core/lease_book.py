"""The leases of one channel: create, read, extend, commit, release, expire.

Nothing here takes long: what moves messages is cut into steps, of which the broker has one taken
a turn. A lease comes about like this, and a crash at any point leaves each message in one place:

1. Messages are copied into the lease's own log; in the channel's log they stay owed.
2. The journal takes a record of the lease and of where its messages came from. From here on it
   exists; what a crash leaves before that is removed, and the channel's log still has it all.
3. The lease's log is sealed, and the messages are acknowledged in the channel's log. After a crash
   the journal says which are still to be.

At ``--durability=fsync`` each of these is on the device before the next begins. Source: DESIGN 4.
"""

import logging
from collections.abc import Callable
from functools import partial
from itertools import islice
from operator import attrgetter

from nsqpy.clock import Instant
from nsqpy.core.agenda import Agenda
from nsqpy.core.deadlines import NEVER, DeadlineHeap
from nsqpy.core.lease import (
    ENDED_KEPT_NS,
    ENDED_MAX,
    LEASES_MAX,
    Lease,
    LeaseGoneError,
    LeaseRefusedError,
    LeaseRequest,
    LeaseSource,
    LeaseState,
    Splits,
    add_range,
)
from nsqpy.core.lease_store import LeaseStore
from nsqpy.core.lease_taker import STEP_BYTES, STEP_MESSAGES, LeaseTaker
from nsqpy.core.window import Run
from nsqpy.errors import StorageError
from nsqpy.storage.diskqueue import DiskQueue, Region

__all__ = ["LeaseBook"]

log = logging.getLogger(__name__)

_RETURNED_MAX = 8192  # ranges that a late commit can still find
_DYING_MAX = 4096  # dead letters that are not stored yet hold back the next step


class LeaseBook:
    """``owners`` holds every id of the daemon, living or remembered, and whose it is.
    ``when_safe`` calls back once all that has been written is as safe as ``--durability`` asks."""

    def __init__(
        self,
        name: str,
        store: LeaseStore,
        *,
        agenda: Agenda,
        owners: "dict[str, LeaseBook]",
        when_safe: Callable[[Callable[[StorageError | None], None]], None],
    ) -> None:
        self._name = name
        self._store = store
        self._agenda = agenda
        self._owners = owners
        self._when_safe = when_safe
        self._source: LeaseSource
        self._taker = LeaseTaker(self._make, partial(self._do, self._copy))
        self._leases: dict[str, Lease] = {}
        self._busy: dict[Lease, None] = {}  # those of them that hold something
        self._ended: dict[Lease, None] = {}  # those that have, in that order
        self._expiries: DeadlineHeap[Lease] = DeadlineHeap()
        # What is to be done next; every step puts what follows it behind the others.
        self._work: dict[tuple[Callable[[Lease, Instant], None], Lease], None] = {}

    @property
    def topic_name(self) -> str:
        return self._source.topic_name

    def attach(self, source: LeaseSource) -> None:
        """Say whose leases these are; once, before anything else."""
        self._source = self._taker.source = source

    # -- what there is ----------------------------------------------------------------------

    @property
    def lease_count(self) -> int:
        return len(self._leases) - len(self._ended)

    @property
    def leased_count(self) -> int:
        """Messages that are out, or on their way back."""
        return sum(lease.leased_count for lease in self._busy)

    @property
    def bad_blocks(self) -> int:
        logs = [lease.log for lease in self._busy if lease.log is not None]
        return self._store.bad_blocks + sum(queue_log.bad_blocks for queue_log in logs)

    def soonest_ns(self) -> int:
        """When ``expire`` next has something to do, or NEVER."""
        return self._expiries.soonest_ns()

    def leases(self) -> list[Lease]:
        """The living ones."""
        return [lease for lease in self._busy if lease.state is LeaseState.LEASED]

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

    def regions(self, lease: Lease) -> list[Region]:
        """Where the stream of a living lease stands: its blocks, in order."""
        assert lease.log is not None
        return lease.log.regions()

    # -- start ------------------------------------------------------------------------------

    def load(self, now: Instant) -> None:
        """Take up what a previous process left; once, before the channel reads anything.

        Raises:
            StorageError: the journal or a log cannot be read.
        """
        found = self._store.find(now.wall_ns)
        for lease in self._store.replay().values():
            path = found.pop(lease.serial, None)
            self._keep(lease, self._store.open(path) if path is not None else None)
            self._take_up(lease, now)
        for serial, path in found.items():
            self._take_in(serial, path)
        self._ended = dict.fromkeys(sorted(self._ended, key=attrgetter("ended_ns")))
        self._prune(now)

    def _keep(self, lease: Lease, queue_log: DiskQueue | None) -> None:
        lease.log = queue_log
        self._leases[lease.id] = lease
        self._owners[lease.id] = self
        if queue_log is not None:
            self._busy[lease] = None
        if not lease.is_living:
            self._ended[lease] = None
            lease.told = True

    def _take_up(self, lease: Lease, now: Instant) -> None:
        """Go on with a lease where it was."""
        queue_log = lease.log
        whole = queue_log is not None and queue_log.depth == lease.count
        if lease.is_living and not whole:
            # A power cut, or damage. What the channel still owes comes from there, perhaps twice.
            log.error("CHANNEL(%s): lease %s is damaged: put back", self._name, lease.id)
            self._put_back(lease, LeaseState.EXPIRED, now, disowned=True)
        elif "sources" in lease.records and queue_log is not None:
            self._disown(lease)
        else:  # its log goes last: what the channel owes has been settled before
            self._store.supersede(lease, "sources")
        lease.sources = []
        if lease.is_living:
            self._watch(lease, now)
        elif "sources" not in lease.records:
            self._go_on(lease)

    def _go_on(self, lease: Lease) -> None:
        """The channel's log has let go of a lease that has ended: now it may be cleared away."""
        if lease.state is LeaseState.COMMITTED or "taken" not in lease.records:
            self._scrap(lease)
        else:
            self._do(self._return, lease)

    def _disown(self, lease: Lease) -> None:
        """What the lease has, the channel's log does not owe any more. Where that log has lost its
        files, its numbers begin anew: this is over before anything is written to it."""
        queue_log = self._source.log
        for first, stop in lease.sources:
            queue_log.discard_rest(first, stop)
        try:
            if lease.log is not None:
                lease.log.seal()
                lease.log.rest()
            queue_log.flush()
            queue_log.sync()
            self._store.supersede(lease, "sources")
            self._store.sync()
        except StorageError as error:
            log.error("CHANNEL(%s): lease %s - %s", self._name, lease.id, error)
            self._do(self._seal, lease)  # on a full disk we start all the same

    def _take_in(self, serial: int, path: str) -> None:
        """A log that the journal does not know. It is what a crash left of a lease that never
        was, and the channel still owes all of it; if it is sealed, the journal is damaged."""
        queue_log = self._store.open(path)
        lease = Lease(f"#{path}", serial, queue_log)  # nobody can ask for that
        lease.state = LeaseState.RELEASED
        self._keep(lease, queue_log)
        if queue_log.is_sealed and queue_log.depth:
            log.error("CHANNEL(%s): nothing is known of lease log %d", self._name, serial)
            self._do(self._return, lease)
        else:
            self._scrap(lease)
            self._forget(lease)

    # -- create -----------------------------------------------------------------------------

    def create(self, request: LeaseRequest, now: Instant) -> None:
        """See to a request; it is completed at once, or in a later turn.

        Raises:
            LeaseGoneError: the id has ended.
            LeaseRefusedError: there are too many leases.
            StorageError: the journal cannot be written.
        """
        known = self._leases.get(request.lease_id)
        if known is None:
            if self.lease_count + self._taker.waiting_count >= LEASES_MAX:
                raise LeaseRefusedError("TOO_MANY_LEASES")
            self._taker.add(request)
        elif known.state is LeaseState.TAKING:
            known.requests.append(request)
        else:
            lease = self.find(request.lease_id)
            if now.wall_ns + request.terms.ttl_ns > lease.expires_ns:
                self.extend(lease, request.terms.ttl_ns, now)
            self._when_safe(partial(_complete, request, lease))

    def join(self, request: LeaseRequest) -> bool:
        """Complete the request when the lease of that name has been taken, if it is just being."""
        lease = self._taker.lease
        if lease is None or lease.id != request.lease_id:
            return False
        lease.requests.append(request)
        return True

    def stop_waiting(self, request: LeaseRequest) -> None:
        """It has waited long enough for messages; what has begun goes on."""
        request.patient = False
        self._taker.rouse()

    def rouse(self) -> None:
        """There may be messages."""
        self._taker.rouse()

    def _make(self, request: LeaseRequest) -> Lease:
        lease = self._store.make(request.lease_id)
        lease.terms = request.terms
        self._keep(lease, lease.log)
        return lease

    def _copy(self, lease: Lease, now: Instant) -> None:
        """Take the next messages, or be content with what there is."""
        try:
            if self._taker.copy(lease):
                self._do(self._copy, lease)
                return
        except StorageError as error:
            log.error("CHANNEL(%s): lease %s cut short - %s", self._name, lease.id, error)
            if not lease.count:
                self._answer(lease, error)
        if lease.count:
            self._safely(self._record, lease)
        else:
            self._drop(lease, wait_again=True)

    def _record(self, lease: Lease, now: Instant) -> None:
        """All is copied, and safe: write down that the lease exists."""
        assert lease.terms is not None
        lease.expires_ns = now.wall_ns + lease.terms.ttl_ns
        try:
            self._store.record(lease, now.wall_ns)
        except StorageError as error:
            self._answer(lease, error)  # they may ask again meanwhile
            raise
        self._safely(self._exist, lease)

    def _exist(self, lease: Lease, now: Instant) -> None:
        lease.state = LeaseState.LEASED
        lease.changed = []
        self._watch(lease, now)
        log.info("CHANNEL(%s): lease %s of %d messages", self._name, lease.id, lease.count)
        self._do(self._seal, lease)
        self._answer(lease, None)
        self._taker.end(lease, wait_again=False)

    def _answer(self, lease: Lease, error: StorageError | None) -> None:
        requests, lease.requests = lease.requests, []
        for request in requests:
            _complete(request, lease, error)

    def _drop(self, lease: Lease, *, wait_again: bool) -> None:
        """There never was such a lease."""
        self._scrap(lease)
        self._forget(lease)
        self._taker.end(lease, wait_again=wait_again)

    # -- the channel's log lets go ----------------------------------------------------------

    def _seal(self, lease: Lease, now: Instant) -> None:
        if lease.log is not None:
            lease.log.seal()
            lease.log.rest()
        lease.flushes = self._source.log.flush_count
        self._do(self._settle, lease)

    def _settle(self, lease: Lease, now: Instant) -> None:
        """Acknowledge what was taken, a segment in a step: its file may go by that."""
        queue_log = self._source.log
        sources = lease.sources
        if sources:
            first, stop = sources[0]
            sources[0][0], count = queue_log.acknowledge_rest(first, stop)
            lease.held -= count
            if sources[0][0] >= stop:
                del sources[0]
            lease.flushes = queue_log.flush_count
            self._do(self._settle, lease)
        elif queue_log.is_flushed or queue_log.flush_count > lease.flushes:
            self._safely(self._settled, lease)
        else:
            self._do(self._check_flushed, lease)

    def _check_flushed(self, lease: Lease, now: Instant) -> None:
        """The turn in between has written the acknowledgements, unless the disk refused them."""
        queue_log = self._source.log
        if not queue_log.is_flushed and queue_log.flush_count == lease.flushes:
            raise StorageError(self._name, "acknowledgements are not written yet")
        self._safely(self._settled, lease)

    def _settled(self, lease: Lease, now: Instant) -> None:
        self._store.supersede(lease, "sources")
        if not lease.is_living:
            self._go_on(lease)

    # -- extend, read -----------------------------------------------------------------------

    def extend(self, lease: Lease, ttl_ns: int, now: Instant) -> None:
        """Let a living lease expire ``ttl_ns`` from now.

        Raises:
            StorageError: it expires when it did before.
        """
        expires_ns = now.wall_ns + ttl_ns
        self._store.note(lease, now.wall_ns, "extended", expires=expires_ns)
        lease.expires_ns = expires_ns
        self._watch(lease, now)

    def _watch(self, lease: Lease, now: Instant) -> None:
        deadline_ns = now.monotonic_ns + max(lease.expires_ns - now.wall_ns, 0)
        if lease.deadline_ns != NEVER:
            self._expiries.discard(lease)
        self._expiries.add(lease, deadline_ns)
        self._source.note_deadline()

    def note_read(self, lease: Lease, offset: int, length: int, now: Instant) -> None:
        """Bytes of the stream were sent to somebody."""
        reads = lease.reads
        if lease.state is not LeaseState.LEASED or not lease.cover(offset, length):
            return
        try:
            if lease.reads > reads:
                self._store.note(lease, now.wall_ns, "read", reads=lease.reads)
            else:
                self._store.note(lease, now.wall_ns, "read", offset=offset, length=length)
        except StorageError as error:  # it is for information only
            log.error("CHANNEL(%s): lease %s - %s", self._name, lease.id, error)

    # -- the end ----------------------------------------------------------------------------

    def commit(self, lease_id: str, now: Instant) -> None:
        """All of a lease is done with; of one that has expired, what nobody has been given since.
        That holds as long as nobody was told that it has expired.

        Raises:
            LeaseGoneError: it is not committed; ``acknowledged`` messages are.
            StorageError: it is not known to be.
        """
        lease = self._leases.get(lease_id)
        if lease is not None and lease.state is LeaseState.COMMITTED:
            return
        if lease is not None and lease.state is LeaseState.EXPIRED and not lease.told:
            self._commit_late(lease, now)
            return
        lease = self.find(lease_id)
        self._end(lease, LeaseState.COMMITTED, now)
        self._source.note_finished(lease.count)
        if "sources" not in lease.records:
            self._scrap(lease)

    def _commit_late(self, lease: Lease, now: Instant) -> None:
        acknowledged = self._source.take_out(lease.returned)
        if lease.log is not None:
            acknowledged += lease.leased_count
            for run in lease.stranded:
                run.acknowledge(0, len(run))
            lease.stranded = []
            lease.log.discard_rest(0, lease.count + 1)
            lease.log.flush()
        self._source.note_finished(acknowledged)
        lease.returned = []
        lease.told = True
        if acknowledged < lease.count:
            raise LeaseGoneError(lease.id, lease.state, acknowledged)
        self._end(lease, LeaseState.COMMITTED, now)

    def release(self, lease_id: str, now: Instant) -> None:
        """Put everything back, with one attempt more.

        Raises:
            LeaseGoneError: it has ended otherwise.
            StorageError: nothing has happened.
        """
        lease = self._leases.get(lease_id)
        if lease is None or lease.state is not LeaseState.RELEASED:
            self._put_back(self.find(lease_id), LeaseState.RELEASED, now)

    def expire(self, now: Instant) -> None:
        """Have leases whose time is over go back to the queue."""
        while (lease := self._expiries.pop_due(now.monotonic_ns)) is not None:
            self._do(self._expire_one, lease)

    def _expire_one(self, lease: Lease, now: Instant) -> None:
        if lease.state is LeaseState.LEASED and lease.deadline_ns == NEVER:
            self._put_back(lease, LeaseState.EXPIRED, now)
            log.info("CHANNEL(%s): lease %s expired", self._name, lease.id)

    def _put_back(
        self, lease: Lease, state: LeaseState, now: Instant, *, disowned: bool = False
    ) -> None:
        self._end(lease, state, now, disowned=disowned)
        self._safely(self._return, lease)

    def _end(
        self, lease: Lease, state: LeaseState, now: Instant, *, disowned: bool = False
    ) -> None:
        details = {"state": state, "at": now.wall_ns, "serial": lease.serial, "disowned": disowned}
        self._store.note(lease, now.wall_ns, "ended", **details)
        lease.state, lease.ended_ns = state, now.wall_ns
        lease.splits, lease.covered = Splits(), []
        if lease.deadline_ns != NEVER:
            self._expiries.discard(lease)
        self._ended.pop(lease, None)
        self._ended[lease] = None
        self._prune(now)

    def _return(self, lease: Lease, now: Instant) -> None:
        """Put the next messages back into the queue, where they wait behind the others."""
        queue_log = lease.log
        # Only what is not owed by the channel's log any more may be put there again.
        if queue_log is None or "sources" in lease.records:
            return
        moved = 0
        while moved < STEP_MESSAGES:
            if self._source.dying_count >= _DYING_MAX:
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
            self._do(self._return, lease)
        elif queue_log.depth:
            queue_log.on_drained = partial(self._scrap, lease)
        else:
            self._scrap(lease)

    def _return_run(self, lease: Lease, run: Run, now: Instant) -> int:
        first, stop = self._source.give_back(run, lease.state, now)
        del lease.stranded[0]
        if first == stop or len(lease.returned) >= _RETURNED_MAX:
            lease.told = True  # not all of it can be found again
        else:
            add_range(lease.returned, first, stop)
        return len(run)

    def _scrap(self, lease: Lease) -> None:
        """Nothing of its log is owed any more."""
        self._store.scrap(lease)
        self._busy.pop(lease, None)

    def _forget(self, lease: Lease) -> None:
        self._store.forget(lease)
        del self._leases[lease.id]
        del self._owners[lease.id]
        self._ended.pop(lease, None)

    def _prune(self, now: Instant) -> None:
        """Forget ids that ended long ago, or that are too many."""
        for lease in list(islice(self._ended, 8)):
            old = now.wall_ns - lease.ended_ns > ENDED_KEPT_NS
            if not old and len(self._ended) <= ENDED_MAX:
                break
            if lease.log is None and not lease.sources:
                self._forget(lease)

    # -- steps ------------------------------------------------------------------------------

    def _do(self, action: Callable[[Lease, Instant], None], lease: Lease) -> None:
        self._work[action, lease] = None
        self._agenda.note_book(self)

    def _safely(self, action: Callable[[Lease, Instant], None], lease: Lease) -> None:
        """Do ``action`` once all that is written is safe. A device that refuses is asked again."""

        def note(error: StorageError | None) -> None:
            if self._leases.get(lease.id) is not lease:
                return  # the channel has been emptied or deleted meanwhile
            if error is None:
                self._do(action, lease)
            else:
                self._answer(lease, error)
                self._safely(action, lease)

        self._when_safe(note)

    def step(self, now: Instant) -> None:
        """Do the next thing that is to be done.

        Raises:
            StorageError: the disk refused; it will be tried again when this is called again.
        """
        if not self._work:
            return
        action, lease = next(iter(self._work))
        del self._work[action, lease]
        try:
            action(lease, now)
        except StorageError:
            self._work[action, lease] = None
            raise
        if self._work:
            self._agenda.note_book(self)

    # -- the channel ends -------------------------------------------------------------------

    def empty(self, now: Instant) -> None:
        """Forget every message: all leases are released, and nothing comes back."""
        self._work.clear()
        for lease in self._leases.values():
            lease.sources, lease.held = [], 0
        for lease in list(self._busy):
            lease.stranded = []
            if lease.state is LeaseState.TAKING:
                self._drop(lease, wait_again=True)
                continue
            if lease.is_living:
                try:
                    self._end(lease, LeaseState.RELEASED, now)
                except StorageError as error:
                    log.error("CHANNEL(%s): lease %s - %s", self._name, lease.id, error)
            self._scrap(lease)
        for lease in self._leases.values():
            self._store.supersede(lease, "sources")

    def delete(self) -> None:
        """Forget everything; the files are about to be removed."""
        self._refuse()
        for lease in self._leases.values():
            if lease.log is not None:
                lease.log.abandon()
            del self._owners[lease.id]
        self._leases, self._busy, self._ended = {}, {}, {}
        self._store.abandon()

    def _refuse(self) -> None:
        self._work.clear()
        self._expiries.clear()
        self._taker.refuse()

    def stop(self) -> list[Run]:
        """Begin nothing any more. Returns the messages of a lease that did not come about, as far
        as no log has them as they are now; ``close`` must follow."""
        self._refuse()
        lease = self._taker.lease
        if lease is None:
            return []
        self._drop(lease, wait_again=False)
        return lease.changed

    def close(self) -> None:
        """Lose nothing; the channel's log is closed after this.

        Raises:
            StorageError: the first of what went wrong; every log was closed.
        """
        steps: list[Callable[[], None]] = []
        steps += [partial(self._settle_now, lease) for lease in self._leases.values()]
        closing = [lease.log.close for lease in self._busy if lease.log is not None]
        faults: list[StorageError] = []
        for step in (*steps, *closing, self._store.close):
            try:
                step()
            except StorageError as error:
                faults.append(error)
        if faults:
            raise faults[0]

    def _settle_now(self, lease: Lease) -> None:
        if lease.log is not None:
            lease.log.seal()
        for first, stop in lease.sources:
            at = first
            while at < stop:
                at, _ = self._source.log.acknowledge_rest(at, stop)
        lease.sources = []

    # -- for tests --------------------------------------------------------------------------

    def audit(self) -> tuple[dict[DiskQueue, int], list[Run], int]:
        """What is unread of each lease's log, what was read of them and is to go back, and how
        many records of the channel's log they hold.

        Raises:
            AssertionError: a lease does not add up.
        """
        unread: dict[DiskQueue, int] = {}
        for lease in self._busy:
            assert lease.log is not None
            unread[lease.log] = lease.log.unread
            if lease.is_living:
                assert lease.log.depth == lease.count, "lease: log and count differ"
                assert sum(part[2] for part in lease.splits.triples()) == lease.count
        stranded = [run for lease in self._busy for run in lease.stranded]
        return unread, stranded, sum(lease.held for lease in self._leases.values())


def _complete(request: LeaseRequest, lease: Lease, error: StorageError | None) -> None:
    request.complete(lease if error is None else None, error)
