"""Dead letters: what the policy says, and that no message is lost between two topics."""

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.config import Durability
from nsqpy.core.broker import NotFoundError
from nsqpy.core.channel import Channel
from nsqpy.core.dead_letters import DeadLetterPolicy, by_attempts, dead_letter_topic
from nsqpy.core.window import Run
from nsqpy.errors import ConfigError, NSQError, StorageError
from tests.unit.core.node import Node, NodeConsumer
from tests.unit.fakes import batch_of

DEAD = "t.c.dead"
TIMEOUT_NS = 60 * SECOND
BY_REQUEUE = "max_attempts exceeded by requeue"
BY_TIMEOUT = "max_attempts exceeded by timeout"


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


# --- in a broker ---


@pytest.fixture(params=list(Durability), ids=str)
def node(request: pytest.FixtureRequest) -> Node:
    return make_node(durability=request.param)


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
        node.broker.empty_channel("t", "c")
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
