"""What is done to a data directory while no daemon runs on it: import, export, salvage."""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from nsqpy.core.layout import Layout
from nsqpy.errors import NSQError, StorageError
from nsqpy.message import Batch
from nsqpy.storage.files import DirLock, File, OSFiles
from nsqpy.storage.salvage import Found, holds_messages, salvage
from nsqpy.storage.segment import BadStretch
from nsqpy.storage.takeover import Damage, GivenBack, Takeover, give_back

__all__ = [
    "BadStretch",
    "Batch",
    "Damage",
    "Found",
    "GivenBack",
    "IncompleteExport",
    "export_original",
    "message_files",
    "salvage_file",
    "take_over",
]


def take_over(root: str, *, body_max_bytes: int, segment_max_bytes: int, wall_ns: int) -> None:
    """Import what the original left in ``root``, whose lock the caller holds.

    Raises:
        StorageError: see ``Takeover.run``.
    """
    takeover = Takeover(
        OSFiles(sync_names=True),
        root,
        Layout,
        body_max_bytes=body_max_bytes,
        segment_max_bytes=segment_max_bytes,
    )
    takeover.run(wall_ns)


class IncompleteExport(NSQError):
    """An export that was begun and could not be ended."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(target, reason)
        self.target = target
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason}; {self.target} is not complete: remove it before the next try"


def export_original(source: str, target: str, max_bytes_per_file: int) -> Iterator[GivenBack]:
    """Write what ``source`` owes into ``target`` as the original does; see ``give_back``.

    Raises:
        StorageError: there is no ``source``, a daemon runs on it, or ``target`` is not empty.
            Nothing was written.
        IncompleteExport: anything else.
    """
    try:
        lock = DirLock(source)
    except BlockingIOError as error:
        raise StorageError(source, "a daemon is running on it: stop that first") from error
    except OSError as error:
        raise StorageError.of(source, error) from error
    try:
        files = OSFiles()
        try:
            files.make_directory(target)
            taken = bool(files.list_directory(target))
        except OSError as error:
            raise StorageError.of(target, error) from error
        if taken:
            raise StorageError(target, "is not empty: give a new directory")
        try:
            yield from give_back(files, source, Layout(source), target, max_bytes_per_file)
        except (StorageError, OSError) as error:
            raise IncompleteExport(target, str(error)) from error
    finally:
        lock.release()


def message_files(path: Path) -> list[Path]:
    """The file itself, or all files below the directory that hold messages."""
    if not path.is_dir():
        return [path]
    return sorted(found for found in path.rglob("*") if holds_messages(found.name))


def salvage_file(
    path: Path, *, body_max_bytes: int, unacknowledged: bool, unverified: bool
) -> Iterator[Found | BadStretch]:
    """What ``path`` holds; see ``salvage``. Permission to read is enough. Raises OSError."""
    return salvage(
        _ReadOnlyFiles(),
        str(path),
        body_max_bytes=body_max_bytes,
        unacknowledged=unacknowledged,
        unverified=unverified,
    )


class _ReadOnlyFile:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read_at(self, count: int, offset: int) -> bytes:
        return os.pread(self._fd, count, offset)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)

    def write_at(self, buffers: Sequence[bytes], offset: int) -> None:
        raise _read_only()

    def truncate(self, size: int) -> None:
        raise _read_only()

    def sync(self) -> None:
        raise _read_only()


class _ReadOnlyFiles(OSFiles):
    """Files that are opened for reading only, as on a mount that allows no more."""

    def open(self, path: str, *, create: bool = False) -> File:
        return _ReadOnlyFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def _read_only() -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS))
