"""How long messages take from publish to FIN: percentiles over a window of time.

A sketch of buckets, each 2 % wider than the one before, so a percentile is right to 1 % however
large it is. Nearly all messages of a batch share their time of publishing, and so a bucket: an
answer to a batch is one addition. Sketches add up, so those of channels make the topic's.

Two sketches take turns, each for half of the window, and a query merges both: it looks back
between half and the whole of the window. Source: internal/quantile; the
buckets are those of Masson, Rim and Lee, "DDSketch" (2019).
"""

import math
from collections import Counter
from collections.abc import Iterable

from nsqpy.core.stats import LatencyStats, Percentile
from nsqpy.core.window import Run

__all__ = ["LatencyWindow", "merged_latency"]

_GROWTH = 1.02
_LOG_GROWTH = math.log(_GROWTH)
_MIDDLE = 2 / (1 + _GROWTH)  # of a bucket, from its upper end, so that neither end is far

# Buckets by number; a number is the power of ``_GROWTH`` that is the bucket's upper end, in ns.
Sketch = Counter[int]


class LatencyWindow:
    """One channel's. Times are wall nanoseconds."""

    __slots__ = ("_before", "_current", "_half_ns", "_quantiles", "_since_ns")

    def __init__(self, window_ns: int, quantiles: tuple[float, ...]) -> None:
        self._half_ns = max(window_ns // 2, 1)
        self._quantiles = quantiles
        self._since_ns = 0
        self._current: Sketch = Counter()
        self._before: Sketch = Counter()

    def add(self, runs: Iterable[Run], now_ns: int) -> None:
        """Messages were finished at ``now_ns``."""
        self._turn(now_ns)
        current = self._current
        for run in runs:
            for published_ns, count in run.batch.published(run.start, run.stop):
                # A clock that was set back makes no message faster than a nanosecond.
                latency_ns = max(now_ns - published_ns, 1)
                current[math.ceil(math.log(latency_ns) / _LOG_GROWTH)] += count

    def sketch(self, now_ns: int) -> Sketch:
        """What the window holds now."""
        self._turn(now_ns)
        return self._before + self._current

    def stats(self, now_ns: int) -> LatencyStats:
        return _stats(self.sketch(now_ns), self._quantiles)

    def _turn(self, now_ns: int) -> None:
        halves = (now_ns - self._since_ns) // self._half_ns
        if halves == 0:
            return
        self._before = self._current if halves == 1 else Counter()
        self._current = Counter()
        self._since_ns = now_ns if halves != 1 else self._since_ns + self._half_ns


def merged_latency(
    windows: Iterable[LatencyWindow], quantiles: tuple[float, ...], now_ns: int
) -> LatencyStats:
    """All of a topic's channels together; without one, as if it were off."""
    total: Sketch = Counter()
    found = False
    for window in windows:
        total.update(window.sketch(now_ns))
        found = True
    return _stats(total, quantiles) if found else LatencyStats()


def _stats(sketch: Sketch, quantiles: tuple[float, ...]) -> LatencyStats:
    count = sketch.total()
    buckets = sorted(sketch.items())
    found = tuple(Percentile(quantile, _value(buckets, quantile, count)) for quantile in quantiles)
    return LatencyStats(count, found)


def _value(buckets: list[tuple[int, int]], quantile: float, count: int) -> float:
    """The nearest rank: the least value that so much of all is not above; 0 of nothing."""
    rank = max(math.ceil(quantile * count), 1)
    passed = 0
    for number, size in buckets:
        passed += size
        if passed >= rank:
            return float(round(_GROWTH**number * _MIDDLE))
    return 0.0
