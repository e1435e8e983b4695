"""The leases of one channel: create, read, extend, commit, release, expire.

Nothing here takes long: what moves messages is cut into steps, of which the broker has one taken
a turn. A lease comes about like this, and a crash at any point leaves each message in one place:

1. Messages are copied into the lease's own log; in the channel's log they stay owed.
2. The journal takes a record of the lease and of where its messages came from. From here on it
   exists; what a crash leaves before that is removed, and the channel's log still has it all.
3. The lease's log is sealed, and the messages are acknowledged in the channel's log. After a crash
   the journal says which are still to be.

At ``--durability=fsync`` each of these is on the device before the next begins.
Source: docs/leases.md.
"""

import logging
from collections.abc import Callable
from functools import partial

from nsqpy.clock import Instant
from nsqpy.core.agenda import Agenda
from nsqpy.core.deadlines import NEVER
from nsqpy.core.lease import (
    LEASES_MAX,
    Lease,
    LeaseGoneError,
    LeaseRefusedError,
    LeaseRequest,
    LeaseSource,
    LeaseState,
    Splits,
)
from nsqpy.core.lease_returner import LeaseReturner
from nsqpy.core.lease_roll import LeaseRoll
from nsqpy.core.lease_settler import LeaseSettler
from nsqpy.core.lease_store import LeaseStore
from nsqpy.core.lease_taker import LeaseTaker
from nsqpy.core.lease_work import LeaseWork
from nsqpy.core.window import Run
from nsqpy.errors import StorageError
from nsqpy.storage.diskqueue import DiskQueue, Region

__all__ = ["LeaseBook"]

