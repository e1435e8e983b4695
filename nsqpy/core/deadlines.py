"""The heap under in-flight and deferred messages, and under everything else that waits for a time.

C ``heapq`` over tuples; an item that is moved or dropped leaves a stale entry behind, which is
skipped when it comes up. Stale entries never outnumber the live ones for long: the heap is rebuilt
when they do.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

__all__ = ["NEVER", "DeadlineHeap", "Due"]

NEVER = -1
_COMPACT_AT = 64


class Due(Protocol):
    """What a heap holds: ``deadline_ns`` is monotonic, or NEVER while it is in no heap."""

    deadline_ns: int


D = TypeVar("D", bound=Due)


class DeadlineHeap(Generic[D]):
    """Items by deadline. The heap is the only writer of their ``deadline_ns``."""

    __slots__ = ("_entries", "_live", "_order")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, D]] = []
        self._order = count()  # ties: first in, first out; items are never compared
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def add(self, item: D, deadline_ns: int) -> None:
        assert item.deadline_ns == NEVER
        item.deadline_ns = deadline_ns
        self._live += 1
        heappush(self._entries, (deadline_ns, next(self._order), item))

    def move(self, item: D, deadline_ns: int) -> None:
        self.discard(item)
        self.add(item, deadline_ns)

    def discard(self, item: D) -> None:
        assert item.deadline_ns != NEVER
        item.deadline_ns = NEVER
        self._live -= 1
        entries = self._entries
        if len(entries) > _COMPACT_AT and self._live < len(entries) // 2:
            self._entries = self._live_entries()
            heapify(self._entries)

    def soonest_ns(self) -> int:
        """The first deadline, or NEVER."""
        entries = self._entries
        while entries and entries[0][2].deadline_ns != entries[0][0]:
            heappop(entries)
        return entries[0][0] if entries else NEVER

    def pop_due(self, now_ns: int) -> D | None:
        """Take the first item whose deadline has come, if there is one."""
        entries = self._entries
        while entries and entries[0][0] <= now_ns:
            deadline_ns, _, item = heappop(entries)
            if item.deadline_ns == deadline_ns:
                item.deadline_ns = NEVER
                self._live -= 1
                return item
        return None

    def items(self) -> list[D]:
        """Every live item, soonest first."""
        return [item for _, _, item in sorted(self._live_entries())]

    def _live_entries(self) -> list[tuple[int, int, D]]:
        # One for each item: what is moved away and back again left an entry that looks live.
        entries = self._entries
        live = {id(entry[2]): entry for entry in entries if entry[2].deadline_ns == entry[0]}
        return list(live.values())

    def clear(self) -> list[D]:
        """Take everything out."""
        items = self.items()
        for item in items:
            item.deadline_ns = NEVER
        self._entries = []
        self._live = 0
        return items
