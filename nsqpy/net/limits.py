"""How many connections a port takes, so that there are file descriptors left for the queues."""

import logging
import resource
import sys
import time
from collections import Counter

from nsqpy.scalars import format_duration

__all__ = ["REFUSALS", "ConnectionLimit", "first_reserved_descriptor"]

REFUSALS = ("max_connections", "open_files")

log = logging.getLogger(__name__)

_RESERVED_PART = 8
_LOG_EVERY_NS = 10 * 1_000_000_000


def first_reserved_descriptor(reserved_part: int = _RESERVED_PART) -> int:
    """What has this number, or a higher one, belongs to somebody else: the files of the queues.

    A descriptor is always the lowest number that is free, so one in the last eighth, or another
    part, says that only that is left. The open-file limit is taken as it is now.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft - soft // reserved_part


class ConnectionLimit:
    """``max_connections`` is the port's own, 0 for none; and none may have a descriptor in the
    part that is reserved."""

    def __init__(
        self, name: str, max_connections: int, reserved_part: int = _RESERVED_PART
    ) -> None:
        self._name = name
        self._max_connections = max_connections
        self._max_descriptor = first_reserved_descriptor(reserved_part)
        self._logged_ns = 0
        self._unlogged = 0
        self.refused: Counter[str] = Counter()

    def refuses(self, descriptor: int, open_count: int) -> bool:
        """Whether a connection is one too many; counted by reason, and logged now and then."""
        if self._max_connections and open_count >= self._max_connections:
            self._note("max_connections", f"there are {open_count}")
        elif descriptor >= self._max_descriptor:
            self._note("open_files", "the open-file limit is near")
        else:
            return False
        return True

    def _note(self, reason: str, why: str) -> None:
        self.refused[reason] += 1
        self._unlogged += 1
        now_ns = time.monotonic_ns()
        if not self._logged_ns or now_ns - self._logged_ns >= _LOG_EVERY_NS:
            span = format_duration(_LOG_EVERY_NS)
            log.warning(
                "%s: %d connections refused, %s; said once in %s",
                *(self._name, self._unlogged, why, span),
            )
            self._logged_ns, self._unlogged = now_ns, 0
