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
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from nsqpy.clock import SECOND, Instant
from nsqpy.core.agenda import Agenda
from nsqpy.core.channel import Channel
from nsqpy.core.dead_letters import (
    REDRIVE_CHANNEL,
    DeadLetterPolicy,
    DeadLetters,
    dead_letter_topic,
)
from nsqpy.core.deadlines import NEVER, DeadlineHeap
from nsqpy.core.deferred import DeferredMessages
from nsqpy.core.group_commit import GroupCommit, SyncWork
from nsqpy.core.guid import GUIDFactory
from nsqpy.core.latency import LatencyWindow
from nsqpy.core.layout import Layout
from nsqpy.core.lease_book import LeaseBook
from nsqpy.core.lease_store import JOURNAL_SEGMENT_BYTES, LeaseStore
from nsqpy.core.snapshot import topics_snapshot
from nsqpy.core.stats import BrokerStats, select
from nsqpy.core.subscription import Subscription
from nsqpy.core.topic import ExitingError, Ticket, Topic
from nsqpy.core.trash import TrashBin
from nsqpy.errors import ConfigError, ErrorCode, NSQError, ProtocolError, StorageError
from nsqpy.names import is_ephemeral
from nsqpy.protocol.identify import Limits
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.files import File, Files
from nsqpy.storage.metadata import TopicMetadata, load_metadata, save_metadata
from nsqpy.storage.timers import TimerWheel
from nsqpy.version import NSQ_VERSION

if TYPE_CHECKING:
    from nsqpy.config import NsqdConfig
    from nsqpy.core.auth import Authenticator
    from nsqpy.core.session import Session

__all__ = [
    "Broker",
    "ConsumerLimitError",
    "DrainingError",
    "NotFoundError",
    "SyncWork",
    "TopologyEvent",
]

log = logging.getLogger(__name__)

_FAULTS_MAX = 100
_RETRY_NS = SECOND // 4
_METADATA_DELAY_NS = SECOND
_REDRIVE_MAX_BYTES = 64 * 1024 * 1024  # what one call holds in memory


