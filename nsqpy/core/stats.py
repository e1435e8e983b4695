"""Immutable snapshots of everything countable, and the two faces of ``/stats``.

The fields are the JSON's keys, in the JSON's order. The broker takes a ``BrokerStats``; what
renders it here reads no clock and keeps nothing. Source: nsqd/stats.go,
nsqd/http.go, printStats.
"""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from operator import attrgetter

from nsqpy.clock import SECOND
from nsqpy.gojson import JSON, go_json, go_number
from nsqpy.scalars import format_duration
from nsqpy.version import NSQ_VERSION

__all__ = [
    "BrokerStats",
    "ChannelStats",
    "ClientStats",
    "LatencyStats",
    "MemoryStats",
    "Percentile",
    "PubCount",
    "TopicStats",
    "restrict",
    "select",
    "stats_json",
    "stats_text",
]

# --- snapshots ---


@dataclass(frozen=True, slots=True)
class Percentile:
    """``quantile`` in (0, 1]; ``value`` in nanoseconds."""

    quantile: float
    value: float


@dataclass(frozen=True, slots=True)
class LatencyStats:
    """Time from publish to FIN over the configured window; ``percentiles`` None means off."""

    count: int = 0
    percentiles: tuple[Percentile, ...] | None = None


@dataclass(frozen=True, slots=True)
class PubCount:
    """What one connection published to one topic."""

    topic: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStats:
    """One connection. ``connect_ts`` is Unix seconds; ``message_count`` is what was sent to it.

    It is a producer once ``pub_counts`` holds something, and may be a consumer as well.
    """

    client_id: str
    hostname: str
    version: str = "V2"
    remote_address: str
    state: int
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    user_agent: str = ""
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    pub_counts: tuple[PubCount, ...] = ()
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStats:
    """One channel. ``clients`` is None when they were not asked for; ``client_count`` holds then
    too. ``depth`` is memory and disk together, without what is in flight or deferred.

    Ours: ``dropped_count``, what a full ``#ephemeral`` channel threw away; ``dead_letter_count``,
    since the start, and how many of them for which reason; ``bad_block_count``, the damaged
    stretches of its logs that were set aside in ``.bad`` files since the start; ``leased_count``
    messages out on ``lease_count`` leases, or on their way back.
    """

    channel_name: str
    depth: int = 0
    backend_depth: int = 0
    in_flight_count: int = 0
    deferred_count: int = 0
    message_count: int = 0
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    clients: tuple[ClientStats, ...] | None = ()
    paused: bool = False
    e2e_processing_latency: LatencyStats = LatencyStats()
    dropped_count: int = 0
    dead_letter_count: int = 0
    dead_letter_reasons: Mapping[str, int] = field(default_factory=dict)
    bad_block_count: int = 0
    leased_count: int = 0
    lease_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """One topic. ``depth`` is what no channel has taken yet; ``message_bytes`` counts bodies.

    ``bad_block_count`` is ours, as for channels.
    """

    topic_name: str
    channels: tuple[ChannelStats, ...] = ()
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    message_bytes: int = 0
    paused: bool = False
    e2e_processing_latency: LatencyStats = LatencyStats()
    bad_block_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStats:
    """The whole daemon, or what a filter left of it.

    ``topics`` and their channels are sorted by name; None (JSON null) means that the topic asked
    for does not exist. ``producers`` is empty when clients were not asked for. ``start_time`` is
    Unix seconds, ``health`` is ``OK`` or ``NOK - `` and the last storage error.
    """

    health: str
    start_time: int
    topics: tuple[TopicStats, ...] | None = ()
    producers: tuple[ClientStats, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStats:
    """What of the original's nine figures a Python process can tell; the rest is 0.

    ``heap_objects``: blocks that Python's allocator has handed out. ``heap_in_use_bytes``:
    resident set. ``gc_pause_usec_*``: percentiles of recent full collections.
    ``gc_total_runs``: collections of every generation.
    """

    heap_objects: int = 0
    heap_idle_bytes: int = 0
    heap_in_use_bytes: int = 0
    heap_released_bytes: int = 0
    gc_pause_usec_100: int = 0
    gc_pause_usec_99: int = 0
    gc_pause_usec_95: int = 0
    next_gc_bytes: int = 0
    gc_total_runs: int = 0


def select(stats: BrokerStats, topic: str = "", channel: str = "") -> BrokerStats:
    """The part of ``stats`` that the names ask for; an empty name asks for everything.

    An unknown topic leaves None and no producers; a topic without the channel is left out. With
    a topic, producers are those that published to it, with that count alone.
    """
    topics = stats.topics
    producers = stats.producers
    if topics is not None and topic:
        topics = tuple(found for found in topics if found.topic_name == topic) or None
        producers = tuple(
            replace(client, pub_counts=counts)
            for client in producers
            if (counts := tuple(count for count in client.pub_counts if count.topic == topic))
        )
    if topics is None:
        return replace(stats, topics=None, producers=())
    if channel:
        topics = tuple(
            replace(found, channels=channels)
            for found in topics
            if (channels := tuple(c for c in found.channels if c.channel_name == channel))
        )
    return replace(stats, topics=topics, producers=producers)


def restrict(stats: BrokerStats, sees: Callable[[str], bool]) -> BrokerStats:
    """The part of ``stats`` that concerns the topics which ``sees`` is true of."""
    topics = stats.topics
    if topics is not None:
        topics = tuple(
            replace(
                topic,
                channels=tuple(
                    replace(channel, clients=_restricted(channel.clients, sees))
                    for channel in topic.channels
                ),
            )
            for topic in topics
            if sees(topic.topic_name)
        )
    return replace(
        stats,
        topics=topics,
        producers=tuple(
            client for client in _restricted(stats.producers, sees) or () if client.pub_counts
        ),
    )


def _restricted(
    clients: tuple[ClientStats, ...] | None, sees: Callable[[str], bool]
) -> tuple[ClientStats, ...] | None:
    """Clients, without what they published to other topics."""
    if clients is None:
        return None
    return tuple(
        replace(client, pub_counts=tuple(c for c in client.pub_counts if sees(c.topic)))
        for client in clients
    )


# --- JSON ---

_OMITTED_WHEN_EMPTY = {
    *("zone_local_msg_count", "region_local_msg_count", "global_msg_count", "dropped_count"),
    *("dead_letter_count", "dead_letter_reasons", "bad_block_count"),
    *("leased_count", "lease_count"),
    *("authed", "auth_identity", "auth_identity_url", "pub_counts"),
}
_NESTED = {
    *("channels", "clients", "e2e_processing_latency", "percentiles", "pub_counts"),
    *("quantile", "value"),  # floats
}


class _Shape:
    """How one kind of snapshot becomes an object: looked up once, since there may be thousands."""

    __slots__ = ("names", "nested", "omitted", "values")

    def __init__(self, kind: type) -> None:
        self.names = [declared.name for declared in fields(kind)]
        self.values = attrgetter(*self.names)
        self.omitted = [name for name in self.names if name in _OMITTED_WHEN_EMPTY]
        self.nested = [name for name in self.names if name in _NESTED]


_SHAPES: dict[type, _Shape] = {
    kind: _Shape(kind)
    for kind in (
        *(TopicStats, ChannelStats, ClientStats, LatencyStats),
        *(Percentile, PubCount, MemoryStats),
    )
}


def stats_json(stats: BrokerStats, memory: MemoryStats | None = None) -> bytes:
    """The body of ``/stats?format=json``; without ``memory`` the key is left out."""
    document: dict[str, JSON] = {
        "version": NSQ_VERSION,
        "health": stats.health,
        "start_time": stats.start_time,
        "topics": _plain(stats.topics),
    }
    if memory is not None:
        document["memory"] = _plain(memory)
    document["producers"] = _plain(stats.producers or None)
    return go_json(document)


def _plain(value: object) -> JSON:
    """Snapshots to objects, key by key in their order; tuples to lists."""
    match value:
        case None:
            return None
        case float() | int():
            return go_number(float(value))
        case tuple():
            return [_plain(item) for item in value]
    shape = _SHAPES[type(value)]
    document = dict(zip(shape.names, shape.values(value), strict=True))
    for name in shape.omitted:
        if not document[name]:
            del document[name]
    for name in shape.nested:
        if name in document:
            document[name] = _plain(document[name])
    return document


# --- text ---


def stats_text(
    stats: BrokerStats, memory: MemoryStats | None = None, *, now_ns: int, uptime_ns: int
) -> bytes:
    """The body of ``/stats`` for people. ``now_ns`` is wall time, for the age of connections."""
    now_s = now_ns // SECOND
    started = datetime.fromtimestamp(stats.start_time, UTC).astimezone()
    lines = [
        f"nsqd v{NSQ_VERSION} (built w/python{platform.python_version()})",
        f"start_time {started.isoformat().replace('+00:00', 'Z')}",
        f"uptime {format_duration(uptime_ns)}",
        "",
        f"Health: {stats.health}",
    ]
    if memory is not None:
        lines += ["", "Memory:"]
        lines += [f"   {name:<25}\t{getattr(memory, name)}" for name in _SHAPES[MemoryStats].names]
    lines.append("")
    lines += _topic_lines(stats.topics or (), now_s)
    lines.append("")
    lines.append("Producers:" if stats.producers else "Producers: None")
    lines += [f"   {_client_line(client, now_s)}" for client in stats.producers]
    # Names that are no UTF-8 come as surrogates; the bytes go out as they came in.
    return ("\n".join(lines) + "\n").encode(errors="surrogateescape")


def _topic_lines(topics: tuple[TopicStats, ...], now_s: int) -> list[str]:
    if not topics:
        return ["Topics: None"]
    lines = ["Topics:"]
    for index, topic in enumerate(topics):
        if index:
            lines.append("")
        lines.append(
            f"{'*P ' if topic.paused else '   '}[{topic.topic_name:<15}]"
            f" depth: {topic.depth:<5} be-depth: {topic.backend_depth:<5}"
            f" msgs: {topic.message_count:<8}"
            f" e2e%: {_latencies(topic.e2e_processing_latency)}"
        )
        for channel in topic.channels:
            lines.append(_channel_line(channel))
            lines += [f"        {_client_line(client, now_s)}" for client in channel.clients or ()]
    return lines


def _channel_line(channel: ChannelStats) -> str:
    return (
        f"{'   *P ' if channel.paused else '      '}[{channel.channel_name:<25}]"
        f" depth: {channel.depth:<5} be-depth: {channel.backend_depth:<5}"
        f" inflt: {channel.in_flight_count:<4} def: {channel.deferred_count:<4}"
        f" re-q: {channel.requeue_count:<5} timeout: {channel.timeout_count:<5}"
        f" msgs: {channel.message_count:<8}"
        f" e2e%: {_latencies(channel.e2e_processing_latency)}"
    )


def _client_line(client: ClientStats, now_s: int) -> str:
    """A connection that published is shown as a producer, wherever it stands."""
    port = client.remote_address.rpartition(":")[2] if ":" in client.remote_address else ""
    identity = f"{client.hostname}:{port} {client.user_agent}"
    head = f"[{client.version} {identity:<21}]"
    connected = f"connected: {format_duration((now_s - client.connect_ts) * SECOND)}"
    if client.pub_counts:
        total = sum(published.count for published in client.pub_counts)
        topics = ",".join(f"{published.topic}={published.count}" for published in client.pub_counts)
        return f"{head} msgs: {total:<8} topics: {topics} {connected}"
    return (
        f"{head} state: {client.state} inflt: {client.in_flight_count:<4}"
        f" rdy: {client.ready_count:<4} fin: {client.finish_count:<8}"
        f" re-q: {client.requeue_count:<8} msgs: {client.message_count:<8} {connected}"
    )


_LATENCY_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def _latencies(latency: LatencyStats) -> str:
    return ", ".join(_human_ns(item.value) for item in latency.percentiles or ())


def _human_ns(value: float) -> str:
    for unit, suffix in _LATENCY_UNITS:
        if value > unit:
            return f"{value / unit:.1f}{suffix}"
    return f"{value:.1f}ns"
