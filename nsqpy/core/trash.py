"""What nobody needs any more, and takes longer to be rid of than a turn may."""

import logging
from collections.abc import Callable

from nsqpy.storage.files import File, Files

__all__ = ["Trash", "TrashBin"]

log = logging.getLogger(__name__)


class Trash:
    """Directories, and open files without a name, whose blocks are freed when they are closed.
    ``run`` may be called in another thread: a gigabyte takes a while."""

    def __init__(self, files: Files, directories: list[str], unlinked: list[File]) -> None:
        self._files = files
        self._directories = directories
        self._unlinked = unlinked

    def run(self) -> None:
        for file in self._unlinked:
            file.close()
        for path in self._directories:
            try:
                self._files.remove_tree(path)
            except OSError as error:
                log.error("cannot remove %s: %s", path, error)  # the next start tries again


class TrashBin:
    """Collects it; ``rouse`` has somebody come for it."""

    __slots__ = ("_directories", "_files", "_rouse", "_unlinked")

    def __init__(self, files: Files, rouse: Callable[[], None]) -> None:
        self._files = files
        self._rouse = rouse
        self._directories: list[str] = []
        self._unlinked: list[File] = []

    def __bool__(self) -> bool:
        return bool(self._directories or self._unlinked)

    def add_directory(self, path: str) -> None:
        self._directories.append(path)
        self._rouse()

    def add_unlinked(self, file: File) -> None:
        self._unlinked.append(file)
        self._rouse()

    def take(self) -> Trash:
        """What there is, for the caller to be rid of."""
        directories, self._directories = self._directories, []
        unlinked, self._unlinked = self._unlinked, []
        return Trash(self._files, directories, unlinked)
