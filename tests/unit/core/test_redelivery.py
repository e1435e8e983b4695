"""What becomes of a message whose delivery failed."""

import pytest

from nsqpy.clock import SECOND
from nsqpy.config import Durability
from nsqpy.core.dead_letters import DeadLetterPolicy
from tests.unit.core.graves import (
    BY_REQUEUE,
    BY_TIMEOUT,
    DEAD,
    TIMEOUT_NS,
    dead_channel,
    figures,
    make_node,
    reasons,
    requeue_all,
    set_policy,
    take,
)
from tests.unit.core.node import Node


@pytest.fixture(params=list(Durability), ids=str)
def node(request: pytest.FixtureRequest) -> Node:
    return make_node(durability=request.param)


def test_without_a_policy_a_message_comes_for_ever(node: Node) -> None:
    consumer = node.subscribe("t", "c")
    node.publish("t", b"poison")
    assert [requeue_all(node, consumer) for _ in range(20)] == [[n] for n in range(1, 21)]


@pytest.mark.parametrize("delay_ns", [0, SECOND])
def test_the_last_requeue_sends_it_to_the_dead_letter_topic(node: Node, delay_ns: int) -> None:
    set_policy(node, max_attempts=3)
    consumer = node.subscribe("t", "c")
    node.publish("t", b"poison")
    for attempts in (1, 2, 3):
        assert DEAD not in node.broker.topics
        assert requeue_all(node, consumer, delay_ns) == [attempts]
        node.advance(delay_ns)
    assert figures(node) == (0, 0, 0, 1)
    assert reasons(node) == {BY_REQUEUE: 1}
    assert dead_channel(node).depth == 1
    inspector = node.subscribe(DEAD, "inspector")
    node.subscribe(DEAD, "redrive", ready_count=0)
    assert take(node, inspector) == []  # it went to the channel that existed then
    node.publish("t", b"well")
    assert take(node, consumer) == [(b"well", 1)]


def test_the_last_timeout_does_too(node: Node) -> None:
    set_policy(node, max_attempts=2)
    consumer = node.subscribe("t", "c", ready_count=10)
    node.publish("t", b"a", b"b")
    node.advance(TIMEOUT_NS)
    assert [attempts for _, attempts in take(node, consumer)] == [1, 1, 2, 2]
    node.advance(TIMEOUT_NS)
    assert figures(node) == (0, 0, 0, 2)
    assert reasons(node) == {BY_TIMEOUT: 2}
    reader = node.subscribe(DEAD, "redrive", ready_count=10)
    assert take(node, reader) == [(b"a", 1), (b"b", 1)]


def test_messages_timing_out_together_go_their_own_ways(node: Node) -> None:
    set_policy(node, max_attempts=2)
    consumer = node.subscribe("t", "c", ready_count=1)
    node.publish("t", b"old")
    requeue_all(node, consumer)
    consumer.ready(10)
    node.publish("t", b"new")
    node.advance(TIMEOUT_NS)
    assert figures(node) == (0, 1, 0, 1)
    assert take(node, consumer)[-1] == (b"new", 2)


def test_a_retry_delay_grows_with_the_attempts(node: Node) -> None:
    set_policy(node, retry_delay_ms=1000, retry_delay_factor=10, retry_delay_max_ms=50_000)
    consumer = node.subscribe("t", "c")
    node.publish("t", b"flaky")
    for delay_ns in (1 * SECOND, 10 * SECOND, 50 * SECOND):
        requeue_all(node, consumer)
        node.advance(delay_ns - 1)
        assert figures(node) == (0, 0, 1, 0)
        node.advance(1)
        assert figures(node) == (0, 1, 0, 0)
    node.advance(TIMEOUT_NS)
    assert figures(node) == (0, 0, 1, 0)  # a timeout waits as well


def test_a_delay_that_the_consumer_asks_for_counts(node: Node) -> None:
    set_policy(node, retry_delay_ms=1000)
    consumer = node.subscribe("t", "c")
    node.publish("t", b"flaky")
    requeue_all(node, consumer, 5 * SECOND)
    node.advance(5 * SECOND - 1)
    assert figures(node) == (0, 0, 1, 0)
    node.advance(1)
    assert figures(node) == (0, 1, 0, 0)


def test_ephemeral_channels_have_dead_letters_too() -> None:
    node = make_node()
    consumer = node.subscribe("t", "x#ephemeral")
    policy = DeadLetterPolicy(max_attempts=1)
    node.broker.set_channel_config("t", "x#ephemeral", policy)
    node.publish("t", b"poison")
    requeue_all(node, consumer)
    assert node.channel("t.x.dead", "redrive").depth == 1
