"""A channel, its clock and its consumers, moved by hand."""

from random import Random
from typing import NamedTuple

from nsqpy.clock import SECOND, ManualClock
from nsqpy.core.agenda import Agenda
from nsqpy.core.channel import Channel
from nsqpy.core.deadlines import NEVER
from nsqpy.core.deferred import DeferredMessages
from nsqpy.core.subscription import Subscription
from nsqpy.message import MessageID
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.timers import TimerWheel
from tests.unit.fakes import FakeConsumer, FakeFiles, FakeListener, batch_of, message_id

__all__ = ["KINDS", "MAX_TIMEOUT_NS", "TIMEOUT_NS", "Customer", "Kind", "Rig"]

TIMEOUT_NS = 60 * SECOND


MAX_TIMEOUT_NS = 150 * SECOND


class Kind(NamedTuple):
    name: str
    window_limit: int


KINDS = [Kind("ephemeral", 1000), Kind("memory", 3), Kind("disk", 1000), Kind("disk", 0)]


class Customer(FakeConsumer):
    """A consumer on the rig's channel."""

    def __init__(self, rig: "Rig", ready_count: int, timeout_ns: int, sample_rate: int) -> None:
        super().__init__()
        self.rig = rig
        self.subscription = Subscription(self, msg_timeout_ns=timeout_ns, sample_rate=sample_rate)
        rig.channel.subscribe(self.subscription)
        self.ready(ready_count)

    def ready(self, count: int) -> None:
        self.subscription.ready_count = count
        self.rig.channel.update_credit(self.subscription)

    def finish(self, *ids: MessageID) -> list[str]:
        failures = self.rig.channel.finish(self.subscription, list(ids))
        return [f"{name.decode()} {why}" for name, why in failures]

    def requeue(self, message: MessageID, delay_ns: int = 0) -> None:
        self.rig.channel.requeue(self.subscription, message, delay_ns, self.rig.clock.now())

    def touch(self, message: MessageID) -> None:
        self.rig.channel.touch(self.subscription, message, self.rig.clock.monotonic_ns())

    def get(self) -> list[bytes]:
        """Take a turn, and what it brought this consumer."""
        self.rig.turn()
        return self.take_bodies()

    @property
    def in_flight(self) -> int:
        return self.subscription.in_flight_count


class Rig:
    """A channel and its clock. Bodies are ``m1``, ``m2`` and so on, ids 1, 2 and so on."""

    def __init__(self, kind: Kind) -> None:
        self.clock = ManualClock()
        self.files = FakeFiles()
        self.published = 0
        self.agenda = Agenda(lambda: None)
        self.durable = kind.name != "ephemeral"
        log_all = kind.name == "disk"
        self.deferred = DeferredMessages(
            self._log("deferred") if self.durable else None,
            TimerWheel(self.files, "timers", self._log) if self.durable else None,
            limit=kind.window_limit,
            log_all=log_all,
        )
        self.channel = Channel(
            "t",
            "c",
            agenda=self.agenda,
            random=Random(7),
            window_limit=kind.window_limit,
            max_msg_timeout_ns=MAX_TIMEOUT_NS,
            queue_log=self._log("queue") if self.durable else None,
            deferred=self.deferred,
            log_all=log_all,
        )
        self.channel.restore(self.clock.now())

    def _log(self, name: str) -> DiskQueue:
        queue_log = DiskQueue(
            self.files,
            name,
            name=name,
            segment_max_bytes=1000,
            sync_every=9999,
            listener=FakeListener(),
        )
        queue_log.open()
        return queue_log

    def customer(
        self, ready_count: int = 1, *, timeout_ns: int = TIMEOUT_NS, sample_rate: int = 0
    ) -> Customer:
        return Customer(self, ready_count, timeout_ns, sample_rate)

    def put(self, count: int = 1, delay_ns: int = 0) -> list[MessageID]:
        """Publish one batch of ``count`` messages; their ids."""
        first = self.published + 1
        self.published += count
        due_ns = self.clock.now().wall_ns + delay_ns if delay_ns else 0
        bodies = [b"m%d" % number for number in range(first, first + count)]
        batch = batch_of(*bodies, first_id=first, deliver_at_ns=due_ns)
        self.channel.put([batch], self.clock.now())
        return [message_id(number) for number in range(first, first + count)]

    def turn(self) -> None:
        """Dispatch until the channel does not ask for more, as the broker does."""
        self.agenda.channels[self.channel] = None
        while self.agenda.channels:
            self.agenda.channels.clear()
            for subscription, frames in self.channel.dispatch(self.clock.monotonic_ns()):
                subscription.consumer.deliver(frames)

    def put_and_take(self, customer: Customer, count: int) -> list[MessageID]:
        self.put(count)
        self.turn()
        return customer.take_ids()

    def advance(self, duration_ns: int) -> int:
        """Let time pass and do what has become due; how many messages became available."""
        until_ns = self.clock.monotonic_ns() + duration_ns
        available = 0
        while NEVER != (next_ns := self.channel.soonest_deadline_ns()) <= until_ns:
            self.clock.advance(max(next_ns - self.clock.monotonic_ns(), 0))
            available += self.channel.expire(self.clock.now())
        self.clock.advance(until_ns - self.clock.monotonic_ns())
        return available

    def counts(self) -> tuple[int, int, int, int]:
        """Depth, in flight, deferred, finished: they add up to what was published."""
        channel = self.channel
        channel.audit()
        counts = (
            channel.depth,
            channel.in_flight_count,
            channel.deferred_count,
            channel.finish_count,
        )
        assert sum(counts) + channel.sampled_out_count + channel.dropped_count == self.published
        return counts
