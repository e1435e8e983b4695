"""A log in memory, for tests of what happens to it and to its files."""

import pytest

from nsqpy.errors import StorageError
from nsqpy.storage.block import BLOCK_HEADER_BYTES
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.reader import StoredRun
from tests.unit.fakes import FakeFiles, FakeListener, batch_of, bodies_of

__all__ = [
    "SEGMENT_MAX_BYTES",
    "Log",
    "bodies",
    "names",
    "numbered",
    "raises_full",
    "read_all",
    "reopened_after_power_loss",
]

SEGMENT_MAX_BYTES = 400  # three blocks of one message with a body of up to 40 bytes


class Log:
    """A DiskQueue in memory; ``reopen`` is what the next process makes of it."""

    def __init__(self, segment_max_bytes: int = SEGMENT_MAX_BYTES, sync_every: int = 1000) -> None:
        self.files = FakeFiles()
        self._segment_max_bytes = segment_max_bytes
        self._sync_every = sync_every
        self.open()

    def open(self) -> DiskQueue:
        self.listener = FakeListener()
        self.queue = DiskQueue(
            self.files,
            "q",
            name="TOPIC(t)",
            segment_max_bytes=self._segment_max_bytes,
            sync_every=self._sync_every,
            listener=self.listener,
        )
        self.queue.open()
        return self.queue

    def reopen(self, *, killed: bool = False) -> DiskQueue:
        if not killed:
            self.queue.close()
            assert not self.files.open_files
        self.files = self.files.after_kill()
        return self.open()

    def append(self, *bodies: bytes, held: bool = False) -> int:
        """Each body as a block of its own; the number of the first."""
        return self.queue.append([batch_of(body) for body in bodies], held=held)

    def segments(self) -> list[str]:
        return [path[2:] for path in self.files.paths(".segment")]

    def damage(self, number: int) -> None:
        """Flip a bit of the body of message ``number`` of the first segment, one a block."""
        content = self.files.content(self.files.paths(".segment")[0])
        at = content.index(b"NQB1")
        for _ in range(number - 1):
            at = content.index(b"NQB1", at + 1)
        content[at + BLOCK_HEADER_BYTES + 34] ^= 1


def read_all(queue: DiskQueue, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    """Every message still unread, with its number."""
    found = []
    while runs := queue.read(max_bytes):
        for run in runs:
            found += numbered(run)
    assert queue.unread == 0
    return found


def numbered(run: StoredRun) -> list[tuple[int, bytes]]:
    return list(enumerate(bodies_of(run.batch, run.start, run.stop), run.number))


def bodies(queue: DiskQueue) -> list[bytes]:
    return [body for _, body in read_all(queue)]


def names(*first_numbers: int) -> list[str]:
    return [f"{number:020d}.segment" for number in first_numbers]


def raises_full() -> "pytest.RaisesExc[StorageError]":
    return pytest.raises(StorageError, match="q: No space left on device")


def reopened_after_power_loss(log: Log) -> DiskQueue:
    survivor = Log()
    survivor.files = log.files.after_power_loss()
    return survivor.open()
