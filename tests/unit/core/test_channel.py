"""A channel: who gets what, and what becomes of it.

Every test runs with nothing stored (``#ephemeral``), with what overflows stored (``memory``) and
with everything stored (``disk``), unless it is about one of them.
"""

import errno

import pytest

from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.core.channel import DISPATCH_MAX_BYTES
from nsqpy.core.deadlines import NEVER
from nsqpy.core.in_flight import NotInFlightError, NotOwnerError
from nsqpy.errors import StorageError
from nsqpy.storage.diskqueue import DiskQueue
from tests.unit.core.channel_rig import KINDS, TIMEOUT_NS, Kind, Rig
from tests.unit.fakes import FakeListener, batch_of, message_id


@pytest.fixture(params=KINDS, ids=str)
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig(request.param)


@pytest.fixture
def disk() -> Rig:
    return Rig(Kind("disk", 1000))


class TestDispatch:
    def test_nobody_gets_anything_without_rdy(self, rig: Rig) -> None:
        customer = rig.customer(0)
        rig.put(2)
        assert customer.get() == []
        assert rig.counts() == (2, 0, 0, 0)

    def test_rdy_is_a_ceiling_on_what_is_in_flight(self, rig: Rig) -> None:
        customer = rig.customer(2)
        first, second, _, _ = rig.put(4)
        assert customer.get() == [b"m1", b"m2"]
        assert rig.counts() == (2, 2, 0, 0)
        assert customer.get() == []
        customer.finish(first)
        assert customer.get() == [b"m3"]
        customer.finish(second)
        assert customer.get() == [b"m4"]
        assert rig.counts() == (0, 2, 0, 2)

    def test_rdy_may_be_lowered_below_what_is_in_flight(self, rig: Rig) -> None:
        customer = rig.customer(3)
        ids = rig.put(5)
        assert len(customer.get()) == 3
        customer.ready(1)
        customer.finish(ids[0], ids[1])
        assert customer.get() == []
        customer.finish(ids[2])
        assert customer.get() == [b"m4"]

    def test_rdy_0_stops_the_flow(self, rig: Rig) -> None:
        customer = rig.customer(5)
        rig.put(1)
        assert customer.get() == [b"m1"]
        customer.ready(0)
        rig.put(1)
        assert customer.get() == []
        customer.ready(2)
        assert customer.get() == [b"m2"]

    def test_consumers_share_what_there_is(self, rig: Rig) -> None:
        customers = [rig.customer(10) for _ in range(3)]
        rig.put(9)
        rig.turn()
        assert [len(customer.take()) for customer in customers] == [3, 3, 3]

    def test_single_messages_go_round(self, rig: Rig) -> None:
        customers = [rig.customer(10) for _ in range(3)]
        for _ in range(7):
            rig.put(1)
            rig.turn()
        assert [len(customer.take()) for customer in customers] == [3, 2, 2]

    def test_one_with_less_credit_leaves_the_rest_to_the_others(self, rig: Rig) -> None:
        slow, fast = rig.customer(1), rig.customer(100)
        rig.put(20)
        rig.turn()
        assert (len(slow.take()), len(fast.take())) == (1, 19)

    def test_whoever_does_not_read_gets_nothing(self, rig: Rig) -> None:
        customer = rig.customer(5)
        customer.subscription.blocked = True
        rig.channel.update_credit(customer.subscription)
        rig.put(1)
        assert customer.get() == []
        customer.subscription.blocked = False
        rig.channel.update_credit(customer.subscription)
        assert customer.get() == [b"m1"]

    def test_one_dispatch_is_bounded_in_bytes(self) -> None:
        rig = Rig(Kind("disk", 1000))
        customer = rig.customer(1000)
        large = bytes(DISPATCH_MAX_BYTES // 4)
        for index in range(8):
            batch = batch_of(large, first_id=index + 1)
            rig.channel.put([batch], rig.clock.now())
        ((_, frames),) = rig.channel.dispatch(rig.clock.monotonic_ns())
        assert sum(map(len, frames)) <= DISPATCH_MAX_BYTES
        assert rig.channel in rig.agenda.channels
        customer.deliver(frames)
        assert len(customer.take()) == 3

    def test_one_message_larger_than_that_is_delivered(self, disk: Rig) -> None:
        customer = disk.customer(2)
        disk.channel.put([batch_of(bytes(2 * DISPATCH_MAX_BYTES))], disk.clock.now())
        disk.turn()
        assert len(customer.take()) == 1

    def test_frames_carry_time_attempts_and_id(self, rig: Rig) -> None:
        customer = rig.customer()
        rig.put(1)
        rig.turn()
        (message,) = customer.take()
        assert message == (1_800_000_000 * SECOND, 1, message_id(1), b"m1")

    def test_counts_of_a_subscription(self, rig: Rig) -> None:
        customer = rig.customer(5)
        ids = rig.put(5)
        rig.turn()
        customer.finish(*ids[:2])
        customer.requeue(ids[2], SECOND)
        subscription = customer.subscription
        assert subscription.message_count == 5
        assert (subscription.finish_count, subscription.requeue_count) == (2, 1)
        assert (subscription.in_flight_count, rig.channel.delivered_count) == (2, 5)
        assert (rig.channel.message_count, rig.channel.requeue_count) == (5, 1)


class TestFinish:
    @pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 1, 3]])
    def test_in_any_order_at_once_or_one_by_one(self, rig: Rig, order: list[int]) -> None:
        customer = rig.customer(8)
        ids = rig.put(4) + rig.put(4)
        rig.turn()
        assert customer.finish(*(ids[place] for place in order)) == []
        assert rig.counts() == (0, 4, 0, 4)
        for place in order:
            assert customer.finish(ids[4 + place]) == []
        assert rig.counts() == (0, 0, 0, 8)
        assert customer.in_flight == 0
        assert rig.channel.soonest_deadline_ns() == NEVER

    def test_twice_fails_the_second_time(self, rig: Rig) -> None:
        customer = rig.customer(2)
        first, second = rig.put(2)
        rig.turn()
        assert customer.finish(first, first, second) == [f"{first.decode()} ID not in flight"]
        assert customer.finish(second) == [f"{second.decode()} ID not in flight"]
        assert (rig.counts(), customer.in_flight) == ((0, 0, 0, 2), 0)

    def test_another_ones_message_stays_his(self, rig: Rig) -> None:
        owner, other = rig.customer(1), rig.customer(0)
        (first,) = rig.put(1)
        rig.turn()
        assert other.finish(first) == [f"{first.decode()} client does not own message"]
        assert (owner.in_flight, other.in_flight) == (1, 0)
        assert owner.finish(first) == []

    def test_good_ones_count_among_bad_ones(self, rig: Rig) -> None:
        customer = rig.customer(4)
        ids = rig.put(4)
        rig.turn()
        unknown = message_id(99)
        assert len(customer.finish(ids[0], unknown, ids[1], unknown, ids[3])) == 2
        assert rig.counts() == (0, 1, 0, 3)

    def test_a_finished_message_is_acknowledged_in_the_log(self, disk: Rig) -> None:
        customer = disk.customer(3)
        ids = disk.put(3)
        disk.turn()
        customer.finish(ids[1])
        disk.channel.close()
        reader = DiskQueue(
            *(disk.files, "queue"),
            name="",
            segment_max_bytes=1000,
            sync_every=9,
            listener=FakeListener(),
        )
        reader.open()
        assert reader.depth == 2


