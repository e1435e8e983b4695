"""A disk that misbehaves on demand: what a crash of the machine leaves is drawn at random.

A write reaches the page cache at once and the device when the file is synced. A killed process
loses nothing of the page cache; when the power fails, each file keeps what was synced and any
beginning of what was written since, the last write torn anywhere. A new file's name is
on the device once the file has been synced, and may or may not be before.
"""

import errno
from collections.abc import Sequence
from os import strerror
from posixpath import dirname
from random import Random

__all__ = ["Disk", "SimFile"]

_ENOSPC, _EIO, _EMFILE = errno.ENOSPC, errno.EIO, errno.EMFILE


class _Inode:
    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.unsynced: list[tuple[int, bytes | None]] = []  # None: truncated to the offset

    def apply(self, offset: int, content: bytes | None) -> None:
        if content is None:
            del self.data[offset:]
        else:
            if offset > len(self.data):
                self.data.extend(bytes(offset - len(self.data)))
            self.data[offset : offset + len(content)] = content


class SimFile:
    """One open file of a ``Disk``; ``lies`` makes writes vanish, for the canary."""

    def __init__(self, disk: "Disk", path: str, inode: _Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._open = True

    def write_at(self, buffers: Sequence[bytes], offset: int) -> None:
        assert self._open
        content = b"".join(buffers)
        disk = self._disk
        if disk.lies and disk.random.random() < 0.5:
            return
        fault = disk.fault("write")
        if fault:
            content = content[: disk.random.randrange(len(content) + 1)]
        if content:
            self._inode.apply(offset, content)
            self._inode.unsynced.append((offset, content))
        if fault:
            raise OSError(fault, strerror(fault), self._path)

    def read_at(self, count: int, offset: int) -> bytes:
        assert self._open
        return bytes(self._inode.data[offset : offset + count])

    def size(self) -> int:
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        assert self._open
        self._inode.apply(size, None)
        self._inode.unsynced.append((size, None))

    def sync(self) -> None:
        assert self._open
        fault = self._disk.fault("sync")
        if fault:
            raise OSError(fault, strerror(fault), self._path)
        self._inode.synced = bytes(self._inode.data)
        self._inode.unsynced = []
        self._disk.keep_name(self._path)

    def close(self) -> None:
        assert self._open
        self._open = False


class Disk:
    """Files in memory. ``failing`` maps ``write``, ``sync`` or ``open`` to an errno."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.failing: dict[str, int] = {}
        self.lies = False
        self._inodes: dict[str, _Inode] = {}
        self._unsynced_names: set[str] = set()
        self._directories: set[str] = {"", "."}

    def fault(self, operation: str) -> int:
        return self.failing.get(operation, 0) if self.random.random() < 0.7 else 0

    def _raise_fault(self, operation: str, path: str) -> None:
        fault = self.fault(operation)
        if fault:
            raise OSError(fault, strerror(fault), path)

    # -- the seam ---------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self._raise_fault("open", path)
        inode = self._inodes.get(path)
        if inode is None:
            if not create or dirname(path) not in self._directories:
                raise FileNotFoundError(errno.ENOENT, strerror(errno.ENOENT), path)
            inode = self._inodes[path] = _Inode()
            self._unsynced_names.add(path)
        return SimFile(self, path, inode)

    def make_directory(self, path: str) -> None:
        while path not in self._directories:
            self._directories.add(path)
            path = dirname(path)

    def list_directory(self, path: str) -> list[str]:
        names = set()
        for entry in [*self._inodes, *self._directories]:
            if entry.startswith(f"{path}/"):
                names.add(entry[len(path) + 1 :].partition("/")[0])
        return sorted(names)

    def remove(self, path: str) -> None:
        if path not in self._inodes:
            raise FileNotFoundError(errno.ENOENT, strerror(errno.ENOENT), path)
        del self._inodes[path]
        self._unsynced_names.discard(path)

    def remove_tree(self, path: str) -> None:
        for name in [name for name in self._inodes if name.startswith(f"{path}/")]:
            self.remove(name)
        self._directories = {
            name for name in self._directories if name != path and not name.startswith(f"{path}/")
        }

    def rename(self, source: str, target: str) -> None:
        if source not in self._inodes:
            raise FileNotFoundError(errno.ENOENT, strerror(errno.ENOENT), source)
        self._inodes[target] = self._inodes.pop(source)

    def read_whole(self, path: str) -> bytes:
        if path not in self._inodes:
            raise FileNotFoundError(errno.ENOENT, strerror(errno.ENOENT), path)
        return bytes(self._inodes[path].data)

    def replace_whole(self, path: str, content: bytes) -> None:
        self._raise_fault("write", path)
        inode = self._inodes[path] = _Inode()
        inode.data[:] = inode.synced = content

    def keep_name(self, path: str) -> None:
        """A file that was made by opening it has been synced."""
        self._unsynced_names.discard(path)

    # -- what the simulation does to it -----------------------------------------------------

    def lose_power(self) -> None:
        """Keep what is on the device, and a random part of what is only in the page cache."""
        random = self.random
        for path in sorted(self._unsynced_names):
            if random.random() < 0.5:
                del self._inodes[path]
        self._unsynced_names = set()
        for inode in self._inodes.values():
            written, inode.unsynced = inode.unsynced, []
            inode.data[:] = inode.synced
            keep = random.randrange(len(written) + 1)
            for offset, content in written[:keep]:
                inode.apply(offset, content)
            if keep < len(written):
                offset, content = written[keep]
                if content:
                    inode.apply(offset, content[: random.randrange(len(content) + 1)])
            inode.synced = bytes(inode.data)
