"""A data directory that can refuse: a file system of a few megabytes, or one without the right to
write. Either needs what not everybody may do; ``NotPermittedError`` says what is missing."""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["FullDisk", "NotPermittedError", "Refusal", "WriteProtection", "small_file_system"]

_MOUNT_SECONDS = 10
_CHUNK_BYTES = 4096


class NotPermittedError(Exception):
    """This system does not let us do it; the text says why."""


class Refusal:
    """What makes writes fail, and lets them succeed again.

    ``prefix`` goes before the command. ``allows_start``: a daemon must be able to start under it.
    """

    prefix: tuple[str, ...] = ()
    allows_start = True

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


class FullDisk(Refusal):
    """Somebody else's file takes all the space that is left."""

    def __init__(self, file_system: Path) -> None:
        self._filler = file_system / "filler"

    def begin(self) -> None:
        chunk = bytes(_CHUNK_BYTES)
        with self._filler.open("wb", buffering=0) as filler:
            try:
                while filler.write(chunk):
                    pass
            except OSError:
                return

    def end(self) -> None:
        self._filler.unlink()


class WriteProtection(Refusal):
    """Nothing in the directory may be made or opened for writing; what is open stays open.

    The superuser is not stopped by modes, so the daemon runs without that privilege.
    """

    allows_start = False  # it cannot even open its queues

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        if os.geteuid() == 0:
            if shutil.which("setpriv") is None:
                raise NotPermittedError("not permitted here: modes do not stop root, no setpriv")
            less = "-dac_override,-dac_read_search"
            self.prefix = ("setpriv", f"--bounding-set={less}", f"--inh-caps={less}")

    def begin(self) -> None:
        # From the leaves up: a directory must be entered before it is closed.
        for path in sorted(self._directory.rglob("*"), reverse=True):
            path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
        self._directory.chmod(stat.S_IRUSR | stat.S_IXUSR)

    def end(self) -> None:
        self._directory.chmod(stat.S_IRWXU)
        for path in sorted(self._directory.rglob("*")):
            path.chmod(stat.S_IRWXU if path.is_dir() else stat.S_IRUSR | stat.S_IWUSR)


@contextmanager
def small_file_system(where: Path, size: str = "8m") -> Iterator[None]:
    """A tmpfs of ``size`` on the directory ``where``.

    Raises:
        NotPermittedError: we may not mount.
    """
    command = ("mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(where))
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_MOUNT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotPermittedError(f"not permitted here: {error}") from error
    if result.returncode:
        raise NotPermittedError(f"not permitted here: {result.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(("umount", str(where)), timeout=_MOUNT_SECONDS, check=True)
