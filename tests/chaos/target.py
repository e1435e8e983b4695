"""The daemon under test: any command that takes an NSQ daemon's flags, killed and started again
on the same ports and data."""

import asyncio
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.ledger import Lives
from tests.ports import free_ports

__all__ = ["ChaosError", "Target"]

LOG_LINES = 40
START_SECONDS = 30.0
_ROOT = Path(__file__).resolve().parents[2]


class ChaosError(Exception):
    """The daemon did something that no count can show: it ended by itself, or stood still."""


class Target:
    """``command`` with addresses and data path as flags. Its log goes to a file beside the data."""

    def __init__(
        self, command: Sequence[str], data_path: Path, log_path: Path, lives: Lives
    ) -> None:
        self.tcp_port, self.http_port = free_ports(2)
        self.data_path = data_path
        self.lives = lives
        self.recoveries_s: list[float] = []
        self._command = [
            *command,
            f"--tcp-address=127.0.0.1:{self.tcp_port}",
            f"--http-address=127.0.0.1:{self.http_port}",
            f"--data-path={data_path}",
        ]
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._killed_ns = 0
        self._serving = asyncio.Event()

    @property
    def log_tail(self) -> str:
        if not self._log_path.exists():
            return ""
        lines = self._log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def start(self) -> None:
        self._serving.clear()
        self.lives.begin()
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def kill(self) -> None:
        """SIGKILL. Raises ChaosError if the process had ended by itself."""
        self.check()
        assert self._process is not None
        if self._serving.is_set() or not self._killed_ns:
            self._killed_ns = time.monotonic_ns()
        self._process.kill()
        self._process.wait()
        self._process = None
        self.lives.end()

    def close(self) -> None:
        """Leave no process behind, whatever happened."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def check(self) -> None:
        """Raises ChaosError if the process is not there."""
        assert self._process is not None, "not started"
        code = self._process.poll()
        if code is not None:
            raise ChaosError(f"the daemon ended by itself with {code}")

    def served(self, life: int) -> None:
        """A publisher read an OK of the process of ``life``."""
        if life == self.lives.now and not self._serving.is_set():
            self._serving.set()
            if self._killed_ns:
                self.recoveries_s.append((time.monotonic_ns() - self._killed_ns) / 1e9)

    async def wait_serving(self) -> None:
        """Until a publish was acknowledged by this process.

        Raises:
            ChaosError: that took too long, or the process ended.
        """
        deadline = time.monotonic() + START_SECONDS
        while not self._serving.is_set():
            self.check()
            if time.monotonic() > deadline:
                raise ChaosError(f"no publish was acknowledged {START_SECONDS:g} s after the start")
            await asyncio.sleep(0.005)
