"""Dead letters: what the policy says, and that no message is lost between two topics."""

from contextlib import suppress
from random import Random

import pytest

from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.config import Durability
from nsqpy.core.dead_letters import DeadLetterPolicy, by_attempts, dead_letter_topic
from nsqpy.core.window import Run
from nsqpy.errors import ConfigError, NSQError, StorageError
from tests.unit.core.graves import (
    DEAD,
    TIMEOUT_NS,
    audit,
    dead_channel,
    figures,
    make_node,
    requeue_all,
    set_policy,
)
from tests.unit.core.node import Node, NodeConsumer
from tests.unit.fakes import batch_of


class TestPolicy:
    def test_the_default_changes_nothing(self) -> None:
        policy = DeadLetterPolicy()
        assert not policy.is_spent(65535)
        assert policy.delay_ns(1) == 0

    @pytest.mark.parametrize(("attempts", "spent"), [(1, False), (2, False), (3, True), (4, True)])
    def test_it_ends_with_the_last_attempt(self, attempts: int, spent: bool) -> None:
        assert DeadLetterPolicy(max_attempts=3).is_spent(attempts) is spent

    def test_the_delay_grows_up_to_its_cap(self) -> None:
        policy = DeadLetterPolicy(
            retry_delay_ns=100, retry_delay_factor=3.0, retry_delay_max_ns=2000
        )
        assert [policy.delay_ns(n) for n in (1, 2, 3, 4, 65535)] == [100, 300, 900, 2000, 2000]

    def test_wrapped_attempts_are_not_a_shorter_delay(self) -> None:
        assert DeadLetterPolicy(retry_delay_ns=100).delay_ns(0) == 100

    def test_the_json_form_goes_both_ways(self) -> None:
        document = {
            "max_attempts": 5,
            "dead_letter_topic": "graves",
            "retry_delay_ms": 250,
            "retry_delay_factor": 1.5,
            "retry_delay_max_ms": 60_000,
        }
        policy = DeadLetterPolicy.from_json(document)
        assert policy == DeadLetterPolicy(5, "graves", 250 * MILLISECOND, 1.5, 60_000 * MILLISECOND)
        assert policy.as_json() == document
        assert DeadLetterPolicy.from_json({}) == DeadLetterPolicy()

    @pytest.mark.parametrize(
        ("document", "reason"),
        [
            ([], "must be a JSON object"),
            ({"max_atempts": 3}, "max_atempts is not one of max_attempts, dead_letter_topic, "),
            ({"max_attempts": -1}, "max_attempts must be an integer from 0 to 65535"),
            ({"max_attempts": 65536}, "max_attempts must be an integer"),
            ({"max_attempts": True}, "max_attempts must be an integer"),
            ({"max_attempts": 1.0}, "max_attempts must be an integer"),
            ({"retry_delay_ms": "5s"}, "retry_delay_ms must be an integer from 0 to 31536000000"),
            ({"retry_delay_ms": 3_600_001}, "must not be above retry_delay_max_ms"),
            ({"retry_delay_factor": 0.5}, "retry_delay_factor must be a number from 1 to 1000"),
            ({"retry_delay_factor": float("nan")}, "retry_delay_factor must be a number"),
            ({"dead_letter_topic": 3}, "dead_letter_topic must be a topic name"),
            ({"dead_letter_topic": "a b"}, "dead_letter_topic must be a topic name"),
            ({"dead_letter_topic": "x#ephemeral"}, "dead_letter_topic must not be #ephemeral"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, document: object, reason: str) -> None:
        with pytest.raises(ConfigError, match=reason):
            DeadLetterPolicy.from_json(document)


class TestTopicName:
    def test_it_is_the_one_named_or_made_of_topic_and_channel(self) -> None:
        assert dead_letter_topic(DeadLetterPolicy(), "t", "c") == DEAD
        assert dead_letter_topic(DeadLetterPolicy(), "t#ephemeral", "c#ephemeral") == DEAD
        assert dead_letter_topic(DeadLetterPolicy(dead_letter_topic="x"), "t", "c") == "x"

    def test_a_default_that_is_too_long_has_to_be_replaced(self) -> None:
        long = "x" * 30
        assert dead_letter_topic(DeadLetterPolicy(max_attempts=1), long[1:-1], long)
        with pytest.raises(ConfigError, match=r"dead_letter_topic is needed: .* 64 bytes"):
            dead_letter_topic(DeadLetterPolicy(max_attempts=1), long, long)
        assert dead_letter_topic(DeadLetterPolicy(), long, long) == ""

    def test_a_topic_is_not_its_own(self) -> None:
        with pytest.raises(ConfigError, match="must not be the channel's own topic"):
            dead_letter_topic(DeadLetterPolicy(dead_letter_topic="t"), "t", "c")


def test_a_run_is_cut_where_the_attempts_change() -> None:
    batch = batch_of(b"a", b"bb", b"c", b"d")
    again = batch.raised(1, 3)
    data = batch.frames(0, 1) + again.frames(0, 2) + batch.frames(3, 4)
    mixed = Run(type(batch)(data, batch.offsets), 0, 4, number=10)
    parts = [(part.start, part.stop, part.number, n) for part, n in by_attempts(mixed)]
    assert parts == [(0, 1, 10, 1), (1, 3, 11, 2), (3, 4, 13, 1)]


@pytest.fixture(params=list(Durability), ids=str)
def node(request: pytest.FixtureRequest) -> Node:
    return make_node(durability=request.param)


class TestSafety:
    """The dead letter is stored before the message it was is acknowledged."""

    def poisoned(self, node: Node, bodies: int = 1) -> NodeConsumer:
        set_policy(node, max_attempts=1)
        consumer = node.subscribe("t", "c", ready_count=10)
        node.publish("t", *[b"%d" % number for number in range(bodies)])
        node.settle()
        return consumer

    def requeue(self, consumer: NodeConsumer) -> None:
        for message in consumer.take():
            consumer.requeue(message.id)

    def test_killed_before_the_turn_it_is_still_in_the_channel(self) -> None:
        node = make_node()
        self.requeue(self.poisoned(node))
        assert figures(node) == (0, 0, 1, 0)  # on its way it counts as deferred
        audit(node)
        node.crash()
        assert figures(node) == (1, 0, 0, 0)

    def test_power_lost_before_the_sync_it_is_still_in_the_channel(self) -> None:
        node = make_node(durability=Durability.FSYNC)
        self.requeue(self.poisoned(node))
        node.settle()
        assert figures(node) == (0, 0, 1, 0)
        audit(node)
        node.lose_power()
        assert figures(node) == (1, 0, 0, 0)

    @pytest.mark.parametrize("durability", [Durability.DISK, Durability.FSYNC])
    def test_then_it_is_in_the_topic_alone(self, durability: Durability) -> None:
        node = make_node(durability=durability)
        self.requeue(self.poisoned(node))
        node.settle()
        node.sync()
        node.sync()
        if durability is Durability.FSYNC:
            node.lose_power()
        else:
            node.crash()
        assert figures(node) == (0, 0, 0, 0)
        assert dead_channel(node).depth == 1

    @pytest.mark.parametrize("operation", ["write", "make_directory"])
    def test_what_the_disk_refuses_is_delivered_again(self, operation: str) -> None:
        node = make_node()
        consumer = self.poisoned(node, 2)
        node.files.fail(operation, path=DEAD, times=-1)
        self.requeue(consumer)
        node.settle()
        audit(node)
        assert figures(node) == (0, 2, 0, 0)
        node.files.heal()
        self.requeue(consumer)
        node.settle()
        audit(node)
        assert figures(node) == (0, 0, 0, 2)

    @pytest.mark.parametrize("routed", [False, True])
    def test_a_graceful_stop_on_the_way_loses_nothing(self, node: Node, routed: bool) -> None:
        self.requeue(self.poisoned(node))
        if routed:
            node.settle()
        node.restart()
        audit(node)
        dead = dead_channel(node).depth if DEAD in node.broker.topics else 0
        assert figures(node)[0] + dead == 1

    def test_emptied_on_the_way_it_is_gone_from_the_channel(self, node: Node) -> None:
        self.requeue(self.poisoned(node))
        node.broker.empty_channel("t", "c", node.clock.now())
        node.settle()
        node.sync()
        audit(node)
        assert figures(node) == (0, 0, 0, 0)

    def test_a_deleted_dead_letter_topic_is_made_again(self, node: Node) -> None:
        consumer = self.poisoned(node)
        self.requeue(consumer)
        node.settle()
        node.sync()
        node.broker.delete_topic(DEAD)
        node.publish("t", b"another")
        requeue_all(node, consumer)
        assert dead_channel(node).depth == 1


class Walk:
    """A consumer that fails at random, a disk that fails at random, kills and redrives."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.durability = self.random.choice([Durability.DISK, Durability.FSYNC])
        self.node = make_node(self.durability, mem_queue_size=self.random.choice([0, 3, 1000]))
        delay_ms = self.random.choice([0, 0, 1000])
        set_policy(self.node, max_attempts=2, retry_delay_ms=delay_ms)
        self.published: set[bytes] = set()
        self.finished: set[bytes] = set()
        self.subscribe()

    def subscribe(self) -> None:
        self.consumer = self.node.subscribe("t", "c", ready_count=self.random.choice([1, 5]))

    def publish(self) -> None:
        bodies = [b"%d" % (len(self.published) + at) for at in range(self.random.choice([1, 4]))]
        if self.node.publish("t", *bodies) is None:
            self.published.update(bodies)

    def answer(self) -> None:
        self.node.settle()
        for message in self.consumer.take():
            fate = self.random.random()
            if fate < 0.7:
                with suppress(NSQError):  # it may have timed out
                    self.consumer.requeue(message.id)
            elif fate < 0.8 and not self.consumer.finish(message.id):
                self.finished.add(message.body)

    def wait(self) -> None:
        self.node.advance(self.random.choice([1, 61]) * SECOND)

    def redrive(self) -> None:
        with suppress(StorageError):
            self.node.broker.redrive("t", "c", 3, self.node.clock.now())

    def break_disk(self) -> None:
        path = self.random.choice([DEAD, "t.topic"])
        self.node.files.fail("write", path=path, times=self.random.choice([1, 5]))

    def stop(self) -> None:
        self.node.files.heal()
        stops = [self.node.crash, self.node.restart]
        if self.durability is Durability.FSYNC:
            stops.append(self.node.lose_power)
        self.random.choice(stops)()
        self.subscribe()

    def drain(self) -> set[bytes]:
        """Everything that is still somewhere."""
        found: set[bytes] = set()
        self.node.files.heal()
        self.node.restart()
        consumer = self.node.subscribe("t", "c", ready_count=1000)
        for _ in range(10):
            self.node.broker.redrive("t", "c", 1000, self.node.clock.now())
            self.node.advance(2 * SECOND)
            messages = consumer.take()
            found.update(message.body for message in messages)
            consumer.finish(*[message.id for message in messages])
            self.node.advance(TIMEOUT_NS)
        assert figures(self.node)[:3] == (0, 0, 0)
        return found


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_no_message_is_lost_on_the_way(seed: int) -> None:
    walk = Walk(seed)
    steps = [walk.publish, walk.answer, walk.wait, walk.redrive, walk.break_disk, walk.stop]
    for _ in range(100):
        (step,) = walk.random.choices(steps, weights=[4, 10, 2, 2, 1, 1])
        step()
        audit(walk.node)
    found = walk.drain()
    assert found >= walk.published - walk.finished
