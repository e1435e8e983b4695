"""Which topics and channels there are, and who gets to know: listeners, and the next process."""

import pytest

from nsqpy.clock import SECOND
from nsqpy.core.catalogue import NotFoundError, TopologyEvent
from nsqpy.errors import StorageError
from tests.unit.core.node import Node


@pytest.fixture
def node() -> Node:
    return Node()


def test_listeners_hear_of_everything(node: Node) -> None:
    events: list[TopologyEvent] = []
    node.broker.listeners.append(lambda event: events.append(event))
    node.subscribe("t", "c")
    node.broker.delete_topic("t")
    assert [(event.topic, event.channel, event.exists) for event in events] == [
        *(("t", None, True), ("t", "c", True)),
        *(("t", "c", False), ("t", None, False)),
    ]


def test_what_does_not_exist_is_said_to_be_missing(node: Node) -> None:
    node.broker.topic("t")
    for action, kind, name in (
        (lambda: node.broker.create_channel("x", "c"), "topic", "x"),
        (lambda: node.broker.delete_topic("x"), "topic", "x"),
        (lambda: node.broker.pause_topic("x"), "topic", "x"),
        (lambda: node.broker.empty_topic("x"), "topic", "x"),
        (lambda: node.broker.delete_channel("t", "x"), "channel", "x"),
        (lambda: node.broker.pause_channel("t", "x"), "channel", "x"),
        (lambda: node.broker.empty_channel("t", "x", node.clock.now()), "channel", "x"),
    ):
        with pytest.raises(NotFoundError) as caught:
            action()
        assert (caught.value.kind, caught.value.name) == (kind, name)


def test_many_topics_made_at_once_share_one_save(node: Node) -> None:
    path = "data/nsqd.dat"
    before = bytes(node.files.content(path))
    for index in range(20):
        node.broker.topic(f"t{index}")
    node.advance(SECOND - 1)
    assert bytes(node.files.content(path)) == before
    node.advance(1)
    assert bytes(node.files.content(path)).count(b'"t') >= 20


def test_what_must_not_come_back_is_saved_at_once(node: Node) -> None:
    node.broker.topic("t")
    node.broker.pause_topic("t")
    node.crash()
    assert node.broker.topics["t"].paused
    node.broker.unpause_topic("t")
    node.crash()
    assert not node.broker.topics["t"].paused


def test_a_save_that_fails_is_made_again(node: Node) -> None:
    node.broker.topic("t")
    node.files.fail("write", path="nsqd.dat")
    with pytest.raises(StorageError):
        node.broker.pause_topic("t")
    node.advance(SECOND)
    assert b'"paused":true' in bytes(node.files.content("data/nsqd.dat"))
    assert node.broker.health == "OK"


def test_data_keeps_its_name_for_life(node: Node) -> None:
    name = node.broker.node_id
    assert len(name) == 32
    node.crash()
    assert node.broker.node_id == name


def test_a_disk_that_cannot_keep_the_name_does_not_stop_the_start(node: Node) -> None:
    node.files.remove("data/queues/node.id")
    node.files.fail("write", times=-1)
    node.files = node.files.after_kill()
    node.files.fail("write", times=-1)
    node._start()
    name = node.broker.node_id
    assert len(name) == 32
    assert node.broker.health.startswith("NOK - data/")
    node.files.heal()
    node.advance(SECOND)
    assert node.broker.health == "OK"
    node.crash()
    assert node.broker.node_id == name


def test_a_file_of_somebody_else_is_left_alone(node: Node) -> None:
    node.files.replace_whole("data/probe", b"mine")
    node.files.fail("write", times=1, path=".segment")
    node.publish("t", b"refused")
    node.advance(SECOND)
    assert node.broker.health == "OK"
    node.crash()
    assert bytes(node.files.content("data/probe")) == b"mine"