class TestRequeue:
    def test_at_once_with_one_attempt_more(self, rig: Rig) -> None:
        customer = rig.customer(1)
        first, _ = rig.put(2)
        rig.turn()
        (before,) = customer.take()
        customer.requeue(first)
        rig.turn()
        customer.ready(9)
        rig.turn()
        after = {message.body: message for message in customer.take()}
        assert after[b"m1"] == before._replace(attempts=2)
        assert after[b"m2"].attempts == 1
        assert rig.counts() == (0, 2, 0, 0)

    def test_later_and_not_before(self, rig: Rig) -> None:
        customer = rig.customer(1)
        (first,) = rig.put(1)
        rig.turn()
        customer.requeue(first, 500 * MILLISECOND)
        assert (rig.counts(), customer.in_flight) == ((0, 0, 1, 0), 0)
        customer.take()
        assert rig.advance(500 * MILLISECOND - 1) == 0
        assert customer.get() == []
        assert rig.advance(1) == 1
        rig.turn()
        (message,) = customer.take()
        assert (message.attempts, rig.counts()) == (2, (0, 1, 0, 0))
        assert customer.finish(first) == []

    def test_what_is_not_in_flight_cannot_be_requeued(self, rig: Rig) -> None:
        owner, other = rig.customer(1), rig.customer(0)
        (first,) = rig.put(1)
        rig.turn()
        with pytest.raises(NotOwnerError, match="client does not own message"):
            other.requeue(first)
        owner.requeue(first, SECOND)
        with pytest.raises(NotInFlightError, match="ID not in flight"):
            owner.requeue(first)
        assert (owner.in_flight, rig.counts()) == (0, (0, 0, 1, 0))

    def test_a_requeued_message_of_many_leaves_the_others_in_flight(self, rig: Rig) -> None:
        customer = rig.customer(5)
        ids = rig.put(5)
        rig.turn()
        customer.ready(0)
        customer.requeue(ids[2])
        customer.requeue(ids[0])
        assert customer.finish(ids[1], ids[3], ids[4]) == []
        assert rig.counts() == (2, 0, 0, 3)

    def test_attempts_wrap_as_on_the_wire(self, rig: Rig) -> None:
        customer = rig.customer(1)
        (first,) = rig.put(1)
        rig.turn()
        for expected in [*range(1, 5)]:
            (message,) = customer.take()
            assert message.attempts == expected
            customer.requeue(first)
            rig.turn()


