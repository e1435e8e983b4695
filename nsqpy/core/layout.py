"""Where things are in the data directory.

::

    nsqd.dat                                         which topics and channels, what is paused
    queues/<topic>.topic/queue/                      the topic's own log
    queues/<topic>.topic/<channel>.channel/queue/    the channel's log
    queues/<topic>.topic/<channel>.channel/deferred/ what is due soon, and requeued messages
    queues/<topic>.topic/<channel>.channel/timers/   what is due later, a log for each slot of time
    queues/<topic>.topic/<channel>.channel/leases/   a log for each lease, and one about them
    queues/node.id                                   a name for this data, for life
    queues/probe                                     for a moment, to see whether there is room

The endings keep names such as ``..``, which are legal, from meaning anything to a file system.
"""

from nsqpy.names import is_valid_name
from nsqpy.storage.files import Files
from nsqpy.storage.timers import slot_directories

__all__ = ["JOURNAL", "Layout", "lease_directories"]

JOURNAL = "journal"
_TOPIC = ".topic"
_CHANNEL = ".channel"


class Layout:
    """Paths below ``root``."""

    __slots__ = ("root",)

    def __init__(self, root: str) -> None:
        self.root = root

    def topic(self, topic: str) -> str:
        return f"{self.root}/queues/{topic}{_TOPIC}"

    def topic_log(self, topic: str) -> str:
        return f"{self.topic(topic)}/queue"

    def channel(self, topic: str, channel: str) -> str:
        return f"{self.topic(topic)}/{channel}{_CHANNEL}"

    def channel_log(self, topic: str, channel: str) -> str:
        return f"{self.channel(topic, channel)}/queue"

    def deferred_log(self, topic: str, channel: str) -> str:
        return f"{self.channel(topic, channel)}/deferred"

    def timers(self, topic: str, channel: str) -> str:
        return f"{self.channel(topic, channel)}/timers"

    def leases(self, topic: str, channel: str) -> str:
        return f"{self.channel(topic, channel)}/leases"

    @property
    def node_id(self) -> str:
        return f"{self.root}/queues/node.id"

    @property
    def probe(self) -> str:
        return f"{self.root}/queues/probe"

    def channel_logs(self, files: Files, topic: str, channel: str) -> list[str]:
        """Every log that a channel has, what is due soonest first. Raises OSError."""
        slots = slot_directories(files, self.timers(topic, channel))
        leases = lease_directories(files, self.leases(topic, channel))
        return [
            self.channel_log(topic, channel),
            self.deferred_log(topic, channel),
            *slots.values(),
            *leases.values(),
        ]

    def scan(self, files: Files) -> dict[str, list[str]]:
        """The topics that have a directory, and the channels of each."""
        found = {}
        for name in files.list_directory(f"{self.root}/queues"):
            topic = name.removesuffix(_TOPIC)
            if topic != name and is_valid_name(topic):
                channels = (
                    entry.removesuffix(_CHANNEL)
                    for entry in files.list_directory(self.topic(topic))
                    if entry.endswith(_CHANNEL)
                )
                found[topic] = [channel for channel in channels if is_valid_name(channel)]
        return found


def lease_directories(files: Files, directory: str) -> dict[int, str]:
    """The logs of leases below ``directory``, by serial number. Raises OSError."""
    names = (name for name in files.list_directory(directory) if name.isdecimal())
    return {int(name): f"{directory}/{name}" for name in names}
