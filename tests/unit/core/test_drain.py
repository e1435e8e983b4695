"""What a daemon that drains has left, and what it waits for."""

import pytest

from nsqpy.clock import SECOND
from nsqpy.core.broker import DrainingError
from nsqpy.core.drain import Remainder, remainders, waits
from tests.unit.core.node import Client, Node

SOON = 10 * SECOND


@pytest.fixture
def node() -> Node:
    return Node()


def is_waiting(node: Node) -> bool:
    return waits(node.broker, node.clock.now(), node.clock.monotonic_ns() + SOON)


class TestRemainders:
    def test_every_place_that_has_messages(self, node: Node) -> None:
        node.publish("alone", b"1", b"2")
        consumer = node.subscribe("t", "c", ready_count=1)
        node.publish("t", b"1", b"2", b"3")
        node.publish("t", b"later", delay_ns=SECOND)
        node.broker.create_channel("t", "empty")
        assert list(remainders(node.broker)) == [
            Remainder("alone", "", 2, 0, 0),
            Remainder("t", "c", 2, 1, 1),
        ]
        assert [found.total for found in remainders(node.broker)] == [2, 4]
        assert consumer.take_bodies() == [b"1"]


class TestWaits:
    def test_for_what_consumers_are_taking(self, node: Node) -> None:
        consumer = node.subscribe("t", "c", ready_count=0)
        assert not is_waiting(node)
        node.publish("t", b"1")
        assert is_waiting(node)
        consumer.ready(1)
        node.settle()
        assert is_waiting(node)  # in flight
        consumer.finish(*consumer.take_ids())
        assert not is_waiting(node)

    def test_not_for_what_nobody_takes(self, node: Node) -> None:
        node.publish("alone", b"1")
        node.broker.topic("t")
        node.broker.create_channel("t", "c")
        node.publish("t", b"1")
        assert not is_waiting(node)
        consumer = node.subscribe("t", "c", ready_count=0)
        assert is_waiting(node)
        node.broker.pause_channel("t", "c")
        assert not is_waiting(node)
        node.broker.unpause_channel("t", "c")
        consumer.leave()
        assert not is_waiting(node)

    def test_for_what_a_topic_is_about_to_hand_on(self, node: Node) -> None:
        node.broker.pause_topic(node.broker.topic("t").name)
        node.broker.create_channel("t", "c")
        node.publish("t", b"1")
        assert not is_waiting(node)
        node.broker.topics["t"].unpause()
        assert is_waiting(node)

    def test_for_deferred_messages_that_are_due_in_time(self, node: Node) -> None:
        node.subscribe("t", "c")
        node.publish("t", b"1", delay_ns=SOON + 1)
        node.publish("t", b"far", delay_ns=3600 * SECOND)  # on disk, not in memory
        assert not is_waiting(node)
        node.publish("t", b"2", delay_ns=SOON)
        assert is_waiting(node)


class TestRefusals:
    def test_a_publisher_over_tcp_is_told_to_go_elsewhere(self, node: Node) -> None:
        client = Client(node)
        node.broker.draining = True
        client.publish("t", b"1")
        reason = b"draining: this nsqd takes no more messages, publish to another one"
        assert client.take() == [b"E_PUB_FAILED PUB failed " + reason]
        assert client.session.finished
        assert not node.broker.topics

    def test_one_that_calls(self, node: Node) -> None:
        node.subscribe("t", "c")
        node.broker.draining = True
        with pytest.raises(DrainingError):
            node.broker.publish("t", [b"1"])

    def test_what_was_published_before_is_delivered(self, node: Node) -> None:
        client = Client(node)
        consumer = node.subscribe("t", "c")
        client.publish("t", b"1")
        node.broker.draining = True
        node.settle()
        assert client.take() == [b"OK"]
        assert consumer.take_bodies() == [b"1"]

    def test_health_says_so(self, node: Node) -> None:
        assert node.broker.health == "OK"
        node.broker.draining = True
        assert node.broker.health == "NOK - draining"