class TestTimeout:
    def test_comes_at_the_deadline_and_not_before(self, rig: Rig) -> None:
        customer = rig.customer(1)
        rig.put(1)
        rig.turn()
        (before,) = customer.take()
        assert rig.channel.soonest_deadline_ns() == rig.clock.monotonic_ns() + TIMEOUT_NS
        assert rig.advance(TIMEOUT_NS - 1) == 0
        assert rig.advance(1) == 1
        assert (rig.counts(), customer.in_flight) == ((1, 0, 0, 0), 0)
        assert rig.channel.timeout_count == 1
        rig.turn()
        assert customer.take() == [before._replace(attempts=2)]

    def test_each_consumer_has_its_own(self, rig: Rig) -> None:
        short, long = rig.customer(1, timeout_ns=SECOND), rig.customer(1, timeout_ns=5 * SECOND)
        rig.put(2)
        rig.turn()
        short.ready(0)
        long.ready(0)
        assert rig.advance(SECOND) == 1
        assert (short.in_flight, long.in_flight) == (0, 1)
        assert rig.advance(4 * SECOND) == 1

    def test_a_late_answer_is_refused_and_changes_nothing(self, rig: Rig) -> None:
        first_owner = rig.customer(1)
        (first,) = rig.put(1)
        rig.turn()
        first_owner.ready(0)
        rig.advance(TIMEOUT_NS)
        assert first_owner.finish(first) == [f"{first.decode()} ID not in flight"]
        second_owner = rig.customer(1)
        assert second_owner.get() == [b"m1"]
        assert first_owner.finish(first) == [f"{first.decode()} client does not own message"]
        assert (first_owner.in_flight, second_owner.in_flight) == (0, 1)

    def test_what_a_consumer_leaves_behind_comes_after_its_timeout(self, rig: Rig) -> None:
        leaver, stayer = rig.customer(2), rig.customer(0)
        rig.put(2)
        rig.turn()
        rig.channel.unsubscribe(leaver.subscription)
        stayer.ready(2)
        assert stayer.get() == []
        assert rig.counts() == (0, 2, 0, 0)
        rig.advance(TIMEOUT_NS)
        assert stayer.get() == [b"m1", b"m2"]
        assert leaver.take_bodies() == [b"m1", b"m2"]

    def test_only_what_is_unanswered_times_out(self, rig: Rig) -> None:
        customer = rig.customer(6)
        ids = rig.put(6)
        rig.turn()
        customer.take()
        customer.finish(ids[0], ids[3], ids[5])
        assert rig.advance(TIMEOUT_NS) == 3
        rig.turn()
        assert [(m.body, m.attempts) for m in customer.take()] == [
            *((b"m2", 2), (b"m3", 2), (b"m5", 2)),
        ]

    def test_what_is_given_back_need_not_wait_for_it(self, rig: Rig) -> None:
        slow, other = rig.customer(3), rig.customer(0)
        rig.put(3)
        rig.turn()
        first, *_ = slow.take_ids()
        slow.finish(first)
        slow.subscription.blocked = True
        rig.channel.time_out(slow.subscription, rig.clock.now())
        assert (slow.in_flight, rig.channel.in_flight_count) == (0, 0)
        assert rig.channel.timeout_count == 2
        other.ready(3)
        assert sorted(other.get()) == [b"m2", b"m3"]
        assert slow.get() == []
        rig.channel.audit()


