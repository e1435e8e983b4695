"""What ``/stats`` shows, taken from the live objects at one moment."""

from collections.abc import Iterable
from operator import attrgetter

from nsqpy.core.channel import Channel
from nsqpy.core.latency import merged_latency
from nsqpy.core.stats import ChannelStats, LatencyStats, TopicStats
from nsqpy.core.topic import Topic

__all__ = ["topics_snapshot"]

_OFF = LatencyStats()


def topics_snapshot(
    topics: Iterable[Topic],
    include_clients: bool,
    wall_ns: int = 0,
    quantiles: tuple[float, ...] = (),
) -> tuple[TopicStats, ...]:
    """Topics and their channels by name; without clients, ``clients`` is None. ``wall_ns`` is now,
    for latencies."""
    by_name = sorted(topics, key=attrgetter("name"))
    return tuple(_topic_stats(topic, include_clients, wall_ns, quantiles) for topic in by_name)


def _topic_stats(
    topic: Topic, include_clients: bool, wall_ns: int, quantiles: tuple[float, ...]
) -> TopicStats:
    windows = [one.latency for one in topic.channels.values() if one.latency is not None]
    return TopicStats(
        topic_name=topic.name,
        channels=tuple(
            _channel_stats(channel, include_clients, wall_ns)
            for _, channel in sorted(topic.channels.items())
        ),
        e2e_processing_latency=merged_latency(windows, quantiles, wall_ns),
        depth=topic.depth,
        backend_depth=topic.backend_depth,
        message_count=topic.message_count,
        message_bytes=topic.message_bytes,
        paused=topic.paused,
        bad_block_count=topic.bad_block_count,
    )


def _channel_stats(channel: Channel, include_clients: bool, wall_ns: int) -> ChannelStats:
    letters = channel.dead_letters
    return ChannelStats(
        channel_name=channel.name,
        depth=channel.depth,
        backend_depth=channel.backend_depth,
        in_flight_count=channel.in_flight_count,
        deferred_count=channel.deferred_count + (letters.pending_count if letters else 0),
        message_count=channel.message_count,
        global_msg_count=channel.delivered_count,
        requeue_count=channel.requeue_count,
        timeout_count=channel.timeout_count,
        client_count=len(channel.subscriptions),
        clients=tuple(entry.consumer.stats() for entry in channel.subscriptions)
        if include_clients
        else None,
        paused=channel.paused,
        e2e_processing_latency=_OFF if channel.latency is None else channel.latency.stats(wall_ns),
        dropped_count=channel.dropped_count,
        dead_letter_count=letters.count if letters else 0,
        dead_letter_reasons=dict(letters.reasons) if letters else {},
        bad_block_count=channel.bad_block_count,
        leased_count=channel.leased_count,
        lease_count=channel.leases.lease_count if channel.leases is not None else 0,
    )
