"""Group commit: what waits for a sync, and when one is due.

One sync at a time serves everyone who waits when it begins; who comes later is served by the next.
The core decides what and when, the daemon runs it in a thread: ``begin``, ``run``, ``end``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nsqpy.config import Durability
from nsqpy.core.agenda import Agenda
from nsqpy.core.deadlines import NEVER
from nsqpy.core.disk_health import RETRY_NS, DiskHealth, Work
from nsqpy.core.topic import Ticket
from nsqpy.core.trash import TrashBin
from nsqpy.errors import StorageError
from nsqpy.storage.diskqueue import DiskQueue, Moves
from nsqpy.storage.files import File

__all__ = ["GroupCommit", "SyncWork"]


@dataclass(frozen=True, slots=True)
class SyncWork:
    """Files to sync, and who waits for it. ``run`` may be called in another thread."""

    files: dict[DiskQueue, list[File]]
    moves: dict[DiskQueue, Moves]
    tickets: list[Ticket]

    def run(self) -> None:
        """Return when everything written before this work was taken is on the device.

        Raises:
            StorageError: the device refused; nothing can be said about the files' content.
        """
        try:
            for files in self.files.values():
                for file in files:
                    file.sync()
        except OSError as error:
            raise StorageError.of("sync", error) from error


class GroupCommit:
    """The listener of every log, and the one who knows what ``durability`` asks for.

    At ``fsync`` every write is synced as soon as possible; otherwise a sync is due ``timeout_ns``
    after the first write since the last, or when a log says that enough has been written.
    ``turn_ns`` says when the turn under way began, or the last one, monotonic. ``changed`` is set
    when ``soonest_ns`` may be sooner than it was, for the caller to take note of and to unset.
    """

    def __init__(
        self,
        durability: Durability,
        timeout_ns: int,
        *,
        turn_ns: Callable[[], int],
        agenda: Agenda,
        health: DiskHealth,
        trash: TrashBin,
    ) -> None:
        self._every_write = durability == Durability.FSYNC
        self._timeout_ns = timeout_ns
        self._turn_ns = turn_ns
        self._agenda = agenda
        self._health = health
        self._trash = trash
        self._tickets: list[Ticket] = []
        self._unsynced: dict[DiskQueue, None] = {}
        self._moved: dict[DiskQueue, None] = {}
        self._since_ns = NEVER  # the turn in which the first of them was written
        self.changed = False
        self._overdue = False
        self._retry_ns = NEVER
        self._under_way = False

    # -- who waits --------------------------------------------------------------------------

    def complete(self, tickets: list[Ticket]) -> None:
        """Complete ``tickets``, whose messages are written, once they are safe enough."""
        if self._every_write:
            self._tickets += tickets
            return
        for ticket in tickets:
            ticket.complete()

    def when_safe(self, done: Callable[[StorageError | None], None]) -> None:
        """Call back once all that has been written is safe enough."""
        if not self._every_write:
            done(None)
            return

        def note(ticket: Ticket) -> None:
            error = ticket.error
            assert error is None or isinstance(error, StorageError)
            done(error)

        self._tickets.append(Ticket([], on_done=note))
        self._agenda.rouse()

    # -- what logs say ----------------------------------------------------------------------

    def note_acked(self, queue_log: DiskQueue) -> None:
        self._agenda.note_log(queue_log)

    def note_unsynced(self, queue_log: DiskQueue) -> None:
        if not self._unsynced:
            self._since_ns = self._turn_ns()
            self.changed = True
        self._unsynced[queue_log] = None

    def note_sync_overdue(self, queue_log: DiskQueue) -> None:
        self._overdue = True

    def note_moved(self, queue_log: DiskQueue) -> None:
        self._moved[queue_log] = None
        self._agenda.rouse()

    def note_unlinked(self, file: File) -> None:
        self._trash.add_unlinked(file)

    def end_moves(self) -> None:
        """Acknowledge what has moved to other logs, where written is safe enough: the order of
        two writes outlives a kill, though not a power cut."""
        if self._moved and not self._every_write:
            moved, self._moved = self._moved, {}
            for queue_log in moved:
                queue_log.end_moves(queue_log.take_moves(), safe=True)

    # -- when -------------------------------------------------------------------------------

    def due(self, now_ns: int) -> bool:
        """Whether a sync should begin now."""
        if self._retry_ns != NEVER:  # also when what it was for has gone meanwhile
            return now_ns >= self._retry_ns
        if self._every_write:
            return bool(self._tickets or self._unsynced)
        if not self._unsynced:
            return False
        return self._overdue or now_ns - self._since_ns >= self._timeout_ns

    def soonest_ns(self) -> int:
        """When ``due`` becomes true by itself, or NEVER.

        With a sync for every write it is asked at the end of each turn and each sync, and needs
        no timer but to try again.
        """
        if self._under_way:
            return NEVER  # ``end`` asks anew
        if self._retry_ns != NEVER or self._every_write or not self._unsynced:
            return self._retry_ns
        return self._since_ns + self._timeout_ns

    # -- a sync -----------------------------------------------------------------------------

    def begin(self) -> SyncWork:
        """Take everything that waits; ``end`` must follow."""
        unsynced, self._unsynced = self._unsynced, {}
        tickets, self._tickets = self._tickets, []
        moved, self._moved = self._moved, {}
        self._overdue = False
        self._retry_ns = NEVER
        self._under_way = True
        return SyncWork(
            files={queue_log: queue_log.take_unsynced() for queue_log in unsynced},
            moves={queue_log: queue_log.take_moves() for queue_log in moved},
            tickets=tickets,
        )

    def end(self, work: SyncWork, error: StorageError | None) -> None:
        """The work ran, or failed and is tried again later: whoever waits for it is told."""
        self._under_way = False
        self.changed = True
        if error is None:
            self._health.note_success(Work.SYNC)
        else:
            self._health.note_fault(error, Work.SYNC)
            self._retry_ns = self._turn_ns() + RETRY_NS
        for queue_log, files in work.files.items():
            queue_log.end_sync(files, safe=error is None)
        for queue_log, moves in work.moves.items():
            queue_log.end_moves(moves, safe=error is None)
        for ticket in work.tickets:
            ticket.complete(error)
