"""``/metrics``: what the daemon counts, for Prometheus, taken when it is asked for.

What there is one of (histograms, errors, connections) are metrics of prometheus-client. Topics,
channels and clients may be thousands, and are written here instead, a hundred at a time between
the turns of the event loop: for 1,000 topics with 10 channels each, prometheus-client takes 1.3 s
and everybody waits for it.

Only so many topics, channels and clients are shown as the configuration says: what is left out
is counted in ``nsqd_left_out``. See docs/metrics.md.
"""

import asyncio
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from nsqpy.clock import SECOND
from nsqpy.core.broker import Broker
from nsqpy.core.channel import Channel
from nsqpy.core.dead_letters import FAILURES, spent_by
from nsqpy.core.topic import Topic
from nsqpy.daemon.heartbeats import Fault
from nsqpy.daemon.tcp import Connections
from nsqpy.errors import ErrorCode
from nsqpy.net.http import HTTPServer
from nsqpy.net.limits import REFUSALS
from nsqpy.version import RELEASE

__all__ = ["LoopLag", "Metrics"]

_ROWS_AT_ONCE = 100
_LAG_EVERY_S = 0.25
_CLIENT_ID_MAX_CHARACTERS = 64
_SYNC_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

_NO_REASONS: Mapping[str, int] = {}
_SPENT_BY = tuple(map(spent_by, FAILURES))

Item = TypeVar("Item")
_Sees = Callable[[str], bool] | None


class _Family(NamedTuple):
    """One metric of each topic, channel or client; ``labels`` are more, after the row's own."""

    name: str
    meaning: str
    kind: str = "gauge"
    labels: str = ""

    @property
    def head(self) -> str:
        return f"# HELP {self.name} {self.meaning}\n# TYPE {self.name} {self.kind}\n"


def _counter(name: str, meaning: str, labels: str = "") -> _Family:
    return _Family(f"{name}_total", meaning, "counter", labels)


# In the order of what ``_topic_row``, ``_channel_row`` and ``_client_rows`` return. Families with
# one name and other labels stand together.
_TOPIC = (
    _Family("nsqd_topic_depth", "Messages that no channel has taken yet."),
    _Family("nsqd_topic_backend_depth", "Those of them that are on disk only."),
    _Family("nsqd_topic_oldest_seconds", "Age of the oldest of them; NaN if it is on disk only."),
    _counter("nsqd_topic_messages", "Messages published."),
    _counter("nsqd_topic_message_bytes", "Bytes of bodies published."),
    _Family("nsqd_topic_paused", "1 while the topic is paused."),
    _counter("nsqd_topic_dropped", "Messages dropped.", ',reason="overflow"'),
    _counter("nsqd_topic_bad_blocks", "Damaged blocks set aside."),
)
_CHANNEL = (
    _Family("nsqd_channel_depth", "Messages ready to be delivered, in memory and on disk."),
    _Family("nsqd_channel_backend_depth", "Those of them that are on disk only."),
    _Family("nsqd_channel_oldest_seconds", "Age of the oldest of them; NaN if it is on disk only."),
    _Family("nsqd_channel_in_flight", "Messages delivered and not answered."),
    _Family("nsqd_channel_deferred", "Messages that wait for their time."),
    _Family("nsqd_channel_leased", "Messages out on leases, or on their way back."),
    _Family("nsqd_channel_leases", "Leases."),
    _Family("nsqd_channel_clients", "Consumers."),
    _counter("nsqd_channel_messages", "Messages taken from the topic."),
    _counter("nsqd_channel_delivered", "Deliveries."),
    _counter("nsqd_channel_finished", "Messages answered with FIN."),
    _counter("nsqd_channel_requeues", "Deliveries answered with REQ."),
    _counter("nsqd_channel_timeouts", "Deliveries never answered."),
    _counter("nsqd_channel_dropped", "Messages dropped.", ',reason="overflow"'),
    _counter("nsqd_channel_dropped", "Messages dropped.", ',reason="sample"'),
    *(
        _counter("nsqd_channel_dead_letters", "Given up and set aside.", f',reason="{failure}"')
        for failure in FAILURES
    ),
    _Family("nsqd_channel_paused", "1 while the channel is paused."),
    _counter("nsqd_channel_bad_blocks", "Damaged blocks set aside."),
)
_CLIENT = (
    _Family("nsqd_client_connections", "Consumers that gave this client_id."),
    _Family("nsqd_client_ready", "Messages in flight that they allow: the sum of their RDY."),
    _Family("nsqd_client_in_flight", "Messages delivered to them and not answered."),
    _Family("nsqd_client_messages", "Messages delivered to those connected now."),
    _Family("nsqd_client_finished", "Messages that those connected now have finished."),
    _Family("nsqd_client_requeues", "Messages that those connected now have put back."),
)
_LATENCY = (
    _Family("nsqd_channel_e2e_latency_seconds", "Time from publish to FIN, over the window."),
)

