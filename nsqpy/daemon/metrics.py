"""``/metrics``: the figures of ``/stats`` for Prometheus, taken when they are asked for."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nsqpy.core.stats import BrokerStats

__all__ = ["Metrics"]


class _Figure(NamedTuple):
    """One metric of each topic or channel: attribute ``of`` of its statistics."""

    name: str
    of: str
    meaning: str
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily


_TOPIC = (
    _Figure("depth", "depth", "Messages that no channel has taken yet."),
    _Figure("messages", "message_count", "Messages published.", CounterMetricFamily),
    _Figure("message_bytes", "message_bytes", "Bytes of bodies published.", CounterMetricFamily),
    _Figure("paused", "paused", "1 while the topic is paused."),
    _Figure("bad_blocks", "bad_block_count", "Damaged blocks set aside.", CounterMetricFamily),
)
_CHANNEL = (
    _Figure("depth", "depth", "Messages ready to be delivered, in memory and on disk."),
    _Figure("in_flight", "in_flight_count", "Messages delivered and not answered."),
    _Figure("deferred", "deferred_count", "Messages that wait for their time."),
    _Figure("leased", "leased_count", "Messages out on leases, or on their way back."),
    _Figure("leases", "lease_count", "Leases."),
    _Figure("clients", "client_count", "Consumers."),
    _Figure("messages", "message_count", "Messages taken from the topic.", CounterMetricFamily),
    _Figure("requeues", "requeue_count", "Deliveries answered with REQ.", CounterMetricFamily),
    _Figure("timeouts", "timeout_count", "Deliveries never answered.", CounterMetricFamily),
    _Figure("dropped", "dropped_count", "Dropped by a full #ephemeral.", CounterMetricFamily),
    _Figure("dead_letters", "dead_letter_count", "Given up and set aside.", CounterMetricFamily),
    _Figure("paused", "paused", "1 while the channel is paused."),
    _Figure("bad_blocks", "bad_block_count", "Damaged blocks set aside.", CounterMetricFamily),
)


class Metrics(Collector):
    """``stats`` gives the figures, without clients."""

    def __init__(self, stats: Callable[[], BrokerStats]) -> None:
        self._stats = stats
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield GaugeMetricFamily(
            "nsqd_healthy", "0 while the disk refuses.", value=stats.health == "OK"
        )
        shown = stats.topics or ()
        topics = [((topic.topic_name,), topic) for topic in shown]
        yield from _families("nsqd_topic", ["topic"], _TOPIC, topics)
        channels = [
            ((topic.topic_name, channel.channel_name), channel)
            for topic in shown
            for channel in topic.channels
        ]
        yield from _families("nsqd_channel", ["topic", "channel"], _CHANNEL, channels)


def _families(
    prefix: str,
    labels: Sequence[str],
    figures: Sequence[_Figure],
    rows: Sequence[tuple[Sequence[str], object]],
) -> Iterator[Metric]:
    for figure in figures:
        family = figure.kind(f"{prefix}_{figure.name}", figure.meaning, labels=labels)
        for values, stats in rows:
            family.add_metric(values, getattr(stats, figure.of))
        yield family
