"""Long timers through a whole broker: in memory as much as a window holds, in time, and kept."""

import errno
from random import Random

import pytest

from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.core.deadlines import NEVER
from tests.unit.core.node import Node

HOUR = 3600 * SECOND
DAY = 24 * HOUR
WINDOW = 10


def make_node(**config: str | int) -> Node:
    config.setdefault("mem_queue_size", WINDOW)
    node = Node(None, **config)
    node.broker.topic("t")
    node.broker.create_channel("t", "c")
    return node


@pytest.fixture(params=["memory", "disk", "fsync"])
def node(request: pytest.FixtureRequest) -> Node:
    return make_node(durability=request.param)


def publish(node: Node, *delays_ns: int) -> None:
    for delay_ns in delays_ns:
        due_ns = node.clock.now().wall_ns + delay_ns
        assert node.publish("t", b"%d" % due_ns, delay_ns=delay_ns) is None


def drain(node: Node, duration_ns: int) -> list[int]:
    """Let time pass beside a consumer that never gets anything early; the times due it got."""
    consumer = node.subscribe("t", "c", ready_count=1000)
    got: list[int] = []
    until_ns = node.clock.monotonic_ns() + duration_ns
    while node.clock.monotonic_ns() < until_ns:
        next_ns = node.broker.next_deadline_ns()
        if next_ns == NEVER or next_ns > until_ns:
            next_ns = until_ns
        node.clock.advance(max(next_ns - node.clock.monotonic_ns(), 0))
        node.settle()
        node.sync()
        node.channel("t", "c").audit()
        for message in consumer.take():
            assert int(message.body) <= node.clock.now().wall_ns, "early"
            got.append(int(message.body))
            assert consumer.finish(message.id) == []
    consumer.leave()
    return got


def delays(count: int, longest_ns: int, seed: int = 1) -> list[int]:
    random = Random(seed)
    return [random.randrange(SECOND, longest_ns) for _ in range(count)]


def due_times(node: Node, delays_ns: list[int]) -> list[int]:
    return [node.clock.now().wall_ns + delay_ns for delay_ns in delays_ns]


class TestLongTimers:
    def test_many_come_in_the_order_of_their_times(self, node: Node) -> None:
        waits = delays(300, HOUR)
        due = due_times(node, waits)
        publish(node, *waits)
        channel = node.channel("t", "c")
        assert channel.deferred_count == 300
        assert len(channel._deferred.runs()) <= WINDOW
        got = drain(node, 2 * HOUR)
        assert got == sorted(due)
        assert (channel.deferred_count, channel.depth, channel.in_flight_count) == (0, 0, 0)

    def test_each_is_delivered_when_it_is_due(self, node: Node) -> None:
        waits = [300 * SECOND, HOUR, HOUR + 1, DAY, 365 * DAY]
        publish(node, *waits)
        consumer = node.subscribe("t", "c", ready_count=9)
        start_ns = node.clock.now().wall_ns
        for wait_ns in waits:
            node.advance(start_ns + wait_ns - 1 - node.clock.now().wall_ns)
            assert consumer.take() == []
            node.advance(1)
            (message,) = consumer.take()
            consumer.finish(message.id)

    def test_a_wide_slot_keeps_the_order_of_milliseconds(self) -> None:
        node = make_node()
        waits = [HOUR + n * MILLISECOND for n in range(200)]
        Random(1).shuffle(waits)
        due = due_times(node, waits)
        publish(node, *waits)
        assert drain(node, 2 * HOUR) == sorted(due)

    def test_more_than_the_window_in_one_moment(self, node: Node) -> None:
        """They become ready on disk, not in memory, and in reach of consumers at once."""
        body = b"%d" % (node.clock.now().wall_ns + HOUR)
        for _ in range(50):
            node.publish("t", *[body] * 20, delay_ns=HOUR)
        channel = node.channel("t", "c")
        node.advance(HOUR)
        assert (channel.depth, channel.deferred_count) == (1000, 0)
        assert channel.depth - channel.backend_depth <= 2 * 1024
        assert len(drain(node, SECOND)) == 1000

    def test_they_outlive_a_restart(self, node: Node) -> None:
        waits = delays(60, 2 * DAY)
        due = due_times(node, waits)
        publish(node, *waits)
        node.restart()
        assert node.channel("t", "c").deferred_count == 60
        got = drain(node, DAY)
        node.restart()
        got += drain(node, 2 * DAY)
        assert got == sorted(due)

    def test_they_outlive_a_kill_at_any_step(self) -> None:
        node = make_node()
        waits = delays(40, DAY)
        due = due_times(node, waits)
        publish(node, *waits)
        got: list[int] = []
        for _ in range(50):
            got += drain(node, HOUR)
            node.crash()
        assert sorted(got) == sorted(due), "nothing is lost, and what was finished stays so"

    def test_they_outlive_a_power_cut_at_fsync(self) -> None:
        node = make_node(durability="fsync")
        waits = delays(40, DAY)
        due = due_times(node, waits)
        publish(node, *waits)
        got: list[int] = []
        for _ in range(30):
            got += drain(node, HOUR)
            node.lose_power()
        assert set(got) == set(due)

    def test_a_long_delay_of_a_requeued_message_needs_no_memory(self, node: Node) -> None:
        consumer = node.subscribe("t", "c", ready_count=1000)
        node.publish("t", *[b"x"] * 50)
        for message in consumer.take():
            consumer.requeue(message.id, HOUR)
        channel = node.channel("t", "c")
        assert channel.deferred_count == 50
        assert len(channel._deferred.runs()) == 0
        node.advance(HOUR - 1)
        assert consumer.take() == []
        node.restart()
        node.advance(1)
        consumer = node.subscribe("t", "c", ready_count=1000)
        node.settle()
        assert [message.attempts for message in consumer.take()] == [2] * 50

    def test_emptying_and_deleting_leave_no_timers(self, node: Node) -> None:
        publish(node, HOUR, DAY)
        node.broker.empty_channel("t", "c", node.clock.now())
        assert node.channel("t", "c").deferred_count == 0
        publish(node, HOUR)
        node.broker.delete_channel("t", "c")
        assert not [path for path in node.files.paths() if "timers" in path]

    def test_an_ephemeral_channel_drops_what_its_window_does_not_hold(self) -> None:
        node = make_node()
        node.broker.delete_channel("t", "c")
        node.broker.create_channel("t", "c#ephemeral")
        publish(node, *[HOUR] * 15)
        channel = node.channel("t", "c#ephemeral")
        assert (channel.deferred_count, channel.dropped_count) == (10, 5)


