"""A topic: what is published is stored once, and copied to every channel."""

import pytest

from nsqpy.clock import SECOND
from nsqpy.config import Durability
from nsqpy.core.topic import ExitingError
from nsqpy.errors import StorageError
from nsqpy.message import BATCH_MAX_BYTES, BATCH_MAX_MESSAGES
from tests.unit.core.node import Node


@pytest.fixture(params=[0, 3, 10_000])
def node(request: pytest.FixtureRequest) -> Node:
    return Node(mem_queue_size=request.param)


class TestRoute:
    def test_every_channel_gets_every_message(self, node: Node) -> None:
        consumers = [node.subscribe("t", name, ready_count=9) for name in ("a", "b", "c")]
        assert node.publish("t", b"1", b"2") is None
        assert [consumer.take_bodies() for consumer in consumers] == [[b"1", b"2"]] * 3

    def test_copies_share_id_and_time_but_not_attempts(self, node: Node) -> None:
        first, second = (node.subscribe("t", name) for name in ("a", "b"))
        node.publish("t", b"1")
        (message,) = first.take()
        assert second.take() == [message]
        first.requeue(message.id)
        second.finish(message.id)
        node.settle()
        assert first.take() == [message._replace(attempts=2)]

    def test_what_waits_is_stored_in_one_write(self) -> None:
        node = Node()
        node.subscribe("t", "c", ready_count=0)
        before = node.files.write_count
        tickets = [node.publish_later("t", b"%d" % index) for index in range(50)]
        assert not any(ticket.done for ticket in tickets)
        node.turn()
        assert all(ticket.done for ticket in tickets)
        assert node.files.write_count == before + 1

    def test_the_order_is_the_order_of_publishing(self, node: Node) -> None:
        consumer = node.subscribe("t", "c", ready_count=100)
        for index in range(6):
            node.publish_later("t", b"%d" % index, delay_ns=SECOND if index % 3 == 2 else 0)
        node.settle()
        assert consumer.take_bodies() == [b"0", b"1", b"3", b"4"]
        node.advance(SECOND)
        assert consumer.take_bodies() == [b"2", b"5"]

    def test_a_large_publish_is_cut_into_batches_and_kept_in_order(self) -> None:
        node = Node()
        consumer = node.subscribe("t", "c", ready_count=2500)
        bodies = [b"%d" % index for index in range(2 * BATCH_MAX_MESSAGES + 5)]
        node.publish("t", *bodies)
        assert consumer.take_bodies() == bodies
        large = [bytes([index]) * (BATCH_MAX_BYTES // 2 + 1) for index in range(3)]
        consumer = node.subscribe("u", "c", ready_count=2500)
        node.publish("u", *large)
        assert consumer.take_bodies() == large

    def test_a_message_larger_than_a_batch_goes_through(self) -> None:
        node = Node()
        consumer = node.subscribe("t", "c", ready_count=9)
        bodies = [b"a", bytes(BATCH_MAX_BYTES + 1), b"b"]
        node.publish("t", *bodies)
        assert consumer.take_bodies() == bodies

    def test_timestamps_and_ids_are_of_the_turn(self, node: Node) -> None:
        consumer = node.subscribe("t", "c", ready_count=9)
        node.publish("t", b"1", b"2")
        first, second = consumer.take()
        assert first.timestamp_ns == second.timestamp_ns == node.clock.now().wall_ns
        assert first.id < second.id

    def test_counts(self, node: Node) -> None:
        node.subscribe("t", "c")
        node.publish("t", b"abc", b"de")
        topic = node.broker.topics["t"]
        assert (topic.message_count, topic.message_bytes, topic.depth) == (2, 5, 0)

    def test_a_failure_is_the_publishers_to_know(self, node: Node) -> None:
        consumer = node.subscribe("t", "c", ready_count=9)
        node.files.fail("write")
        error = node.publish("t", b"lost")
        assert isinstance(error, StorageError)
        assert error.reason == "No space left on device"
        assert node.broker.topics["t"].message_count == 0
        assert node.publish("t", b"kept") is None
        assert consumer.take_bodies() == [b"kept"]


class TestBacklog:
    def test_the_first_channel_gets_what_waited(self, node: Node) -> None:
        for index in range(7):
            node.publish("t", b"%d" % index)
        assert node.broker.topics["t"].depth == 7
        consumer = node.subscribe("t", "c", ready_count=100)
        node.publish_later("t", b"new")
        node.settle()
        assert consumer.take_bodies() == [*(b"%d" % index for index in range(7)), b"new"]
        assert node.broker.topics["t"].depth == 0

    def test_a_later_channel_gets_only_what_comes_later(self, node: Node) -> None:
        node.publish("t", b"old")
        node.subscribe("t", "first")
        node.settle()
        later = node.subscribe("t", "later", ready_count=9)
        node.publish("t", b"new")
        assert later.take_bodies() == [b"new"]

    def test_a_deferred_message_keeps_its_time_in_the_topic(self, node: Node) -> None:
        node.publish("t", b"x", delay_ns=2 * SECOND)
        node.advance(SECOND)
        consumer = node.subscribe("t", "c")
        node.advance(SECOND - 1)
        assert consumer.take() == []
        node.advance(1)
        assert consumer.take_bodies() == [b"x"]

    def test_a_backlog_larger_than_one_pump_arrives_whole(self) -> None:
        node = Node(mem_queue_size=100)
        bodies = [b"%d" % index for index in range(20_000)]
        for start in range(0, 20_000, 1000):
            node.publish("t", *bodies[start : start + 1000])
        node.broker.create_channel("t", "c")
        node.settle()
        assert (node.broker.topics["t"].depth, node.channel("t", "c").depth) == (0, 20_000)

    def test_what_cannot_be_copied_stays_and_is_copied_later(self) -> None:
        node = Node(durability=Durability.DISK)
        node.publish("t", b"1", b"2")
        consumer = node.subscribe("t", "c", ready_count=9)
        node.files.fail("write", path="c.channel")
        node.settle()
        assert node.broker.topics["t"].depth == 2
        assert node.broker.health.startswith("NOK - ")
        node.advance(SECOND)
        assert consumer.take_bodies() == [b"1", b"2"]

    def test_a_backlog_that_is_all_damaged_leaves_no_trace_in_the_channel(self) -> None:
        node = Node(mem_queue_size=0, max_bytes_per_file=1000)
        node.publish("t", b"lost")
        (path,) = node.files.paths(".segment")
        node.files.content(path)[-1] ^= 1
        consumer = node.subscribe("t", "c")
        node.settle()
        assert node.broker.topics["t"].bad_block_count == 1
        assert node.files.paths(".segment") == [path]
        node.publish("t", bytes(2000))  # takes a segment of its own
        assert consumer.take_bodies() == [bytes(2000)]


class TestPause:
    def test_messages_wait_in_a_paused_topic_and_channels_go_on(self, node: Node) -> None:
        consumer = node.subscribe("t", "c", ready_count=1)
        node.publish("t", b"1", b"2")
        (first,) = consumer.take()
        node.broker.pause_topic("t")
        assert node.publish("t", b"3") is None
        assert node.broker.topics["t"].depth == 1
        consumer.finish(first.id)
        node.settle()
        assert consumer.take_bodies() == [b"2"]
        consumer.ready(5)
        node.settle()
        assert consumer.take() == []
        node.broker.unpause_topic("t")
        node.settle()
        assert consumer.take_bodies() == [b"3"]

    def test_emptying_clears_the_topic_only(self, node: Node) -> None:
        node.subscribe("t", "c", ready_count=0)
        node.publish("t", b"in the channel")
        node.broker.pause_topic("t")
        node.publish("t", b"in the topic")
        node.broker.empty_topic("t")
        assert (node.broker.topics["t"].depth, node.channel("t", "c").depth) == (0, 1)
        node.broker.unpause_topic("t")
        node.settle()
        assert node.channel("t", "c").depth == 1


def test_a_topic_that_goes_away_refuses() -> None:
    node = Node()
    waiting = node.publish_later("t", b"1")
    topic = node.broker.topics["t"]
    node.broker.delete_topic("t")
    assert isinstance(waiting.error, ExitingError)
    assert str(waiting.error) == "exiting"
    assert topic.exiting
    assert node.publish("t", b"2") is None  # a new topic of that name
    assert node.broker.topics["t"] is not topic


class TestHold:
    def test_what_is_published_waits_in_the_topic_and_has_its_ok(self, node: Node) -> None:
        topic = node.broker.topic("t")
        topic.hold()
        early = node.subscribe("t", "early", ready_count=9)
        assert node.publish("t", b"1", b"2") is None
        assert (topic.depth, early.take_bodies()) == (2, [])
        late = node.subscribe("t", "late", ready_count=9)
        topic.release()
        node.settle()
        assert node.publish("t", b"3") is None
        assert early.take_bodies() == late.take_bodies() == [b"1", b"2", b"3"]
        assert topic.depth == 0

    def test_it_does_not_last_over_a_crash(self, node: Node) -> None:
        topic = node.broker.topic("t")
        topic.hold()
        consumer = node.subscribe("t", "c", ready_count=9)
        node.publish("t", b"1")
        assert consumer.take_bodies() == []
        node.crash()
        consumer = node.subscribe("t", "c", ready_count=9)
        node.settle()
        assert consumer.take_bodies() == [b"1"]
