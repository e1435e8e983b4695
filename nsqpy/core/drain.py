"""What a daemon that drains still has, and what it waits for; pure.

It waits for what somebody is about to take: messages of channels that have consumers and are not
paused, those deferred until before the deadline included, and what a topic is about to hand to
its channels. What nobody takes, it would wait for in vain; what is leased is on disk, and a lease
outlives the daemon.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from nsqpy.core.deadlines import NEVER

if TYPE_CHECKING:
    from nsqpy.clock import Instant
    from nsqpy.core.broker import Broker
    from nsqpy.core.channel import Channel
    from nsqpy.core.topic import Topic

__all__ = ["Remainder", "remainders", "waits"]


class Remainder(NamedTuple):
    """Messages of a channel, or of a topic itself (``channel`` empty)."""

    topic: str
    channel: str
    depth: int
    in_flight: int
    deferred: int
    leased: int = 0

    @property
    def total(self) -> int:
        return self.depth + self.in_flight + self.deferred + self.leased


def remainders(broker: "Broker") -> Iterator[Remainder]:
    """Every place that has messages."""
    for topic in broker.topics.values():
        if topic.depth:
            yield Remainder(topic.name, "", topic.depth, 0, 0)
        for channel in topic.channels.values():
            found = Remainder(
                topic.name,
                channel.name,
                channel.depth,
                channel.in_flight_count,
                channel.deferred_count,
                channel.leased_count,
            )
            if found.total:
                yield found


def waits(broker: "Broker", now: "Instant", deadline_ns: int) -> bool:
    """Whether something is about to be taken, or due before ``deadline_ns`` (monotonic)."""
    return any(
        _is_moving(topic)
        or any(_is_wanted(channel, now, deadline_ns) for channel in topic.channels.values())
        for topic in broker.topics.values()
    )


def _is_moving(topic: "Topic") -> bool:
    return bool(topic.channels) and not topic.paused and topic.depth > 0


def _is_wanted(channel: "Channel", now: "Instant", deadline_ns: int) -> bool:
    if channel.paused or not channel.subscriptions:
        return False
    if channel.depth or channel.in_flight_count:
        return True
    due_ns = channel.next_deferred_ns(now)
    return due_ns != NEVER and due_ns <= deadline_ns
