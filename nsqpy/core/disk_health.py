"""Whether the disk takes writes: what it refused, and what is tried again for that."""

import logging
from collections.abc import Callable
from enum import Enum

from nsqpy.clock import SECOND
from nsqpy.core.deadlines import NEVER
from nsqpy.errors import StorageError

__all__ = ["PROBE_MAX_BYTES", "RETRY_NS", "DiskHealth", "Work"]

log = logging.getLogger(__name__)

_FAULTS_MAX = 100
RETRY_NS = SECOND // 4  # how long what the disk refused waits before it is tried again
_PROBE_MIN_BYTES = 4096
PROBE_MAX_BYTES = 1024 * 1024


class Work(Enum):
    """What the disk can refuse. That one kind succeeds says nothing of another: a full disk often
    takes the few bytes of an acknowledgement and no publish."""

    WRITE = "a publish, what becomes due, a directory"
    QUEUES = "what queues try again"
    METADATA = "nsqd.dat"
    SYNC = "a sync"


class DiskHealth:
    """Unhealthy from a fault until work of its kind succeeds.

    Publishers are told and may never ask again, so a refused WRITE is tried again here:
    ``probe`` writes so many bytes and removes them, or raises StorageError. ``turn_ns`` says when
    the turn under way began, or the last one, monotonic; ``on_retry`` is called when
    ``retry_due_ns`` may be sooner than it was.
    """

    __slots__ = (
        "_faults",
        "_logged",
        "_on_retry",
        "_probe",
        "_probe_bytes",
        "_retry",
        "_turn_ns",
        "retry_due_ns",
    )

    def __init__(
        self,
        *,
        probe: Callable[[int], None],
        turn_ns: Callable[[], int],
        on_retry: Callable[[], None],
    ) -> None:
        self._probe = probe
        self._turn_ns = turn_ns
        self._on_retry = on_retry
        self._faults: dict[Work, str] = {}
        self._logged: set[str] = set()
        self._retry: list[Callable[[], None]] = []
        self._probe_bytes = _PROBE_MIN_BYTES
        self.retry_due_ns = NEVER  # monotonic

    def __str__(self) -> str:
        return f"NOK - {self.fault}" if self._faults else "OK"

    @property
    def fault(self) -> str:
        """The last one that lasts, or empty."""
        return next(reversed(self._faults.values()), "")

    def note_fault(self, error: StorageError, work: Work = Work.WRITE) -> None:
        """The disk refused ``work``. Each fault is logged once until all is well, for much of what
        failed is tried again several times a second."""
        text = str(error)
        self._faults.pop(work, None)  # the last one comes last
        self._faults[work] = text
        if text not in self._logged and len(self._logged) < _FAULTS_MAX:
            self._logged.add(text)
            log.error("%s", error)
        if work is Work.WRITE:
            self._schedule()

    def note_refused(self, error: StorageError, size_bytes: int) -> None:
        """The disk refused a publish of so many bytes."""
        self._probe_bytes = min(max(size_bytes, self._probe_bytes), PROBE_MAX_BYTES)
        self.note_fault(error)

    def note_success(self, work: Work = Work.WRITE) -> None:
        """The disk took such work."""
        if not self._faults or self._faults.pop(work, None) is None:
            return
        if work is Work.WRITE:
            self._probe_bytes = _PROBE_MIN_BYTES
        if not self._faults:
            log.info("the disk takes writes again")
            self._logged.clear()

    def retry_later(self, error: StorageError, again: Callable[[], None]) -> None:
        """The disk refused a queue something that is to be tried again: ``again`` asks for it."""
        self.note_fault(error, Work.QUEUES)
        self._retry.append(again)
        self._schedule()

    def retry(self, now_ns: int) -> None:
        """Try everything again, if it is time for that; queues do in this turn."""
        if self.retry_due_ns == NEVER or now_ns < self.retry_due_ns:
            return
        retry, self._retry, self.retry_due_ns = self._retry, [], NEVER
        for again in retry:
            again()
        if Work.WRITE in self._faults:
            try:
                self._probe(self._probe_bytes)
            except StorageError:
                self._schedule()  # what was refused to somebody says more than this
            else:
                self.note_success()

    def end_turn(self) -> None:
        """What queues tried again in this turn has succeeded, unless it waits again."""
        if self._faults and not self._retry:
            self.note_success(Work.QUEUES)

    def _schedule(self) -> None:
        if self.retry_due_ns == NEVER:
            self.retry_due_ns = self._turn_ns() + RETRY_NS
            self._on_retry()