_Row = tuple[str, Sequence[float]]


class Metrics:
    """One daemon's. ``tcp`` and ``http`` are set once they are there."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._scrape = asyncio.Lock()
        self._registry = CollectorRegistry()
        self.tcp: Connections | None = None
        self.http: HTTPServer | None = None
        self.fsync_seconds = Histogram(
            "nsqd_fsync_seconds",
            "How long each round of fsync took.",
            buckets=_SYNC_BUCKETS_S,
            registry=self._registry,
        )
        self.loop_lag_seconds = Histogram(
            "nsqd_loop_lag_seconds",
            "How late the event loop is, four times a second.",
            buckets=_LAG_BUCKETS_S,
            registry=self._registry,
        )
        self._registry.register(_Node(self))
        ProcessCollector(registry=self._registry)

    async def page(self, now_ns: int, sees: _Sees = None) -> bytes:
        """Everything, of topics only those that ``sees`` is true of; ``now_ns`` is wall time. One
        scrape at a time."""
        async with self._scrape:
            config = self._broker.config
            topics = [
                topic
                for _, topic in sorted(self._broker.topics.items())
                if sees is None or sees(topic.name)
            ]
            shown = topics[: config.metrics_max_channels]
            channels = [channel for topic in shown for channel in topic.channels.values()]
            left_out = {"topics": len(topics) - len(shown)}
            left_out["channels"] = max(len(channels) - config.metrics_max_channels, 0)
            del channels[config.metrics_max_channels :]
            pages = [
                await _page(_TOPIC, shown, lambda topic: [_topic_row(topic, now_ns)]),
                await _page(_CHANNEL, channels, lambda channel: [_channel_row(channel, now_ns)]),
                await _page(_LATENCY, channels, lambda channel: _latency_rows(channel, now_ns)),
            ]
            clients = await self._clients(sees)
            left_out["clients"] = max(len(clients) - config.metrics_max_clients, 0)
            rows = list(clients.items())[: config.metrics_max_clients]
            pages.append(await _page(_CLIENT, rows, lambda row: [row]))
            pages.append(_left_out(left_out))
            return b"".join([generate_latest(self._registry), *pages])

    async def _clients(self, sees: _Sees) -> dict[str, list[float]]:
        """By labels: the sums of what each client id has on each channel."""
        found: dict[str, list[float]] = {}
        for start, session in enumerate(list(self._broker.sessions)):
            if start % _ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)
            standing = session.standing
            if standing is None:
                continue
            channel, subscription = standing
            if sees is not None and not sees(channel.topic_name):
                continue
            client_id = _escaped(session.features.client_id[:_CLIENT_ID_MAX_CHARACTERS])
            labels = f'{_labels(channel)},client_id="{client_id}"'
            sums = found.setdefault(labels, [0.0] * len(_CLIENT))
            for place, value in enumerate(
                (
                    1,
                    subscription.ready_count,
                    subscription.in_flight_count,
                    subscription.message_count,
                    subscription.finish_count,
                    subscription.requeue_count,
                )
            ):
                sums[place] += value
        return found


# --- the node ---


class _Node(Collector):
    """What there is one of, as it is at the moment."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        broker = self._metrics._broker
        yield InfoMetricFamily("nsqd", "The version that runs.", value={"version": RELEASE})
        yield _gauge("nsqd_start_time_seconds", "When it started.", broker.start_time_s)
        yield _gauge("nsqd_healthy", "0 while the disk refuses.", broker.disk_health == "OK")
        with suppress(OSError):
            space = os.statvfs(broker.config.data_path or ".")
            free_bytes = space.f_bavail * space.f_frsize
            yield _gauge("nsqd_disk_free_bytes", "Room where the queues are.", free_bytes)
        yield _gauge("nsqd_topics", "Topics.", len(broker.topics))
        channel_count = sum(len(topic.channels) for topic in broker.topics.values())
        yield _gauge("nsqd_channels", "Channels.", channel_count)
        codes = {code.value: broker.error_counts[code] for code in ErrorCode}
        yield _by_label("nsqd_errors", "Error frames sent, by code.", "code", codes)
        yield from _port_families(self._metrics.tcp, self._metrics.http)


