"""A node whose channel ``t``/``c`` has a policy, and what becomes of its messages."""

from nsqpy.clock import SECOND
from nsqpy.config import Durability
from nsqpy.core.channel import Channel
from nsqpy.core.dead_letters import DeadLetterPolicy
from tests.unit.core.node import Node, NodeConsumer

__all__ = [
    "BY_REQUEUE",
    "BY_TIMEOUT",
    "DEAD",
    "TIMEOUT_NS",
    "audit",
    "dead_channel",
    "figures",
    "make_node",
    "reasons",
    "requeue_all",
    "set_policy",
    "take",
]

DEAD = "t.c.dead"
TIMEOUT_NS = 60 * SECOND
BY_REQUEUE = "max_attempts exceeded by requeue"
BY_TIMEOUT = "max_attempts exceeded by timeout"


def make_node(durability: Durability = Durability.DISK, mem_queue_size: int = 10_000) -> Node:
    node = Node(durability=durability, mem_queue_size=mem_queue_size)
    node.broker.topic("t")
    node.broker.create_channel("t", "c")
    return node


def set_policy(node: Node, **policy: object) -> None:
    node.broker.set_channel_config("t", "c", DeadLetterPolicy.from_json(policy))


def take(node: Node, consumer: NodeConsumer) -> list[tuple[bytes, int]]:
    node.settle()
    return [(message.body, message.attempts) for message in consumer.received]


def requeue_all(node: Node, consumer: NodeConsumer, delay_ns: int = 0) -> list[int]:
    """Requeue what is in flight; the attempts it had."""
    node.settle()
    messages = consumer.take()
    for message in messages:
        consumer.requeue(message.id, delay_ns)
    node.settle()
    node.sync()
    audit(node)
    return [message.attempts for message in messages]


def audit(node: Node) -> None:
    for topic in node.broker.topics.values():
        for channel in topic.channels.values():
            channel.audit()


def dead_channel(node: Node) -> Channel:
    return node.channel(DEAD, "redrive")


def figures(node: Node) -> tuple[int, int, int, int]:
    """Depth, in flight, deferred and dead letters of the channel."""
    (topic,) = node.broker.stats("t", "c").topics or ()
    (stats,) = topic.channels
    return stats.depth, stats.in_flight_count, stats.deferred_count, stats.dead_letter_count


def reasons(node: Node) -> dict[str, int]:
    letters = node.channel("t", "c").dead_letters
    assert letters is not None
    return letters.reasons
