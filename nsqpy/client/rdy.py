"""How many messages each nsqd may have in flight to a consumer: RDY sharing and backoff.

Pure: the time is passed in, chance is a ``random.Random`` that the caller gives, and what is to
be written comes back as a list of ``(key, ready_count)``. Times are monotonic nanoseconds.

The rules are go-nsq's. In short:

- Each of n connections gets ``max_in_flight / n``, at least 1; the sum stays within the maximum.
- A failed message stops all deliveries for a while that doubles with each level. Then one
  connection is sent RDY 1, and the fate of that probe moves the level up or down. At level 0
  everyone gets the share again.
- With more connections than ``max_in_flight``, the few RDY there are move on from connections
  that bring nothing.
"""

import random
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from nsqpy.clock import SECOND

__all__ = ["BackoffStrategy", "ReadyControl", "ReadyOptions", "Signal"]

Key = TypeVar("Key", bound=Hashable)

# Source: go-nsq consumer.go, updateRDY and resume.
_RETRY_NS = 5 * SECOND
_PROBE_AGAIN_NS = SECOND


class Signal(Enum):
    """What the fate of a message tells the backoff."""

    SUCCESS = "success"
    FAILURE = "failure"
    CONTINUE = "continue"


class BackoffStrategy(Enum):
    EXPONENTIAL = "exponential"
    FULL_JITTER = "full_jitter"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyOptions:
    backoff_strategy: BackoffStrategy = BackoffStrategy.EXPONENTIAL
    backoff_multiplier_ns: int = SECOND
    max_backoff_duration_ns: int = 120 * SECOND
    low_rdy_idle_timeout_ns: int = 10 * SECOND
    low_rdy_timeout_ns: int = 30 * SECOND
    rdy_redistribute_interval_ns: int = 5 * SECOND


class _Ready(Generic[Key]):
    """One connection's share. Only ``ReadyControl`` writes it."""

    __slots__ = ("closing", "key", "last_message_ns", "last_ready_ns", "ready_count",
                 "ready_count_max", "retry_at_ns", "retry_count")  # fmt: skip

    def __init__(self, key: Key, ready_count_max: int, now_ns: int) -> None:
        self.key = key
        self.ready_count_max = ready_count_max
        self.ready_count = 0
        self.closing = False
        self.last_message_ns = now_ns
        self.last_ready_ns = now_ns
        self.retry_at_ns: int | None = None
        self.retry_count = 0