class TestDeferred:
    def test_a_deferred_publish_comes_when_due(self, rig: Rig) -> None:
        customer = rig.customer(9)
        rig.put(2, delay_ns=SECOND)
        rig.put(1)
        assert customer.get() == [b"m3"]
        assert rig.counts() == (0, 1, 2, 0)
        assert rig.advance(SECOND - 1) == 0
        assert rig.advance(1) == 2
        assert customer.get() == [b"m1", b"m2"]

    def test_those_due_first_come_first(self, rig: Rig) -> None:
        customer = rig.customer(9)
        for delay_ns in (3 * SECOND, SECOND, 2 * SECOND):
            rig.put(1, delay_ns=delay_ns)
        rig.advance(5 * SECOND)
        assert customer.get() == [b"m2", b"m3", b"m1"]

    def test_one_batch_may_hold_both(self, rig: Rig) -> None:
        rig.published = 2
        later_ns = rig.clock.now().wall_ns + SECOND
        rig.channel.put(
            [batch_of(b"later", deliver_at_ns=later_ns), batch_of(b"now", first_id=2)],
            rig.clock.now(),
        )
        assert rig.counts() == (1, 0, 1, 0)

    @pytest.mark.parametrize("failing", ["queue", "deferred"])
    def test_a_put_that_fails_takes_nothing(self, disk: Rig, failing: str) -> None:
        later_ns = disk.clock.now().wall_ns + SECOND
        batches = [batch_of(b"x", first_id=n, deliver_at_ns=later_ns) for n in (1, 2)]
        batches.append(batch_of(b"now", first_id=3))
        disk.files.fail("write", path=failing)
        with pytest.raises(StorageError):
            disk.channel.put(batches, disk.clock.now())
        assert disk.counts() == (0, 0, 0, 0)
        assert disk.advance(SECOND) == 0
        disk.channel.put(batches, disk.clock.now())
        disk.published = 3
        disk.advance(SECOND)
        assert disk.counts() == (3, 0, 0, 0)

    def test_a_delay_that_cannot_be_stored_is_kept_in_memory(
        self, disk: Rig, caplog: pytest.LogCaptureFixture
    ) -> None:
        customer = disk.customer(1)
        (first,) = disk.put(1)
        disk.turn()
        customer.take()
        disk.files.fail("write", path="deferred")
        customer.requeue(first, SECOND)
        assert "CHANNEL(c): delay not stored" in caplog.text
        assert disk.counts() == (0, 0, 1, 0)
        disk.advance(SECOND)
        disk.turn()
        (message,) = customer.take()
        assert message.attempts == 2
        assert customer.finish(first) == []


