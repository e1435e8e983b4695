"""Messages in flight under one deadline, answered in any order."""

from random import Random

import pytest

from nsqpy.core.flight import Flight
from nsqpy.core.subscription import Subscription
from nsqpy.core.window import Run
from tests.unit.fakes import FakeConsumer, batch_of, bodies_of, message_id


def flight_of(*sizes: int) -> Flight:
    """A flight of runs with so many messages each; message ``n`` has id ``n`` from 0 on."""
    runs: list[Run] = []
    ids = [message_id(place) for place in range(sum(sizes))]
    first = 0
    for size in sizes:
        # One more message on each side that is not in the flight.
        batch = batch_of(*(b"%d" % place for place in range(first - 1, first + size + 1)))
        runs.append(Run(batch, 1, size + 1, 100 + first))
        first += size
    return Flight(Subscription(FakeConsumer(), msg_timeout_ns=1), runs, ids, 0)


def places(runs: list[Run]) -> list[int]:
    """Which messages ``runs`` are, by body; the record numbers must agree."""
    found = []
    for run in runs:
        bodies = [int(body) for body in bodies_of(run.batch, run.start, run.stop)]
        assert bodies == [run.number - 100 + index for index in range(len(run))]
        found += bodies
    return found


def test_answers_in_order() -> None:
    flight = flight_of(3, 2)
    assert [flight.place(message_id(n)) for n in (0, 3)] == [0, 3]
    assert places(flight.answer(0, 2)) == [0, 1]
    assert flight.place(message_id(2)) == 2
    assert (flight.remaining, flight.unanswered()) == (3, [(2, 5)])
    assert places(flight.answer(2, 5)) == [2, 3, 4]
    assert (flight.remaining, flight.unanswered()) == (0, [])


def test_answers_out_of_order() -> None:
    flight = flight_of(2, 3, 1)
    assert places(flight.answer(4, 5)) == [4]
    assert places(flight.answer(1, 2)) == [1]
    assert flight.unanswered() == [(0, 1), (2, 4), (5, 6)]
    assert places(flight.answer(0, 1)) == [0]
    assert (flight.answered, flight.holes) == (2, {4})
    assert places(flight.answer(2, 4)) == [2, 3]
    assert (flight.answered, flight.holes) == (5, set())


def test_an_unknown_id_has_no_place() -> None:
    with pytest.raises(KeyError):
        flight_of(2).place(message_id(7))


def test_every_message_is_answered_once_in_any_order() -> None:
    for seed in range(20):
        random = Random(seed)
        flight = flight_of(*(random.randint(1, 40) for _ in range(4)))
        left = list(range(len(flight.ids)))
        while left:
            chosen = random.choice(left)
            place = flight.place(message_id(chosen))
            assert places(flight.answer(place, place + 1)) == [chosen]
            left.remove(chosen)
            flight.shrink()
            assert flight.remaining == len(left)
            owed = [
                flight.ids[at] for start, stop in flight.unanswered() for at in range(start, stop)
            ]
            assert owed == [message_id(n) for n in left]


class TestShrink:
    def test_the_last_few_messages_do_not_keep_the_batches(self) -> None:
        flight = flight_of(100, 100)
        flight.answer(0, 90)
        flight.answer(110, 200)
        flight.shrink()
        assert flight.ids == [message_id(place) for place in range(90, 110)]
        assert [len(run.batch) for run in flight.runs] == [10, 10]
        place = flight.place(message_id(95))
        flight.answer(place, len(flight.ids) - 1)
        flight.answer(0, place - 1)
        flight.shrink()
        assert [len(run.batch) for run in flight.runs] == [1, 1]
        assert flight.ids == [message_id(94), message_id(109)]
        assert places(flight.answer(0, 2)) == [94, 109]

    def test_it_waits_until_it_is_worth_it(self) -> None:
        flight = flight_of(16)
        flight.answer(0, 14)
        flight.shrink()
        assert len(flight.ids) == 16
        flight.answer(15, 16)
        flight.shrink()
        assert flight.ids == [message_id(14)]
        assert [len(run.batch) for run in flight.runs] == [1]
