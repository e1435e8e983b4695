"""What is out with consumers: one of an id, for so long, and without keeping more in memory."""

import pytest

from nsqpy.clock import SECOND
from nsqpy.core.in_flight import InFlight, NotInFlightError, NotOwnerError
from nsqpy.core.subscription import Subscription
from nsqpy.core.window import Run
from tests.unit.core.channel_rig import KINDS, MAX_TIMEOUT_NS, TIMEOUT_NS, Kind, Rig
from tests.unit.fakes import FakeConsumer, batch_of, bodies_of, message_id


@pytest.fixture(params=KINDS, ids=str)
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param)


@pytest.fixture
def disk() -> Rig:
    return Rig(Kind("disk", 1000))


def subscriptions(count: int) -> list[Subscription]:
    return [Subscription(FakeConsumer(), msg_timeout_ns=TIMEOUT_NS) for _ in range(count)]


def run_of(*numbers: int) -> Run:
    batch = batch_of(*(b"%d" % number for number in numbers), first_id=numbers[0])
    return Run(batch, 0, len(batch))


def bodies(runs: list[Run]) -> list[bytes]:
    return [body for run in runs for body in bodies_of(run.batch, run.start, run.stop)]


class TestCounts:
    """The counts of every subscription follow what happens to its messages."""

    @pytest.fixture
    def in_flight(self) -> InFlight:
        return InFlight(MAX_TIMEOUT_NS)

    def test_out_and_finished(self, in_flight: InFlight) -> None:
        first, second = subscriptions(2)
        assert in_flight.launch(first, [run_of(1, 2, 3)], 0)
        assert in_flight.launch(second, [run_of(4)], 0)
        assert in_flight.launch(first, [], 0) == []
        assert (first.in_flight_count, second.in_flight_count, len(in_flight)) == (3, 1, 4)
        ids = [message_id(number) for number in (1, 2, 4, 9)]
        finished, failures = in_flight.finish(first, ids)
        assert bodies(finished) == [b"1", b"2"]
        assert [(name, type(why)) for name, why in failures] == [
            (message_id(4), NotOwnerError),
            (message_id(9), NotInFlightError),
        ]
        assert (first.in_flight_count, second.in_flight_count, len(in_flight)) == (1, 1, 2)
        assert (first.message_count, second.message_count, in_flight.launched_count) == (3, 1, 4)

    def test_taken_and_touched(self, in_flight: InFlight) -> None:
        (owner,) = subscriptions(1)
        in_flight.launch(owner, [run_of(1, 2, 3)], 0)
        assert bodies([in_flight.take(owner, message_id(2))]) == [b"2"]
        with pytest.raises(NotInFlightError):
            in_flight.take(owner, message_id(2))
        in_flight.touch(owner, message_id(1), SECOND)
        assert (owner.in_flight_count, len(in_flight)) == (2, 2)
        flight = in_flight.pop_due(TIMEOUT_NS)
        assert flight is not None
        assert bodies(flight.left()) == [b"3"]
        assert in_flight.pop_due(TIMEOUT_NS) is None
        assert (in_flight.soonest_ns(), owner.in_flight_count) == (SECOND + TIMEOUT_NS, 1)

    def test_all_of_one_consumer_or_of_all(self, in_flight: InFlight) -> None:
        first, second = subscriptions(2)
        for number, owner in enumerate((first, second, first), 1):
            in_flight.launch(owner, [run_of(number)], number)
        theirs = [run for flight in in_flight.take_all(first) for run in flight.left()]
        assert (bodies(theirs), first.in_flight_count) == ([b"1", b"3"], 0)
        rest = [run for flight in in_flight.clear() for run in flight.left()]
        assert (bodies(rest), second.in_flight_count, len(in_flight)) == ([b"2"], 0, 0)

    def test_twins_are_told_apart(self, in_flight: InFlight) -> None:
        (owner,) = subscriptions(1)
        in_flight.launch(owner, [run_of(1)], 0)
        again = [run_of(1, 2), run_of(2, 3)]
        assert in_flight.launch(owner, again, 0) == []
        assert owner.in_flight_count == 1
        free, twins = in_flight.tell_apart(again)
        assert (bodies(free), bodies(twins)) == ([b"2", b"3"], [b"1", b"2"])
        assert in_flight.launch(owner, free, 0)


