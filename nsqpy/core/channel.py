"""A channel: every message of its topic once, shared out among its consumers.

A message is in exactly one place: the window (or unread in the log), in flight, deferred, or
leased. Each place has an owner that counts what is there (``Window``, ``InFlight``,
``DeferredMessages``, ``LeaseBook``); a channel moves messages from one to another. Time arrives as
arguments.
Source: nsqd/channel.go.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

from nsqpy.clock import Instant
from nsqpy.core.agenda import Agenda
from nsqpy.core.dead_letters import (
    LEASE_EXPIRED,
    LEASE_RELEASED,
    REQUEUE,
    TIMEOUT,
    DeadLetterPolicy,
    DeadLetters,
    Publish,
    bodies_of,
)
from nsqpy.core.deadlines import NEVER
from nsqpy.core.deferred import DeferredMessages
from nsqpy.core.flight import Flight
from nsqpy.core.in_flight import InFlight
from nsqpy.core.lease import LeaseState
from nsqpy.core.lease_book import LeaseBook
from nsqpy.core.redelivery import Redelivery
from nsqpy.core.subscription import Subscription
from nsqpy.core.window import NOT_STORED, Run, Window, store_changed
from nsqpy.errors import NSQError, StorageError
from nsqpy.message import Batch, MessageID
from nsqpy.storage.diskqueue import DiskQueue

if TYPE_CHECKING:
    from nsqpy.core.latency import LatencyWindow

__all__ = ["DISPATCH_MAX_BYTES", "Channel"]

# What one consumer is given in one turn; with the connection's own high-water mark this bounds
# what is buffered for a client that does not read.
DISPATCH_MAX_BYTES = 512 * 1024


class Channel:
    """``window_limit`` is in messages. ``queue_log`` is None if ephemeral.

    With ``log_all`` every durable message is in a log before ``put`` returns.
    """

    def __init__(
        self,
        topic_name: str,
        name: str,
        *,
        agenda: Agenda,
        random: Random,
        window_limit: int,
        max_msg_timeout_ns: int,
        queue_log: DiskQueue | None,
        deferred: DeferredMessages,
        leases: LeaseBook | None = None,
        log_all: bool,
        drop_oldest: bool = False,
    ) -> None:
        self.topic_name = topic_name
        self.name = name
        self._agenda = agenda
        self._random = random
        self._log = queue_log
        self._log_all = log_all and queue_log is not None
        self._window = Window(
            queue_log, limit=window_limit, log_all=self._log_all, drop_oldest=drop_oldest
        )
        self._in_flight = InFlight(max_msg_timeout_ns)
        self._deferred = deferred
        self._redelivery = Redelivery(name, self._window, deferred)
        self.leases = leases
        if leases is not None:
            leases.attach(self)
        self._ready: dict[Subscription, None] = {}  # those with credit, next to be served first
        self.subscriptions: dict[Subscription, None] = {}
        self.deadlines_changed = False  # ``soonest_deadline_ns`` may be sooner than it was
        self.deadline_ns = NEVER  # its place in the broker's heap of channels
        self.paused = False
        self.exiting = False
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.finish_count = 0
        self.sampled_out_count = 0
        self.latency: LatencyWindow | None = None  # the factory's to set, if it is wanted

    @property
    def depth(self) -> int:
        """Messages ready to be delivered, in memory and on disk."""
        return self._window.depth

    @property
    def backend_depth(self) -> int:
        return self._window.backend_depth

    @property
    def oldest_ns(self) -> int | None:
        """When the first of them was published; as ``Window.oldest_ns``."""
        return self._window.oldest_ns

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    @property
    def delivered_count(self) -> int:
        return self._in_flight.launched_count

    @property
    def dead_letters(self) -> DeadLetters | None:
        """None unless a policy has been set."""
        return self._redelivery.letters

    @property
    def bad_block_count(self) -> int:
        """Damaged stretches of its logs that were set aside since the start."""
        ready = self._log.bad_blocks if self._log is not None else 0
        leased = self.leases.bad_blocks if self.leases is not None else 0
        return ready + self._deferred.bad_blocks + leased

    @property
    def leased_count(self) -> int:
        """Messages that are out on leases, or on their way back."""
        return self.leases.leased_count if self.leases is not None else 0

    @property
    def deferred_count(self) -> int:
        """Messages that wait for their time, in memory and on disk."""
        return self._deferred.count

    @property
    def dropped_count(self) -> int:
        """What an ephemeral channel had no room for."""
        return self._window.dropped_count + self._deferred.dropped_count

    def soonest_deadline_ns(self) -> int:
        """When ``expire`` next has something to do, or NEVER."""
        leases = self.leases.soonest_ns() if self.leases is not None else NEVER
        soonest = (self._in_flight.soonest_ns(), self._deferred.soonest_ns(), leases)
        return min((due_ns for due_ns in soonest if due_ns != NEVER), default=NEVER)

    def next_deferred_ns(self, now: Instant) -> int:
        """About when the next deferred message is due, monotonic and not too late, or NEVER."""
        return self._deferred.next_due_ns(now)

    # -- in ---------------------------------------------------------------------------------

    def restore(self, now: Instant) -> None:
        """Take up what waits in the logs from before; called once, before anything else.

        Raises:
            StorageError: a log cannot be read.
        """
        if self.leases is not None:
            self.leases.load(now)
        self._deferred.restore(now)

    def put(self, batches: Sequence[Batch], now: Instant) -> None:
        """Take messages from the topic; those due later are deferred.

        Raises:
            StorageError: the disk refused; none was taken.
        """
        self._agenda.note_channel(self)
        now_ns = now.wall_ns
        later = [batch for batch in batches if batch.deliver_at_ns > now_ns]
        if not later:
            self._put_ready(batches)
        else:
            stored = self._deferred.store(later, now)
            ready = [batch for batch in batches if batch.deliver_at_ns <= now_ns]
            try:
                if ready:
                    self._put_ready(ready)
            except StorageError:
                self._deferred.undo(stored)  # the topic will offer all of it again
                raise
            self._deferred.keep(stored, now)
            self.deadlines_changed = True
        for batch in batches:
            self.message_count += len(batch)

    def _put_ready(self, batches: Sequence[Batch]) -> None:
        spare = 0
        if self._log is None:
            spare = sum(subscription.credit for subscription in self._ready)
        self._window.put(batches, spare)

    # -- consumers --------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        self.subscriptions[subscription] = None

    def unsubscribe(self, subscription: Subscription) -> None:
        """The consumer left. What it has in flight stays so until its deadline."""
        subscription.closing = True
        self.subscriptions.pop(subscription, None)
        self._ready.pop(subscription, None)

    def update_credit(self, subscription: Subscription) -> None:
        """RDY, a block or a count of ``subscription`` changed: see whether it may be served."""
        if subscription.credit:
            self._ready[subscription] = None
            if self._window.depth:
                self._agenda.note_channel(self)
        else:
            self._ready.pop(subscription, None)

    # -- out --------------------------------------------------------------------------------

    def dispatch(self, now_ns: int) -> list[tuple[Subscription, list[bytes]]]:
        """Give each subscription with credit its share of what is ready, as frames to send.

        Raises:
            StorageError: the log cannot be read; nothing is given out.
        """
        deliveries: list[tuple[Subscription, list[bytes]]] = []
        window, ready = self._window, self._ready
        if not ready or self.paused or self.exiting or window.is_empty():
            return deliveries
        depth = window.depth
        share = -(-depth // len(ready))
        for subscription in list(islice(ready, depth)):
            try:
                runs = window.take(min(subscription.credit, share), DISPATCH_MAX_BYTES)
            except StorageError:
                if not deliveries:
                    raise
                break  # the next turn meets the error again
            if not runs:
                break
            if subscription.sample_rate:
                runs = self._sample(subscription.sample_rate, runs)
            frames = self._in_flight.launch(subscription, runs, now_ns)
            if runs and not frames:
                runs = self._hold_twins(runs, now_ns + subscription.msg_timeout_ns)
                frames = self._in_flight.launch(subscription, runs, now_ns)
            if frames:
                deliveries.append((subscription, frames))
                self.deadlines_changed = True
            del ready[subscription]  # to the back of the line, if it is still in it
            if subscription.credit:
                ready[subscription] = None
        if ready and window.depth:
            self._agenda.note_channel(self)
        return deliveries

    def _hold_twins(self, runs: list[Run], deadline_ns: int) -> list[Run]:
        """Keep messages back while others with their ids are in flight; returns the rest."""
        free, twins = self._in_flight.tell_apart(runs)
        for run in twins:
            self._deferred.hold(run, deadline_ns)
            self.deadlines_changed = True
        return free

    def _sample(self, rate: int, runs: list[Run]) -> list[Run]:
        """Keep each message with probability (rate + 1) %; the others are gone for the channel."""
        kept = []
        for run in runs:
            for index in range(len(run)):
                if self._random.randrange(100) <= rate:
                    kept.append(run.part(index, index + 1))
                else:
                    run.acknowledge(index, index + 1)
                    self.sampled_out_count += 1
        return kept

    # -- answers ----------------------------------------------------------------------------

    def finish(
        self, subscription: Subscription, ids: list[MessageID], wall_ns: int = 0
    ) -> list[tuple[MessageID, NSQError]]:
        """Messages are done with; returns those that could not be finished, and why.

        ``wall_ns`` is when, for the latency figures; 0 leaves these as they are.

        Source: FIN in docs/protocol.md.
        """
        runs, failures = self._in_flight.finish(subscription, ids)
        for run in runs:
            run.acknowledge(0, len(run))
        if self.latency is not None and wall_ns:
            self.latency.add(runs, wall_ns)
        finished = len(ids) - len(failures)
        subscription.finish_count += finished
        self.finish_count += finished
        self.update_credit(subscription)
        return failures

    def requeue(
        self, subscription: Subscription, message_id: MessageID, delay_ns: int, now: Instant
    ) -> None:
        """Take a message out of flight and make it available again.

        A delay of zero queues it at the tail at once; a longer one defers it. The session has
        already clamped ``delay_ns`` to ``max_req_timeout_ns``.

        Raises:
            NotInFlightError: unknown id, or it timed out first. Reported as E_REQ_FAILED.
            NotOwnerError: in flight to another client. Reported as E_REQ_FAILED.

        Source: REQ in docs/protocol.md; nsqd/channel.go, RequeueMessage.
        """
        run = self._in_flight.take(subscription, message_id)
        subscription.requeue_count += 1
        self.requeue_count += 1
        self._redelivery.fail(run, REQUEUE, delay_ns, now)
        self.deadlines_changed = True
        self.update_credit(subscription)
        self._agenda.note_channel(self)

    def touch(self, subscription: Subscription, message_id: MessageID, now_ns: int) -> None:
        """Give a message its full timeout again, up to the limit since its delivery.

        Raises:
            NotInFlightError, NotOwnerError: as for requeue. Reported as E_TOUCH_FAILED.

        Source: TOUCH in docs/protocol.md; nsqd/channel.go, TouchMessage.
        """
        self._in_flight.touch(subscription, message_id, now_ns)

    # -- time -------------------------------------------------------------------------------

    def expire(self, now: Instant) -> int:
        """Queue again what was not answered in time, and what was deferred until now.

        Returns how many messages became available.

        Raises:
            StorageError: the disk refused what deferred messages need of it; they wait.
        """
        available = 0
        while (flight := self._in_flight.pop_due(now.monotonic_ns)) is not None:
            available += self._time_out(flight, now)
        self.deadlines_changed = True  # whoever called has to ask for the next one
        if available:
            self._agenda.note_channel(self)
        if self.leases is not None:
            self.leases.expire(now)
        available += self._make_ready(now)  # as long as that is refused, memory gets no more
        self._deferred.advance(now)
        available += self._make_ready(now)
        return available

    def _make_ready(self, now: Instant) -> int:
        """Queue messages whose time has come: what the window has no room for, on disk."""
        runs = self._deferred.take_due(now)
        if runs:
            self._agenda.note_channel(self)
        fitting, rest = self._window.split(runs)
        for run in fitting:
            self._window.put_run(run)
        if rest:
            try:
                self._window.store(rest)
            except StorageError:
                self._deferred.retry_later(rest, now)
                raise
        return sum(map(len, runs))

    def _time_out(self, flight: Flight, now: Instant) -> int:
        available = 0
        for run in flight.left():
            available += self._redelivery.fail(run, TIMEOUT, 0, now)
        self.timeout_count += flight.remaining
        if flight.subscription in self.subscriptions:
            self.update_credit(flight.subscription)
        return available

    def time_out(self, subscription: Subscription, now: Instant) -> None:
        """A consumer is cut off: what it has in flight times out now."""
        for flight in self._in_flight.take_all(subscription):
            self._time_out(flight, now)
        self.deadlines_changed = True
        self._agenda.note_channel(self)

    # -- dead letters -----------------------------------------------------------------------

    def set_policy(self, policy: DeadLetterPolicy, topic: str, publish: Publish) -> None:
        """From here on failed deliveries are treated as ``policy`` says; ``topic`` takes dead
        letters, which ``publish`` brings there."""
        self._redelivery.set_policy(policy, topic, publish=publish, put_back=self.take_back)

    def take_back(self, run: Run) -> None:
        """Messages that their dead letter topic does not take are delivered once more."""
        self._window.put_run(run.again())
        self._agenda.note_channel(self)

    def hand_over(self, limit: int, max_bytes: int, store: Callable[[list[bytes]], None]) -> int:
        """Move up to ``limit`` messages that are ready, and about ``max_bytes``, out of the
        channel: ``store`` takes their bodies to where they are from then on.

        Returns how many.

        Raises:
            StorageError: they cannot be read, or ``store`` raised it; all are still here.
        """
        runs = self._window.take(limit, max_bytes)
        try:
            store([body for run in runs for body in bodies_of(run)])
        except StorageError:
            self._window.put_back(runs)
            raise
        for run in runs:
            run.move()
        count = sum(map(len, runs))
        self.finish_count += count
        return count

    # -- leases -----------------------------------------------------------------------------

    @property
    def log(self) -> DiskQueue:
        assert self._log is not None
        return self._log

    def ready_count(self) -> int:
        return self._window.depth

    def take_ready(self, limit: int, max_bytes: int) -> list[Run]:
        """Take messages for a lease. Those from another log move to the channel's own first: what
        a lease takes stays owed there until the lease exists.

        Raises:
            StorageError: nothing is taken.
        """
        return self._window.take_own(limit, max_bytes)

    def put_back(self, runs: Sequence[Run]) -> None:
        self._window.put_back(runs)
        self._agenda.note_channel(self)

    def give_back(self, run: Run, state: LeaseState, now: Instant) -> tuple[int, int]:
        """A lease of these messages was released, or expired: that is a failed delivery of each.
        Returns the range of the channel's log that they are in, empty if they are elsewhere.

        Raises:
            StorageError: they are where they were.
        """
        expired = state is LeaseState.EXPIRED
        failure = LEASE_EXPIRED if expired else LEASE_RELEASED
        first, stop = self._redelivery.fail_stored(run, failure, now)
        self.deadlines_changed = True
        if expired:
            self.timeout_count += len(run)
        else:
            self.requeue_count += len(run)
        self._agenda.note_channel(self)
        return first, stop

    def take_out(self, ranges: Sequence[list[int]]) -> int:
        """Acknowledge what of these records of the log is ready; returns how many they were.

        Raises:
            StorageError: that is not on disk yet.
        """
        unread = sum(self.log.discard_rest(first, stop) for first, stop in ranges)
        taken = unread + self._window.drop(ranges)
        self.log.flush()
        return taken

    def note_deadline(self) -> None:
        self.deadlines_changed = True
        self._agenda.note_channel(self)

    def note_finished(self, count: int) -> None:
        self.finish_count += count

    @property
    def dying_count(self) -> int:
        return self._redelivery.dying_count

    # -- administration ---------------------------------------------------------------------

    def pause(self) -> None:
        self.paused = True

    def unpause(self) -> None:
        self.paused = False
        self._agenda.note_channel(self)

    def empty(self, now: Instant) -> None:
        """Drop every message: ready, in flight, deferred and leased. Late answers are refused."""
        self._drop_all()
        if self.leases is not None:
            self.leases.empty(now)

    def _drop_all(self) -> None:
        self._window.clear()
        self._in_flight.clear()
        self._deferred.empty()
        self._redelivery.clear()
        if self._log is not None:
            self._log.empty()
        for subscription in self.subscriptions:
            self.update_credit(subscription)

    def delete(self) -> None:
        """Drop every message and cut every consumer off; the files are the broker's to remove."""
        self.exiting = True
        for subscription in list(self.subscriptions):
            subscription.consumer.cut()
        if self.leases is not None:
            self.leases.delete()
        self._drop_all()
        with suppress(StorageError):  # nothing is left that a sync could save
            self._close_logs()

    def close(self) -> None:
        """Stop for good and lose nothing: what the logs lack, or have with fewer attempts, is
        stored; what is in flight comes again with one attempt more, what is deferred when due.

        Raises:
            StorageError: not everything could be stored.
        """
        self.exiting = True
        for subscription in list(self.subscriptions):
            subscription.consumer.cut()
        ready = self._window.clear()
        if self.leases is not None:
            ready += self.leases.stop()
        failed = [run for flight in self._in_flight.clear() for run in flight.left()]
        ready += [run.again() for run in (*failed, *self._redelivery.clear())]
        try:
            if self._log is not None:
                store_changed(self._log, ready)
        finally:
            self._close_logs()

    def audit(self) -> None:
        """Check that every message is in exactly one place; a hook for tests.

        Raises:
            AssertionError: a record is owed twice, by nobody, or a count is wrong.
        """
        waiting = self._deferred.runs()
        flying = [run for flight in self._in_flight.flights() for run in flight.left()]
        ready = self._window.runs()
        dying = self._redelivery.dying()
        assert sum(map(len, flying)) == len(self._in_flight), "in flight: runs and ids differ"
        unread = self._deferred.waiting()
        deferred_count = sum(map(len, waiting)) + sum(unread.values())
        assert deferred_count == self.deferred_count, "deferred: runs and count differ"
        assert sum(map(len, ready)) == self._window.count, "window: runs and count differ"
        held = 0
        if self.leases is not None and self._log is not None:
            leased, returning, held = self.leases.audit()
            unread |= leased
            dying = [*dying, *returning]
        if self._log is not None:
            unread[self._log] = self._log.unread
        for queue_log, unread_count in unread.items():
            records = [
                number
                for run in (*ready, *flying, *waiting, *dying)
                if run.log is queue_log and run.number != NOT_STORED
                for number in range(run.number, run.number + len(run))
            ]
            assert len(set(records)) == len(records), "a record is in two places"
            places = len(records) + unread_count + queue_log.moved_count
            if queue_log is self._log:
                places += held
            assert places == queue_log.depth, "a record is nowhere"

    def _close_logs(self) -> None:
        with ExitStack() as closing:  # each is closed, whatever befalls the others
            if self._log is not None:
                closing.callback(self._log.close)
            if self.leases is not None:
                closing.callback(self.leases.close)
            closing.callback(self._deferred.close)
