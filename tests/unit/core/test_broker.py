"""The broker: topics and channels come and go, disks fail, processes end, and nothing that was
promised is lost."""

import errno
import json
from collections import Counter
from contextlib import suppress
from random import Random

import pytest

from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.config import Durability
from nsqpy.core.broker import ConsumerLimitError
from nsqpy.core.deadlines import NEVER
from nsqpy.core.topic import ExitingError
from nsqpy.errors import NSQError, StorageError
from nsqpy.message import MessageID
from tests.unit.core.node import Node, NodeConsumer
from tests.unit.fakes import FakeFiles, message_id

HOUR = 3600 * SECOND


@pytest.fixture
def node() -> Node:
    return Node()


def metadata(files: FakeFiles) -> dict[str, object]:
    return dict(json.loads(bytes(files.content("data/nsqd.dat"))))


def channels(node: Node) -> dict[str, list[str]]:
    return {name: sorted(topic.channels) for name, topic in sorted(node.broker.topics.items())}


class TestTopology:
    def test_a_subscription_makes_both(self, node: Node) -> None:
        node.subscribe("t", "c")
        assert channels(node) == {"t": ["c"]}

    def test_the_number_of_consumers_may_be_limited(self) -> None:
        node = Node(max_channel_consumers=1)
        consumer = node.subscribe("t", "c")
        with pytest.raises(ConsumerLimitError, match="consumers for t:c exceeds limit of 1"):
            node.subscribe("t", "c")
        node.subscribe("t", "d")
        consumer.leave()
        node.subscribe("t", "c")

    def test_deleting_a_channel_leaves_nothing_of_it(self, node: Node) -> None:
        consumer = node.subscribe("t", "c")
        node.subscribe("t", "d", ready_count=0)
        node.publish("t", b"1", b"2")
        node.broker.delete_channel("t", "c")
        assert consumer.is_cut
        assert channels(node) == {"t": ["d"]}
        assert not [path for path in node.files.paths() if "c.channel" in path]
        node.advance(HOUR)
        node.crash()
        assert channels(node) == {"t": ["d"]}
        assert node.channel("t", "d").depth == 2

    def test_deleting_a_topic_leaves_nothing_of_it(self, node: Node) -> None:
        node.subscribe("t", "c")
        node.publish("t", b"1")
        node.broker.delete_topic("t")
        node.turn()
        assert node.files.paths() == ["data/nsqd.dat", "data/queues/node.id"]
        assert node.files.open_files == []
        node.crash()
        assert channels(node) == {}

    def test_a_deleted_channel_that_comes_back_is_empty(self, node: Node) -> None:
        node.subscribe("t", "c", ready_count=0)
        node.publish("t", b"1")
        node.broker.delete_channel("t", "c")
        consumer = node.subscribe("t", "c", ready_count=9)
        node.publish("t", b"2")
        assert consumer.take_bodies() == [b"2"]

    def test_deleting_during_a_sync_does_not_disturb_it(self) -> None:
        node = Node(durability=Durability.FSYNC)
        node.subscribe("t", "c", ready_count=0)
        ticket = node.publish_later("t", b"1")
        node.turn()
        work = node.broker.begin_sync()
        node.broker.delete_topic("t")
        work.run()
        node.broker.end_sync(work, None)
        node.turn()
        assert (ticket.done, ticket.error) == (True, None)
        assert node.files.open_files == []


