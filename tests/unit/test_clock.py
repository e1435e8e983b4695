"""The two clocks."""

import pytest

from nsqpy.clock import MILLISECOND, SECOND, Instant, ManualClock, SystemClock


def test_a_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock(monotonic_ns=5, wall_ns=7)
    assert clock.now() == clock.now() == Instant(monotonic_ns=5, wall_ns=7)


def test_both_times_of_a_manual_clock_move_together() -> None:
    clock = ManualClock(monotonic_ns=5, wall_ns=7)
    assert clock.advance(SECOND) == clock.monotonic_ns() == 5 + SECOND
    assert clock.now() == Instant(5 + SECOND, 7 + SECOND)


def test_time_does_not_go_back() -> None:
    with pytest.raises(AssertionError):
        ManualClock().advance(-1)


def test_the_system_clock_gives_nanoseconds_that_do_not_fall() -> None:
    clock = SystemClock()
    first, second = clock.now(), clock.now()
    assert first.monotonic_ns <= second.monotonic_ns
    assert first.wall_ns > 1_700_000_000 * SECOND
    assert 1000 * MILLISECOND == SECOND
