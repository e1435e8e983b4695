"""Wall and monotonic nanoseconds behind one interface, so that tests move time by hand."""

import time
from typing import NamedTuple, Protocol

__all__ = ["MILLISECOND", "SECOND", "Clock", "Instant", "ManualClock", "SystemClock"]

MILLISECOND = 1_000_000
SECOND = 1_000_000_000


class Instant(NamedTuple):
    """One moment on both clocks, in nanoseconds.

    Live deadlines are monotonic; ``wall_ns`` (Unix time) is for message timestamps, ids,
    ``/stats`` and whatever is written to disk.
    """

    monotonic_ns: int
    wall_ns: int


_new_instant = tuple.__new__


class Clock(Protocol):
    """Whatever can tell the time."""

    def now(self) -> Instant: ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> Instant:
        # Straight to tuple: this runs several times a turn, and the named constructor is Python.
        return _new_instant(Instant, (time.monotonic_ns(), time.time_ns()))


class ManualClock:
    """A clock that stands still until it is told to move; for tests and simulations."""

    def __init__(self, monotonic_ns: int = SECOND, wall_ns: int = 1_800_000_000 * SECOND) -> None:
        self._now = Instant(monotonic_ns, wall_ns)

    def now(self) -> Instant:
        return self._now

    def monotonic_ns(self) -> int:
        return self._now.monotonic_ns

    def advance(self, duration_ns: int) -> int:
        """Move both clocks forward and return the new monotonic time."""
        assert duration_ns >= 0
        self._now = Instant(self._now.monotonic_ns + duration_ns, self._now.wall_ns + duration_ns)
        return self._now.monotonic_ns

    def step_wall(self, step_ns: int) -> None:
        """Set the wall clock, as an operator or a time server does."""
        self._now = Instant(self._now.monotonic_ns, self._now.wall_ns + step_ns)