class TestEphemeral:
    def test_a_channel_goes_with_its_last_consumer(self, node: Node) -> None:
        first, second = (node.subscribe("t", "c#ephemeral") for _ in range(2))
        first.leave()
        assert channels(node) == {"t": ["c#ephemeral"]}
        second.leave()
        assert channels(node) == {"t": []}

    def test_a_channel_that_nobody_used_yet_stays(self, node: Node) -> None:
        node.broker.topic("t")
        node.broker.create_channel("t", "c#ephemeral")
        node.advance(HOUR)
        assert channels(node) == {"t": ["c#ephemeral"]}

    def test_a_topic_goes_with_its_last_channel(self, node: Node) -> None:
        node.broker.topic("t#ephemeral")
        consumer = node.subscribe("t#ephemeral", "c#ephemeral")
        consumer.leave()
        assert channels(node) == {}

    def test_a_durable_channel_keeps_an_ephemeral_topic(self, node: Node) -> None:
        node.subscribe("t#ephemeral", "c").leave()
        assert channels(node) == {"t#ephemeral": ["c"]}
        node.broker.delete_channel("t#ephemeral", "c")
        assert channels(node) == {}

    def test_neither_survives_a_restart(self, node: Node) -> None:
        node.subscribe("t#ephemeral", "c")
        node.subscribe("t", "c#ephemeral")
        node.publish("t#ephemeral", b"1")
        node.advance(2 * SECOND)
        assert metadata(node.files)["topics"] == [{"name": "t", "paused": False, "channels": []}]
        node.crash()
        assert channels(node) == {"t": []}
        node.restart()
        assert channels(node) == {"t": []}

    def test_nothing_of_them_is_written(self, node: Node) -> None:
        consumer = node.subscribe("t#ephemeral", "c#ephemeral", ready_count=0)
        before = node.files.write_count
        node.publish("t#ephemeral", b"1", b"2")
        node.publish("t#ephemeral", b"3", delay_ns=SECOND)
        consumer.ready(9)
        node.advance(SECOND)
        consumer.finish(*consumer.take_ids())
        node.settle()
        assert node.files.write_count == before

    def test_what_a_full_one_drops_is_counted(self) -> None:
        for overflow, left in (
            ("drop-newest", [b"0", b"1", b"2"]),
            ("drop-oldest", [b"2", b"3", b"4"]),
        ):
            node = Node(mem_queue_size=3, ephemeral_overflow=overflow)
            consumer = node.subscribe("t", "c#ephemeral", ready_count=0)
            for index in range(5):
                assert node.publish("t", b"%d" % index) is None
            assert consumer.channel.dropped_count == 2
            consumer.ready(9)
            node.settle()
            assert consumer.take_bodies() == left


class TestTime:
    def test_the_next_deadline_is_that_of_the_soonest_message(self, node: Node) -> None:
        consumer = node.subscribe("t", "c", ready_count=9)
        node.advance(HOUR)
        assert node.broker.next_deadline_ns() == NEVER
        now_ns = node.clock.monotonic_ns()
        node.publish("t", b"later", delay_ns=5 * SECOND)
        node.advance(3 * SECOND)  # beyond the sync of what was written
        assert node.broker.next_deadline_ns() == now_ns + 5 * SECOND
        node.publish("t", b"sooner", delay_ns=1 * SECOND)
        assert node.broker.next_deadline_ns() == now_ns + 4 * SECOND
        node.advance(2 * SECOND)
        assert consumer.take_bodies() == [b"sooner", b"later"]

    def test_a_timeout_is_delivered_again_at_once(self, node: Node) -> None:
        consumer = node.subscribe("t", "c")
        node.publish("t", b"1")
        node.advance(60 * SECOND - 1)
        assert len(consumer.take()) == 1
        node.advance(1)
        (message,) = consumer.take()
        assert message.attempts == 2

    def test_a_channel_that_is_new_expires_at_once_too(self, node: Node) -> None:
        """The original enlists a channel only after up to five seconds."""
        consumer = node.subscribe("t", "c")
        node.publish("t", b"1", delay_ns=100 * MILLISECOND)
        node.advance(100 * MILLISECOND)
        assert consumer.take_bodies() == [b"1"]


