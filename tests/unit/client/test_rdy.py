"""RDY sharing, redistribution and backoff, against the sequences captured from go-nsq."""

import random

import pytest

from nsqpy.client.rdy import BackoffStrategy, ReadyControl, ReadyOptions, Signal
from nsqpy.clock import MILLISECOND, SECOND

Control = ReadyControl[str]

# As in the captures: waits of 1, 2 and 4 s.
CAPTURED = ReadyOptions(backoff_multiplier_ns=500 * MILLISECOND, max_backoff_duration_ns=4 * SECOND)


def control(max_in_flight: int = 10, options: ReadyOptions | None = None, seed: int = 1) -> Control:
    return ReadyControl(max_in_flight, options or ReadyOptions(), random.Random(seed), 0)


def connected(names: str, max_in_flight: int = 10, options: ReadyOptions | None = None) -> Control:
    made = control(max_in_flight, options)
    for name in names:
        made.add(name, 2500, 0)
    return made


def counts(made: Control, names: str) -> list[int]:
    return [made.ready_count(name) for name in names]


# Sharing


@pytest.mark.parametrize(
    ("max_in_flight", "connections", "share"),
    [(10, 1, 10), (10, 3, 3), (20, 3, 6), (2, 5, 1), (1, 1, 1), (0, 3, 0), (10, 0, 0)],
)
def test_share(max_in_flight: int, connections: int, share: int) -> None:
    assert connected("abcdefgh"[:connections], max_in_flight).share() == share


def test_a_newcomer_gets_its_share_after_the_others_are_lowered() -> None:
    made = control(10)
    assert made.add("a", 2500, 0) == [("a", 10)]
    assert made.add("b", 2500, 0) == [("a", 5), ("b", 5)]
    assert made.add("c", 2500, 0) == [("a", 3), ("b", 3), ("c", 3)]
    assert made.total_ready == 9


def test_nsqd_bounds_the_count() -> None:
    assert control(10_000).add("a", 2500, 0) == [("a", 2500)]


def test_losing_one_of_three_leaves_the_others_where_they_are() -> None:
    made = connected("abc")
    made.remove("c")
    assert counts(made, "ab") == [3, 3]
    assert made.tick(5 * SECOND) == []
    assert made.total_ready == 6


def test_the_share_of_one_that_will_not_be_back_goes_round_but_not_in_backoff() -> None:
    made = connected("abc")
    made.remove("c")
    assert made.share_again(0) == [("a", 5), ("b", 5)]
    made.signal(Signal.FAILURE, 0)
    made.remove("b")
    assert made.share_again(0) == []
    assert counts(made, "a") == [0]


def test_changing_max_in_flight_shares_again_and_zero_pauses() -> None:
    made = connected("abc")
    assert made.set_max_in_flight(20, 0) == [("a", 6), ("b", 6), ("c", 6)]
    assert made.set_max_in_flight(0, 0) == [("a", 0), ("b", 0), ("c", 0)]
    assert made.set_max_in_flight(3, 0) == [("a", 1), ("b", 1), ("c", 1)]


def test_only_changes_are_written() -> None:
    made = connected("ab")
    assert made.set_max_in_flight(11, 0) == []


def test_a_refused_count_is_tried_again_after_five_seconds() -> None:
    made = connected("ab", max_in_flight=2)
    assert made.add("c", 2500, SECOND) == []
    assert made.tick(5 * SECOND) == []
    made.remove("a")
    assert made.next_deadline_ns() == 6 * SECOND
    assert made.tick(6 * SECOND - 1) == []
    assert made.tick(6 * SECOND) == [("c", 1)]


def test_a_closing_connection_takes_no_ready_count() -> None:
    made = connected("ab")
    made.close("a")
    assert made.set_max_in_flight(20, 0) == [("b", 10)]


# Redistribution


def test_more_connections_than_max_in_flight_take_turns() -> None:
    made = connected("abcde", max_in_flight=2)
    assert counts(made, "abcde") == [1, 1, 0, 0, 0]
    served = {"a", "b"}
    for second in range(5, 300, 5):
        made.tick(second * SECOND)
        assert made.total_ready <= 2
        served |= {name for name in "abcde" if made.ready_count(name)}
    assert served == set("abcde")


def test_a_connection_that_brings_messages_keeps_its_ready_count_until_the_longer_limit() -> None:
    made = connected("ab", max_in_flight=1)
    for second in range(5, 31, 5):
        made.received("a", second * SECOND)
        assert made.tick(second * SECOND) == []
    made.received("a", 35 * SECOND)
    # Taken from it after 30 s all the same; chance may give it back.
    assert made.tick(35 * SECOND)[0] == ("a", 0)
    assert made.total_ready == 1


def test_an_idle_connection_loses_its_ready_count_after_ten_seconds() -> None:
    made = connected("ab", max_in_flight=1)
    assert made.tick(10 * SECOND) == []
    assert made.tick(15 * SECOND)[0] == ("a", 0)
    assert made.total_ready == 1


def test_the_count_of_a_lost_connection_moves_on_when_the_rest_are_as_many_as_max() -> None:
    made = connected("abc", max_in_flight=2)
    assert counts(made, "abc") == [1, 1, 0]
    made.remove("a")
    assert made.tick(5 * SECOND) == [("c", 1)]


