"""All topics of one daemon, and the turn in which everything happens.

A turn is one pass over the agenda: what has expired is queued again, every topic routes and pumps,
every channel dispatches, acknowledgements are written. The daemon calls ``turn`` once after each
round of socket reads and then writes once to each connection; a simulation calls it whenever it
likes. Nothing here waits, and time arrives as an argument.
"""

import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from nsqpy.clock import SECOND, Instant
from nsqpy.core.agenda import Agenda
from nsqpy.core.catalogue import Catalogue, TopologyEvent
from nsqpy.core.channel import Channel
from nsqpy.core.dead_letter_office import DeadLetterOffice
from nsqpy.core.dead_letters import REDRIVE_CHANNEL, DeadLetterPolicy
from nsqpy.core.deadlines import NEVER, DeadlineHeap
from nsqpy.core.disk_health import PROBE_MAX_BYTES, DiskHealth, Work
from nsqpy.core.factory import QueueFactory
from nsqpy.core.group_commit import GroupCommit, SyncWork
from nsqpy.core.layout import Layout
from nsqpy.core.snapshot import topics_snapshot
from nsqpy.core.stats import BrokerStats, select
from nsqpy.core.subscription import Subscription
from nsqpy.core.topic import ExitingError, Ticket, Topic
from nsqpy.core.trash import TrashBin
from nsqpy.errors import ErrorCode, NSQError, ProtocolError, StorageError
from nsqpy.names import is_ephemeral
from nsqpy.storage.files import Files

if TYPE_CHECKING:
    from nsqpy.config import NsqdConfig
    from nsqpy.core.auth import Authenticator
    from nsqpy.core.lease_book import LeaseBook
    from nsqpy.core.session import Session

__all__ = ["Broker", "ConsumerLimitError", "DrainingError"]

log = logging.getLogger(__name__)


class DrainingError(NSQError):
    """The daemon is about to stop, and takes no new messages."""

    def __str__(self) -> str:
        return "draining: this nsqd takes no more messages, publish to another one"


class ConsumerLimitError(NSQError):
    """``--max-channel-consumers`` is reached."""

    def __init__(self, channel: Channel, limit: int) -> None:
        super().__init__(channel, limit)
        self.channel = channel
        self.limit = limit

    def __str__(self) -> str:
        where = f"{self.channel.topic_name}:{self.channel.name}"
        return f"consumers for {where} exceeds limit of {self.limit}"


