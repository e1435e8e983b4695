"""What is due much later: a timer wheel of logs, each for one stretch of time.

A message waits in the log of a slot, ``<start>-<width>`` in milliseconds of Unix time, in a
directory of that name. Slots are 64 ms wide, or 64 times as much, and so on: the later a message
is due, the wider. Before a slot begins it is read into memory, or, where that has no room for so
many, split into slots of the next width; while the disk has none for that, as many as memory has
room for are read when the slot begins. So a million messages cost the memory of their slots'
names; none is moved more often than there are widths, and most are never moved; and a slot that
has passed leaves nothing behind, whatever waits in the others.

Source: Varghese and Lauck, Hashed and Hierarchical Timing Wheels (1987); docs/storage.md.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from nsqpy.clock import MILLISECOND
from nsqpy.errors import StorageError
from nsqpy.message import Batch
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.files import Files
from nsqpy.storage.reader import StoredRun

__all__ = ["NEAR_MS", "Slot", "StoredRange", "TimerWheel", "slot_directories", "slot_for"]

log = logging.getLogger(__name__)

_SLOTS = 64  # of one width lie within the next
_WIDTHS_MS = [_SLOTS**level for level in range(1, 7)]  # 64 ms to 2.2 years
_FINEST_MS = _WIDTHS_MS[0]
NEAR_MS = _WIDTHS_MS[2]  # 4.4 minutes: what is read into memory is due by then
# A slot is looked at this long before it begins, or half its width: to read it, and even more to
# split it, takes a while.
_LEAD_MIN_MS = 250
# Logs that keep their files open for the next message; the others open them when one comes.
_WARM_LOGS = 8


class Slot(NamedTuple):
    """Messages due from ``start_ms``, Unix time, for ``width_ms``."""

    start_ms: int
    width_ms: int

    @property
    def stop_ms(self) -> int:
        return self.start_ms + self.width_ms

    @property
    def look_ms(self) -> int:
        """When to begin with it."""
        return self.start_ms - max(self.width_ms // 2, _LEAD_MIN_MS)

    def look_again_ms(self, now_ms: int) -> int:
        """When to look at it next. What has been looked at, cannot be split and had no room in
        memory can wait until it begins."""
        looked = self.width_ms == _FINEST_MS and self.look_ms <= now_ms
        return self.start_ms if looked else self.look_ms

    def has_begun(self, now_ms: int) -> bool:
        """Whether something in it may be due, or will be in a moment."""
        return now_ms >= self.start_ms - _LEAD_MIN_MS

    def has_passed(self, now_ms: int) -> bool:
        """Whether all in it is due, or will be in a moment."""
        return now_ms >= (self.start_ms if self.width_ms == _FINEST_MS else self.stop_ms)

    @property
    def directory(self) -> str:
        return f"{self.start_ms}-{self.width_ms}"


class StoredRange(NamedTuple):
    """So many records of ``queue_log``, from ``number`` on."""

    queue_log: DiskQueue
    number: int
    records: int


def slot_for(deliver_at_ns: int, now_ms: int, widest_ms: int = _WIDTHS_MS[-1]) -> Slot:
    """The slot for a time, of the width that suits how far off it is, ``widest_ms`` at most."""
    due_ms = deliver_at_ns // MILLISECOND
    for width_ms in _WIDTHS_MS:
        if width_ms == widest_ms or due_ms - now_ms < width_ms * _SLOTS:
            break
    return Slot(due_ms - due_ms % width_ms, width_ms)


def slot_directories(files: Files, directory: str) -> dict[Slot, str]:
    """The logs below ``directory``, soonest first. Raises OSError."""
    found = {}
    for name in files.list_directory(directory):
        start, _, width = name.partition("-")
        if start.isdecimal() and width.isdecimal() and int(width) in _WIDTHS_MS:
            found[Slot(int(start), int(width))] = f"{directory}/{name}"
    return dict(sorted(found.items()))


class _Stranded(NamedTuple):
    """Messages that were read and, for want of space, not split."""

    slot: Slot
    queue_log: DiskQueue
    runs: list[StoredRun]

    @property
    def size(self) -> int:
        return sum(run.stop - run.start for run in self.runs)


class TimerWheel:
    """The slots in ``directory``; ``open_log`` opens the log of one, or makes it."""

    def __init__(self, files: Files, directory: str, open_log: Callable[[str], DiskQueue]) -> None:
        self._files = files
        self._directory = directory
        self._open_log = open_log
        self._logs: dict[Slot, DiskQueue] = {}
        self._warm: dict[Slot, None] = {}
        self._stranded: _Stranded | None = None
        self._look_ms: int | None = None
        self._past_bad_blocks = 0

    @property
    def waiting(self) -> dict[DiskQueue, int]:
        """How many messages of each log ``advance`` has not handed out yet."""
        waiting = {queue_log: queue_log.unread for queue_log in self._logs.values()}
        if self._stranded is not None:
            waiting[self._stranded.queue_log] += self._stranded.size
        return waiting

    @property
    def count(self) -> int:
        return sum(self.waiting.values())

    @property
    def bad_blocks(self) -> int:
        present = sum(queue_log.bad_blocks for queue_log in self._logs.values())
        return self._past_bad_blocks + present

    @property
    def look_ms(self) -> int | None:
        """When ``advance`` next has something to do, in Unix time; None while all is read."""
        return self._look_ms

    @property
    def soonest_ms(self) -> int | None:
        """When the first slot with unread messages begins, in Unix time."""
        waiting = self.waiting
        starts = [slot.start_ms for slot in self._logs if waiting[self._logs[slot]]]
        return min(starts, default=None)

    def open(self) -> None:
        """Find what a previous process left.

        Raises:
            StorageError: a log cannot be read.
        """
        try:
            found = slot_directories(self._files, self._directory)
        except OSError as error:
            raise StorageError.of(self._directory, error) from error
        for slot in found:
            queue_log = self._log_of(slot)
            queue_log.rest()
            if not queue_log.depth:
                self._drop(slot)
        self._find_next(0)

    # -- in ---------------------------------------------------------------------------------

    def append(
        self, batches: Sequence[Batch], now_ms: int, widest_ms: int = _WIDTHS_MS[-1]
    ) -> list[StoredRange]:
        """Store batches, each in the slot of its ``deliver_at_ns``, with one write a slot.

        Raises:
            StorageError: none of them is stored.
        """
        by_slot: dict[Slot, list[Batch]] = {}
        for batch in batches:
            slot = slot_for(batch.deliver_at_ns, now_ms, widest_ms)
            by_slot.setdefault(slot, []).append(batch)
        stored: list[StoredRange] = []
        try:
            for slot, theirs in by_slot.items():
                queue_log = self._log_of(slot)
                number = queue_log.append(theirs, held=False)
                stored.append(StoredRange(queue_log, number, sum(map(len, theirs))))
        except StorageError:
            self.undo(stored)
            raise
        looks = [slot.look_ms for slot in by_slot]
        self._look_ms = min(looks if self._look_ms is None else [self._look_ms, *looks])
        return stored

    def undo(self, stored: Sequence[StoredRange]) -> None:
        """Take back what ``append`` has just stored."""
        for queue_log, number, records in stored:
            queue_log.discard(number, records)

    def _log_of(self, slot: Slot) -> DiskQueue:
        queue_log = self._logs.get(slot)
        if queue_log is None:
            queue_log = self._open_log(f"{self._directory}/{slot.directory}")
            queue_log.on_drained = partial(self._drop, slot)
            self._logs[slot] = queue_log
        self._warm.pop(slot, None)
        self._warm[slot] = None
        if len(self._warm) > _WARM_LOGS:
            coldest = next(iter(self._warm))
            del self._warm[coldest]
            self._logs[coldest].rest()
        return queue_log

    # -- out --------------------------------------------------------------------------------

    def advance(self, now_ms: int, room: int) -> tuple[DiskQueue, list[StoredRun]] | None:
        """Take one step towards what is due: some 512 KiB are read, or split among other slots.

        Returns messages of the next slot and their log, which the caller keeps from now on;
        None if they were split, or have to wait. There are more than ``room`` of them only if
        they are due, or will be in less than 64 ms, or if they are the last that a slot gives
        which cannot be split.

        Raises:
            StorageError: nothing can be read, or there is space for splitting neither on disk nor
                in memory; the next call tries again.
        """
        if self._look_ms is None or self._look_ms > now_ms:
            return None
        waiting = self.waiting
        near = [slot for slot in self._logs if waiting[self._logs[slot]] and slot.look_ms <= now_ms]
        near.sort(key=_by_look)
        try:
            for slot in near:
                fits = slot.width_ms <= NEAR_MS and waiting[self._logs[slot]] <= room
                if fits or slot.has_passed(now_ms):
                    return self._logs[slot], self._read(slot)
            wide = [slot for slot in near if slot.width_ms > _FINEST_MS]
            if not wide:
                return None
            try:
                self._split(wide[0] if self._stranded is None else self._stranded.slot, now_ms)
            except StorageError:
                begun = [slot for slot in wide if slot.has_begun(now_ms)]
                if room <= 0 or not begun:
                    raise
                return self._logs[begun[0]], self._read(begun[0])
            return None
        finally:
            self._find_next(now_ms)

    def _read(self, slot: Slot) -> list[StoredRun]:
        if self._stranded is None or self._stranded.slot != slot:
            return self._logs[slot].read()
        stranded, self._stranded = self._stranded, None
        return stranded.runs

    def _split(self, slot: Slot, now_ms: int) -> None:
        """Move messages to the slots that they fit into more closely."""
        queue_log = self._logs[slot]
        runs = self._read(slot)
        batches = [run.batch.slice(run.start, run.stop) for run in runs]
        try:
            self.append(batches, now_ms, slot.width_ms // _SLOTS)
        except StorageError:
            self._stranded = _Stranded(slot, queue_log, runs)
            raise
        for run in runs:
            queue_log.move(run.number, run.stop - run.start)

    def _find_next(self, now_ms: int) -> None:
        """Note when to look next."""
        waiting = self.waiting
        looks = (slot.look_again_ms(now_ms) for slot in self._logs if waiting[self._logs[slot]])
        self._look_ms = min(looks, default=None)

    # -- end --------------------------------------------------------------------------------

    def _drop(self, slot: Slot) -> None:
        """Nothing of a slot is owed any more."""
        queue_log = self._logs.pop(slot)
        queue_log.on_drained = None  # it may be flushed once more
        self._warm.pop(slot, None)
        self._past_bad_blocks += queue_log.bad_blocks
        if self._stranded is not None and self._stranded.slot == slot:
            self._stranded = None
        queue_log.empty()
        path = f"{self._directory}/{slot.directory}"
        try:
            if not self._files.list_directory(path):  # what was set aside as damaged stays
                self._files.remove_tree(path)
        except OSError as error:
            log.error("cannot remove %s: %s", path, error)  # the next start tries again

    def empty(self) -> None:
        """Forget every message."""
        for slot in list(self._logs):
            self._drop(slot)
        self._look_ms = None

    def close(self) -> None:
        """Flush, sync and let go of the files.

        Raises:
            StorageError: the first of what went wrong; every log was closed.
        """
        faults: list[StorageError] = []
        for queue_log in self._logs.values():
            queue_log.on_drained = None
            try:
                queue_log.close()
            except StorageError as error:
                faults.append(error)
        if faults:
            raise faults[0]


def _by_look(slot: Slot) -> tuple[int, int]:
    return slot.look_ms, slot.width_ms
