"""A topic: takes what is published, stores it, and copies it to every channel.

``route`` stores everything that waits in the inbox with as few writes as possible and only then
completes the tickets. While the topic has channels, is not paused and has nothing queued, a batch
goes straight into the channels' logs; the topic's own queue is for what no channel takes yet, and
``pump`` moves it on later. Source: nsqd/topic.go.
"""

from collections.abc import Callable
from itertools import groupby
from operator import attrgetter

from nsqpy.clock import Instant
from nsqpy.core.agenda import Agenda
from nsqpy.core.channel import Channel
from nsqpy.core.guid import GUIDFactory
from nsqpy.core.window import NOT_STORED, Run, Window
from nsqpy.errors import NSQError, StorageError
from nsqpy.message import BATCH_MAX_BYTES, BATCH_MAX_MESSAGES, Batch, encode_batch
from nsqpy.storage.diskqueue import DiskQueue

__all__ = ["ExitingError", "Ticket", "Topic"]


_DELIVER_AT_NS = attrgetter("deliver_at_ns")
PUMP_MAX_MESSAGES = 16 * 1024
PUMP_MAX_BYTES = 4 * 1024 * 1024


class ExitingError(NSQError):
    """The topic or channel is being deleted, or the daemon stops."""

    def __str__(self) -> str:
        return "exiting"


class Ticket:
    """Bodies published together, held until they are as safe as ``--durability`` asks.

    ``size`` is the bodies' bytes; ``deliver_at_ns`` is wall time, 0 for at once. ``error`` is set
    if they are not stored. ``on_done`` is called once, when it is known.
    """

    __slots__ = ("bodies", "deliver_at_ns", "done", "error", "on_done", "size")

    def __init__(
        self,
        bodies: list[bytes],
        deliver_at_ns: int = 0,
        on_done: Callable[["Ticket"], None] | None = None,
    ) -> None:
        self.bodies = bodies
        self.size = len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
        self.deliver_at_ns = deliver_at_ns
        self.done = False
        self.error: NSQError | None = None
        self.on_done = on_done

    def complete(self, error: NSQError | None = None) -> None:
        assert not self.done
        self.done = True
        self.error = error
        if self.on_done is not None:
            self.on_done(self)


class Stretch:
    """Messages on their way from the topic to its channels, some of which may have them."""

    __slots__ = ("batches", "runs", "taken_by")

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs
        self.batches = [run.batch.slice(run.start, run.stop) for run in runs]
        self.taken_by: set[Channel] = set()

    def __len__(self) -> int:
        return sum(map(len, self.runs))