class ReadyControl(Generic[Key]):
    """Owns the RDY count of every connection of one consumer, and its backoff.

    Every step returns the RDY commands to write, in order. ``next_deadline_ns`` tells when
    ``tick`` must be called; calling it earlier does nothing.
    """

    def __init__(
        self, max_in_flight: int, options: ReadyOptions, chance: random.Random, now_ns: int
    ) -> None:
        self._options = options
        self._chance = chance
        self._connections: dict[Key, _Ready[Key]] = {}
        self._max_in_flight = max_in_flight
        self._total_ready = 0
        self._level = 0
        self._waiting_until_ns: int | None = None
        self._redistribute_at_ns = now_ns + options.rdy_redistribute_interval_ns
        self._redistribution_needed = False

    @property
    def max_in_flight(self) -> int:
        return self._max_in_flight

    @property
    def total_ready(self) -> int:
        """The sum of the RDY of all connections; never above ``max_in_flight`` for long."""
        return self._total_ready

    @property
    def level(self) -> int:
        return self._level

    @property
    def in_backoff(self) -> bool:
        return self._level > 0 or self._waiting_until_ns is not None

    @property
    def waiting(self) -> bool:
        """True while nothing is asked for because of a failure."""
        return self._waiting_until_ns is not None

    def ready_count(self, key: Key) -> int:
        return self._connections[key].ready_count

    def share(self) -> int:
        """What each connection may have, were they all alike."""
        count = len(self._connections)
        if count == 0:
            return 0
        return int(min(max(1, self._max_in_flight / count), self._max_in_flight))

    def add(self, key: Key, ready_count_max: int, now_ns: int) -> list[tuple[Key, int]]:
        """A connection was made: lower the others to the new share, then give it its own."""
        assert key not in self._connections
        newcomer = _Ready(key, ready_count_max, now_ns)
        self._connections[key] = newcomer
        changes: list[tuple[Key, int]] = []
        if not self.in_backoff:
            share = self.share()
            for ready in self._connections.values():
                self._set(ready, share, now_ns, changes)
        return changes

    def remove(self, key: Key) -> None:
        """A connection was lost. The others are not raised: it will be back, most likely."""
        ready = self._connections.pop(key)
        self._total_ready -= ready.ready_count
        held = ready.ready_count > 0 or ready.retry_at_ns is not None
        if held and (self.in_backoff or len(self._connections) == self._max_in_flight):
            self._redistribution_needed = True

    def share_again(self, now_ns: int) -> list[tuple[Key, int]]:
        """A connection that was lost will not be back: raise the others to their share."""
        changes: list[tuple[Key, int]] = []
        if not self.in_backoff:
            self._share_out(now_ns, changes)
        return changes

    def close(self, key: Key) -> None:
        """nsqd has answered CLS: it sends no more, and takes no RDY."""
        ready = self._connections[key]
        ready.closing = True
        ready.retry_at_ns = None

    def received(self, key: Key, now_ns: int) -> None:
        self._connections[key].last_message_ns = now_ns

    def set_max_in_flight(self, max_in_flight: int, now_ns: int) -> list[tuple[Key, int]]:
        """Change the maximum; 0 pauses."""
        self._max_in_flight = max_in_flight
        changes: list[tuple[Key, int]] = []
        if max_in_flight == 0:
            self._stop_all(now_ns, changes)
        if self.in_backoff:
            # A pause may have taken the probe's RDY away: somebody must get it again.
            self._redistribution_needed = True
        else:
            self._share_out(now_ns, changes)
        return changes

    def signal(self, signal: Signal, now_ns: int) -> list[tuple[Key, int]]:
        """Tell the fate of one message. Ignored during a wait, whose cause it may share."""
        if self._waiting_until_ns is not None:
            return []
        before = self._level
        if signal is Signal.FAILURE:
            # A multiplier or a maximum of 0 turns backoff off, as does a maximum below d(1).
            if 0 < self._duration_ns(self._level + 1) <= self._options.max_backoff_duration_ns:
                self._level += 1
        elif signal is Signal.SUCCESS and self._level > 0:
            self._level -= 1
        changes: list[tuple[Key, int]] = []
        if self._level > 0:
            self._stop_all(now_ns, changes)
            self._waiting_until_ns = now_ns + self._wait_ns()
        elif before > 0:
            self._share_out(now_ns, changes)
        return changes

    def next_deadline_ns(self) -> int:
        deadlines = [self._redistribute_at_ns]
        if self._waiting_until_ns is not None:
            deadlines.append(self._waiting_until_ns)
        deadlines += [
            ready.retry_at_ns
            for ready in self._connections.values()
            if ready.retry_at_ns is not None
        ]
        return min(deadlines)

    def tick(self, now_ns: int) -> list[tuple[Key, int]]:
        """Do what is due: probe after a wait, retry refused RDY, redistribute."""
        changes: list[tuple[Key, int]] = []
        if self._waiting_until_ns is not None and now_ns >= self._waiting_until_ns:
            self._probe(now_ns, changes)
        for ready in self._connections.values():
            if ready.retry_at_ns is not None and now_ns >= ready.retry_at_ns:
                ready.retry_at_ns = None
                if not self.in_backoff:
                    self._set(ready, ready.retry_count, now_ns, changes)
        if now_ns >= self._redistribute_at_ns:
            self._redistribute_at_ns = now_ns + self._options.rdy_redistribute_interval_ns
            self._redistribute(now_ns, changes)
        return changes

    def _duration_ns(self, level: int) -> int:
        return self._options.backoff_multiplier_ns << level

    def _wait_ns(self) -> int:
        duration_ns = min(self._duration_ns(self._level), self._options.max_backoff_duration_ns)
        if self._options.backoff_strategy is BackoffStrategy.FULL_JITTER:
            # Only the wait is drawn: were the level's step drawn too, it could rise for ever.
            return int(self._chance.random() * duration_ns)
        return duration_ns

    def _stop_all(self, now_ns: int, changes: list[tuple[Key, int]]) -> None:
        for ready in self._connections.values():
            self._set(ready, 0, now_ns, changes)

    def _share_out(self, now_ns: int, changes: list[tuple[Key, int]]) -> None:
        share = self.share()
        # Those that give come before those that take, or there would be nothing to take.
        for ready in sorted(self._connections.values(), key=lambda r: r.ready_count <= share):
            self._set(ready, share, now_ns, changes)

    def _probe(self, now_ns: int, changes: list[tuple[Key, int]]) -> None:
        candidates = [ready for ready in self._connections.values() if not ready.closing]
        if candidates and self._set(self._chance.choice(candidates), 1, now_ns, changes):
            self._waiting_until_ns = None
        else:
            self._waiting_until_ns = now_ns + _PROBE_AGAIN_NS

    def _redistribute(self, now_ns: int, changes: list[tuple[Key, int]]) -> None:
        count = len(self._connections)
        if self._waiting_until_ns is not None or count == 0:
            return
        if count > self._max_in_flight or (self.in_backoff and count > 1):
            self._redistribution_needed = True
        if not self._redistribution_needed:
            return
        self._redistribution_needed = False
        for ready in self._connections.values():
            if ready.ready_count > 0 and self._is_low(ready, now_ns):
                self._set(ready, 0, now_ns, changes)
        limit = min(1, self._max_in_flight) if self.in_backoff else self._max_in_flight
        available = limit - self._total_ready
        # Only those without: go-nsq also draws connections that have RDY, and wastes the draw.
        candidates = [r for r in self._connections.values() if not r.ready_count and not r.closing]
        self._chance.shuffle(candidates)
        for ready in candidates[: max(0, available)]:
            self._set(ready, 1, now_ns, changes)

    def _is_low(self, ready: _Ready[Key], now_ns: int) -> bool:
        """True if its RDY brings nothing, or has been there for long enough."""
        idle_ns = now_ns - ready.last_message_ns
        held_ns = now_ns - ready.last_ready_ns
        options = self._options
        return idle_ns > options.low_rdy_idle_timeout_ns or held_ns > options.low_rdy_timeout_ns

    def _set(
        self, ready: _Ready[Key], count: int, now_ns: int, changes: list[tuple[Key, int]]
    ) -> bool:
        """Give a connection as much of ``count`` as there is; False if there is nothing.

        Source: go-nsq consumer.go, updateRDY.
        """
        if ready.closing:
            return False
        count = min(count, ready.ready_count_max)
        ready.retry_at_ns = None
        if count > 0:
            possible = self._max_in_flight - self._total_ready + ready.ready_count
            if possible <= 0:
                if ready.ready_count == 0 and not self.in_backoff:
                    ready.retry_at_ns, ready.retry_count = now_ns + _RETRY_NS, count
                return False
            count = min(count, possible)
            ready.last_ready_ns = now_ns
        if count != ready.ready_count:
            self._total_ready += count - ready.ready_count
            ready.ready_count = count
            changes.append((ready.key, count))
        return True