class TestTouch:
    def test_gives_the_full_timeout_again(self, rig: Rig) -> None:
        customer = rig.customer(1)
        (first,) = rig.put(1)
        rig.turn()
        rig.advance(TIMEOUT_NS - 1)
        customer.touch(first)
        assert rig.advance(TIMEOUT_NS - 1) == 0
        assert rig.advance(1) == 1

    def test_but_not_beyond_the_limit_since_delivery(self, rig: Rig) -> None:
        customer = rig.customer(1)
        (first,) = rig.put(1)
        rig.turn()
        for _ in range(14):
            assert rig.advance(10 * SECOND) == 0
            customer.touch(first)
        assert rig.advance(10 * SECOND - 1) == 0
        customer.touch(first)
        assert rig.advance(1) == 1
        with pytest.raises(NotInFlightError):
            customer.touch(first)

    def test_one_of_many_leaves_the_others_their_deadline(self, rig: Rig) -> None:
        customer = rig.customer(5)
        ids = rig.put(5)
        rig.turn()
        rig.advance(SECOND)
        customer.touch(ids[1])
        customer.touch(ids[1])
        customer.finish(ids[0])
        customer.ready(0)
        assert rig.advance(TIMEOUT_NS - SECOND) == 3
        assert rig.counts() == (3, 1, 0, 1)
        assert customer.finish(ids[2]) != []
        assert rig.advance(SECOND) == 1

    def test_a_touched_message_can_be_finished_or_requeued(self, rig: Rig) -> None:
        customer = rig.customer(3)
        ids = rig.put(3)
        rig.turn()
        customer.ready(0)
        for touched in ids:
            customer.touch(touched)
        assert customer.finish(ids[2], ids[0]) == []
        customer.requeue(ids[1])
        assert (rig.counts(), customer.in_flight) == ((1, 0, 0, 2), 0)

    def test_only_the_owner_may(self, rig: Rig) -> None:
        rig.customer(1)
        other = rig.customer(0)
        (first,) = rig.put(1)
        rig.turn()
        with pytest.raises(NotOwnerError):
            other.touch(first)


class TestTwins:
    """A crash between the move of a message and its acknowledgement leaves two copies of it."""

    def test_only_one_of_an_id_is_out_at_a_time(self, rig: Rig) -> None:
        customer = rig.customer(9)
        rig.put(3)
        rig.published -= 1
        rig.put(1)  # m3 again
        rig.published = 4
        assert customer.get() == [b"m1", b"m2", b"m3"]
        assert rig.counts() == (0, 3, 1, 0)
        assert customer.finish(message_id(3)) == []
        rig.advance(TIMEOUT_NS)
        assert sorted(customer.get()) == [b"m1", b"m2", b"m3"]
        assert customer.finish(*map(message_id, (1, 2, 3))) == []
        assert rig.counts() == (0, 0, 0, 4)

    def test_also_between_dispatches_and_consumers(self, rig: Rig) -> None:
        first, second = rig.customer(1), rig.customer(1)
        rig.put(1)
        rig.turn()
        rig.published = 0
        rig.put(1)
        rig.published = 2
        assert second.get() == []
        assert (first.in_flight, second.in_flight) == (1, 0)
        assert rig.counts() == (0, 1, 1, 0)
        rig.advance(TIMEOUT_NS)
        assert rig.channel.depth == 2


class TestMemoryInFlight:
    def test_a_message_that_takes_long_does_not_keep_its_batch(self, disk: Rig) -> None:
        customer = disk.customer(1)
        disk.channel.put([batch_of(*[bytes(1000)] * 200)], disk.clock.now())
        disk.turn()
        customer.ready(0)
        (flight,) = disk.channel._in_flight.flights()
        assert sum(len(run.batch.data) for run in flight.runs) == 1034

    def test_nor_does_the_last_one_of_many(self, disk: Rig) -> None:
        customer = disk.customer(200)
        disk.channel.put([batch_of(*[bytes(1000)] * 200)], disk.clock.now())
        disk.turn()
        customer.finish(*map(message_id, range(1, 150)))
        customer.finish(*map(message_id, range(151, 201)))
        (flight,) = disk.channel._in_flight.flights()
        assert flight.remaining == 1
        assert sum(len(run.batch.data) for run in flight.runs) <= 8 * 1034
