"""Which topics and channels there are: in memory, in the data directory, and told to listeners.

What has a directory exists, and the metadata file lists what there is and what is paused: it is
written after the fact, a directory before anything is in it. So many topics made at once share one
save of the file; what must not come back (deleted, unpaused) is saved at once.
"""

import logging
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from nsqpy.clock import SECOND
from nsqpy.core.channel import Channel
from nsqpy.core.deadlines import NEVER
from nsqpy.core.disk_health import DiskHealth
from nsqpy.core.layout import Layout
from nsqpy.core.topic import Topic
from nsqpy.errors import NSQError, StorageError
from nsqpy.names import is_ephemeral
from nsqpy.storage.files import Files
from nsqpy.storage.metadata import TopicMetadata, load_metadata, save_metadata

__all__ = ["Catalogue", "NotFoundError", "TopologyEvent", "TopologyListener"]

log = logging.getLogger(__name__)

_SAVE_DELAY_NS = SECOND


class NotFoundError(NSQError):
    """No topic or channel of that name; ``kind`` is ``topic`` or ``channel``."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name)
        self.kind = kind
        self.name = name

    def __str__(self) -> str:
        return f"no {self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class TopologyEvent:
    """A topic (``channel`` None) or channel appeared or went."""

    topic: str
    channel: str | None
    exists: bool


class TopologyListener(Protocol):
    def __call__(self, event: TopologyEvent) -> None: ...


class Catalogue:
    """The only writer of ``topics``. ``health`` hears what the disk refuses that has no caller to
    tell it to."""

    __slots__ = (
        "_files",
        "_health",
        "_layout",
        "_random",
        "listeners",
        "node_id",
        "save_due_ns",
        "topics",
    )

    def __init__(self, files: Files, layout: Layout, random: Random, health: DiskHealth) -> None:
        self._files = files
        self._random = random
        self._layout = layout
        self._health = health
        self.topics: dict[str, Topic] = {}
        self.listeners: list[TopologyListener] = []
        self.node_id = ""  # of this data, for life
        self.save_due_ns = NEVER  # monotonic

    # -- looking up -------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Raises NotFoundError."""
        topic = self.topics.get(name)
        if topic is None:
            raise NotFoundError("topic", name)
        return topic

    def channel(self, topic_name: str, name: str) -> Channel:
        """Raises NotFoundError."""
        channel = self.topic(topic_name).channels.get(name)
        if channel is None:
            raise NotFoundError("channel", name)
        return channel

    # -- coming and going -------------------------------------------------------------------

    def add_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = topic

    def remove_topic(self, topic: Topic) -> None:
        del self.topics[topic.name]

    def announce(self, event: TopologyEvent, now_ns: int) -> None:
        """Tell the listeners, and have the file saved soon."""
        if self.save_due_ns == NEVER:
            self.save_due_ns = now_ns + _SAVE_DELAY_NS
        for listener in self.listeners:
            listener(event)

    # -- on disk ----------------------------------------------------------------------------

    def read(self) -> list[TopicMetadata]:
        """What a previous process left: what the file lists, and what has a directory.

        Raises:
            StorageError: file or directories cannot be read.
        """
        topics, warnings = load_metadata(self._files, self._layout.root)
        for warning in warnings:
            log.warning(warning)
        known = {topic.name: topic for topic in topics}
        try:
            found = self._layout.scan(self._files)
        except OSError as error:
            raise StorageError.of(self._layout.root, error) from error
        for name, channels in found.items():
            entry = known.get(name, TopicMetadata(name, False, {}))
            paused = dict.fromkeys(channels, False) | entry.channels
            known[name] = replace(entry, channels=paused)
        return list(known.values())

    def save(self, now_ns: int) -> None:
        """Write the file.

        Raises:
            StorageError: the old one stands, and this is due again in a while.
        """
        self.save_due_ns = now_ns + _SAVE_DELAY_NS
        found = self.topics.items()
        topics = [_metadata(topic) for name, topic in found if not is_ephemeral(name)]
        save_metadata(self._files, self._layout.root, topics)
        self.save_due_ns = NEVER

    def load_node_id(self) -> None:
        """Find out what this data is called, or give it a name."""
        try:
            self.node_id = self._files.read_whole(self._layout.node_id).decode().strip()
        except (OSError, ValueError):
            self.node_id = f"{self._random.getrandbits(128):032x}"
            self._store_node_id()

    def _store_node_id(self) -> None:
        path = self._layout.node_id
        try:
            self._files.make_directory(path.rpartition("/")[0])
            self._files.replace_whole(path, f"{self.node_id}\n".encode())
        except OSError as error:
            self._health.retry_later(StorageError.of(path, error), self._store_node_id)


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
