"""The open files of a log: which have to be synced, and when each may be closed.

A sync runs in another thread. What it is using must not be closed under it, for the descriptor's
number may be another file's by then; and what it was not given yet must stay open for the next.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nsqpy.storage.files import File
from nsqpy.storage.segment import Segment

if TYPE_CHECKING:
    from nsqpy.storage.journal import Journal

__all__ = ["OpenFiles"]


class OpenFiles:
    """``note_unsynced`` is called when the first file has been written since the last ``take``,
    ``note_overdue`` when ``sync_every`` writes have been made since; ``note_unlinked`` gets files
    without a name, to be closed where that may take a while."""

    __slots__ = (
        *("_note_overdue", "_note_unlinked", "_note_unsynced", "_resting", "_retired"),
        *("_sync_every", "_syncing", "_unsynced", "_writes"),
    )

    def __init__(
        self,
        *,
        sync_every: int,
        note_unsynced: Callable[[], None],
        note_overdue: Callable[[], None],
        note_unlinked: Callable[[File], None],
    ) -> None:
        self._sync_every = sync_every
        self._note_unsynced = note_unsynced
        self._note_overdue = note_overdue
        self._note_unlinked = note_unlinked
        self._unsynced: dict[File, None] = {}
        self._writes = 0
        self._syncing: set[File] = set()
        self._resting: dict[Segment, None] = {}  # to be closed once they are synced
        self._retired: list[File] = []  # of deleted segments: to be closed after this sync

    def note_write(self, file: File) -> None:
        """``file`` has been written to."""
        if not self._unsynced:
            self._note_unsynced()
        self._unsynced[file] = None
        self._writes += 1
        if self._writes == self._sync_every:
            self._note_overdue()

    # -- a sync -----------------------------------------------------------------------------

    def take(self) -> list[File]:
        """The files written since the last call; ``end_sync`` must follow."""
        files = list(self._unsynced)
        self._unsynced = {}
        self._syncing.update(files)
        self._writes = 0
        return files

    def end_sync(self, files: Sequence[File], *, safe: bool) -> None:
        """``files`` are on the device, or have to be synced again."""
        self._syncing.difference_update(files)
        retired, self._retired = self._retired, []
        if not safe:
            for file in files:
                if file not in retired:
                    self.note_write(file)
        for file in retired:
            self._note_unlinked(file)
        resting, self._resting = self._resting, {}
        for segment in resting:
            self.let_go(segment)

    def sync(self) -> None:
        """Return when everything written so far is on the device. Raises OSError."""
        for file in self._unsynced:
            file.sync()

    # -- closing ----------------------------------------------------------------------------

    def let_go(self, segment: Segment) -> None:
        """Close a segment that is neither written nor read, once it needs no sync; it is opened
        again when it is needed."""
        holders: tuple[Segment | Journal, ...] = (segment, segment.journal)
        for holder in holders:
            if holder.file in self._syncing or holder.file in self._unsynced:
                self._resting[segment] = None
            elif holder.file is not None:
                holder.file.close()
                holder.file = None

    def give_up(self, segment: Segment) -> None:
        """A segment is deleted, or is about to be: its files need no sync."""
        self._resting.pop(segment, None)
        for file in (segment.file, segment.journal.file):
            if file is not None:
                self._unsynced.pop(file, None)
                if file in self._syncing:
                    self._retired.append(file)
                else:
                    self._note_unlinked(file)
        segment.file = segment.journal.file = None

    def close(self, segments: Sequence[Segment]) -> None:
        """Close the files of ``segments``, which are all there are, for good."""
        for segment in segments:
            for file in (segment.file, segment.journal.file):
                if file in self._syncing:
                    self._retired.append(file)
                elif file is not None:
                    file.close()
            segment.file = segment.journal.file = None
        self._unsynced.clear()