# Backoff


def test_every_delivery_failing_as_captured() -> None:
    made = connected("a", options=CAPTURED)
    now_ns, waits = 0, []
    for _ in range(5):
        assert made.signal(Signal.FAILURE, now_ns) == [("a", 0)]
        deadline_ns = made.next_deadline_ns()
        while True:
            changes = made.tick(deadline_ns)
            if changes:
                break
            deadline_ns = made.next_deadline_ns()
        assert changes == [("a", 1)]
        waits.append((deadline_ns - now_ns) / SECOND)
        now_ns = deadline_ns
    assert waits == [1, 2, 4, 4, 4]


def test_two_failures_then_successes_as_captured() -> None:
    made = connected("a", options=CAPTURED)
    written = made.signal(Signal.FAILURE, 0)
    written += made.tick(1 * SECOND)
    written += made.signal(Signal.FAILURE, 1 * SECOND)
    written += made.tick(3 * SECOND)
    written += made.signal(Signal.SUCCESS, 3 * SECOND)
    written += made.tick(4 * SECOND)
    written += made.signal(Signal.SUCCESS, 4 * SECOND)
    assert [count for _, count in written] == [0, 1, 0, 1, 0, 1, 10]
    assert not made.in_backoff


def test_the_default_waits_stop_rising_at_64_seconds() -> None:
    made = connected("a")
    now_ns, waits = 0, []
    for _ in range(8):
        made.signal(Signal.FAILURE, now_ns)
        start_ns = now_ns
        while made.waiting:
            now_ns = made.next_deadline_ns()
            made.tick(now_ns)
        waits.append((now_ns - start_ns) // SECOND)
    assert waits == [2, 4, 8, 16, 32, 64, 64, 64]
    assert made.level == 6


def test_signals_during_a_wait_are_ignored() -> None:
    made = connected("a", options=CAPTURED)
    made.signal(Signal.FAILURE, 0)
    for signal in Signal:
        assert made.signal(signal, SECOND // 2) == []
    assert made.level == 1


def test_continue_waits_again_at_the_same_level() -> None:
    made = connected("a", options=CAPTURED)
    assert made.signal(Signal.CONTINUE, 0) == []
    made.signal(Signal.FAILURE, 0)
    made.tick(SECOND)
    assert made.signal(Signal.CONTINUE, SECOND) == [("a", 0)]
    assert made.level == 1
    assert made.tick(2 * SECOND) == [("a", 1)]


@pytest.mark.parametrize(
    "options",
    [
        ReadyOptions(max_backoff_duration_ns=0),
        ReadyOptions(max_backoff_duration_ns=SECOND),  # below the first wait
        ReadyOptions(backoff_multiplier_ns=0),
    ],
)
def test_backoff_can_be_off(options: ReadyOptions) -> None:
    made = connected("a", options=options)
    assert made.signal(Signal.FAILURE, 0) == []
    assert not made.in_backoff


def test_backoff_stops_all_and_probes_one() -> None:
    made = connected("abc", options=CAPTURED)
    assert made.signal(Signal.FAILURE, 0) == [("a", 0), ("b", 0), ("c", 0)]
    assert made.add("d", 2500, 0) == []
    probe = made.tick(SECOND)
    assert [count for _, count in probe] == [1]
    assert made.total_ready == 1
    left = dict(made.signal(Signal.SUCCESS, SECOND))
    assert left == dict.fromkeys("abcd", 2)


def test_full_jitter_draws_the_wait_below_the_doubling_one() -> None:
    options = ReadyOptions(backoff_strategy=BackoffStrategy.FULL_JITTER)
    waits = set()
    for seed in range(20):
        made = control(10, options, seed)
        made.add("a", 2500, 0)
        made.signal(Signal.FAILURE, 0)
        assert made.next_deadline_ns() <= 2 * SECOND
        waits.add(made.next_deadline_ns())
    assert len(waits) > 10


def test_a_wait_that_ends_without_connections_probes_the_next_one() -> None:
    made = connected("a", options=CAPTURED)
    made.signal(Signal.FAILURE, 0)
    made.remove("a")
    assert made.tick(SECOND) == []
    assert made.add("b", 2500, SECOND) == []
    assert made.tick(2 * SECOND) == [("b", 1)]


def test_a_lost_probe_is_replaced() -> None:
    made = connected("ab", options=CAPTURED)
    made.signal(Signal.FAILURE, 0)
    [(probed, _)] = made.tick(SECOND)
    made.remove(probed)
    [(other, count)] = made.tick(5 * SECOND)
    assert (other, count) == ({"a": "b", "b": "a"}[probed], 1)


def test_a_pause_during_backoff_takes_the_probe_and_gives_it_back() -> None:
    made = connected("a", options=CAPTURED)
    made.signal(Signal.FAILURE, 0)
    made.tick(SECOND)
    assert made.set_max_in_flight(0, SECOND) == [("a", 0)]
    assert made.tick(5 * SECOND) == []
    assert made.set_max_in_flight(10, 6 * SECOND) == []
    assert made.tick(10 * SECOND) == [("a", 1)]
