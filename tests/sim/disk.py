"""A disk that misbehaves on demand: what a crash of the machine leaves is drawn at random.

A write reaches the page cache at once and the device when the file is synced. A killed process
loses nothing of the page cache; when the power fails, each file keeps what was synced and any
beginning of what was written since, the last write torn anywhere. A new file's name is
on the device once the file has been synced, and may or may not be before. Bits flip on the device
and in the page cache alike; a file that vanishes is still there for whoever has it open.
"""

import errno
from collections.abc import Sequence
from os import strerror
from posixpath import dirname
from random import Random
from typing import NamedTuple

__all__ = ["Disk", "Inode", "SetAside", "SimFile"]


class SetAside(NamedTuple):
    """Bytes ``start`` to ``stop`` of a file were declared damaged."""

    path: str
    start: int
    stop: int


class Inode:
    """What a name stands for, while it has one: bytes, and what of them is on the device."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.unsynced: list[tuple[int, bytes | None]] = []  # None: truncated to the offset
        self.damaged = False

    def apply(self, offset: int, content: bytes | None) -> None:
        if content is None:
            del self.data[offset:]
        else:
            if offset > len(self.data):
                self.data.extend(bytes(offset - len(self.data)))
            self.data[offset : offset + len(content)] = content


class SimFile:
    """One open file of a ``Disk``; ``lies`` makes writes vanish, for the canary."""

    def __init__(self, disk: "Disk", path: str, inode: Inode) -> None:
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
        fault = self._disk.fault("read")
        if fault:
            raise OSError(fault, strerror(fault), self._path)
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
    """Files in memory. ``failing`` maps ``write``, ``sync``, ``read`` or ``open`` to an errno.

    ``set_aside`` lists what was ever kept in ``.bad`` files, or should have been on a full disk;
    ``bad_files`` those of them since it was last cleared whose directory is still there.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.failing: dict[str, int] = {}
        self.lies = False
        self.set_aside: list[SetAside] = []
        self.bad_files: list[str] = []
        self._inodes: dict[str, Inode] = {}
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
            inode = self._inodes[path] = Inode()
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
        self.bad_files = [name for name in self.bad_files if not name.startswith(f"{path}/")]
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
        if path.endswith(".bad"):
            source, offset, _ = path.rsplit(".", 2)
            self.set_aside.append(SetAside(source, int(offset), int(offset) + len(content)))
            self.bad_files.append(path)
        self._raise_fault("write", path)
        inode = self._inodes[path] = Inode()
        inode.data[:] = inode.synced = content

    def keep_name(self, path: str) -> None:
        """A file that was made by opening it has been synced."""
        self._unsynced_names.discard(path)

    # -- what the simulation does to it -----------------------------------------------------

    def paths(self, ending: str) -> list[str]:
        """The files whose name ends so, sorted."""
        return sorted(path for path in self._inodes if path.endswith(ending))

    def content(self, path: str) -> bytes:
        """What reading the file would give; nothing if there is no such file."""
        inode = self._inodes.get(path)
        return b"" if inode is None else bytes(inode.data)

    def flip_bit(self, path: str, at: int, bit: int) -> None:
        """One bit of byte ``at`` rots, whether it has been synced or not."""
        inode = self._inodes[path]
        inode.damaged = True
        inode.data[at] ^= 1 << bit
        if at < len(inode.synced):
            synced = bytearray(inode.synced)
            synced[at] ^= 1 << bit
            inode.synced = bytes(synced)

    def vanish(self, path: str) -> Inode:
        """The name is gone; whoever has the file open reads and writes on."""
        self._unsynced_names.discard(path)
        return self._inodes.pop(path)

    def is_whole(self, path: str) -> bool:
        """Whether the file is there and nothing has befallen it since it was made."""
        return path in self._inodes and not self._inodes[path].damaged

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