log = logging.getLogger(__name__)


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
        self._when_safe = when_safe
        self._source: LeaseSource
        self._roll = LeaseRoll(self, owners)
        self._work = LeaseWork(
            rouse=partial(agenda.note_book, self),
            when_safe=when_safe,
            exists=self._roll.__contains__,
        )
        self._taker = LeaseTaker(self._make, partial(self._work.add, self._copy))
        self._settler = LeaseSettler(name, store, self._work, self._note_settled)
        self._returner = LeaseReturner(self._work, self._scrap)

    @property
    def topic_name(self) -> str:
        return self._source.topic_name

    def attach(self, source: LeaseSource) -> None:
        """Say whose leases these are; once, before anything else."""
        self._source = source
        self._taker.source = self._settler.source = self._returner.source = source

    # -- what there is ----------------------------------------------------------------------

    @property
    def lease_count(self) -> int:
        return self._roll.living_count

    @property
    def leased_count(self) -> int:
        """Messages that are out, or on their way back."""
        return sum(lease.leased_count for lease in self._roll.busy)

    @property
    def bad_blocks(self) -> int:
        logs = [lease.log for lease in self._roll.busy if lease.log is not None]
        return self._store.bad_blocks + sum(queue_log.bad_blocks for queue_log in logs)

    def soonest_ns(self) -> int:
        """When ``expire`` next has something to do, or NEVER."""
        return self._roll.soonest_ns()

    def leases(self) -> list[Lease]:
        """The living ones."""
        return [lease for lease in self._roll.busy if lease.state is LeaseState.LEASED]

    def find(self, lease_id: str) -> Lease:
        """The living lease of that name.

        Raises:
            LeaseGoneError: it has ended, or there is none.
        """
        return self._roll.find(lease_id)

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
            self._roll.keep(lease, self._store.open(path) if path is not None else None)
            self._take_up(lease, now)
        for serial, path in found.items():
            self._take_in(serial, path)
        self._roll.order_ended()
        self._prune(now)

    def _take_up(self, lease: Lease, now: Instant) -> None:
        """Go on with a lease where it was."""
        queue_log = lease.log
        whole = queue_log is not None and queue_log.depth == lease.count
        if lease.is_living and not whole:
            # A power cut, or damage. What the channel still owes comes from there, perhaps twice.
            log.error("CHANNEL(%s): lease %s is damaged: put back", self._name, lease.id)
            self._put_back(lease, LeaseState.EXPIRED, now, disowned=True)
            self._store.supersede(lease, "sources")  # they never counted
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
        """The channel's log has let go of a lease that has ended: now it may be cleared away. One
        that goes back and still has messages has lost its record of being taken to damage."""
        owes = lease.log is not None and lease.log.depth > 0
        if lease.state is LeaseState.COMMITTED or ("taken" not in lease.records and not owes):
            self._scrap(lease)
        else:
            self._returner.begin(lease)

    def _disown(self, lease: Lease) -> None:
        """What the lease has, the channel's log does not owe any more."""
        try:
            self._settler.settle_at_start(lease)
        except StorageError as error:
            log.error("CHANNEL(%s): lease %s - %s", self._name, lease.id, error)
            self._settler.begin(lease)  # on a full disk we start all the same

    def _take_in(self, serial: int, path: str) -> None:
        """A log that the journal does not know. It is what a crash left of a lease that never
        was, and the channel still owes all of it; if it is sealed, the journal is damaged."""
        queue_log = self._store.open(path)
        lease = Lease(f"#{path}", serial, queue_log)  # nobody can ask for that
        lease.state = LeaseState.RELEASED
        self._roll.keep(lease, queue_log)
        if queue_log.is_sealed and queue_log.depth:
            log.error("CHANNEL(%s): nothing is known of lease log %d", self._name, serial)
            self._returner.begin(lease)
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
        known = self._roll.get(request.lease_id)
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
            self._when_safe(partial(request.complete, lease))

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
        self._roll.keep(lease, lease.log)
        return lease

    def _copy(self, lease: Lease, now: Instant) -> None:
        """Take the next messages, or be content with what there is."""
        try:
            if self._taker.copy(lease):
                self._work.add(self._copy, lease)
                return
        except StorageError as error:
            log.error("CHANNEL(%s): lease %s cut short - %s", self._name, lease.id, error)
            if not lease.count:
                lease.answer(error)
        if lease.count:
            self._work.add_when_safe(self._record, lease)
        else:
            self._drop(lease, wait_again=True)

    def _record(self, lease: Lease, now: Instant) -> None:
        """All is copied, and safe: write down that the lease exists."""
        assert lease.terms is not None
        lease.expires_ns = now.wall_ns + lease.terms.ttl_ns
        try:
            self._store.record(lease, now.wall_ns)
        except StorageError as error:
            lease.answer(error)  # they may ask again meanwhile
            raise
        self._work.add_when_safe(self._exist, lease)

    def _exist(self, lease: Lease, now: Instant) -> None:
        lease.state = LeaseState.LEASED
        lease.changed = []
        self._watch(lease, now)
        log.info("CHANNEL(%s): lease %s of %d messages", self._name, lease.id, lease.count)
        self._settler.begin(lease)
        lease.answer()
        self._taker.end(lease, wait_again=False)

    def _drop(self, lease: Lease, *, wait_again: bool) -> None:
        """There never was such a lease."""
        self._scrap(lease)
        self._forget(lease)
        self._taker.end(lease, wait_again=wait_again)

    def _note_settled(self, lease: Lease) -> None:
        """The channel's log owes nothing of it any more."""
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
        self._roll.watch(lease, now)
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
        lease = self._roll.get(lease_id)
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
        acknowledged = self._returner.take_out(lease)
        self._source.note_finished(acknowledged)
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
        lease = self._roll.get(lease_id)
        if lease is None or lease.state is not LeaseState.RELEASED:
            self._put_back(self.find(lease_id), LeaseState.RELEASED, now)

    def expire(self, now: Instant) -> None:
        """Have leases whose time is over go back to the queue."""
        while (lease := self._roll.pop_due(now)) is not None:
            self._work.add(self._expire_one, lease)

    def _expire_one(self, lease: Lease, now: Instant) -> None:
        if lease.state is LeaseState.LEASED and lease.deadline_ns == NEVER:
            self._put_back(lease, LeaseState.EXPIRED, now)
            log.info("CHANNEL(%s): lease %s expired", self._name, lease.id)

    def _put_back(
        self, lease: Lease, state: LeaseState, now: Instant, *, disowned: bool = False
    ) -> None:
        self._end(lease, state, now, disowned=disowned)
        self._returner.begin_when_safe(lease)

    def _end(
        self, lease: Lease, state: LeaseState, now: Instant, *, disowned: bool = False
    ) -> None:
        details = {"state": state, "at": now.wall_ns, "serial": lease.serial, "disowned": disowned}
        self._store.note(lease, now.wall_ns, "ended", **details)
        lease.state, lease.ended_ns = state, now.wall_ns
        lease.splits, lease.covered = Splits(), []
        self._roll.end(lease)
        self._prune(now)

    def _scrap(self, lease: Lease) -> None:
        """Nothing of its log is owed any more."""
        self._store.scrap(lease)
        self._roll.let_go(lease)

    def _forget(self, lease: Lease) -> None:
        self._store.forget(lease)
        self._roll.forget(lease)

    def _prune(self, now: Instant) -> None:
        """Forget ids that ended long ago, or that are too many."""
        for lease in self._roll.outdated(now):
            self._forget(lease)

    def step(self, now: Instant) -> None:
        """Do the next thing that is to be done.

        Raises:
            StorageError: the disk refused; it will be tried again when this is called again.
        """
        self._work.take_step(now)

    # -- the channel ends -------------------------------------------------------------------

    def empty(self, now: Instant) -> None:
        """Forget every message: all leases are released, and nothing comes back."""
        self._work.clear()
        self._settler.clear()
        for lease in self._roll:
            lease.sources, lease.held = [], 0
        for lease in list(self._roll.busy):
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
        for lease in self._roll:
            self._store.supersede(lease, "sources")

    def delete(self) -> None:
        """Forget everything; the files are about to be removed."""
        self._refuse()
        self._roll.clear()
        self._store.abandon()

    def _refuse(self) -> None:
        self._work.clear()
        self._roll.unwatch_all()
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
        steps += [partial(self._settler.settle_at_end, lease) for lease in self._roll]
        closing = [lease.log.close for lease in self._roll.busy if lease.log is not None]
        faults: list[StorageError] = []
        for step in (*steps, *closing, self._store.close):
            try:
                step()
            except StorageError as error:
                faults.append(error)
        if faults:
            raise faults[0]

    # -- for tests --------------------------------------------------------------------------

    def audit(self) -> tuple[dict[DiskQueue, int], list[Run], int]:
        """What is unread of each lease's log, what was read of them and is to go back, and how
        many records of the channel's log they hold.

        Raises:
            AssertionError: a lease does not add up.
        """
        unread: dict[DiskQueue, int] = {}
        for lease in self._roll.busy:
            assert lease.log is not None
            unread[lease.log] = lease.log.unread
            if lease.is_living:
                assert lease.log.depth == lease.count, "lease: log and count differ"
                assert sum(part[2] for part in lease.splits.triples()) == lease.count
        stranded = [run for lease in self._roll.busy for run in lease.stranded]
        return unread, stranded, sum(lease.held for lease in self._roll)
