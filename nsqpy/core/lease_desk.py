"""Where a daemon's leases are asked for: by id, whatever channel they are of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nsqpy.clock import Instant
from nsqpy.core.broker import Broker
from nsqpy.core.channel import Channel
from nsqpy.core.lease import Lease, LeaseGoneError, LeaseRefusedError, LeaseRequest, LeaseState
from nsqpy.core.lease_book import LeaseBook
from nsqpy.core.topic import ExitingError
from nsqpy.errors import StorageError

__all__ = ["LeaseDesk", "Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one id of a list. ``done`` unless the caller asked for something else."""

    lease_id: str
    state: str
    done: bool
    expires_ns: int = 0
    acknowledged: int = 0


class LeaseDesk:
    """Over the books of all channels of ``broker``."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def node_id(self) -> str:
        return self._broker.node_id

    def create(self, topic: str, channel: str, request: LeaseRequest, now: Instant) -> None:
        """See to a request; it is completed at once, or later.

        Raises:
            NotFoundError, ExitingError.
            LeaseGoneError: the id has ended.
            LeaseRefusedError: the channel has too many leases or is ephemeral, or the id is that
                of a lease of another channel.
            StorageError: the journal cannot be written.
        """
        book = self._book(topic, channel)
        owner = self._broker.lease_owners.get(request.lease_id, book)
        if owner is not book:
            raise LeaseRefusedError("LEASE_OF_OTHER_CHANNEL")
        book.create(request, now)

    def stop_waiting(self, topic: str, channel: str, request: LeaseRequest) -> None:
        """The request has waited long enough for messages."""
        if not request.done:
            self._book(topic, channel).stop_waiting(request)

    def join(self, request: LeaseRequest) -> bool:
        """Complete the request when the lease of that name has been taken, if it is just being."""
        book = self._broker.lease_owners.get(request.lease_id)
        return book is not None and book.join(request)

    def _book(self, topic: str, name: str) -> LeaseBook:
        if self._broker.exiting:
            raise ExitingError
        channel = self._broker.channel(topic, name)
        if channel.leases is None:
            raise LeaseRefusedError("EPHEMERAL_CHANNEL")
        return channel.leases

    def topic_of(self, lease_id: str) -> str | None:
        """The topic whose messages it holds or held; None if there is no such lease."""
        book = self._broker.lease_owners.get(lease_id)
        return None if book is None else book.topic_name

    def find(self, lease_id: str) -> tuple[LeaseBook, Lease]:
        """The living lease of that name, and its book.

        Raises:
            LeaseGoneError: it has ended, or there is none.
        """
        book = self._broker.lease_owners.get(lease_id)
        if book is None:
            raise LeaseGoneError(lease_id, "unknown")
        return book, book.find(lease_id)

    def channels(self, topic: str = "", channel: str = "") -> list[Channel]:
        """Those that can have leases, by name; an empty name asks for all."""
        return [
            entry
            for _, found in sorted(self._broker.topics.items())
            for _, entry in sorted(found.channels.items())
            if entry.leases is not None
            and topic in ("", found.name)
            and channel in ("", entry.name)
        ]

    def extend(self, lease_ids: Sequence[str], ttl_ns: int, now: Instant) -> list[Outcome]:
        """Raises StorageError: for some it may be done."""

        def extend(lease_id: str) -> Outcome:
            book, lease = self.find(lease_id)
            book.extend(lease, ttl_ns, now)
            return Outcome(lease_id, LeaseState.LEASED, True, expires_ns=lease.expires_ns)

        return self._each(lease_ids, extend)

    def commit(self, lease_ids: Sequence[str], now: Instant) -> list[Outcome]:
        """Raises StorageError: for some it may be done."""

        def commit(lease_id: str) -> Outcome:
            self._owner(lease_id).commit(lease_id, now)
            return Outcome(lease_id, LeaseState.COMMITTED, True)

        return self._each(lease_ids, commit)

    def release(self, lease_ids: Sequence[str], now: Instant) -> list[Outcome]:
        """Raises StorageError: for some it may be done."""

        def release(lease_id: str) -> Outcome:
            self._owner(lease_id).release(lease_id, now)
            return Outcome(lease_id, LeaseState.RELEASED, True)

        return self._each(lease_ids, release)

    def _owner(self, lease_id: str) -> LeaseBook:
        book = self._broker.lease_owners.get(lease_id)
        if book is None:
            raise LeaseGoneError(lease_id, "unknown")
        return book

    def _each(self, lease_ids: Sequence[str], act: Callable[[str], Outcome]) -> list[Outcome]:
        if self._broker.exiting:
            raise ExitingError
        outcomes = []
        for lease_id in lease_ids:
            try:
                outcomes.append(act(lease_id))
            except LeaseGoneError as gone:
                outcomes.append(
                    Outcome(lease_id, gone.state, False, acknowledged=gone.acknowledged)
                )
        self._broker.rouse()
        return outcomes

    def when_safe(self, done: Callable[[StorageError | None], None]) -> None:
        """Call back once what has been done so far is as safe as ``--durability`` asks."""
        self._broker.when_safe(done)