class Topic:
    """``queue_log`` is None if ephemeral. ``on_stored`` gets the tickets whose messages are stored
    and completes them when they are safe enough; ``on_fault`` hears of storage errors, and
    how many bytes were refused."""

    def __init__(
        self,
        name: str,
        *,
        agenda: Agenda,
        guids: GUIDFactory,
        window_limit: int,
        queue_log: DiskQueue | None,
        log_all: bool,
        drop_oldest: bool = False,
        on_stored: Callable[[list[Ticket]], None],
        on_fault: Callable[[StorageError, int], None],
    ) -> None:
        self.name = name
        self._agenda = agenda
        self._guids = guids
        self._log = queue_log
        self._window = Window(
            queue_log, limit=window_limit, log_all=log_all, drop_oldest=drop_oldest
        )
        self._stretch: Stretch | None = None
        self._inbox: list[Ticket] = []
        self._on_stored = on_stored
        self._on_fault = on_fault
        self.channels: dict[str, Channel] = {}
        self.paused = False
        self.held = False
        self.exiting = False
        self.message_count = 0
        self.message_bytes = 0

    @property
    def depth(self) -> int:
        """Messages that wait for a channel, or for the pause to end."""
        return self._window.depth + (len(self._stretch) if self._stretch else 0)

    @property
    def bad_block_count(self) -> int:
        """Damaged stretches of its log that were set aside since the start."""
        return self._log.bad_blocks if self._log is not None else 0

    @property
    def oldest_ns(self) -> int | None:
        """When the first message that waits was published; as ``Window.oldest_ns``."""
        if self._stretch is not None:
            return self._stretch.batches[0].published(0, 1)[0][0]
        return self._window.oldest_ns

    @property
    def dropped_count(self) -> int:
        """What an ephemeral topic had no room for."""
        return self._window.dropped_count

    def is_empty(self) -> bool:
        return self._stretch is None and self._window.is_empty()

    @property
    def backend_depth(self) -> int:
        return self._window.backend_depth

    def publish(self, ticket: Ticket) -> None:
        """Queue bodies for the next turn.

        What waits here is what arrived since the last turn: bounded by one read a connection.
        """
        if self.exiting:
            ticket.complete(ExitingError())
            return
        if not self._inbox:
            self._agenda.note_topic(self)
        self._inbox.append(ticket)

    # -- the steps of a turn ----------------------------------------------------------------

    def route(self, now: Instant) -> None:
        """Store what was published, then complete its tickets: the OK comes after the write."""
        inbox = self._inbox
        if not inbox:
            return
        self._inbox = []
        batches = self._encode(inbox, now)
        try:
            if self.channels and not self.paused and not self.held and self.is_empty():
                for channel in self.channels.values():
                    channel.put(batches, now)
            else:
                self._window.put(batches)
        except StorageError as error:
            self._on_fault(error, sum(len(batch.data) for batch in batches))
            for ticket in inbox:
                ticket.complete(error)
            return
        for ticket in inbox:
            self.message_count += len(ticket.bodies)
            self.message_bytes += ticket.size
        self._on_stored(inbox)

    def _encode(self, inbox: list[Ticket], now: Instant) -> list[Batch]:
        """The fewest batches that keep the order, the bounds and the times of delivery."""
        batches: list[Batch] = []
        for due_ns, together in groupby(inbox, _DELIVER_AT_NS):
            tickets = list(together)
            if len(tickets) == 1:
                bodies, size = tickets[0].bodies, tickets[0].size
            else:
                bodies = [body for ticket in tickets for body in ticket.bodies]
                size = sum(ticket.size for ticket in tickets)
            fits = len(bodies) <= BATCH_MAX_MESSAGES and size <= BATCH_MAX_BYTES
            for part in [bodies] if fits else _parts(bodies):
                ids = self._guids.draw(len(part), now.wall_ns)
                batches.append(encode_batch(part, ids, now.wall_ns, due_ns))
        return batches

    def pump(self, now: Instant) -> None:
        """Copy what is queued in the topic to every channel, a bounded amount a turn.

        Raises:
            StorageError: it stays queued in the topic; channels that have taken it already
                do not get it again.
        """
        if self.is_empty() or not self.channels or self.paused or self.held or self.exiting:
            return
        if self._stretch is None:
            runs = self._window.take(PUMP_MAX_MESSAGES, PUMP_MAX_BYTES)
            if not runs:
                return  # all that was left is damaged and has been set aside
            self._stretch = Stretch(runs)
        self.end_stretch(now)
        if not self._window.is_empty():
            self._agenda.note_topic(self)

    def end_stretch(self, now: Instant) -> None:
        """Give what is on its way to the channels that have not taken it yet.

        Raises:
            StorageError: it stays on its way.
        """
        stretch = self._stretch
        if stretch is None:
            return
        for channel in self.channels.values():
            if channel not in stretch.taken_by:
                channel.put(stretch.batches, now)
                stretch.taken_by.add(channel)
        self._stretch = None
        for run in stretch.runs:
            run.move()

    def publish_to(self, channel: Channel, bodies: list[bytes], now: Instant) -> None:
        """Store bodies as new messages of one of the topic's channels, at once.

        Raises:
            StorageError: none was taken.
        """
        if bodies:
            channel.put(self._encode([Ticket(bodies)], now), now)

    # -- administration ---------------------------------------------------------------------

    def add_channel(self, channel: Channel) -> None:
        """From here on every message reaches ``channel``; the first one gets the backlog."""
        self.channels[channel.name] = channel
        self._agenda.note_topic(self)

    def remove_channel(self, name: str) -> None:
        del self.channels[name]

    def pause(self) -> None:
        self.paused = True

    def unpause(self) -> None:
        self.paused = False
        self._agenda.note_topic(self)

    def hold(self) -> None:
        """Keep what is published in the topic's own queue until ``release``: it is not known yet
        which channels there have to be. Unlike a pause it is nobody's wish, and does not last."""
        self.held = True

    def release(self) -> None:
        """Every channel there has to be is there."""
        self.held = False
        self._agenda.note_topic(self)

    def empty(self) -> None:
        """Drop what is queued in the topic itself; its channels keep what they have."""
        self._window.clear()
        self._stretch = None
        if self._log is not None:
            self._log.empty()

    def refuse(self) -> None:
        """Stop taking messages; what waits in the inbox is refused."""
        self.exiting = True
        inbox, self._inbox = self._inbox, []
        for ticket in inbox:
            ticket.complete(ExitingError())

    def close(self) -> None:
        """Store what is only in memory and let go of the files.

        Raises:
            StorageError: not everything could be stored.
        """
        if self._stretch is not None:
            self._window.put_back(self._stretch.runs)
            self._stretch = None
        runs = [run for run in self._window.clear() if run.number == NOT_STORED]
        if self._log is not None:
            if runs:
                batches = [run.batch.slice(run.start, run.stop) for run in runs]
                self._log.append(batches, held=False)
            self._log.close()


def _parts(bodies: list[bytes]) -> list[list[bytes]]:
    """Cut ``bodies`` into stretches within the bounds of a batch."""
    parts: list[list[bytes]] = []
    start = total = 0
    for index, body in enumerate(bodies):
        full = total + len(body) > BATCH_MAX_BYTES or index - start == BATCH_MAX_MESSAGES
        if full and index > start:
            parts.append(bodies[start:index])
            start, total = index, 0
        total += len(body)
    parts.append(bodies[start:])
    return parts
