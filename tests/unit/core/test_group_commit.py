"""When what is written is synced, and who is told."""

import pytest

from nsqpy.clock import SECOND
from nsqpy.config import Durability
from nsqpy.core.deadlines import NEVER
from nsqpy.core.disk_health import RETRY_NS
from nsqpy.errors import StorageError
from tests.unit.core.node import Node


@pytest.fixture
def node() -> Node:
    return Node()


class TestSync:
    def test_at_disk_an_ok_does_not_wait_for_it(self, node: Node) -> None:
        node.subscribe("t", "c", ready_count=0)
        node.publish("t", b"1")
        assert node.files.sync_count == 0
        assert not node.broker.sync_due(node.clock.now())

    def test_sync_timeout(self) -> None:
        node = Node(sync_timeout_ns=2 * SECOND)
        node.subscribe("t", "c", ready_count=0)
        node.publish("t", b"1")
        node.clock.advance(2 * SECOND - 1)
        assert not node.broker.sync_due(node.clock.now())
        node.clock.advance(1)
        assert node.broker.sync_due(node.clock.now())
        node.sync()
        assert node.files.sync_count == 1
        assert not node.broker.sync_due(node.clock.now())

    def test_sync_every(self) -> None:
        node = Node(sync_every=3)
        node.subscribe("t", "c", ready_count=0)
        for due in (False, False, True):
            node.publish_later("t", b"1")
            node.turn()
            assert node.broker.sync_due(node.clock.now()) is due

    def test_at_fsync_an_ok_waits_and_one_sync_serves_all(self) -> None:
        node = Node(durability=Durability.FSYNC)
        for name in ("a", "b"):
            node.subscribe("t", name, ready_count=0)
        first = [node.publish_later("t", b"%d" % index) for index in range(10)]
        node.turn()
        assert not any(ticket.done for ticket in first)
        work = node.broker.begin_sync()
        late = node.publish_later("t", b"late")
        node.turn()
        work.run()
        node.broker.end_sync(work, None)
        assert all(ticket.done and ticket.error is None for ticket in first)
        assert node.files.sync_count == 2  # one for each channel's log
        assert not late.done
        node.sync()
        assert late.done

    def test_what_got_its_ok_at_fsync_survives_a_power_loss(self) -> None:
        node = Node(durability=Durability.FSYNC)
        consumer = node.subscribe("t", "c", ready_count=0)
        assert node.publish("t", b"safe") is None
        assert node.publish("t", b"safe, later", delay_ns=SECOND) is None
        node.publish_later("t", b"not yet")
        node.turn()
        node.lose_power()
        consumer = node.subscribe("t", "c", ready_count=9)
        node.advance(SECOND)
        assert consumer.take_bodies() == [b"safe", b"safe, later"]

    def test_a_failed_sync_is_told_to_everybody_who_waits(self) -> None:
        node = Node(durability=Durability.FSYNC)
        node.subscribe("t", "c", ready_count=0)
        ticket = node.publish_later("t", b"1")
        node.turn()
        work = node.broker.begin_sync()
        error = StorageError("sync", "Input/output error")
        node.broker.end_sync(work, error)
        assert ticket.error is error
        assert node.broker.health == "NOK - sync: Input/output error"

    @pytest.mark.parametrize("durability", [Durability.DISK, Durability.FSYNC])
    @pytest.mark.parametrize("deleted", [False, True])
    def test_a_failed_sync_is_tried_again_though_its_files_have_gone(
        self, durability: Durability, deleted: bool
    ) -> None:
        node = Node(durability=durability, sync_timeout_ns=2 * SECOND)
        node.publish_later("t", b"1")
        node.turn()
        node.clock.advance(2 * SECOND)
        node.turn()
        assert node.broker.sync_due(node.clock.now())
        work = node.broker.begin_sync()
        if deleted:
            node.broker.delete_topic("t")
        node.broker.end_sync(work, StorageError("sync", "Input/output error"))
        node.settle()
        node.clock.advance(RETRY_NS - 1)
        assert not node.broker.sync_due(node.clock.now())
        assert node.broker.next_deadline_ns() == node.clock.monotonic_ns() + 1
        node.clock.advance(1)
        assert node.broker.sync_due(node.clock.now())
        node.sync()
        assert node.broker.health == "OK"
        assert not node.broker.sync_due(node.clock.now())

    def test_while_one_is_under_way_there_is_no_deadline_for_the_next(self) -> None:
        node = Node(sync_timeout_ns=2 * SECOND)
        node.subscribe("t", "c", ready_count=0)
        node.publish("t", b"1")
        node.clock.advance(2 * SECOND)
        work = node.broker.begin_sync()
        node.publish_later("t", b"2")
        node.settle()
        node.clock.advance(3 * SECOND)
        node.settle()
        now_ns = node.clock.monotonic_ns()
        deadline_ns = node.broker.next_deadline_ns()
        assert deadline_ns == NEVER or deadline_ns > now_ns
        work.run()
        node.broker.end_sync(work, None)
        node.settle()
        assert node.broker.sync_due(node.clock.now())
