"""Leases: many messages of a channel taken out at once, as a log that is read any number of times.

A lease's messages stand in a log of their own, in the DiskQueue's format, and are frozen with it:
order, attempts and timestamps are the same in every read. It ends by a commit, which is a FIN of
everything, or by a release or its expiry, which put everything back. ``LeaseBook`` does that;
here is what a lease is. Source: docs/leases.md.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from nsqpy.clock import SECOND, Instant
from nsqpy.core.deadlines import NEVER
from nsqpy.core.window import Run
from nsqpy.errors import NSQError
from nsqpy.storage.diskqueue import DiskQueue

__all__ = [
    "ENDED_KEPT_NS",
    "ENDED_MAX",
    "LEASES_MAX",
    "Lease",
    "LeaseGoneError",
    "LeaseRefusedError",
    "LeaseRequest",
    "LeaseSource",
    "LeaseState",
    "LeaseTerms",
    "Splits",
    "add_range",
    "is_valid_lease_id",
]

LEASES_MAX = 1000  # living ones of a channel
# How long an ended id is remembered, and how many of a channel: the oldest are forgotten first.
ENDED_KEPT_NS = 24 * 3600 * SECOND
ENDED_MAX = 10_000

_ID = re.compile(r"[a-zA-Z0-9._-]{1,128}", re.ASCII)
_SPLIT_BYTES = 1024 * 1024
_SPLITS_MAX = 256
_COVERED_MAX = 1024


def is_valid_lease_id(text: str) -> bool:
    """1 to 128 bytes of letters, digits, ``.``, ``_``, ``-``."""
    return _ID.fullmatch(text) is not None


class LeaseState(StrEnum):
    """Where a lease is; the last four are what a caller is told."""

    TAKING = "taking"
    LEASED = "leased"
    COMMITTED = "committed"
    EXPIRED = "expired"
    RELEASED = "released"


class LeaseGoneError(NSQError):
    """The id has ended in ``state``, or is ``unknown``; ``acknowledged`` is how many messages a
    commit that came too late has still acknowledged."""

    def __init__(self, lease_id: str, state: str, acknowledged: int = 0) -> None:
        super().__init__(lease_id, state, acknowledged)
        self.lease_id = lease_id
        self.state = state
        self.acknowledged = acknowledged

    def __str__(self) -> str:
        return f"lease {self.lease_id} is {self.state}"


class LeaseRefusedError(NSQError):
    """There can be no such lease; ``code`` says why, as the API does."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return self.code


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What a caller asks for; ``max_bytes`` counts frames, and one message may go beyond it."""

    max_messages: int
    max_bytes: int
    ttl_ns: int


class LeaseRequest:
    """Somebody waits for a lease. ``lease`` None and no ``error`` means: nothing to take.

    A ``patient`` one waits for messages. ``on_done`` is called once.
    """

    __slots__ = ("done", "error", "lease", "lease_id", "on_done", "patient", "terms")

    def __init__(self, lease_id: str, terms: LeaseTerms, *, patient: bool = False) -> None:
        self.lease_id = lease_id
        self.terms = terms
        self.patient = patient
        self.done = False
        self.lease: Lease | None = None
        self.error: NSQError | None = None
        self.on_done: Callable[[], None] | None = None

    def complete(self, lease: "Lease | None", error: NSQError | None = None) -> None:
        assert not self.done
        self.done = True
        self.lease = lease
        self.error = error
        if self.on_done is not None:
            self.on_done()


class LeaseSource(Protocol):
    """A channel, as its leases see it."""

    topic_name: str

    def ready_count(self) -> int: ...

    def take_ready(self, limit: int, max_bytes: int) -> list[Run]:
        """Messages that are ready, from the channel's own log or from no log; maybe none of them.

        Raises:
            StorageError: nothing is taken.
        """

    def put_back(self, runs: Sequence[Run]) -> None: ...

    def give_back(self, run: Run, state: LeaseState, now: Instant) -> tuple[int, int]:
        """Queue messages again, each with one attempt more; the range of the channel's log that
        they are in, or an empty one where that cannot be said.

        Raises:
            StorageError: they are where they were.
        """

    def take_out(self, ranges: Sequence[list[int]]) -> int:
        """Acknowledge what of these records nobody has been given; returns how many.

        Raises:
            StorageError: that is not on disk yet.
        """

    def note_finished(self, count: int) -> None: ...

    def note_deadline(self) -> None: ...

    @property
    def dying_count(self) -> int: ...

    @property
    def log(self) -> DiskQueue: ...


class Splits:
    """Where a stream of blocks can be cut: at most 256 stretches of about the same size."""

    __slots__ = ("flat", "grain_bytes")

    def __init__(self, flat: list[int] | None = None) -> None:
        self.flat = flat or []  # length, count, length, count ...
        self.grain_bytes = _SPLIT_BYTES

    def add(self, size: int, count: int) -> None:
        """A block of ``size`` bytes with ``count`` messages follows."""
        flat = self.flat
        if flat and flat[-2] < self.grain_bytes:
            flat[-2] += size
            flat[-1] += count
            return
        if len(flat) == 2 * _SPLITS_MAX:
            self.grain_bytes *= 2
            flat = self.flat = [
                flat[at + field] + flat[at + 2 + field]
                for at in range(0, len(flat), 4)
                for field in (0, 1)
            ]
        flat += (size, count)

    def triples(self) -> list[tuple[int, int, int]]:
        """Offset, length and count of each stretch."""
        offset = 0
        found = []
        for length, count in zip(self.flat[0::2], self.flat[1::2], strict=True):
            found.append((offset, length, count))
            offset += length
        return found


class Lease:
    """One lease of a book, which is the only one to change it.

    ``count`` messages in ``size`` bytes of blocks stand in ``log``, which is None once nothing of
    it is owed. ``expires_ns`` and ``ended_ns`` are wall time. ``sources`` are the ranges of the
    channel's log that the messages came from, first and stop, and ``held`` is how many of those
    records are not acknowledged yet.
    """

    __slots__ = (
        *("changed", "count", "covered", "deadline_ns", "ended_ns", "expires_ns"),
        *("frame_bytes", "held", "id", "log", "reads", "records", "requests", "returned", "serial"),
        *("size", "sources", "splits", "state", "stranded", "terms", "told", "wanted"),
    )

    def __init__(self, lease_id: str, serial: int, log: DiskQueue | None) -> None:
        self.id = lease_id
        self.serial = serial  # of its directory
        self.log = log
        self.state = LeaseState.TAKING
        self.count = 0
        self.size = 0
        self.frame_bytes = 0
        self.expires_ns = 0
        self.ended_ns = 0
        self.deadline_ns = NEVER
        self.splits = Splits()
        self.reads = 0
        self.covered: list[tuple[int, int]] = []
        self.sources: list[list[int]] = []
        self.held = 0
        self.changed: list[Run] = []  # while it is taken: what no log has as it is now
        self.stranded: list[Run] = []  # read from its log, but the disk did not take it back
        self.returned: list[list[int]] = []  # ranges of the channel's log that it went back to
        self.told = False  # somebody knows that it has expired, and goes on without it
        self.records: dict[str, int] = {}  # of the book's journal, by what they say
        self.requests: list[LeaseRequest] = []
        self.terms: LeaseTerms | None = None
        self.wanted = 0

    @property
    def is_living(self) -> bool:
        return self.state in (LeaseState.TAKING, LeaseState.LEASED)

    @property
    def leased_count(self) -> int:
        """How many messages it holds that are not back in the queue."""
        if self.is_living:
            return self.count
        if self.state is LeaseState.COMMITTED:
            return 0
        waiting = self.log.unread if self.log is not None else 0
        return waiting + sum(map(len, self.stranded))

    def answer(self, error: NSQError | None = None) -> None:
        """Tell everybody who waits for it that it exists, or why not."""
        requests, self.requests = self.requests, []
        for request in requests:
            request.complete(self if error is None else None, error)

    def cover(self, offset: int, length: int) -> bool:
        """Bytes were sent; whether any of them were for the first time since a whole read.

        Once all have been, that is one read, and it begins anew.
        """
        stop = offset + length
        if length <= 0 or any(start <= offset and stop <= end for start, end in self.covered):
            return False
        merged: list[tuple[int, int]] = []
        for start, end in sorted([*self.covered, (offset, stop)]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        if merged == [(0, self.size)]:
            self.reads += 1
            merged = []
        self.covered = merged[:_COVERED_MAX]
        return True


def add_range(ranges: list[list[int]], first: int, stop: int) -> None:
    """Put records ``first`` to ``stop`` behind ``ranges``, joined to the last one if possible."""
    if ranges and ranges[-1][1] == first:
        ranges[-1][1] = stop
    else:
        ranges.append([first, stop])