class TestFaults:
    def test_a_full_disk_and_its_recovery(self, node: Node) -> None:
        consumer = node.subscribe("t", "c", ready_count=1)
        assert node.publish("t", b"1", b"2") is None
        node.files.fail("write", times=-1)
        error = node.publish("t", b"refused")
        assert isinstance(error, StorageError)
        assert error.reason == "No space left on device"
        assert node.broker.health.startswith("NOK - ")
        assert node.broker.health.endswith("No space left on device")
        for expected in (b"1", b"2"):  # consumers keep draining
            (message,) = consumer.take()
            assert message.body == expected
            assert consumer.finish(message.id) == []
            node.settle()
        node.advance(SECOND)
        node.files.heal()
        node.advance(SECOND)
        assert node.publish("t", b"3") is None
        assert node.broker.health == "OK"
        assert consumer.take_bodies() == [b"3"]
        node.crash()
        assert node.channel("t", "c").depth == 1

    def test_room_for_something_small_is_no_room_for_a_publish(
        self, node: Node, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer = node.subscribe("t", "c", ready_count=1)
        node.publish("t", *[b"%d" % number for number in range(10)])
        node.files.fail("write", times=-1, min_bytes=5000)
        for _ in range(10):
            assert isinstance(node.publish("t", bytes(5000)), StorageError)
            assert node.publish("t", b"small") is None
            (message,) = consumer.take()
            consumer.finish(message.id)
            node.settle()
            node.advance(SECOND)
            assert node.broker.health.startswith("NOK - ")
        assert caplog.text.count("No space left on device") == 1
        node.files.heal()
        node.advance(SECOND)  # nobody publishes
        assert node.broker.health == "OK"
        assert node.files.paths("probe") == []

    def test_what_is_due_and_cannot_be_stored(self, caplog: pytest.LogCaptureFixture) -> None:
        node = Node(mem_queue_size=4)
        node.subscribe("t", "c")
        node.publish("t", *[b"%d" % number for number in range(4)])
        for _ in range(6):
            node.publish("t", bytes(100_000), delay_ns=SECOND)
        node.files.fail("write", times=-1, min_bytes=20_000)
        for _ in range(20):
            node.advance(SECOND)
            assert node.broker.health.startswith("NOK - ")
        assert "takes writes again" not in caplog.text
        node.files.heal()
        node.advance(SECOND)
        assert node.broker.health == "OK"

    def test_acknowledgements_are_written_when_there_is_room_again(self, node: Node) -> None:
        consumer = node.subscribe("t", "c", ready_count=9)
        node.publish("t", b"1", b"2")
        node.files.fail("write", times=2, path=".journal")
        consumer.finish(consumer.take_ids()[0])
        node.settle()
        node.advance(SECOND)
        node.crash()
        consumer = node.subscribe("t", "c", ready_count=9)
        node.settle()
        assert consumer.take_bodies() == [b"2"]

    def test_a_log_that_cannot_be_read_for_a_while(self) -> None:
        node = Node(mem_queue_size=0)
        node.files.fail("read", times=3, errno=errno.EIO)
        consumer = node.subscribe("t", "c", ready_count=9)
        assert node.publish("t", b"1") is None
        assert consumer.take() == []
        node.advance(SECOND)
        assert consumer.take_bodies() == [b"1"]

    def test_a_topic_that_cannot_be_made(self, node: Node) -> None:
        node.files.fail("make_directory")
        with pytest.raises(StorageError):
            node.broker.topic("t")
        assert channels(node) == {}
        assert node.broker.health.startswith("NOK - ")
        node.broker.topic("t")

    def test_closing_goes_on_after_a_failure_and_reports_it(self, node: Node) -> None:
        for name in ("a", "b"):
            node.subscribe("t", name, ready_count=9)
        node.publish("t", b"1")
        node.files.fail("write", path="a.channel")
        with pytest.raises(StorageError):
            node.broker.close()
        node.crash()
        attempts = {}
        for name in ("a", "b"):
            consumer = node.subscribe("t", name)
            node.settle()
            (message,) = consumer.take()
            attempts[name] = message.attempts
        assert attempts == {"a": 1, "b": 2}


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("mem_queue_size", [0, 2, 1000])
class TestRestart:
    @pytest.fixture
    def node(self, durability: Durability, mem_queue_size: int) -> Node:
        return Node(durability=durability, mem_queue_size=mem_queue_size)

    def test_queued_in_flight_and_deferred_come_back(self, node: Node) -> None:
        consumer = node.subscribe("t", "c", ready_count=3)
        node.publish("t", *[b"%d" % index for index in range(8)])
        node.publish("t", b"later", delay_ns=HOUR)
        ids = consumer.take_ids()
        consumer.finish(ids[1])
        consumer.ready(0)
        consumer.requeue(ids[2], 1800 * SECOND)
        due_ns = node.clock.monotonic_ns() + 1800 * SECOND
        node.settle()
        node.restart()
        channel = node.channel("t", "c")
        assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (6, 0, 2)
        consumer = node.subscribe("t", "c", ready_count=100)
        node.advance(due_ns - node.clock.monotonic_ns() - 1)
        first = {message.body: message.attempts for message in consumer.take()}
        assert first[b"0"] > 1
        assert first.keys() == {b"0", b"3", b"4", b"5", b"6", b"7"}
        consumer.ready(0)
        consumer.ready(100)
        node.advance(1)
        assert (b"2", 2) in [(message.body, message.attempts) for message in consumer.take()]
        node.advance(1800 * SECOND)
        assert b"later" in consumer.take_bodies()

    def test_in_flight_comes_with_one_attempt_more(self, node: Node) -> None:
        consumer = node.subscribe("t", "c", ready_count=1)
        node.publish("t", b"out", b"waiting")
        (before,) = consumer.take()
        node.restart()
        consumer = node.subscribe("t", "c", ready_count=9)
        node.settle()
        after = {message.body: message for message in consumer.take()}
        assert after[b"out"] == before._replace(attempts=2)
        assert after[b"waiting"].attempts == 1

    def test_what_is_finished_stays_finished(self, node: Node) -> None:
        consumer = node.subscribe("t", "c", ready_count=9)
        node.publish("t", b"1", b"2", b"3")
        consumer.finish(*consumer.take_ids())
        node.restart()
        node.restart()
        assert node.channel("t", "c").depth == 0

    def test_a_topic_without_channel_keeps_its_messages(self, node: Node) -> None:
        node.publish("t", b"1", b"2", b"3")
        node.publish("t", b"later", delay_ns=SECOND)
        node.restart()
        assert node.broker.topics["t"].depth == 4
        consumer = node.subscribe("t", "c", ready_count=9)
        node.settle()
        assert sorted(consumer.take_bodies()) == [b"1", b"2", b"3"]
        node.advance(SECOND)
        assert consumer.take_bodies() == [b"later"]

    def test_topics_channels_and_pauses_come_back(self, node: Node) -> None:
        node.subscribe("t", "c")
        node.subscribe("t", "..")
        node.broker.topic("lonely")
        node.broker.pause_topic("lonely")
        node.broker.pause_channel("t", "c")
        for again in (node.crash, node.restart):
            again()
            assert channels(node) == {"lonely": [], "t": ["..", "c"]}
            assert node.broker.topics["lonely"].paused
            assert node.channel("t", "c").paused
            assert not node.channel("t", "..").paused

    def test_late_publishes_are_refused(self, node: Node) -> None:
        waiting = node.publish_later("t", b"1")
        node.broker.close()
        assert isinstance(waiting.error, ExitingError)
        with pytest.raises(ExitingError):
            node.broker.topic("new")
        late = node.publish_later("t", b"2")
        assert isinstance(late.error, ExitingError)


def test_a_kill_in_the_middle_of_a_pump_costs_a_duplicate_and_nothing_else() -> None:
    """The channel has the messages already, the topic has not acknowledged them yet."""
    node = Node()
    node.subscribe("t", "c", ready_count=0)
    node.broker.pause_topic("t")
    node.publish("t", b"1", b"2", b"3")
    node.broker.unpause_topic("t")
    node.broker.topics["t"].pump(node.clock.now())
    node.crash()
    assert node.channel("t", "c").depth == 6
    consumer = node.subscribe("t", "c", ready_count=9)
    bodies: list[bytes] = []
    for _ in range(3):
        node.settle()
        received = consumer.take()
        bodies += [message.body for message in received]
        assert consumer.finish(*(message.id for message in received)) == []
        node.advance(60 * SECOND)
    assert sorted(bodies) == [b"1", b"1", b"2", b"2", b"3", b"3"]
    channel = node.channel("t", "c")
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (0, 0, 0)


class Walk:
    """A node under a random load, and a plain model of what it owes.

    After every step each channel must hold exactly what the model says it owes.
    """

    CHANNELS = ("a", "b")

    def __init__(self, seed: int, durability: Durability, mem_queue_size: int) -> None:
        self.random = Random(seed)
        self.node = Node(
            durability=durability,
            mem_queue_size=mem_queue_size,
            max_bytes_per_file=self.random.choice([300, 2000, 100_000]),
        )
        self.node.broker.topic("t")
        self.owed: dict[str, set[bytes]] = {name: set() for name in self.CHANNELS}
        self.consumers: list[tuple[str, NodeConsumer]] = []
        self.received: dict[NodeConsumer, list[tuple[MessageID, bytes]]] = {}
        self.published = 0
        for name in self.CHANNELS:
            self.node.broker.create_channel("t", name)
        self.actions = [
            *([self.publish] * 6 + [self.finish] * 8 + [self.subscribe, self.leave]),
            *([self.ready] * 3 + [self.requeue] * 3 + [self.touch] * 2 + [self.advance] * 3),
            *(self.pause_channel, self.pause_topic, self.answer_badly, self.restart),
        ]
        if durability is not Durability.MEMORY:
            self.actions.append(self.crash)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice(self.actions)()
            self.node.settle()
            if self.random.random() < 0.5:
                self.node.sync()
            self.collect()
            self.check()
        self.drain()

    # -- steps ------------------------------------------------------------------------------

    def publish(self) -> None:
        bodies = []
        for _ in range(self.random.choice([1, 1, 2, 5, 20])):
            self.published += 1
            bodies.append(b"%d" % self.published * self.random.choice([1, 1, 9]))
        delay_ns = self.random.choice([0, 0, 0, SECOND, 90 * SECOND])
        self.node.publish_later("t", *bodies, delay_ns=delay_ns)
        for owed in self.owed.values():
            owed |= set(bodies)

    def subscribe(self) -> None:
        name = self.random.choice(self.CHANNELS)
        timeout_ns = self.random.choice([SECOND, 60 * SECOND])
        ready_count = self.random.choice([1, 3, 100])
        consumer = self.node.subscribe(
            "t", name, msg_timeout_ns=timeout_ns, ready_count=ready_count
        )
        self.consumers.append((name, consumer))
        self.received[consumer] = []

    def leave(self) -> None:
        if self.consumers:
            _, consumer = self.consumers.pop(self.random.randrange(len(self.consumers)))
            consumer.leave()
            del self.received[consumer]

    def ready(self) -> None:
        if self.consumers:
            self.random.choice(self.consumers)[1].ready(self.random.choice([0, 1, 2, 10, 2500]))

    def some_received(self) -> tuple[str, NodeConsumer, list[tuple[MessageID, bytes]]] | None:
        if not self.consumers:
            return None
        name, consumer = self.random.choice(self.consumers)
        waiting = self.received[consumer]
        if self.random.random() < 0.5:
            self.random.shuffle(waiting)
        count = self.random.randint(0, len(waiting))
        chosen, self.received[consumer] = waiting[:count], waiting[count:]
        return name, consumer, chosen

    def finish(self) -> None:
        if (some := self.some_received()) is not None:
            name, consumer, chosen = some
            ids = [message for message, _ in chosen]
            failures = Counter(
                id_ for id_, _ in consumer.channel.finish(consumer.subscription, ids)
            )
            # One that timed out and came again is there twice: one answer counts, one fails.
            done = {body for id_, body in chosen if ids.count(id_) > failures[id_]}
            assert done <= self.owed[name]
            self.owed[name] -= done

    def requeue(self) -> None:
        if (some := self.some_received()) is not None:
            self.received[some[1]] += some[2][3:]
            for message, _ in some[2][:3]:
                delay_ns = self.random.choice([0, 0, SECOND, 300 * SECOND])
                with suppress(NSQError):  # it may have timed out before
                    some[1].requeue(message, delay_ns)

    def touch(self) -> None:
        if (some := self.some_received()) is not None:
            for message, body in some[2]:
                with suppress(NSQError):
                    some[1].touch(message)
                self.received[some[1]].append((message, body))

    def answer_badly(self) -> None:
        """Answers to messages of others, or of nobody."""
        for name, consumer in self.consumers:
            before = consumer.channel.in_flight_count
            others = [
                message
                for other, waiting in self.received.items()
                if other is not consumer and other.channel is consumer.channel
                for message, _ in waiting
            ]
            mine = {message for message, _ in self.received[consumer]}
            foreign = [message for message in others if message not in mine][:3]
            failures = consumer.channel.finish(consumer.subscription, [*foreign, message_id(0)])
            assert len(failures) == len(foreign) + 1, name
            assert consumer.channel.in_flight_count == before

    def advance(self) -> None:
        self.node.advance(self.random.choice([MILLISECOND, SECOND, 61 * SECOND]))

    def pause_channel(self) -> None:
        name = self.random.choice(self.CHANNELS)
        if self.node.channel("t", name).paused:
            self.node.broker.unpause_channel("t", name)
        else:
            self.node.broker.pause_channel("t", name)

    def pause_topic(self) -> None:
        if self.node.broker.topics["t"].paused:
            self.node.broker.unpause_topic("t")
        else:
            self.node.broker.pause_topic("t")

    def restart(self) -> None:
        self.node.settle()
        self.collect()
        self.node.restart()
        self.forget_consumers()

    def crash(self) -> None:
        """Killed between turns: publishes that were not routed yet have got no answer.

        What is on its way from one log to another at fsync would come twice; the simulation
        covers that, this walk looks for equality.
        """
        self.node.settle()
        self.node.sync()
        self.collect()
        self.node.crash()
        self.forget_consumers()

    def forget_consumers(self) -> None:
        self.consumers.clear()
        self.received.clear()

    # -- what must hold ---------------------------------------------------------------------

    def collect(self) -> None:
        for name, consumer in self.consumers:
            for message in consumer.take():
                assert message.body in self.owed[name], "delivered though it was finished"
                assert message.attempts >= 1
                self.received[consumer].append((message.id, message.body))

    def check(self) -> None:
        topic = self.node.broker.topics["t"]
        for name, channel in topic.channels.items():
            channel.audit()
            held = channel.depth + channel.in_flight_count + channel.deferred_count
            assert held + topic.depth == len(self.owed[name])
            subscriptions = list(channel.subscriptions)
            out = sum(subscription.in_flight_count for subscription in subscriptions)
            assert out <= channel.in_flight_count
            assert min((s.in_flight_count for s in subscriptions), default=0) >= 0

    def drain(self) -> None:
        """Take everything there is: it is what is owed, each once."""
        self.node.restart()
        self.forget_consumers()
        topic = self.node.broker.topics["t"]
        if topic.paused:
            self.node.broker.unpause_topic("t")
        for name in self.CHANNELS:
            if self.node.channel("t", name).paused:
                self.node.broker.unpause_channel("t", name)
            consumer = self.node.subscribe("t", name, ready_count=2500)
            got: list[bytes] = []
            for _ in range(20):
                self.node.advance(30 * SECOND)
                messages = consumer.take()
                got += [message.body for message in messages]
                assert consumer.finish(*(message.id for message in messages)) == []
            assert sorted(got) == sorted(self.owed[name])
            channel = self.node.channel("t", name)
            assert channel.depth + channel.in_flight_count + channel.deferred_count == 0
        self.node.settle()
        self.node.restart()
        for name in self.CHANNELS:
            assert self.node.channel("t", name).depth == 0


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("mem_queue_size", [0, 3, 10_000])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_lost_or_made_up_in_a_random_life(
    seed: int, mem_queue_size: int, durability: Durability
) -> None:
    Walk(seed, durability, mem_queue_size).run(400)