class Broker:
    """One daemon's queues, and the turn in which they work. ``wake`` asks the daemon for a turn."""

    def __init__(
        self,
        config: "NsqdConfig",
        files: Files,
        random: Random,
        *,
        wake: Callable[[], None],
        start: Instant,
    ) -> None:
        self.config = config
        self.start_time_s = start.wall_ns // SECOND
        self.sessions: dict[Session, None] = {}
        self.exiting = False
        self.draining = False
        self.error_counts: Counter[ErrorCode] = Counter()
        self.authenticator: Authenticator | None = None  # without one, all may do all
        self._files = files
        self._random = random
        self._layout = Layout(config.data_path or ".")
        self._agenda = Agenda(wake)
        self._now = start
        self._deadlines: DeadlineHeap[Channel] = DeadlineHeap()
        self.deadlines_changed = False  # ``next_deadline_ns`` may be sooner than it was
        self._health = DiskHealth(
            probe=self._probe_disk,
            turn_ns=lambda: self._now.monotonic_ns,
            on_retry=self._note_retry,
        )
        self.trash = TrashBin(files, self._agenda.rouse)
        self._commits = GroupCommit(
            config.durability,
            config.sync_timeout_ns,
            turn_ns=lambda: self._now.monotonic_ns,
            agenda=self._agenda,
            health=self._health,
            trash=self.trash,
        )
        self._catalogue = Catalogue(files, self._layout, random, self._health)
        self.topics = self._catalogue.topics
        self.listeners = self._catalogue.listeners
        self.lease_owners: dict[str, LeaseBook] = {}  # every id that is known, and its book
        self._factory = QueueFactory(
            config,
            files,
            self._layout,
            random,
            agenda=self._agenda,
            health=self._health,
            commits=self._commits,
            lease_owners=self.lease_owners,
            remove=self.trash.add_directory,
        )
        self._dead_letters = DeadLetterOffice(self._catalogue, self._dead_letter_topic)

    @property
    def health(self) -> str:
        """``OK``, or ``NOK - `` and the last storage error, until such work succeeds.

        While it drains, ``NOK - draining``: nobody should be sent here any more.
        """
        if self.draining and not self._health.fault:
            return "NOK - draining"
        return str(self._health)

    @property
    def disk_health(self) -> str:
        """As ``health``, of the disk alone."""
        return str(self._health)

    def rouse(self) -> None:
        """Ask for a turn."""
        self._agenda.rouse()

    # -- start and stop ---------------------------------------------------------------------

    def load(self, now: Instant) -> None:
        """Take up every topic and channel of the data directory.

        Raises:
            StorageError: metadata or a log cannot be read.
        """
        self._now = now
        known = self._catalogue.read()
        with suppress(OSError):  # of a process that was killed while it looked for room
            self._files.remove(self._layout.probe)
        self._catalogue.load_node_id()
        for entry in known:
            if is_ephemeral(entry.name):
                self._files.remove_tree(self._layout.topic(entry.name))
                continue
            topic = self._make_topic(entry.name)
            topic.paused = entry.paused
            for channel_name, channel_paused in entry.channels.items():
                if not is_ephemeral(channel_name):
                    channel = self._make_channel(topic, channel_name, loading=True)
                    channel.paused = channel_paused
                    if channel_name in entry.configs:
                        self._dead_letters.restore_policy(channel, entry.configs[channel_name])
        try:
            self._save_metadata()
        except StorageError as error:
            # On a full disk we start all the same: it is by consuming that space comes back.
            self._health.note_fault(error, Work.METADATA)

    @property
    def node_id(self) -> str:
        """Of this data, for life."""
        return self._catalogue.node_id

    def close(self) -> None:
        """Stop and lose nothing: publishes are refused, consumers cut, everything stored.

        Raises:
            StorageError: the first thing that could not be stored; the rest was still tried.
        """
        self.exiting = True
        faults: list[StorageError] = []
        for session in list(self.sessions):
            session.cut()
        self._try(self._save_metadata, faults)
        for topic in self.topics.values():
            self._try(partial(topic.end_stretch, self._now), faults)
        self._try(self._sync_now, faults)
        for topic in self.topics.values():
            topic.refuse()
            for channel in topic.channels.values():
                self._try(channel.close, faults)
            self._try(topic.close, faults)
        self.trash.take().run()
        if faults:
            raise faults[0]

    def _sync_now(self) -> None:
        """One last group commit, for everyone who waits, before the logs are closed."""
        work = self.begin_sync()
        fault: StorageError | None = None
        try:
            work.run()
        except StorageError as error:
            fault = error
        self.end_sync(work, fault)
        if fault is not None:
            raise fault

    def _try(self, action: Callable[[], None], faults: list[StorageError]) -> None:
        try:
            action()
        except StorageError as error:
            log.error("failed to close cleanly - %s", error)
            faults.append(error)

    # -- topics and channels ----------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """The topic, created if it is new. ``name`` is valid.

        Raises:
            ExitingError: the daemon stops.
            StorageError: its directory cannot be made.
        """
        topic = self.topics.get(name)
        if topic is None:
            topic = self._make_topic(name)
            log.info("TOPIC(%s): created", name)
            self._announce(name, None, True)
        return topic

    def channel(self, topic_name: str, name: str) -> Channel:
        """A channel that exists.

        Raises:
            NotFoundError.
        """
        return self._catalogue.channel(topic_name, name)

    def create_channel(self, topic_name: str, name: str) -> Channel:
        """The channel of an existing topic, created if it is new.

        Raises:
            NotFoundError, ExitingError, StorageError.
        """
        topic = self._catalogue.topic(topic_name)
        channel = topic.channels.get(name)
        if channel is None:
            channel = self._make_channel(topic, name)
            log.info("TOPIC(%s): new channel(%s)", topic_name, name)
            self._announce(topic_name, name, True)
        return channel

    def delete_topic(self, name: str) -> None:
        topic = self._catalogue.topic(name)
        log.info("TOPIC(%s): deleting", name)
        topic.refuse()
        for channel_name in list(topic.channels):
            self._remove_channel(topic, channel_name)
        topic.empty()
        with suppress(StorageError):  # nothing is left that a sync could save
            topic.close()
        self._factory.scrap_topic(name)
        self._catalogue.remove_topic(topic)
        self._announce(name, None, False)
        if not is_ephemeral(name):
            self._save_metadata()

    def delete_channel(self, topic_name: str, name: str) -> None:
        topic = self._catalogue.topic(topic_name)
        self._catalogue.channel(topic_name, name)
        self._remove_channel(topic, name)
        if is_ephemeral(topic_name) and not topic.channels:
            self.delete_topic(topic_name)
        elif not is_ephemeral(name):
            self._save_metadata()

    def pause_topic(self, name: str) -> None:
        self._catalogue.topic(name).pause()
        self._save_metadata()

    def unpause_topic(self, name: str) -> None:
        self._catalogue.topic(name).unpause()
        self._save_metadata()

    def empty_topic(self, name: str) -> None:
        self._catalogue.topic(name).empty()

    def pause_channel(self, topic_name: str, name: str) -> None:
        self.channel(topic_name, name).pause()
        self._save_metadata()

    def unpause_channel(self, topic_name: str, name: str) -> None:
        self.channel(topic_name, name).unpause()
        self._save_metadata()

    def empty_channel(self, topic_name: str, name: str, now: Instant) -> None:
        """Drop what is queued, in flight, deferred and leased; its leases end ``now``.

        Raises:
            NotFoundError.
        """
        self.channel(topic_name, name).empty(now)

    # -- dead letters -----------------------------------------------------------------------

    def channel_config(self, topic_name: str, name: str) -> DeadLetterPolicy:
        """The channel's policy, with the name of its dead letter topic.

        Raises:
            NotFoundError.
        """
        return self._dead_letters.policy_of(self.channel(topic_name, name))

    def set_channel_config(self, topic_name: str, name: str, policy: DeadLetterPolicy) -> None:
        """From here on failed deliveries are treated as ``policy`` says, over restarts too.

        Raises:
            NotFoundError, StorageError.
            ConfigError: the dead letter topic cannot be this, or is that of another channel, so
                that nobody could tell whose messages a redrive takes from there.
        """
        self._dead_letters.set_policy(self.channel(topic_name, name), policy)
        self._save_metadata()

    def _dead_letter_topic(self, name: str) -> Topic:
        topic = self.topic(name)
        self.create_channel(name, REDRIVE_CHANNEL)
        return topic

    def redrive(
        self, topic_name: str, name: str, max_messages: int, now: Instant
    ) -> tuple[int, int]:
        """Send dead letters back to their channel, as new messages.

        Returns how many went, which is some 64 MiB at most, and how many are left.

        Raises:
            NotFoundError, ExitingError.
            StorageError: those that were not sent back are dead letters still.
        """
        self._refuse_if_exiting()
        channel = self.channel(topic_name, name)
        return self._dead_letters.redrive(channel, max_messages, now)

    def _make_topic(self, name: str) -> Topic:
        self._refuse_if_exiting()
        topic = self._factory.make_topic(name)
        self._catalogue.add_topic(topic)
        return topic

    def _make_channel(self, topic: Topic, name: str, *, loading: bool = False) -> Channel:
        self._refuse_if_exiting()
        channel = self._factory.make_channel(topic.name, name, loading=loading)
        channel.restore(self._now)
        topic.add_channel(channel)
        self._schedule(channel)
        return channel

    def _remove_channel(self, topic: Topic, name: str) -> None:
        channel = topic.channels[name]
        log.info("TOPIC(%s): deleting channel %s", topic.name, name)
        channel.delete()
        if channel.deadline_ns != NEVER:
            self._deadlines.discard(channel)
        if not is_ephemeral(name):
            self._factory.scrap_channel(topic.name, name)
        topic.remove_channel(name)
        self._announce(topic.name, name, False)

    def _refuse_if_exiting(self) -> None:
        if self.exiting:
            raise ExitingError

    def _announce(self, topic: str, channel: str | None, exists: bool) -> None:
        self._catalogue.announce(TopologyEvent(topic, channel, exists), self._now.monotonic_ns)
        self.deadlines_changed = True
        self._agenda.rouse()

    def _save_metadata(self) -> None:
        self.deadlines_changed = True
        self._catalogue.save(self._now.monotonic_ns)
        self._health.note_success(Work.METADATA)

    # -- publishing and consuming -----------------------------------------------------------

    def topic_to_publish(self, name: str) -> Topic:
        """As ``topic``, for whoever brings new messages.

        Raises:
            DrainingError, ExitingError, StorageError.
        """
        if self.draining:
            raise DrainingError
        topic = self.topics.get(name)
        return self.topic(name) if topic is None else topic

    def publish(self, topic_name: str, bodies: list[bytes], *, deliver_at_ns: int = 0) -> Ticket:
        """Queue bodies for the end of this turn; ``topic_name`` is valid.

        ``deliver_at_ns`` is wall time, 0 for at once.

        Raises:
            DrainingError: the daemon is about to stop.
            ExitingError, StorageError: the topic is new and cannot be made.
        """
        ticket = Ticket(bodies, deliver_at_ns)
        self.topic_to_publish(topic_name).publish(ticket)
        return ticket

    def subscribe(self, topic_name: str, name: str, subscription: Subscription) -> Channel:
        """Put a consumer on a channel; both are created if they are new.

        Raises:
            ConsumerLimitError, ExitingError, StorageError.
        """
        self.topic(topic_name)
        channel = self.create_channel(topic_name, name)
        limit = self.config.max_channel_consumers
        if limit and len(channel.subscriptions) >= limit:
            raise ConsumerLimitError(channel, limit)
        channel.subscribe(subscription)
        return channel

    def consumer_left(self, channel: Channel) -> None:
        """An ephemeral channel goes with its last consumer."""
        if is_ephemeral(channel.name) and not channel.subscriptions and not channel.exiting:
            self.delete_channel(channel.topic_name, channel.name)

    def log_client_error(self, address: str, error: ProtocolError) -> None:
        log.error("[%s] - %s", address, error)

    # -- the turn ---------------------------------------------------------------------------

    def turn(self, now: Instant) -> None:
        """Work off the agenda. What it makes for consumers is handed to them before it ends."""
        self._now = now
        agenda = self._agenda
        agenda.begin()
        self._expire(now)
        self._step(now)
        topics, agenda.topics = agenda.topics, {}
        for topic in topics:
            topic.route(now)
            try:
                topic.pump(now)
            except StorageError as error:
                self._retry_later(partial(agenda.note_topic, topic), error)
        channels, agenda.channels = agenda.channels, {}
        for channel in channels:
            try:
                for subscription, frames in channel.dispatch(now.monotonic_ns):
                    subscription.consumer.deliver(frames)
            except StorageError as error:
                self._retry_later(partial(agenda.note_channel, channel), error)
            if channel.leases is not None:
                channel.leases.rouse()
            if channel.deadlines_changed:
                self._schedule(channel)
        self._commits.end_moves()
        logs, agenda.logs = agenda.logs, {}
        for queue_log in logs:
            try:
                queue_log.flush()
            except StorageError as error:
                self._retry_later(partial(agenda.note_log, queue_log), error)
        if NEVER != self._catalogue.save_due_ns <= now.monotonic_ns:
            try:
                self._save_metadata()
            except StorageError as error:
                self._health.note_fault(error, Work.METADATA)
        if not agenda.books:  # one of which takes a step in a turn
            self._health.end_turn()
        if self._commits.changed:
            self._commits.changed = False
            self.deadlines_changed = True
        agenda.end()

    def next_deadline_ns(self) -> int:
        """When the next turn is due even if nothing arrives, or NEVER."""
        self.deadlines_changed = False
        soonest_ns = NEVER
        for due_ns in (
            self._deadlines.soonest_ns(),
            self._health.retry_due_ns,
            self._catalogue.save_due_ns,
            self._commits.soonest_ns(),
        ):
            if due_ns != NEVER and (soonest_ns == NEVER or due_ns < soonest_ns):
                soonest_ns = due_ns
        return soonest_ns

    def _expire(self, now: Instant) -> None:
        while (channel := self._deadlines.pop_due(now.monotonic_ns)) is not None:
            try:
                channel.expire(now)
            except StorageError as error:
                self._health.note_refused(error, PROBE_MAX_BYTES)  # how many it was is not known
            self._agenda.note_channel(channel)
        self._health.retry(now.monotonic_ns)

    def _step(self, now: Instant) -> None:
        """Leases move a bounded number of messages a turn, whatever there is to move."""
        books = self._agenda.books
        if not books:
            return
        book = next(iter(books))
        del books[book]
        try:
            book.step(now)
        except StorageError as error:
            self._retry_later(partial(self._agenda.note_book, book), error)

    def _schedule(self, channel: Channel) -> None:
        """Keep the channel's place in the heap at its soonest deadline, or sooner."""
        channel.deadlines_changed = False
        if channel.exiting:
            return
        soonest_ns = channel.soonest_deadline_ns()
        if soonest_ns == NEVER:
            return
        if channel.deadline_ns == NEVER:
            self._deadlines.add(channel, soonest_ns)
            self.deadlines_changed = True
        elif soonest_ns < channel.deadline_ns:
            self._deadlines.move(channel, soonest_ns)
            self.deadlines_changed = True

    # -- storage: faults and syncs ----------------------------------------------------------

    def _retry_later(self, again: Callable[[], None], error: StorageError) -> None:
        self._health.retry_later(error, again)

    def _note_retry(self) -> None:
        self.deadlines_changed = True
        self._agenda.rouse()

    def _probe_disk(self, size_bytes: int) -> None:
        """Raises StorageError: the disk does not take so many bytes."""
        path = self._layout.probe
        try:
            self._files.make_directory(path.rpartition("/")[0])
            file = self._files.open(path, create=True)
            try:
                file.write_at([self._random.randbytes(size_bytes)], 0)  # nothing to compress
            finally:
                file.close()
                self._files.remove(path)
        except OSError as error:
            raise StorageError.of(path, error) from error

    @property
    def retrying(self) -> bool:
        """Whether something that the disk refused waits to be tried again."""
        return self._health.retry_due_ns != NEVER

    def when_safe(self, done: Callable[[StorageError | None], None]) -> None:
        """Call back once all that has been written is as safe as ``--durability`` asks."""
        self._commits.when_safe(done)

    def sync_due(self, now: Instant) -> bool:
        """Whether ``--durability``, ``--sync-every`` or ``--sync-timeout`` ask for a sync now."""
        return self._commits.due(now.monotonic_ns)

    def begin_sync(self) -> SyncWork:
        """Take everything that waits for a sync; ``end_sync`` must follow."""
        return self._commits.begin()

    def end_sync(self, work: SyncWork, error: StorageError | None) -> None:
        """The work ran, or failed: whoever waits for it is told."""
        self._commits.end(work, error)

    # -- statistics -------------------------------------------------------------------------

    def stats(
        self, topic: str = "", channel: str = "", *, include_clients: bool = True, wall_ns: int = 0
    ) -> BrokerStats:
        """An immutable snapshot; ``topic`` and ``channel`` restrict it to one name. ``wall_ns`` is
        now, for latencies; 0 means the last turn."""
        found = self.topics.values() if not topic else filter(None, [self.topics.get(topic)])
        snapshot = BrokerStats(
            health=self.health,
            start_time=self.start_time_s,
            topics=topics_snapshot(
                found,
                include_clients,
                wall_ns or self._now.wall_ns,
                self.config.e2e_processing_latency_percentiles,
            ),
            producers=tuple(session.stats() for session in self.sessions if session.pub_counts)
            if include_clients
            else (),
        )
        return select(snapshot, topic, channel)
