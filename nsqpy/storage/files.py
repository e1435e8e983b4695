"""The seam over the file system: every byte the daemon keeps goes through here.

``OSFiles`` is the real one. A simulation puts its own in its place, to lose what was not synced,
tear a write or run out of space. All calls are synchronous and raise ``OSError``.
"""

import fcntl
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

__all__ = ["DirLock", "File", "Files", "OSFiles"]

_MODE_FILE = 0o600
_MODE_DIRECTORY = 0o700
_IOV_MAX = 1024


class File(Protocol):
    """One open file. Positions are given with each call, so a failed write leaves no trace."""

    def write_at(self, buffers: Sequence[bytes], offset: int) -> None:
        """Write all of ``buffers`` back to back, or raise OSError."""

    def read_at(self, count: int, offset: int) -> bytes:
        """Up to ``count`` bytes; fewer only at the end of the file."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when what was written before this call is on the device, and so is the name
        of a file that was made by opening it."""

    def close(self) -> None: ...


class Files(Protocol):
    """A tree of directories and files, named by paths."""

    def open(self, path: str, *, create: bool = False) -> File: ...

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents; one that exists is fine."""

    def list_directory(self, path: str) -> list[str]:
        """Sorted names; empty if there is no such directory."""

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it; one that is not there is fine."""

    def rename(self, source: str, target: str) -> None: ...

    def read_whole(self, path: str) -> bytes: ...

    def replace_whole(self, path: str, content: bytes) -> None:
        """Put ``content`` in place of the file at once: either the old or the new is found."""


class _OSFile:
    __slots__ = ("_fd", "_unsynced_in")

    def __init__(self, fd: int, made_in: Path | None) -> None:
        self._fd = fd
        self._unsynced_in = made_in  # the directory that does not have its name for good

    def write_at(self, buffers: Sequence[bytes], offset: int) -> None:
        if len(buffers) > _IOV_MAX:
            buffers = [b"".join(buffers)]
        written = os.pwritev(self._fd, buffers, offset)
        wanted = sum(map(len, buffers))
        if written < wanted:
            self._write_rest(b"".join(buffers), written, offset)

    def _write_rest(self, data: bytes, written: int, offset: int) -> None:
        # A short write is how a disk that just became full says so; the next call gets the error.
        view = memoryview(data)
        while written < len(data):
            written += os.pwrite(self._fd, view[written:], offset + written)

    def read_at(self, count: int, offset: int) -> bytes:
        data = os.pread(self._fd, count, offset)
        if len(data) == count or not data:
            return data
        parts = [data]
        got = len(data)
        while got < count:
            data = os.pread(self._fd, count - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)
        if self._unsynced_in is not None:
            with suppress(FileNotFoundError):  # deleted together with its directory
                _sync_directory(self._unsynced_in)
            self._unsynced_in = None

    def close(self) -> None:
        os.close(self._fd)


class OSFiles:
    """The operating system's files. With ``sync_names`` new directories are on the device when
    ``make_directory`` returns: what ``--durability=fsync`` needs, and the others need not pay."""

    def __init__(self, *, sync_names: bool = False) -> None:
        self._sync_names = sync_names

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            return _OSFile(os.open(path, flags), None)
        except FileNotFoundError:
            if not create:
                raise
        return _OSFile(os.open(path, flags | os.O_CREAT, _MODE_FILE), Path(path).parent)

    def make_directory(self, path: str) -> None:
        directory = Path(path)
        missing = [directory] if not directory.is_dir() else []
        missing += [parent for parent in directory.parents if missing and not parent.is_dir()]
        directory.mkdir(mode=_MODE_DIRECTORY, parents=True, exist_ok=True)
        if self._sync_names:
            for made in reversed(missing):
                _sync_directory(made.parent)

    def list_directory(self, path: str) -> list[str]:
        try:
            return sorted(entry.name for entry in Path(path).iterdir())
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        Path(path).unlink()

    def remove_tree(self, path: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(path)

    def rename(self, source: str, target: str) -> None:
        Path(source).rename(target)

    def read_whole(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def replace_whole(self, path: str, content: bytes) -> None:
        temporary = f"{path}.tmp"
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write_at([content], 0)
            file.sync()
        finally:
            file.close()
        Path(temporary).rename(path)
        _sync_directory(Path(path).parent)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class DirLock:
    """An exclusive lock on a directory, held for the life of the process.

    Raises:
        OSError: the directory is not there, or another process holds it (``EWOULDBLOCK``).
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        os.close(self._fd)
