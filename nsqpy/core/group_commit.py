"""Group commit: what waits for a sync, and when one is due.

One sync at a time serves everyone who waits when it begins; who comes later is served by the next.
The core decides what and when, the daemon runs it in a thread: ``begin``, ``run``, ``end``.
"""

from dataclasses import dataclass

from nsqpy.clock import SECOND
from nsqpy.core.deadlines import NEVER
from nsqpy.core.topic import Ticket
from nsqpy.errors import StorageError
from nsqpy.storage.diskqueue import DiskQueue, Moves
from nsqpy.storage.files import File

__all__ = ["GroupCommit", "SyncWork"]

_RETRY_NS = SECOND // 4


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
            raise StorageError("sync", error.strerror or str(error)) from error


class GroupCommit:
    """``every_write`` is ``--durability=fsync``; otherwise a sync is due ``timeout_ns`` after the
    first write since the last, or when a log says that enough has been written."""

    def __init__(self, *, every_write: bool, timeout_ns: int) -> None:
        self._every_write = every_write
        self._timeout_ns = timeout_ns
        self._tickets: list[Ticket] = []
        self._unsynced: dict[DiskQueue, None] = {}
        self._moved: dict[DiskQueue, None] = {}
        self._since_ns = NEVER
        self._overdue = False
        self._retry_ns = NEVER

    # -- what waits -------------------------------------------------------------------------

    def wait(self, tickets: list[Ticket]) -> None:
        """Complete ``tickets``, whose messages are written, after the next sync."""
        self._tickets += tickets

    def note_unsynced(self, queue_log: DiskQueue, now_ns: int) -> bool:
        """``queue_log`` has been written to; whether that makes ``soonest_ns`` sooner."""
        first = not self._unsynced
        if first:
            self._since_ns = now_ns
        self._unsynced[queue_log] = None
        return first

    def note_overdue(self) -> None:
        self._overdue = True

    def note_moved(self, queue_log: DiskQueue) -> None:
        self._moved[queue_log] = None

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
        if self._retry_ns != NEVER and now_ns < self._retry_ns:
            return False
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
        if not self._unsynced or self._every_write:
            return self._retry_ns
        return max(self._since_ns + self._timeout_ns, self._retry_ns)

    # -- a sync -----------------------------------------------------------------------------

    def begin(self) -> SyncWork:
        """Take everything that waits; ``end`` must follow."""
        unsynced, self._unsynced = self._unsynced, {}
        tickets, self._tickets = self._tickets, []
        moved, self._moved = self._moved, {}
        self._overdue = False
        self._retry_ns = NEVER
        return SyncWork(
            files={queue_log: queue_log.take_unsynced() for queue_log in unsynced},
            moves={queue_log: queue_log.take_moves() for queue_log in moved},
            tickets=tickets,
        )

    def end(self, work: SyncWork, error: StorageError | None, now_ns: int) -> None:
        """The work ran, or failed and is tried again later: whoever waits for it is told."""
        if error is not None:
            self._retry_ns = now_ns + _RETRY_NS
        for queue_log, files in work.files.items():
            queue_log.end_sync(files, safe=error is None)
        for queue_log, moves in work.moves.items():
            queue_log.end_moves(moves, safe=error is None)
        for ticket in work.tickets:
            ticket.complete(error)
