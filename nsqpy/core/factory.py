"""How topics and channels are made: their logs opened, their parts put together.

What the configuration says about queues is read here and nowhere else.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from nsqpy.config import Durability
from nsqpy.core.agenda import Agenda
from nsqpy.core.channel import Channel
from nsqpy.core.deferred import DeferredMessages
from nsqpy.core.disk_health import DiskHealth
from nsqpy.core.group_commit import GroupCommit
from nsqpy.core.guid import GUIDFactory
from nsqpy.core.latency import LatencyWindow
from nsqpy.core.layout import Layout
from nsqpy.core.lease_book import LeaseBook
from nsqpy.core.lease_store import JOURNAL_SEGMENT_BYTES, LeaseStore
from nsqpy.core.topic import Topic
from nsqpy.errors import StorageError
from nsqpy.names import is_ephemeral
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.files import Files
from nsqpy.storage.timers import TimerWheel

if TYPE_CHECKING:
    from nsqpy.config import NsqdConfig

__all__ = ["QueueFactory"]


class QueueFactory:
    """``commits`` listens to every log, and knows when what is written is safe; ``lease_owners`` is
    shared by all lease books. ``remove`` takes directories that nobody needs any more."""

    def __init__(
        self,
        config: "NsqdConfig",
        files: Files,
        layout: Layout,
        random: Random,
        *,
        agenda: Agenda,
        health: DiskHealth,
        commits: GroupCommit,
        lease_owners: dict[str, LeaseBook],
        remove: Callable[[str], None],
    ) -> None:
        self._config = config
        self._files = files
        self._layout = layout
        self._random = random
        self._agenda = agenda
        self._health = health
        self._commits = commits
        self._lease_owners = lease_owners
        self._remove = remove
        self._log_all = config.durability != Durability.MEMORY
        self._drop_oldest = config.ephemeral_overflow == "drop-oldest"

    def make_topic(self, name: str) -> Topic:
        """Raises StorageError: its directory cannot be made."""
        queue_log = None
        if not is_ephemeral(name):
            queue_log = self._open_log(self._layout.topic_log(name), f"TOPIC({name})")
        return Topic(
            name,
            agenda=self._agenda,
            guids=GUIDFactory(self._config.node_id),
            window_limit=self._config.mem_queue_size,
            queue_log=queue_log,
            log_all=self._log_all,
            drop_oldest=self._drop_oldest,
            on_stored=self._commits.complete,
            on_fault=self._health.note_refused,
        )

    def make_channel(self, topic_name: str, name: str, *, loading: bool) -> Channel:
        """Unless it is ``loading`` what there was, nothing is left of one that cannot be made.

        Raises:
            StorageError: a directory cannot be made.
        """
        queue_log = near = far = leases = None
        if not is_ephemeral(name):
            open_log = partial(self._open_log, label=f"CHANNEL({name})")
            try:
                queue_log = open_log(self._layout.channel_log(topic_name, name))
                near = open_log(self._layout.deferred_log(topic_name, name))
            except StorageError:
                if not loading:  # or it would be there after the next start
                    self.scrap_channel(topic_name, name)
                raise
            far = TimerWheel(self._files, self._layout.timers(topic_name, name), open_log)
            if not is_ephemeral(topic_name):
                leases = self._make_book(topic_name, name)
        config = self._config
        limit = config.mem_queue_size
        channel = Channel(
            topic_name,
            name,
            agenda=self._agenda,
            random=self._random,
            window_limit=limit,
            max_msg_timeout_ns=config.max_msg_timeout_ns,
            queue_log=queue_log,
            deferred=DeferredMessages(near, far, limit=limit, log_all=self._log_all),
            leases=leases,
            log_all=self._log_all,
            drop_oldest=self._drop_oldest,
        )
        if quantiles := config.e2e_processing_latency_percentiles:
            window_ns = config.e2e_processing_latency_window_time_ns
            channel.latency = LatencyWindow(window_ns, quantiles)
        return channel

    def _make_book(self, topic_name: str, name: str) -> LeaseBook:
        open_log = partial(self._open_log, label=f"LEASE({name})")
        store = LeaseStore(
            self._files,
            self._layout.leases(topic_name, name),
            open_log=open_log,
            open_journal=partial(self._open_lease_journal, label=f"LEASE({name})"),
            remove=self._remove,
        )
        return LeaseBook(
            name,
            store,
            agenda=self._agenda,
            owners=self._lease_owners,
            when_safe=self._commits.when_safe,
        )

    def _open_lease_journal(self, directory: str, label: str) -> DiskQueue:
        """As ``_open_log``. What the journal says is taken out of the channel's log for good, so
        at ``fsync`` it has to be on the device.

        Raises:
            StorageError.
        """
        segment_max_bytes = min(self._config.max_bytes_per_file, JOURNAL_SEGMENT_BYTES)
        queue_log = self._open_log(directory, label, segment_max_bytes)
        if self._config.durability == Durability.FSYNC:
            queue_log.settle()
        return queue_log

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
            segment_max_bytes=segment_max_bytes or self._config.max_bytes_per_file,
            sync_every=self._config.sync_every,
            listener=self._commits,
        )
        try:
            queue_log.open()
        except StorageError as error:
            self._health.note_fault(error)
            raise
        return queue_log

    # -- the end ----------------------------------------------------------------------------

    def scrap_topic(self, name: str) -> None:
        """Remove its files and those of its channels; all are closed."""
        self._remove_tree(self._layout.topic(name))

    def scrap_channel(self, topic_name: str, name: str) -> None:
        """Remove its files; they are closed."""
        self._remove_tree(self._layout.channel(topic_name, name))

    def _remove_tree(self, path: str) -> None:
        try:
            self._files.remove_tree(path)
        except OSError as error:
            self._health.note_fault(StorageError.of(path, error))