class TestClocks:
    def test_a_clock_that_is_set_forward_is_noticed_within_a_minute(self, node: Node) -> None:
        publish(node, DAY)
        node.clock.step_wall(DAY)
        node.advance(61 * SECOND)
        assert node.channel("t", "c").depth == 1

    def test_a_clock_that_is_set_back_delays_them(self, node: Node) -> None:
        publish(node, DAY)
        node.clock.step_wall(-HOUR)
        node.advance(DAY + HOUR // 2)
        assert node.channel("t", "c").depth == 0
        node.advance(HOUR // 2)
        assert node.channel("t", "c").depth == 1


class TestFaults:
    def test_a_full_disk_refuses_them_all_or_none(self) -> None:
        node = make_node()
        node.files.fail("write", path="timers", times=-1, errno=errno.ENOSPC)
        assert node.publish("t", b"x", delay_ns=DAY) is not None
        assert node.channel("t", "c").deferred_count == 0
        node.files.heal()
        assert node.publish("t", b"x", delay_ns=DAY) is None
        assert node.channel("t", "c").deferred_count == 1

    def test_what_is_due_on_a_full_disk_comes_as_the_window_empties(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        node = make_node()
        publish(node, *[HOUR + n * MILLISECOND for n in range(50)])
        node.files.fail("write", times=-1, errno=errno.ENOSPC)
        node.advance(HOUR + 300 * SECOND)
        assert node.broker.health.startswith("NOK")
        assert (node.channel("t", "c").depth, node.channel("t", "c").deferred_count) == (10, 40)
        assert len([record for record in caplog.records if "No space" in record.message]) < 20
        assert len(drain(node, 20 * SECOND)) == 50
        node.files.heal()
        node.publish("t", b"0")
        node.advance(SECOND)  # until what was refused beside publishes has been tried again
        assert node.broker.health == "OK"

    def test_on_a_full_disk_they_come_in_time_though_their_slot_cannot_be_split(self) -> None:
        node = make_node()
        waits = [HOUR + n * SECOND for n in range(2 * WINDOW)]
        due = due_times(node, waits)
        publish(node, *reversed(waits))
        consumer = node.subscribe("t", "c", ready_count=1000)
        node.files.fail("write", times=-1, errno=errno.ENOSPC)
        for due_ns in due:
            node.advance(due_ns - node.clock.now().wall_ns - 1)
            assert consumer.take() == []
            node.advance(1)
            assert consumer.take_bodies() == [b"%d" % due_ns]
        assert node.broker.health.startswith("NOK")

    def test_a_disk_that_cannot_be_read_is_tried_again(self) -> None:
        node = make_node()
        publish(node, HOUR)
        node.files.fail("read", path="timers", times=3, errno=errno.EIO)
        node.advance(HOUR + 2 * SECOND)
        assert node.channel("t", "c").depth == 1
