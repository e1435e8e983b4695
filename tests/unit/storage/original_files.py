"""Files as the original writes them, made from its layout and not by our own writer."""

import struct

from tests.unit.fakes import FakeFiles, Fault

__all__ = ["TIMESTAMP_NS", "KillableFiles", "Killed", "put_queue", "record"]

TIMESTAMP_NS = 1_700_000_000_000_000_000


def record(number: int, body: bytes, attempts: int = 0) -> bytes:
    identity = b"%016x" % number
    stored = struct.pack(">qH", TIMESTAMP_NS + number, attempts) + identity + body
    return struct.pack(">i", len(stored)) + stored


def put_queue(
    files: FakeFiles, prefix: str, *contents: list[bytes], read: tuple[int, int] = (0, 0)
) -> None:
    """One data file for each list of records, and the positions of a clean stop."""
    for number, records in enumerate(contents):
        files.put(f"{prefix}.diskqueue.{number:06d}.dat", b"".join(records))
    depth = sum(map(len, contents))
    last = len(contents) - 1
    end = sum(map(len, contents[-1]))
    meta = f"{depth}\n{read[0]},{read[1]}\n{last},{end}\n"
    files.put(f"{prefix}.diskqueue.meta.dat", meta.encode())


class Killed(BaseException):
    """The process ends here; nothing it would still do is done."""


class KillableFiles(FakeFiles):
    """Renames directories too, and kills at the operation with number ``kill_at``."""

    def __init__(self) -> None:
        super().__init__()
        self.kill_at = -1
        self.operations = 0

    def fault(self, operation: str, path: str, size_bytes: int = 0) -> Fault | None:
        if self.operations == self.kill_at:
            raise Killed
        self.operations += 1
        return super().fault(operation, path, size_bytes)

    def rename(self, source: str, target: str) -> None:
        if source not in self._directories:
            super().rename(source, target)
            return
        self.raise_fault("rename", source)
        assert not self.list_directory(target)
        inside = source + "/"
        self._inodes = {_moved(path, inside, target): i for path, i in self._inodes.items()}
        self._directories = {
            target if path == source else _moved(path, inside, target) for path in self._directories
        }

    def restarted(self) -> "KillableFiles":
        """What the next process finds."""
        files = KillableFiles()
        kept = self.after_kill()
        files._inodes, files._directories = kept._inodes, kept._directories
        return files


def _moved(path: str, inside: str, target: str) -> str:
    return f"{target}/{path.removeprefix(inside)}" if path.startswith(inside) else path
