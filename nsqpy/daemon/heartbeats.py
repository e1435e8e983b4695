"""Heartbeats and the deadlines of silent connections, one timer for all of them.

A heartbeat is lazy: none is owed to a connection on which bytes went both ways within the
interval, and one is owed exactly one interval after the side that has been silent longest was
last heard, so that no client waits more than its interval for a sign of life. Two intervals
without a whole command from the client end the connection; so does a client that takes nothing of
what waits for it, after its write timeout or else one interval.
Source: Heartbeats in docs/protocol.md.
"""

from enum import StrEnum
from typing import Protocol

from nsqpy.core.deadlines import NEVER, DeadlineHeap

__all__ = ["Fault", "Heartbeats", "Watched"]


class Fault(StrEnum):
    """Why a connection is ended, as the log says it."""

    SLOW = "does not read what it is sent"
    SILENT = "was silent for two heartbeats"


class Watched(Protocol):
    """A connection, as far as its heartbeats go. Times are monotonic nanoseconds."""

    deadline_ns: int
    received_ns: int
    sent_ns: int
    blocked_since_ns: int

    @property
    def heartbeat_interval_ns(self) -> int:
        """0: no heartbeats, and no deadlines."""

    @property
    def write_timeout_ns(self) -> int:
        """0: the heartbeat interval."""

    def note_progress(self, now_ns: int) -> None:
        """Move ``blocked_since_ns`` to now if the client has taken anything since the last call."""

    def beat(self, now_ns: int) -> None: ...

    def abort(self, why: Fault) -> None: ...


class Heartbeats:
    """Call ``run`` whenever ``soonest_ns`` has come."""

    def __init__(self) -> None:
        self._heap: DeadlineHeap[Watched] = DeadlineHeap()
        self.changed = False  # ``soonest_ns`` may be sooner than it was

    def watch(self, connection: Watched) -> None:
        """Begin, or begin again with the interval that the connection has now, or because it has
        stopped reading."""
        self.forget(connection)
        interval_ns = connection.heartbeat_interval_ns
        if interval_ns:
            due_ns = _oldest_ns(connection) + interval_ns
            self._heap.add(connection, min(due_ns, _end_ns(connection)))
            self.changed = True

    def forget(self, connection: Watched) -> None:
        if connection.deadline_ns != NEVER:
            self._heap.discard(connection)

    def soonest_ns(self) -> int:
        self.changed = False
        return self._heap.soonest_ns()

    def run(self, now_ns: int) -> None:
        """Beat every connection that is owed it, and end those that are dead."""
        while (connection := self._heap.pop_due(now_ns)) is not None:
            interval_ns = connection.heartbeat_interval_ns
            connection.note_progress(now_ns)
            if now_ns >= _end_ns(connection):
                connection.abort(Fault.SLOW if connection.blocked_since_ns else Fault.SILENT)
                continue
            due_ns = _oldest_ns(connection) + interval_ns
            if due_ns <= now_ns:
                connection.beat(now_ns)
                due_ns = now_ns + interval_ns
            self.forget(connection)  # the heartbeat may have been the byte too many
            self._heap.add(connection, max(min(due_ns, _end_ns(connection)), now_ns + 1))


def _end_ns(connection: Watched) -> int:
    """When to give it up, if nothing changes until then."""
    interval_ns = connection.heartbeat_interval_ns
    if connection.blocked_since_ns:
        # What it sends may be waiting unread on our side, so silence proves nothing.
        return connection.blocked_since_ns + (connection.write_timeout_ns or interval_ns)
    return connection.received_ns + 2 * interval_ns


def _oldest_ns(connection: Watched) -> int:
    return min(connection.received_ns, connection.sent_ns)
