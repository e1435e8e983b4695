"""Policies that are set, kept and refused; and dead letters that are sent back."""

from collections.abc import Callable

import pytest

from nsqpy.clock import MILLISECOND
from nsqpy.config import Durability
from nsqpy.core.catalogue import NotFoundError
from nsqpy.core.dead_letters import DeadLetterPolicy
from nsqpy.errors import ConfigError, StorageError
from tests.unit.core.graves import (
    DEAD,
    audit,
    dead_channel,
    figures,
    make_node,
    requeue_all,
    set_policy,
    take,
)
from tests.unit.core.node import Node, NodeConsumer


@pytest.fixture(params=list(Durability), ids=str)
def node(request: pytest.FixtureRequest) -> Node:
    return make_node(durability=request.param)


class TestConfig:
    @pytest.mark.parametrize("stop", [Node.restart, Node.crash, Node.lose_power])
    def test_it_outlives_the_process(self, stop: Callable[[Node], None]) -> None:
        node = make_node()
        assert node.broker.channel_config("t", "c").dead_letter_topic == DEAD
        set_policy(node, max_attempts=7, retry_delay_ms=5)
        stop(node)
        assert node.broker.channel_config("t", "c") == DeadLetterPolicy(7, DEAD, 5 * MILLISECOND)

    def test_it_goes_with_the_channel(self) -> None:
        node = make_node()
        set_policy(node, max_attempts=7)
        node.broker.delete_channel("t", "c")
        node.broker.create_channel("t", "c")
        node.restart()
        assert node.broker.channel_config("t", "c").max_attempts == 0

    def test_what_cannot_be_read_is_ignored(self, caplog: pytest.LogCaptureFixture) -> None:
        node = make_node()
        set_policy(node, max_attempts=7)
        content = node.files.read_whole("data/nsqd.dat")
        node.files.put("data/nsqd.dat", content.replace(b":7,", b":-7,"))
        node.crash()
        assert node.broker.channel_config("t", "c").max_attempts == 0
        assert "ignoring its configuration - max_attempts must be" in caplog.text

    def test_two_channels_cannot_share_a_topic(self) -> None:
        node = make_node()
        node.broker.create_channel("t", "d")
        set_policy(node, max_attempts=1)
        set_policy(node, max_attempts=2)
        with pytest.raises(ConfigError, match="dead_letter_topic is that of t:c already"):
            node.broker.set_channel_config("t", "d", DeadLetterPolicy(dead_letter_topic=DEAD))

    def test_a_channel_has_to_be_there(self) -> None:
        with pytest.raises(NotFoundError):
            make_node().broker.set_channel_config("t", "d", DeadLetterPolicy())


class TestRedrive:
    def buried(self, node: Node, count: int) -> NodeConsumer:
        """A consumer whose ``count`` messages are all dead letters."""
        set_policy(node, max_attempts=1)
        consumer = node.subscribe("t", "c", ready_count=count)
        node.publish("t", *[b"%d" % number for number in range(count)])
        requeue_all(node, consumer)
        assert dead_channel(node).depth == count
        return consumer

    def redrive(self, node: Node, max_messages: int = 1000) -> tuple[int, int]:
        moved = node.broker.redrive("t", "c", max_messages, node.clock.now())
        audit(node)
        node.settle()
        node.sync()
        audit(node)
        return moved

    def test_messages_come_back_with_attempts_anew(self, node: Node) -> None:
        consumer = self.buried(node, 3)
        other = node.subscribe("t", "other")
        assert self.redrive(node) == (3, 0)
        assert take(node, consumer) == [(b"0", 1), (b"1", 1), (b"2", 1)]
        assert take(node, other) == []
        assert len({message.id for message in consumer.received}) == 3
        requeue_all(node, consumer)
        assert dead_channel(node).depth == 3

    def test_as_many_as_asked_for(self, node: Node) -> None:
        consumer = self.buried(node, 5)
        assert self.redrive(node, 2) == (2, 3)
        assert take(node, consumer) == [(b"0", 1), (b"1", 1)]
        assert self.redrive(node) == (3, 0)
        assert self.redrive(node) == (0, 0)

    def test_nothing_to_send_back(self, node: Node) -> None:
        assert self.redrive(node) == (0, 0)
        set_policy(node, max_attempts=1)
        assert self.redrive(node) == (0, 0)

    def test_who_looks_at_them_takes_nothing_away(self, node: Node) -> None:
        consumer = self.buried(node, 1)
        inspector = node.subscribe(DEAD, "inspector#ephemeral")
        node.publish("t", b"later")
        requeue_all(node, consumer)
        assert dead_channel(node).depth == 2
        assert take(node, inspector) == [(b"later", 1)]

    def test_a_kill_finds_each_in_one_place_at_least(self) -> None:
        node = make_node()
        self.buried(node, 2)
        node.broker.redrive("t", "c", 10, node.clock.now())
        node.crash()
        assert figures(node)[0] == 2
        assert dead_channel(node).depth == 2
        assert self.redrive(node) == (2, 0)
        node.crash()
        assert figures(node)[0] == 4
        assert dead_channel(node).depth == 0

    def test_power_lost_before_the_sync_leaves_them_dead(self) -> None:
        node = make_node(durability=Durability.FSYNC)
        self.buried(node, 2)
        node.sync()
        node.broker.redrive("t", "c", 10, node.clock.now())
        node.settle()
        node.lose_power()
        assert dead_channel(node).depth == 2
        assert figures(node)[0] == 0
        assert self.redrive(node) == (2, 0)
        node.sync()
        node.lose_power()
        assert (dead_channel(node).depth, figures(node)[0]) == (0, 2)

    def test_a_full_disk_leaves_them_dead(self) -> None:
        node = make_node()
        self.buried(node, 2)
        node.files.fail("write", path="t.topic")
        with pytest.raises(StorageError):
            node.broker.redrive("t", "c", 10, node.clock.now())
        audit(node)
        assert dead_channel(node).depth == 2
        assert self.redrive(node) == (2, 0)

    def test_a_channel_has_to_be_there(self, node: Node) -> None:
        with pytest.raises(NotFoundError):
            node.broker.redrive("t", "d", 1, node.clock.now())
