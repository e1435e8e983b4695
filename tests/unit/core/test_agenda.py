"""What the next turn looks at, and when one is asked for."""

from nsqpy.core.agenda import Agenda
from tests.unit.core.node import Node


class Wakes:
    """An agenda and how often it woke somebody."""

    def __init__(self) -> None:
        self.count = 0
        self.agenda = Agenda(self._wake)

    def _wake(self) -> None:
        self.count += 1


def test_a_turn_is_asked_for_once_until_it_ends() -> None:
    wakes = Wakes()
    wakes.agenda.rouse()
    wakes.agenda.rouse()
    assert wakes.count == 1
    wakes.agenda.begin()
    wakes.agenda.rouse()
    wakes.agenda.end()
    assert wakes.count == 1
    wakes.agenda.rouse()
    assert wakes.count == 2


def test_a_turn_nobody_asked_for_needs_no_second_one() -> None:
    wakes = Wakes()
    wakes.agenda.begin()
    wakes.agenda.rouse()
    wakes.agenda.end()
    assert wakes.count == 0


def test_what_is_noted_often_is_there_once_and_in_order() -> None:
    wakes = Wakes()
    node = Node()
    topics = [node.broker.topic(name) for name in ("a", "b")]
    for topic in (topics[1], topics[0], topics[1]):
        wakes.agenda.note_topic(topic)
    assert list(wakes.agenda.topics) == [topics[1], topics[0]]
    assert wakes.count == 1


def test_what_a_turn_leaves_over_gets_another() -> None:
    wakes = Wakes()
    node = Node()
    wakes.agenda.begin()
    wakes.agenda.note_topic(node.broker.topic("a"))
    wakes.agenda.end()
    assert wakes.count == 1


def test_the_broker_asks_for_a_turn_when_something_happens() -> None:
    node = Node()
    consumer = node.subscribe("t", "c", ready_count=0)
    node.turn()
    assert node.wake_count == 0
    node.publish_later("t", b"a")
    node.publish_later("t", b"b")
    assert node.wake_count == 1
    node.turn()
    assert node.wake_count == 0  # the message waits, but nobody can take it
    consumer.ready(1)
    assert node.wake_count == 1
    node.turn()
    consumer.finish(*consumer.take_ids())
    assert node.wake_count == 1
