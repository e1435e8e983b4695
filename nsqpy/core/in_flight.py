"""The messages of a channel that are out with consumers, until they are answered or time out."""

from collections.abc import Sequence

from nsqpy.core.deadlines import DeadlineHeap
from nsqpy.core.flight import Flight
from nsqpy.core.subscription import Subscription
from nsqpy.core.window import Run
from nsqpy.errors import NSQError
from nsqpy.message import MessageID

__all__ = ["InFlight", "NotInFlightError", "NotOwnerError"]


class NotInFlightError(NSQError):
    """Unknown id, or its time ran out first."""

    def __str__(self) -> str:
        return "ID not in flight"


class NotOwnerError(NSQError):
    """In flight to another client."""

    def __str__(self) -> str:
        return "client does not own message"


class InFlight:
    """Flights, by the ids of their messages and by the time they end.

    The only writer of what a subscription has in flight, and of how many messages it was given;
    ``launched_count`` is the same of all of them.
    """

    __slots__ = ("_by_id", "_deadlines", "_max_msg_timeout_ns", "launched_count", "soonest_ns")

    def __init__(self, max_msg_timeout_ns: int) -> None:
        self._max_msg_timeout_ns = max_msg_timeout_ns
        self._by_id: dict[MessageID, Flight] = {}
        self._deadlines: DeadlineHeap[Flight] = DeadlineHeap()
        self.soonest_ns = self._deadlines.soonest_ns
        self.launched_count = 0

    def __len__(self) -> int:
        """How many messages."""
        return len(self._by_id)

    # -- out to a consumer ------------------------------------------------------------------

    def launch(self, subscription: Subscription, runs: list[Run], now_ns: int) -> list[bytes]:
        """Give messages to a consumer; returns the frames to send. There are none, and nothing
        has happened, if an id is in flight already or comes twice: see ``tell_apart``."""
        if not runs:
            return []
        frames: list[bytes] = []
        ids: list[MessageID] = []
        for run in runs:
            run.compact()
            frames.append(run.batch.frames(run.start, run.stop))
            ids += run.batch.ids(run.start, run.stop)
        flight = Flight(subscription, runs, ids, now_ns)
        launched = dict.fromkeys(ids, flight)
        if len(launched) < len(ids) or not launched.keys().isdisjoint(self._by_id.keys()):
            return []
        self._by_id.update(launched)
        self._deadlines.add(flight, now_ns + subscription.msg_timeout_ns)
        subscription.in_flight_count += len(ids)
        subscription.message_count += len(ids)
        self.launched_count += len(ids)
        return frames

    def tell_apart(self, runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
        """Messages that can be launched together now, and those whose id is taken.

        After a crash between a move and its acknowledgement both copies of a message are in the
        log, and a clock that was set back makes ids come again. Answers name ids, so only one
        message of an id can be out at a time.
        """
        free: list[Run] = []
        twins: list[Run] = []
        seen: set[MessageID] = set()
        for run in runs:
            for index, message_id in enumerate(run.batch.ids(run.start, run.stop)):
                taken = message_id in self._by_id or message_id in seen
                (twins if taken else free).append(run.part(index, index + 1))
                seen.add(message_id)
        return free, twins

    # -- answers ----------------------------------------------------------------------------

    def finish(
        self, subscription: Subscription, ids: list[MessageID]
    ) -> tuple[list[Run], list[tuple[MessageID, NSQError]]]:
        """Take messages out of flight, for good; also returns those that are not the consumer's,
        and why."""
        finished: list[Run] = []
        failures: list[tuple[MessageID, NSQError]] = []
        by_id = self._by_id
        at, count = 0, len(ids)
        while at < count:
            flight = by_id.get(ids[at])
            if flight is None or flight.subscription is not subscription:
                failures.append((ids[at], _not_ours(flight)))
                at += 1
                continue
            place = flight.place(ids[at])
            length = 1
            if place == flight.answered and not flight.holes:
                # Everything behind ``answered`` is still out: answers in the order of delivery
                # are taken as one stretch.
                length = _common_length(flight.ids, place, ids, at)
            for message_id in ids[at : at + length]:
                del by_id[message_id]
            finished += flight.answer(place, place + length)
            self._settle(flight)
            at += length
        subscription.in_flight_count -= count - len(failures)
        return finished, failures

    def take(self, subscription: Subscription, message_id: MessageID) -> Run:
        """Take one message out of flight.

        Raises:
            NotInFlightError, NotOwnerError.
        """
        flight = self._find(subscription, message_id)
        del self._by_id[message_id]
        place = flight.place(message_id)
        (run,) = flight.answer(place, place + 1)
        self._settle(flight)
        subscription.in_flight_count -= 1
        return run

    def touch(self, subscription: Subscription, message_id: MessageID, now_ns: int) -> None:
        """Give a message its full timeout again, up to the limit since its delivery.

        Raises:
            NotInFlightError, NotOwnerError.
        """
        flight = self._find(subscription, message_id)
        limit_ns = flight.delivered_ns + self._max_msg_timeout_ns
        deadline_ns = min(now_ns + subscription.msg_timeout_ns, limit_ns)
        if len(flight.ids) == 1:
            self._deadlines.move(flight, deadline_ns)
            return
        delivered_ns = flight.delivered_ns
        run = self.take(subscription, message_id)  # it gets a deadline of its own
        flight = Flight(subscription, [run], [message_id], delivered_ns)
        self._by_id[message_id] = flight
        self._deadlines.add(flight, deadline_ns)
        subscription.in_flight_count += 1

    def _find(self, subscription: Subscription, message_id: MessageID) -> Flight:
        flight = self._by_id.get(message_id)
        if flight is None or flight.subscription is not subscription:
            raise _not_ours(flight)
        return flight

    def _settle(self, flight: Flight) -> None:
        """Some of it has been answered."""
        if flight.remaining:
            flight.shrink()
        else:
            self._deadlines.discard(flight)

    # -- no answer --------------------------------------------------------------------------

    def pop_due(self, now_ns: int) -> Flight | None:
        """Take out a flight whose time is over, if there is one."""
        flight = self._deadlines.pop_due(now_ns)
        if flight is not None:
            self._land(flight)
        return flight

    def take_all(self, subscription: Subscription) -> list[Flight]:
        """Take out everything that one consumer has."""
        theirs = [
            flight for flight in self._deadlines.items() if flight.subscription is subscription
        ]
        for flight in theirs:
            self._deadlines.discard(flight)
            self._land(flight)
        return theirs

    def clear(self) -> list[Flight]:
        """Take out everything."""
        flights = self._deadlines.clear()
        for flight in flights:
            self._land(flight)
        return flights

    def _land(self, flight: Flight) -> None:
        for start, stop in flight.unanswered():
            for message_id in flight.ids[start:stop]:
                del self._by_id[message_id]
        flight.subscription.in_flight_count -= flight.remaining

    def flights(self) -> list[Flight]:
        """All of them, the soonest deadline first."""
        return self._deadlines.items()


def _not_ours(flight: Flight | None) -> NSQError:
    return NotInFlightError() if flight is None else NotOwnerError()


def _common_length(ours: list[MessageID], place: int, theirs: list[MessageID], at: int) -> int:
    """How far ``ours[place:]`` and ``theirs[at:]`` agree; at least 1, which the caller knows."""
    length = min(len(ours) - place, len(theirs) - at)
    if ours[place : place + length] == theirs[at : at + length]:
        return length
    agree = 1
    while ours[place + agree] == theirs[at + agree]:
        agree += 1
    return agree
