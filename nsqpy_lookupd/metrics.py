"""``/metrics``: what the registry holds, in Prometheus's text format. Counted when asked for."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nsqpy_lookupd.session import Directory

__all__ = ["Metrics"]


class Metrics(Collector):
    """``connection_count`` tells how many TCP connections are open, identified or not."""

    def __init__(self, directory: Directory, connection_count: Callable[[], int]) -> None:
        self._directory = directory
        self._connection_count = connection_count
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        totals = self._directory.registry.totals()
        for name, value, meaning in (
            ("topics", totals.topics, "Topics known."),
            ("channels", totals.channels, "Channels known."),
            ("producers", totals.nodes, "Daemons that have identified themselves."),
            ("registrations", totals.registrations, "Pairs of a daemon and a topic or channel."),
            ("connections", self._connection_count(), "TCP connections."),
        ):
            yield GaugeMetricFamily(f"nsqlookupd_{name}", meaning, value=value)
        yield CounterMetricFamily(
            "nsqlookupd_registered",
            "Topics and channels that daemons have registered.",
            value=self._directory.registered_count,
        )
        errors = CounterMetricFamily(
            "nsqlookupd_errors", "Connections ended for a fault of theirs.", labels=["code"]
        )
        for code, count in sorted(self._directory.error_counts.items()):
            errors.add_metric([code], count)
        yield errors