def _port_families(tcp: Connections | None, http: HTTPServer | None) -> Iterator[Metric]:
    """What the listeners count."""
    connections = GaugeMetricFamily("nsqd_connections", "Connections, by port.", labels=["port"])
    refused = CounterMetricFamily(
        "nsqd_connections_refused", "Connections beyond a limit.", labels=["port", "reason"]
    )
    counts = {"TCP": (len(tcp.open), tcp.limit)} if tcp is not None else {}
    if http is not None and http.limit is not None:
        counts["HTTP"] = (http.connection_count, http.limit)
    for port, (count, limit) in counts.items():
        connections.add_metric([port], count)
        for reason in REFUSALS:
            refused.add_metric([port, reason], limit.refused[reason])
    yield connections
    yield refused
    if tcp is not None:
        cut_off = {fault.name.lower(): tcp.cut_off[fault.name.lower()] for fault in Fault}
        yield _by_label("nsqd_clients_cut_off", "Clients given up, by reason.", "reason", cut_off)
    if http is not None:
        yield _by_label("nsqd_http_errors", "Refusals over HTTP, by code.", "code", http.errors)


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=value)


def _by_label(name: str, meaning: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _left_out(counts: Mapping[str, int]) -> bytes:
    family = _Family("nsqd_left_out", "Topics, channels and client ids beyond the bounds.")
    lines = [f'{family.name}{{kind="{kind}"}} {count}\n' for kind, count in counts.items()]
    return "".join([family.head, *lines]).encode()


# --- topics, channels, clients ---


async def _page(
    families: Sequence[_Family],
    items: Sequence[Item],
    rows_of: Callable[[Item], Iterable[_Row]],
) -> bytes:
    """The families, each with a line for each row; so many items between two waits."""
    lines: list[list[bytes]] = [[] for _ in families]
    names = [(family.name, family.labels) for family in families]
    for start in range(0, len(items), _ROWS_AT_ONCE):
        rows = [row for item in items[start : start + _ROWS_AT_ONCE] for row in rows_of(item)]
        labels = [row[0] for row in rows]
        columns = zip(*(row[1] for row in rows), strict=True)
        for into, (name, more), column in zip(lines, names, columns, strict=False):
            into.append(
                "".join(
                    [
                        f"{name}{{{own}{more}}} {value}\n"
                        for own, value in zip(labels, column, strict=True)
                    ]
                ).encode(errors="replace")
            )
        await asyncio.sleep(0)
    parts: list[bytes] = []
    shown = ""
    for family, into in zip(families, lines, strict=True):
        if family.name != shown:
            parts.append(family.head.encode())
        shown = family.name
        parts += into
    return b"".join(parts)


def _labels(channel: Channel) -> str:
    return f'topic="{channel.topic_name}",channel="{channel.name}"'


def _topic_row(topic: Topic, now_ns: int) -> _Row:
    return (
        f'topic="{topic.name}"',
        (
            topic.depth,
            topic.backend_depth,
            _age_seconds(topic.oldest_ns, now_ns),
            topic.message_count,
            topic.message_bytes,
            int(topic.paused),
            topic.dropped_count,
            topic.bad_block_count,
        ),
    )


def _channel_row(channel: Channel, now_ns: int) -> _Row:
    letters = channel.dead_letters
    reasons = letters.reasons if letters is not None else _NO_REASONS
    pending_count = letters.pending_count if letters is not None else 0
    return (
        _labels(channel),
        (
            channel.depth,
            channel.backend_depth,
            _age_seconds(channel.oldest_ns, now_ns),
            channel.in_flight_count,
            channel.deferred_count + pending_count,
            channel.leased_count,
            channel.leases.lease_count if channel.leases is not None else 0,
            len(channel.subscriptions),
            channel.message_count,
            channel.delivered_count,
            channel.finish_count,
            channel.requeue_count,
            channel.timeout_count,
            channel.dropped_count,
            channel.sampled_out_count,
            *(reasons.get(reason, 0) for reason in _SPENT_BY),
            int(channel.paused),
            channel.bad_block_count,
        ),
    )


def _latency_rows(channel: Channel, now_ns: int) -> list[_Row]:
    if channel.latency is None:
        return []
    labels = _labels(channel)
    return [
        (f'{labels},quantile="{found.quantile:g}"', (found.value / SECOND,))
        for found in channel.latency.stats(now_ns).percentiles or ()
    ]


def _age_seconds(oldest_ns: int | None, now_ns: int) -> float:
    if oldest_ns is None:
        return math.nan
    return max(now_ns - oldest_ns, 0) / SECOND if oldest_ns else 0


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# --- the event loop ---


class LoopLag:
    """Looks four times a second how much later it is called than it asked to be."""

    def __init__(self, histogram: Histogram) -> None:
        self._observe = histogram.observe
        self._loop = asyncio.get_running_loop()
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due_s = self._loop.time() + _LAG_EVERY_S
        self._timer = self._loop.call_at(self._due_s, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self) -> None:
        self._observe(max(self._loop.time() - self._due_s, 0.0))
        self.start()
