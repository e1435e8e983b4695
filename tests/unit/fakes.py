"""What stands in for the machine and for clients in unit tests: files in memory that can fail on
purpose, a listener of logs, and a consumer that remembers what it got.

They are strict: what the seam does not promise is an error here, even where a real file system
would let it pass.
"""

import errno as codes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import strerror
from posixpath import dirname
from typing import NamedTuple

from nsqpy.core.stats import ClientStats
from nsqpy.message import Batch, MessageID, encode_batch
from nsqpy.protocol.frames import FrameParser, MessageFrames
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.files import File

__all__ = [
    "FakeConsumer",
    "FakeFile",
    "FakeFiles",
    "FakeListener",
    "Received",
    "batch_of",
    "bodies_of",
    "message_id",
]


class Inode:
    """What a path names: it lives on while a file is open, also when the name is gone."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""


@dataclass
class Fault:
    """The next ``times`` calls of ``operation`` on a path containing ``path`` fail, after
    ``skip`` that succeed; ``torn`` is how many bytes of a failing write get through, and writes
    of fewer than ``min_bytes`` succeed."""

    operation: str
    skip: int
    times: int
    errno: int
    torn: int
    path: str
    min_bytes: int


class FakeFile:
    """One open file."""

    def __init__(self, files: "FakeFiles", path: str, inode: Inode) -> None:
        self._files = files
        self._inode = inode
        self.path = path
        self.closed = False

    def write_at(self, buffers: Sequence[bytes], offset: int) -> None:
        self._check()
        content = b"".join(buffers)
        assert content, "an empty write"
        data = self._inode.data
        fault = self._files.fault("write", self.path, len(content))
        if fault is not None:
            content = content[: fault.torn]
        assert offset <= len(data) or not content, "a write behind the end leaves a hole"
        data[offset : offset + len(content)] = content
        if fault is not None:
            raise _os_error(fault.errno, self.path)
        self._files.write_count += 1

    def read_at(self, count: int, offset: int) -> bytes:
        self._check()
        assert count > 0
        assert offset >= 0
        self._files.raise_fault("read", self.path)
        return bytes(self._inode.data[offset : offset + count])

    def size(self) -> int:
        self._check()
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        self._check()
        self._files.raise_fault("truncate", self.path)
        assert size <= len(self._inode.data), "truncate only cuts"
        del self._inode.data[size:]

    def sync(self) -> None:
        self._check()
        self._files.raise_fault("sync", self.path)
        self._files.sync_count += 1
        self._inode.synced = bytes(self._inode.data)

    def close(self) -> None:
        self._check()
        self.closed = True
        self._files.open_files.remove(self)

    def _check(self) -> None:
        assert not self.closed, f"{self.path} is closed"


class FakeFiles:
    """A tree of directories and files in memory."""

    def __init__(self) -> None:
        self._inodes: dict[str, Inode] = {}
        self._directories: set[str] = {"", "."}
        self._faults: list[Fault] = []
        self.open_files: list[FakeFile] = []
        self.write_count = 0
        self.sync_count = 0

    # -- the seam ---------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> FakeFile:
        self.raise_fault("open", path)
        inode = self._inodes.get(path)
        if inode is None:
            if not create or dirname(path) not in self._directories:
                raise _os_error(codes.ENOENT, path)
            inode = self._inodes[path] = Inode()
        file = FakeFile(self, path, inode)
        self.open_files.append(file)
        return file

    def make_directory(self, path: str) -> None:
        self.raise_fault("make_directory", path)
        while path not in self._directories:
            self._directories.add(path)
            path = dirname(path)

    def list_directory(self, path: str) -> list[str]:
        self.raise_fault("list", path)
        known = [*self._inodes, *self._directories]
        return sorted(name for entry in known if (name := _child(entry, path)))

    def remove(self, path: str) -> None:
        self.raise_fault("remove", path)
        if path not in self._inodes:
            raise _os_error(codes.ENOENT, path)
        del self._inodes[path]

    def remove_tree(self, path: str) -> None:
        self.raise_fault("remove", path)
        inside = path + "/"
        self._inodes = {
            name: inode for name, inode in self._inodes.items() if not name.startswith(inside)
        }
        self._directories = {
            name for name in self._directories if name != path and not name.startswith(inside)
        }

    def rename(self, source: str, target: str) -> None:
        self.raise_fault("rename", source)
        if source not in self._inodes:
            raise _os_error(codes.ENOENT, source)
        self._inodes[target] = self._inodes.pop(source)

    def read_whole(self, path: str) -> bytes:
        self.raise_fault("read", path)
        if path not in self._inodes:
            raise _os_error(codes.ENOENT, path)
        return bytes(self._inodes[path].data)

    def replace_whole(self, path: str, content: bytes) -> None:
        self.raise_fault("write", path)
        if dirname(path) not in self._directories:
            raise _os_error(codes.ENOENT, path)
        inode = self._inodes[path] = Inode()
        inode.data[:] = inode.synced = content

    # -- the test's side --------------------------------------------------------------------

    def fail(
        self,
        operation: str,
        *,
        skip: int = 0,
        times: int = 1,
        errno: int = codes.ENOSPC,
        torn: int = 0,
        path: str = "",
        min_bytes: int = 0,
    ) -> None:
        """Let calls of ``operation`` fail; ``times`` -1 is until ``heal``."""
        self._faults.append(Fault(operation, skip, times, errno, torn, path, min_bytes))

    def heal(self) -> None:
        self._faults.clear()

    def fault(self, operation: str, path: str, size_bytes: int = 0) -> Fault | None:
        for fault in self._faults:
            fits = fault.path in path and size_bytes >= fault.min_bytes
            if fault.operation == operation and fits and fault.times:
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None

    def raise_fault(self, operation: str, path: str) -> None:
        fault = self.fault(operation, path)
        if fault is not None:
            raise _os_error(fault.errno, path)

    def paths(self, ending: str = "") -> list[str]:
        return sorted(path for path in self._inodes if path.endswith(ending))

    def content(self, path: str) -> bytearray:
        """The bytes themselves: changing them is damaging the disk."""
        return self._inodes[path].data

    def put(self, path: str, content: bytes) -> None:
        self.make_directory(dirname(path))
        self._inodes[path] = Inode()
        self._inodes[path].data[:] = content

    def after_kill(self) -> "FakeFiles":
        """What the next process finds if this one is killed now: everything written, synced or
        not."""
        files = self._survivors(lambda inode: bytes(inode.data))
        for path, inode in self._inodes.items():
            files._inodes[path].synced = inode.synced
        return files

    def after_power_loss(self) -> "FakeFiles":
        """What is found if the power fails now: only what was synced. Names survive."""
        return self._survivors(lambda inode: inode.synced)

    def _survivors(self, surviving: Callable[[Inode], bytes]) -> "FakeFiles":
        files = FakeFiles()
        files._directories = set(self._directories)
        for path, inode in self._inodes.items():
            kept = files._inodes[path] = Inode()
            kept.data[:] = kept.synced = surviving(inode)
        return files


def _child(entry: str, directory: str) -> str:
    """The name of ``entry`` if it stands directly in ``directory``."""
    parent, _, name = entry.rpartition("/")
    return name if parent == directory else ""


def _os_error(errno: int, path: str) -> OSError:
    return OSError(errno, strerror(errno), path)


class FakeListener:
    """Counts what a log has to say."""

    def __init__(self) -> None:
        self.acked = 0
        self.unsynced = 0
        self.overdue = 0
        self.moved = 0

    def note_acked(self, queue_log: DiskQueue) -> None:
        self.acked += 1

    def note_unsynced(self, queue_log: DiskQueue) -> None:
        self.unsynced += 1

    def note_moved(self, queue_log: DiskQueue) -> None:
        self.moved += 1

    def note_unlinked(self, file: File) -> None:
        file.close()

    def note_sync_overdue(self, queue_log: DiskQueue) -> None:
        self.overdue += 1


class Received(NamedTuple):
    """One message as it came out of a frame."""

    timestamp_ns: int
    attempts: int
    id: MessageID
    body: bytes


class FakeConsumer:
    """The other side of a subscription: reads frames as a client would."""

    def __init__(self) -> None:
        self._parser = FrameParser()
        self.received: list[Received] = []
        self.is_cut = False

    def deliver(self, frames: list[bytes]) -> None:
        assert frames
        assert not self.is_cut
        for frame in self._parser.feed(b"".join(frames)):
            assert isinstance(frame, MessageFrames)
            for timestamp_ns, attempts, identity, body in frame.messages:
                received = Received(timestamp_ns, attempts, MessageID(identity), body)
                self.received.append(received)

    def cut(self) -> None:
        self.is_cut = True

    def stats(self) -> ClientStats:
        return ClientStats(
            client_id="fake", hostname="fake", remote_address="fake:1", state=3, connect_ts=0
        )

    def take(self) -> list[Received]:
        """What came since the last call."""
        taken, self.received = self.received, []
        return taken

    def take_bodies(self) -> list[bytes]:
        return [message.body for message in self.take()]

    def take_ids(self) -> list[MessageID]:
        return [message.id for message in self.take()]


def message_id(number: int) -> MessageID:
    return MessageID(b"%016x" % number)


def batch_of(*bodies: bytes, first_id: int = 1, deliver_at_ns: int = 0) -> Batch:
    """A batch with ids that count up from ``first_id``."""
    ids = b"".join(message_id(first_id + index) for index in range(len(bodies)))
    return encode_batch(bodies, ids, 1_800_000_000_000_000_000, deliver_at_ns)


def bodies_of(batch: Batch, start: int = 0, stop: int | None = None) -> list[bytes]:
    stop = len(batch) if stop is None else stop
    frames = (batch.frames(index, index + 1) for index in range(start, stop))
    return [frame[34:] for frame in frames]