class NotFoundError(NSQError):
    """No topic or channel of that name; ``kind`` is ``topic`` or ``channel``."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name)
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        return f"no {self.kind} {self.name}"


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


@dataclass(frozen=True, slots=True)
class TopologyEvent:
    """A topic (``channel`` None) or channel appeared or went."""

    topic: str
    channel: str | None
    exists: bool


class TopologyListener(Protocol):
    def __call__(self, event: TopologyEvent) -> None: ...


class Broker:
    """Owns the topic map. ``wake`` asks the daemon for a turn."""

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
        self.topics: dict[str, Topic] = {}
        self.sessions: dict[Session, None] = {}
        self.listeners: list[TopologyListener] = []
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
        self._log_all = config.durability != "memory"
        self._drop_oldest = config.ephemeral_overflow == "drop-oldest"
        self._fsync = config.durability == "fsync"
        self._commits = GroupCommit(every_write=self._fsync, timeout_ns=config.sync_timeout_ns)
        self._retry: list[Topic | Channel | LeaseBook | DiskQueue] = []
        self._retry_ns = NEVER
        self._fault = ""
        self._faults_logged: set[str] = set()
        self._metadata_due_ns = NEVER
        self.lease_owners: dict[str, LeaseBook] = {}  # every id that is known, and its book
        self.node_id = ""  # of this data, for life
        self.trash = TrashBin(files, self._agenda.rouse)

    @property
    def limits(self) -> Limits:
        """What IDENTIFY may negotiate."""
        config = self.config
        return Limits(
            max_heartbeat_interval_ns=config.max_heartbeat_interval_ns,
            min_output_buffer_timeout_ns=config.min_output_buffer_timeout_ns,
            max_output_buffer_timeout_ns=config.max_output_buffer_timeout_ns,
            output_buffer_timeout_ns=config.output_buffer_timeout_ns,
            max_output_buffer_size=config.max_output_buffer_size,
            msg_timeout_ns=config.msg_timeout_ns,
            max_msg_timeout_ns=config.max_msg_timeout_ns,
            max_rdy_count=config.max_rdy_count,
            max_deflate_level=config.max_deflate_level,
            topology_region=config.topology_region,
            topology_zone=config.topology_zone,
            version=NSQ_VERSION,
            tls=config.has_tls,
            snappy=config.snappy,
            deflate=config.deflate,
            auth_required=self.authenticator is not None,
        )

    @property
    def health(self) -> str:
        """``OK``, or ``NOK - `` and the last storage error, until a write succeeds again.

        While it drains, ``NOK - draining``: nobody should be sent here any more.
        """
        if self.draining and not self._fault:
            return "NOK - draining"
        return self.disk_health

    @property
    def disk_health(self) -> str:
        """As ``health``, of the disk alone."""
        return f"NOK - {self._fault}" if self._fault else "OK"

    def rouse(self) -> None:
        """Ask for a turn."""
        self._agenda.rouse()

    # -- start and stop ---------------------------------------------------------------------

    def load(self, now: Instant) -> None:
        """Take up every topic and channel of the data directory.

        What exists is what the metadata lists and what has a directory: the metadata file is
        written after the fact, a directory before anything is in it.

        Raises:
            StorageError: metadata or a log cannot be read.
        """
        self._now = now
        topics, warnings = load_metadata(self._files, self._layout.root)
        for warning in warnings:
            log.warning(warning)
        known = {topic.name: topic for topic in topics}
        try:
            found = self._layout.scan(self._files)
        except OSError as error:
            raise StorageError(self._layout.root, error.strerror or str(error)) from error
        for name, channels in found.items():
            entry = known.get(name, TopicMetadata(name, False, {}))
            paused = dict.fromkeys(channels, False) | entry.channels
            known[name] = replace(entry, channels=paused)
        self.node_id = self._load_node_id()
        for entry in known.values():
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
                        self._load_config(channel, entry.configs[channel_name])
        try:
            self._save_metadata()
        except StorageError as error:
            # On a full disk we start all the same: it is by consuming that space comes back.
            self.note_fault(error)

    def _load_node_id(self) -> str:
        path = self._layout.node_id
        try:
            return self._files.read_whole(path).decode().strip()
        except (OSError, ValueError):
            name = f"{self._random.getrandbits(128):032x}"
        try:
            self._files.make_directory(path.rpartition("/")[0])
            self._files.replace_whole(path, f"{name}\n".encode())
        except OSError as error:
            self.note_fault(StorageError(path, error.strerror or str(error)))
        return name

    def _load_config(self, channel: Channel, document: dict[str, Any]) -> None:
        try:
            self._set_policy(channel, DeadLetterPolicy.from_json(document))
        except ConfigError as error:
            log.error("CHANNEL(%s): ignoring its configuration - %s", channel.name, error)

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

    def create_channel(self, topic_name: str, name: str) -> Channel:
        """The channel of an existing topic, created if it is new.

        Raises:
            NotFoundError, ExitingError, StorageError.
        """
        topic = self._existing(topic_name)
        channel = topic.channels.get(name)
        if channel is None:
            channel = self._make_channel(topic, name)
            log.info("TOPIC(%s): new channel(%s)", topic_name, name)
            self._announce(topic_name, name, True)
        return channel

    def delete_topic(self, name: str) -> None:
        topic = self._existing(name)
        log.info("TOPIC(%s): deleting", name)
        topic.refuse()
        for channel_name in list(topic.channels):
            self._remove_channel(topic, channel_name)
        topic.empty()
        with suppress(StorageError):  # nothing is left that a sync could save
            topic.close()
        self._remove_tree(self._layout.topic(name))
        del self.topics[name]
        self._announce(name, None, False)
        if not is_ephemeral(name):
            self._save_metadata()

    def delete_channel(self, topic_name: str, name: str) -> None:
        topic = self._existing(topic_name)
        self._existing_channel(topic_name, name)
        self._remove_channel(topic, name)
        if is_ephemeral(topic_name) and not topic.channels:
            self.delete_topic(topic_name)
        elif not is_ephemeral(name):
            self._save_metadata()

    def pause_topic(self, name: str) -> None:
        self._existing(name).pause()
        self._save_metadata()

    def unpause_topic(self, name: str) -> None:
        self._existing(name).unpause()
        self._save_metadata()

    def empty_topic(self, name: str) -> None:
        self._existing(name).empty()

    def pause_channel(self, topic_name: str, name: str) -> None:
        self._existing_channel(topic_name, name).pause()
        self._save_metadata()

    def unpause_channel(self, topic_name: str, name: str) -> None:
        self._existing_channel(topic_name, name).unpause()
        self._save_metadata()

    def empty_channel(self, topic_name: str, name: str) -> None:
        self._existing_channel(topic_name, name).empty(self._now)

    # -- dead letters -----------------------------------------------------------------------

    def channel_config(self, topic_name: str, name: str) -> DeadLetterPolicy:
        """The channel's policy, with the name of its dead letter topic.

        Raises:
            NotFoundError.
        """
        channel = self._existing_channel(topic_name, name)
        letters = channel.dead_letters
        policy = DeadLetterPolicy() if letters is None else letters.policy
        return replace(policy, dead_letter_topic=_topic_of(channel, policy))

    def set_channel_config(self, topic_name: str, name: str, policy: DeadLetterPolicy) -> None:
        """From here on failed deliveries are treated as ``policy`` says, over restarts too.

        Raises:
            NotFoundError, StorageError.
            ConfigError: the dead letter topic cannot be this, or is that of another channel, so
                that nobody could tell whose messages a redrive takes from there.
        """
        channel = self._existing_channel(topic_name, name)
        target = _topic_of(channel, policy)
        for topic in self.topics.values():
            for other in topic.channels.values():
                letters = other.dead_letters
                if target and other is not channel and letters and letters.topic == target:
                    reason = f"dead_letter_topic is that of {topic.name}:{other.name} already"
                    raise ConfigError("dead_letter_topic", target, reason)
        self._set_policy(channel, policy)
        self._save_metadata()

    def _set_policy(self, channel: Channel, policy: DeadLetterPolicy) -> None:
        target = _topic_of(channel, policy)
        if channel.dead_letters is None:
            channel.dead_letters = DeadLetters(
                policy, target, publish=self._publish_dead, put_back=channel.take_back
            )
        else:
            channel.dead_letters.policy, channel.dead_letters.topic = policy, target

    def _publish_dead(
        self, name: str, bodies: list[bytes], on_done: Callable[[NSQError | None], None]
    ) -> None:
        ticket = Ticket(bodies, on_done=lambda done: on_done(done.error))
        try:
            topic = self.topic(name)
            self.create_channel(name, REDRIVE_CHANNEL)
        except (ExitingError, StorageError) as error:
            ticket.complete(error)
        else:
            topic.publish(ticket)

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
        topic = self._existing(topic_name)
        channel = self._existing_channel(topic_name, name)
        letters = channel.dead_letters
        dead = None if letters is None else self.topics.get(letters.topic)
        source = None if dead is None else dead.channels.get(REDRIVE_CHANNEL)
        if source is None:
            return 0, 0
        count = source.hand_over(
            max_messages,
            _REDRIVE_MAX_BYTES,
            lambda bodies: topic.publish_to(channel, bodies, now),
        )
        log.info("CHANNEL(%s): %d messages sent back from %s", name, count, source.topic_name)
        return count, source.depth

    def _existing(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise NotFoundError("topic", name)
        return topic

    def _existing_channel(self, topic_name: str, name: str) -> Channel:
        channel = self._existing(topic_name).channels.get(name)
        if channel is None:
            raise NotFoundError("channel", name)
        return channel

    def _make_topic(self, name: str) -> Topic:
        self._refuse_if_exiting()
        queue_log = None
        if not is_ephemeral(name):
            queue_log = self._open_log(self._layout.topic_log(name), f"TOPIC({name})")
        topic = Topic(
            name,
            agenda=self._agenda,
            guids=GUIDFactory(self.config.node_id),
            window_limit=self.config.mem_queue_size,
            queue_log=queue_log,
            log_all=self._log_all,
            drop_oldest=self._drop_oldest,
            on_stored=self._stored,
            on_fault=self.note_fault,
        )
        self.topics[name] = topic
        return topic

    def _make_channel(self, topic: Topic, name: str, *, loading: bool = False) -> Channel:
        self._refuse_if_exiting()
        queue_log = near = far = leases = None
        if not is_ephemeral(name):
            open_log = partial(self._open_log, label=f"CHANNEL({name})")
            try:
                queue_log = open_log(self._layout.channel_log(topic.name, name))
                near = open_log(self._layout.deferred_log(topic.name, name))
            except StorageError:
                if not loading:  # or it would be there after the next start
                    self._remove_tree(self._layout.channel(topic.name, name))
                raise
            far = TimerWheel(self._files, self._layout.timers(topic.name, name), open_log)
            if not is_ephemeral(topic.name):
                leases = self._make_book(topic.name, name)
        limit = self.config.mem_queue_size
        deferred = DeferredMessages(near, far, limit=limit, log_all=self._log_all)
        channel = Channel(
            topic.name,
            name,
            agenda=self._agenda,
            random=self._random,
            window_limit=limit,
            max_msg_timeout_ns=self.config.max_msg_timeout_ns,
            queue_log=queue_log,
            deferred=deferred,
            leases=leases,
            log_all=self._log_all,
            drop_oldest=self._drop_oldest,
        )
        if quantiles := self.config.e2e_processing_latency_percentiles:
            window_ns = self.config.e2e_processing_latency_window_time_ns
            channel.latency = LatencyWindow(window_ns, quantiles)
        channel.restore(self._now)
        topic.add_channel(channel)
        self._schedule(channel)
        return channel

    def _make_book(self, topic_name: str, name: str) -> LeaseBook:
        open_log = partial(self._open_log, label=f"LEASE({name})")
        segment_max_bytes = min(self.config.max_bytes_per_file, JOURNAL_SEGMENT_BYTES)
        store = LeaseStore(
            self._files,
            self._layout.leases(topic_name, name),
            open_log=open_log,
            open_journal=partial(open_log, segment_max_bytes=segment_max_bytes),
            remove=self.trash.add_directory,
        )
        return LeaseBook(
            name,
            store,
            agenda=self._agenda,
            owners=self.lease_owners,
            when_safe=self.when_safe,
        )

    def when_safe(self, done: Callable[[StorageError | None], None]) -> None:
        """Call back once all that has been written is as safe as ``--durability`` asks."""
        if not self._fsync:
            done(None)
            return

        def note(ticket: Ticket) -> None:
            error = ticket.error
            assert error is None or isinstance(error, StorageError)
            done(error)

        self._commits.wait([Ticket([], on_done=note)])
        self._agenda.rouse()

    def note_unlinked(self, file: File) -> None:
        self.trash.add_unlinked(file)

    def _open_log(
        self, directory: str, label: str, segment_max_bytes: int | None = None
    ) -> DiskQueue:
        """Open a log; its directory is made now, for that is how the queue outlives a crash.

        Raises:
            StorageError: the directory cannot be made or read.
        """
        queue_log = DiskQueue(
            self._files,
            directory,
            name=label,
            segment_max_bytes=segment_max_bytes or self.config.max_bytes_per_file,
            sync_every=self.config.sync_every,
            listener=self,
        )
        try:
            queue_log.open()
        except StorageError as error:
            self.note_fault(error)
            raise
        return queue_log

    def _remove_channel(self, topic: Topic, name: str) -> None:
        channel = topic.channels[name]
        log.info("TOPIC(%s): deleting channel %s", topic.name, name)
        channel.delete()
        if channel.deadline_ns != NEVER:
            self._deadlines.discard(channel)
        if not is_ephemeral(name):
            self._remove_tree(self._layout.channel(topic.name, name))
        del topic.channels[name]
        self._announce(topic.name, name, False)

    def _remove_tree(self, path: str) -> None:
        try:
            self._files.remove_tree(path)
        except OSError as error:
            self.note_fault(StorageError(path, error.strerror or str(error)))

    def _refuse_if_exiting(self) -> None:
        if self.exiting:
            raise ExitingError

    def _announce(self, topic: str, channel: str | None, exists: bool) -> None:
        # What has a directory outlives a crash without the file; many topics made at once
        # share one save of it. What must not come back (deleted, unpaused) is saved at once.
        if self._metadata_due_ns == NEVER:
            self._metadata_due_ns = self._now.monotonic_ns + _METADATA_DELAY_NS
            self.deadlines_changed = True
        self._agenda.rouse()
        for listener in self.listeners:
            listener(TopologyEvent(topic, channel, exists))

    def _save_metadata(self) -> None:
        # Due again unless this succeeds.
        self._metadata_due_ns = self._now.monotonic_ns + _METADATA_DELAY_NS
        self.deadlines_changed = True
        topics = [
            _metadata(topic) for topic in self.topics.values() if not is_ephemeral(topic.name)
        ]
        save_metadata(self._files, self._layout.root, topics)
        self._metadata_due_ns = NEVER

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
                if topic.pump(now):
                    self._note_success()
            except StorageError as error:
                self._retry_later(topic, error, now)
        channels, agenda.channels = agenda.channels, {}
        for channel in channels:
            try:
                for subscription, frames in channel.dispatch(now.monotonic_ns):
                    subscription.consumer.deliver(frames)
            except StorageError as error:
                self._retry_later(channel, error, now)
            if channel.leases is not None:
                channel.leases.rouse()
            if channel.deadlines_changed:
                self._schedule(channel)
        self._commits.end_moves()
        logs, agenda.logs = agenda.logs, {}
        for queue_log in logs:
            try:
                queue_log.flush()
                self._note_success()
            except StorageError as error:
                self._retry_later(queue_log, error, now)
        if self._metadata_due_ns != NEVER and self._metadata_due_ns <= now.monotonic_ns:
            try:
                self._save_metadata()
                self._note_success()
            except StorageError as error:
                self.note_fault(error)
        agenda.end()

    def next_deadline_ns(self) -> int:
        """When the next turn is due even if nothing arrives, or NEVER."""
        self.deadlines_changed = False
        soonest_ns = NEVER
        for due_ns in (
            self._deadlines.soonest_ns(),
            self._retry_ns,
            self._metadata_due_ns,
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
                self.note_fault(error)
            self._agenda.note_channel(channel)
        if self._retry_ns != NEVER and self._retry_ns <= now.monotonic_ns:
            retry, self._retry, self._retry_ns = self._retry, [], NEVER
            for item in retry:
                if isinstance(item, Topic):
                    self._agenda.note_topic(item)
                elif isinstance(item, Channel):
                    self._agenda.note_channel(item)
                elif isinstance(item, LeaseBook):
                    self._agenda.note_book(item)
                else:
                    self._agenda.note_log(item)

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
            self._retry_later(book, error, now)

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

    def note_fault(self, error: StorageError) -> None:
        """The disk refused something: unhealthy until a write succeeds. Each fault is logged once
        until then, for much of what failed is tried again several times a second."""
        self._fault = str(error)
        if self._fault not in self._faults_logged and len(self._faults_logged) < _FAULTS_MAX:
            self._faults_logged.add(self._fault)
            log.error("%s", error)

    def _note_success(self) -> None:
        if self._fault:
            log.info("the disk takes writes again")
            self._fault = ""
            self._faults_logged.clear()

    def _retry_later(
        self, item: Topic | Channel | LeaseBook | DiskQueue, error: StorageError, now: Instant
    ) -> None:
        self.note_fault(error)
        self._retry.append(item)
        if self._retry_ns == NEVER:
            self._retry_ns = now.monotonic_ns + _RETRY_NS
            self.deadlines_changed = True

    def _stored(self, tickets: list[Ticket]) -> None:
        if self._fsync:
            self._commits.wait(tickets)
            return
        if self._log_all:
            self._note_success()
        for ticket in tickets:
            ticket.complete()

    def note_acked(self, queue_log: DiskQueue) -> None:
        self._agenda.note_log(queue_log)

    def note_unsynced(self, queue_log: DiskQueue) -> None:
        if self._commits.note_unsynced(queue_log, self._now.monotonic_ns):
            self.deadlines_changed = True

    def note_moved(self, queue_log: DiskQueue) -> None:
        self._commits.note_moved(queue_log)
        self._agenda.rouse()

    def note_sync_overdue(self, queue_log: DiskQueue) -> None:
        self._commits.note_overdue()

    def sync_due(self, now: Instant) -> bool:
        """Whether ``--durability``, ``--sync-every`` or ``--sync-timeout`` ask for a sync now."""
        return self._commits.due(now.monotonic_ns)

    def begin_sync(self) -> SyncWork:
        """Take everything that waits for a sync; ``end_sync`` must follow."""
        return self._commits.begin()

    def end_sync(self, work: SyncWork, error: StorageError | None) -> None:
        """The work ran, or failed: whoever waits for it is told."""
        if error is not None:
            self.note_fault(error)
            self.deadlines_changed = True
        elif work.files:
            self._note_success()
        self._commits.end(work, error, self._now.monotonic_ns)

    @property
    def retrying(self) -> bool:
        """Whether something that the disk refused waits to be tried again."""
        return self._retry_ns != NEVER

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


def _topic_of(channel: Channel, policy: DeadLetterPolicy) -> str:
    return dead_letter_topic(policy, channel.topic_name, channel.name)


def _metadata(topic: Topic) -> TopicMetadata:
    kept = [channel for name, channel in topic.channels.items() if not is_ephemeral(name)]
    return TopicMetadata(
        topic.name,
        topic.paused,
        {channel.name: channel.paused for channel in kept},
        {
            channel.name: channel.dead_letters.policy.as_json()
            for channel in kept
            if channel.dead_letters is not None
        },
    )
