"""Whether the disk takes writes: what it refused last, and what is tried again for that."""

import logging
from collections.abc import Callable

from nsqpy.clock import SECOND
from nsqpy.core.deadlines import NEVER
from nsqpy.errors import StorageError

__all__ = ["DiskHealth"]

log = logging.getLogger(__name__)

_FAULTS_MAX = 100
_RETRY_NS = SECOND // 4


class DiskHealth:
    """Unhealthy from a fault until a write succeeds. ``fault`` is the last one, or empty."""

    __slots__ = ("_logged", "_retry", "fault", "retry_due_ns")

    def __init__(self) -> None:
        self.fault = ""
        self._logged: set[str] = set()
        self._retry: list[Callable[[], None]] = []
        self.retry_due_ns = NEVER  # monotonic

    def __str__(self) -> str:
        return f"NOK - {self.fault}" if self.fault else "OK"

    def note_fault(self, error: StorageError) -> None:
        """The disk refused something. Each fault is logged once until a write succeeds, for much
        of what failed is tried again several times a second."""
        self.fault = str(error)
        if self.fault not in self._logged and len(self._logged) < _FAULTS_MAX:
            self._logged.add(self.fault)
            log.error("%s", error)

    def note_success(self) -> None:
        """The disk took something."""
        if self.fault:
            log.info("the disk takes writes again")
            self.fault = ""
            self._logged.clear()

    def retry_later(self, error: StorageError, again: Callable[[], None], now_ns: int) -> None:
        """The disk refused something that is to be tried again: ``again`` is called for it."""
        self.note_fault(error)
        self._retry.append(again)
        if self.retry_due_ns == NEVER:
            self.retry_due_ns = now_ns + _RETRY_NS

    def retry(self, now_ns: int) -> None:
        """Try everything again, if it is time for that."""
        if self.retry_due_ns != NEVER and self.retry_due_ns <= now_ns:
            retry, self._retry, self.retry_due_ns = self._retry, [], NEVER
            for again in retry:
                again()
