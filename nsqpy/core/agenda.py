"""What the next turn of the daemon has to look at.

Topics with something in their inbox, channels that may be able to deliver, logs with
acknowledgements to write, lease books with a step to take: each is noted once, however often it is
touched, and all is worked off in one go by ``Broker.turn``, but for the books: one of them a turn.
``wake`` is called when an empty agenda gets its first entry.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqpy.core.channel import Channel
    from nsqpy.core.lease_book import LeaseBook
    from nsqpy.core.topic import Topic
    from nsqpy.storage.diskqueue import DiskQueue

__all__ = ["Agenda"]


class Agenda:
    """Ordered sets, as dicts. Everything in the core notes its work here and nowhere else."""

    __slots__ = ("_awake", "books", "channels", "logs", "topics", "wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self._awake = False
        self.topics: dict[Topic, None] = {}
        self.channels: dict[Channel, None] = {}
        self.logs: dict[DiskQueue, None] = {}
        self.books: dict[LeaseBook, None] = {}

    def note_topic(self, topic: "Topic") -> None:
        self.topics[topic] = None
        self.rouse()

    def note_channel(self, channel: "Channel") -> None:
        self.channels[channel] = None
        self.rouse()

    def note_log(self, log: "DiskQueue") -> None:
        """Acknowledgements wait to be written to this log's journal."""
        self.logs[log] = None
        self.rouse()

    def note_book(self, book: "LeaseBook") -> None:
        """A step waits to be taken; one of all books is taken in a turn."""
        self.books[book] = None
        self.rouse()

    def rouse(self) -> None:
        """Ask for a turn; asking again before it ends changes nothing."""
        if not self._awake:
            self._awake = True
            self.wake()

    def begin(self) -> None:
        """A turn begins, whoever asked for it: what is noted while it runs may still be in it."""
        self._awake = True

    def end(self) -> None:
        """The turn is over; what it left on the agenda gets another one."""
        self._awake = False
        if self.topics or self.channels or self.logs or self.books:
            self.rouse()
