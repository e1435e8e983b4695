"""The memory figures of ``/stats``, as far as a Python process has them."""

import gc
import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from nsqpy.core.stats import MemoryStats

__all__ = ["MemoryMeter"]

_STATM = Path("/proc/self/statm")
_FULL_COLLECTION = 2
_PAUSES_KEPT = 256  # as many as Go's runtime keeps


class MemoryMeter:
    """Times full garbage collections until ``close``; ``read`` gives all figures."""

    def __init__(self) -> None:
        self._pauses_ns: deque[int] = deque(maxlen=_PAUSES_KEPT)
        self._began_ns = 0
        gc.callbacks.append(self._on_collection)

    def close(self) -> None:
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def read(self) -> MemoryStats:
        pauses = sorted(self._pauses_ns)
        return MemoryStats(
            heap_objects=sys.getallocatedblocks(),
            heap_in_use_bytes=_resident_bytes(),
            gc_pause_usec_100=_percentile_us(pauses, 100),
            gc_pause_usec_99=_percentile_us(pauses, 99),
            gc_pause_usec_95=_percentile_us(pauses, 95),
            gc_total_runs=sum(generation["collections"] for generation in gc.get_stats()),
        )

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        # Young collections are many and short; they would push the pauses that hurt out.
        if info["generation"] != _FULL_COLLECTION:
            return
        if phase == "start":
            self._began_ns = time.monotonic_ns()
        else:
            self._pauses_ns.append(time.monotonic_ns() - self._began_ns)


def _percentile_us(ordered_ns: list[int], percent: int) -> int:
    if not ordered_ns:
        return 0
    index = -(-len(ordered_ns) * percent // 100) - 1
    return ordered_ns[index] // 1000


def _resident_bytes() -> int:
    """The resident set; 0 where the system has no such file."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
