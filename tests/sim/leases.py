"""A batch job of the simulation: leases, what it read of them, and what it was told."""

from dataclasses import dataclass

from nsqpy.clock import Clock
from nsqpy.core.broker import Broker
from nsqpy.core.lease import ENDED_KEPT_NS, Lease, LeaseGoneError, LeaseRequest, LeaseTerms
from nsqpy.core.lease_desk import LeaseDesk, Outcome
from nsqpy.errors import CorruptionError, NSQError, StorageError
from nsqpy.message import FRAME_HEADER_BYTES
from nsqpy.storage.block import BLOCK_HEADER_BYTES, decode_block, parse_block_header
from tests.sim.disk import Disk
from tests.sim.model import Hit, InvariantError, Key, Model

__all__ = ["BatchJob"]


_OVER = ("expired", "unknown")


@dataclass(slots=True)
class _Known:
    """A lease that was answered with 200."""

    key: Key
    stream: bytes
    bodies: list[bytes]


class BatchJob:
    """Knows the leases that it was given. ``reborn`` is called with each new broker."""

    def __init__(self, model: Model, disk: Disk, clock: Clock) -> None:
        self._model = model
        self._disk = disk
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._serial = 0
        self._desk: LeaseDesk
        self._broker: Broker

    def reborn(self, broker: Broker) -> None:
        """The daemon was started: what it had answered with 200 it must still have."""
        self._broker, self._desk = broker, LeaseDesk(broker)
        for lease_id in list(self._known):
            self.check(lease_id)
        # Of others the answer was lost; when they expire, that is a failed delivery all the same.
        for channel in self._desk.channels():
            assert channel.leases is not None
            queue = self._model.queue((channel.topic_name, channel.name))
            for lease in channel.leases.leases():
                queue.tried.update(_bodies(self._read(lease)) or ())

    @property
    def ids(self) -> list[str]:
        return list(self._known)

    # -- calls ------------------------------------------------------------------------------

    def create(self, key: Key, max_messages: int, ttl_ns: int, *, patient: bool) -> str:
        """Ask for a lease; returns its id."""
        self._serial += 1
        lease_id = f"lease-{self._serial}"
        terms = LeaseTerms(max_messages, 1 << 40, ttl_ns)
        request = LeaseRequest(lease_id, terms, patient=patient)
        request.on_done = lambda: self._note_created(key, request)
        try:
            self._desk.create(*key, request, self._clock.now())
        except NSQError:
            return ""
        return lease_id

    def _note_created(self, key: Key, request: LeaseRequest) -> None:
        lease = request.lease
        if lease is None or key not in self._model.queues:
            return
        stream = self._read(lease)
        bodies = _bodies(stream)
        if bodies is None or len(bodies) != lease.count or len(stream) != lease.size:
            if key in self._model.shaky:
                return
            raise InvariantError(f"{request.lease_id} is not what it says")
        for body in bodies:
            self._model.delivered(key, body)
        self._known[request.lease_id] = _Known(key, stream, bodies)
        self._model.leased[request.lease_id] = (key, set(bodies), lease.expires_ns)

    def _read(self, lease: Lease) -> bytes:
        book, _ = self._desk.find(lease.id)
        parts = (
            self._disk.content(region.path)[region.offset : region.offset + region.length]
            for region in book.regions(lease)
        )
        return b"".join(parts)

    def check(self, lease_id: str) -> None:
        """Read a lease once more: it must be there, unless its time is over, and be the same."""
        known = self._known[lease_id]
        if known.key in self._model.shaky:
            self._forget(lease_id)
            return
        try:
            _, lease = self._desk.find(lease_id)
        except LeaseGoneError as gone:
            if not self._may_be(lease_id, gone.state):
                raise InvariantError(f"{lease_id} is {gone.state}") from gone
            self._return(lease_id)
        else:
            if self._read(lease) != known.stream:
                raise InvariantError(f"{lease_id} reads differently")

    def _may_be(self, lease_id: str, state: str) -> bool:
        """Whether it may have expired, or be forgotten since."""
        over_ns = self._clock.now().wall_ns - self._model.leased[lease_id][2]
        return over_ns >= (ENDED_KEPT_NS if state == "unknown" else 0) and state in _OVER

    def _is_over(self, lease_id: str) -> bool:
        return self._model.leased[lease_id][2] <= self._clock.now().wall_ns

    def extend(self, lease_id: str, ttl_ns: int) -> None:
        key, bodies, expires_ns = self._model.leased[lease_id]
        try:
            (outcome,) = self._desk.extend([lease_id], ttl_ns, self._clock.now())
        except StorageError:
            return
        if outcome.done:
            # Not known to be on the device until a sync, so it may be either.
            sooner_ns = min(expires_ns, outcome.expires_ns)
            self._model.leased[lease_id] = (key, bodies, sooner_ns)
        else:
            self._expect_expired(lease_id, outcome)

    def release(self, lease_id: str) -> None:
        try:
            (outcome,) = self._desk.release([lease_id], self._clock.now())
        except StorageError:
            return
        if outcome.done:
            self._return(lease_id)
        else:
            self._expect_expired(lease_id, outcome)

    def commit(self, lease_id: str) -> None:
        known = self._known[lease_id]
        queue = self._model.queue(known.key)
        try:
            (outcome,) = self._desk.commit([lease_id], self._clock.now())
        except StorageError:
            # Of a late one some may have been acknowledged.
            queue.excuse({body: [Hit("", 0, silent=True)] for body in known.bodies})
            return
        if not outcome.done:
            if outcome.acknowledged:
                queue.excuse({body: [Hit("", 0, silent=True)] for body in known.bodies})
            self._expect_expired(lease_id, outcome)
            return
        self._forget(lease_id)
        for body in known.bodies:
            self._model.finish(known.key, body)

        def note(error: StorageError | None) -> None:
            if error is None:
                queue.finished.update(known.bodies)

        self._desk.when_safe(note)

    def _expect_expired(self, lease_id: str, outcome: Outcome) -> None:
        shaky = self._known[lease_id].key in self._model.shaky
        if not shaky and not self._may_be(lease_id, outcome.state):
            raise InvariantError(f"{lease_id} is {outcome.state}")
        self._return(lease_id)

    # -- what becomes of them ---------------------------------------------------------------

    def _return(self, lease_id: str) -> None:
        """All of it goes back, from log to log."""
        known = self._known[lease_id]
        self._model.returning.setdefault(known.key, set()).update(known.bodies)
        self._forget(lease_id)

    def _forget(self, lease_id: str) -> None:
        del self._known[lease_id]
        del self._model.leased[lease_id]

    def forget_channel(self, key: Key) -> None:
        """It was emptied or deleted."""
        for lease_id, known in list(self._known.items()):
            if known.key == key:
                self._forget(lease_id)
        self._model.returning.pop(key, None)

    def before_turn(self) -> None:
        """Those that expire in this turn are on their way from then on."""
        for lease_id in list(self._known):
            if self._is_over(lease_id):
                known = self._known[lease_id]
                self._model.returning.setdefault(known.key, set()).update(known.bodies)


def _bodies(stream: bytes) -> list[bytes] | None:
    """The messages of a lease; None if it is damaged."""
    bodies = []
    at = 0
    try:
        while at < len(stream):
            header = parse_block_header(stream, at, "", at)
            at += BLOCK_HEADER_BYTES
            batch = decode_block(header, stream[at : at + header.length], "", at)
            at += header.length
            frames = (batch.frames(index, index + 1) for index in range(len(batch)))
            bodies += [frame[FRAME_HEADER_BYTES:] for frame in frames]
    except CorruptionError:
        return None
    return bodies