class TestSampling:
    def test_the_rest_is_dropped_for_the_channel(self) -> None:
        rig = Rig(Kind("disk", 100_000))
        customer = rig.customer(2500, sample_rate=9)
        for _ in range(20):
            customer.finish(*rig.put_and_take(customer, 500))
        received = rig.channel.finish_count
        assert 850 < received < 1150  # 10 000 at (9 + 1) %, five standard deviations
        assert rig.counts() == (0, 0, 0, received)
        assert rig.channel.sampled_out_count == 10_000 - received
        assert customer.subscription.message_count == received

    def test_dropped_messages_are_acknowledged(self, disk: Rig) -> None:
        disk.customer(100, sample_rate=1)
        disk.put(100)
        disk.turn()
        in_flight = disk.channel.in_flight_count
        assert in_flight < 20
        assert disk.channel._log is not None
        assert disk.channel._log.depth == in_flight

    def test_no_rate_is_everything(self, rig: Rig) -> None:
        customer = rig.customer(100, sample_rate=0)
        rig.put(50)
        assert len(customer.get()) == 50

    def test_99_is_everything(self, rig: Rig) -> None:
        customer = rig.customer(100, sample_rate=99)
        rig.put(50)
        assert len(customer.get()) == 50


class TestPause:
    def test_a_paused_channel_takes_and_answers_but_does_not_deliver(self, rig: Rig) -> None:
        customer = rig.customer(5)
        ids = rig.put(3)
        rig.turn()
        customer.take()
        rig.channel.pause()
        rig.put(1)
        assert customer.get() == []
        assert customer.finish(ids[0]) == []
        customer.requeue(ids[1], SECOND)
        assert rig.advance(SECOND) == 1
        assert rig.advance(TIMEOUT_NS) == 1
        assert customer.get() == []
        assert rig.counts() == (3, 0, 0, 1)
        rig.channel.unpause()
        assert sorted(customer.get()) == [b"m2", b"m3", b"m4"]


class TestEmpty:
    def test_everything_goes_wherever_it_is(self, rig: Rig) -> None:
        customer = rig.customer(2)
        ids = rig.put(5)
        rig.turn()
        customer.requeue(ids[0], SECOND)
        rig.turn()
        rig.channel.empty(rig.clock.now())
        rig.published = 0
        assert rig.counts() == (0, 0, 0, 0)
        assert customer.in_flight == 0
        assert customer.finish(ids[1]) == [f"{ids[1].decode()} ID not in flight"]
        assert customer.in_flight == 0
        assert rig.advance(10 * TIMEOUT_NS) == 0
        customer.take()
        rig.published = 5
        rig.put(3)
        assert customer.get() == [b"m6", b"m7"]

    def test_nothing_comes_back_from_the_log(self, disk: Rig) -> None:
        disk.put(3)
        disk.put(1, delay_ns=SECOND)
        disk.channel.empty(disk.clock.now())
        assert disk.files.paths() == []

    def test_deleting_cuts_the_consumers(self, rig: Rig) -> None:
        customer = rig.customer(1)
        rig.put(2)
        rig.turn()
        rig.channel.delete()
        assert customer.is_cut
        assert rig.channel.depth == rig.channel.in_flight_count == 0
        assert rig.files.open_files == []
        assert rig.channel.dispatch(rig.clock.monotonic_ns()) == []


class TestStorageFaults:
    def test_a_failed_put_is_the_publishers_to_know(self, disk: Rig) -> None:
        disk.files.fail("write")
        with pytest.raises(StorageError, match="No space left on device"):
            disk.put(2)
        disk.published = 0
        assert (disk.counts(), disk.channel.message_count) == ((0, 0, 0, 0), 0)

    def test_a_log_that_cannot_be_read_keeps_its_messages(self) -> None:
        rig = Rig(Kind("disk", 0))
        customer = rig.customer(9)
        rig.put(2)
        rig.files.fail("read", errno=errno.EIO)
        with pytest.raises(StorageError):
            rig.turn()
        assert rig.counts() == (2, 0, 0, 0)
        assert customer.get() == [b"m1", b"m2"]

    def test_what_was_given_out_before_the_fault_is_delivered(self) -> None:
        rig = Rig(Kind("disk", 2))
        customers = [rig.customer(2), rig.customer(2)]
        for _ in range(4):
            rig.put(1)
        rig.files.fail("read", errno=errno.EIO)
        deliveries = rig.channel.dispatch(rig.clock.monotonic_ns())
        assert [subscription for subscription, _ in deliveries] == [customers[0].subscription]
        assert rig.counts() == (2, 2, 0, 0)
        assert rig.channel in rig.agenda.channels
        assert customers[1].get() == [b"m3", b"m4"]
