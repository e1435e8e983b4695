"""The clients under test, and the running of their drivers as child processes."""

import contextlib
import dataclasses
import json
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.e2e.daemon import DEADLINE_SECONDS, wait_until
from tests.interop.drivers.conversation import Options

__all__ = ["CLIENTS", "Client", "Driver", "Event"]

Event = dict[str, Any]

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]


@dataclass(frozen=True, slots=True)
class Client:
    """One client library, and what it cannot do by itself."""

    name: str
    identifies_msg_timeout: bool = True
    asks_lookupd: bool = True

    def command(self) -> list[str]:
        if self.name == "nsqjs":
            node = shutil.which("node")
            assert node, "nsqjs needs node; 'make test' sets up the rest"
            return [node, str(_HERE / "drivers" / "nsqjs_driver.js")]
        return [sys.executable, "-m", f"tests.interop.drivers.{self.name}_driver"]

    def daemon_flags(self, msg_timeout_ms: int) -> list[str]:
        """What the daemon must be told for this client to get that message timeout."""
        return [] if self.identifies_msg_timeout else [f"--msg-timeout={msg_timeout_ms}ms"]


CLIENTS = (
    Client("pynsq"),
    Client("gnsq", identifies_msg_timeout=False),
    Client("ansq", asks_lookupd=False),
    Client("nsqjs"),
)


class Driver:
    """A driver that runs, and the events it has reported so far, in order."""

    def __init__(self, client: Client, options: Options) -> None:
        self.events: list[Event] = []
        self._errors: list[str] = []
        self._process = subprocess.Popen(
            [*client.command(), json.dumps(dataclasses.asdict(options))],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._readers = [
            threading.Thread(target=self._read_events, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        code = self.stop()
        if error is not None:
            error.add_note(f"--- the driver reported {self.events}\n{''.join(self._errors)}")
        else:
            assert code == 0, "".join(self._errors)

    def of(self, event: str) -> list[Event]:
        return [found for found in list(self.events) if found["event"] == event]

    def bodies(self) -> list[bytes]:
        return [str(message["body"]).encode("latin-1") for message in self.of("message")]

    def wait_for(self, event: str, count: int, seconds: float = DEADLINE_SECONDS) -> list[Event]:
        """Wait until so many events of that kind have come, and return all there are."""
        wait_until(lambda: len(self.of(event)) >= count, f"{count} x {event}", seconds)
        return self.of(event)

    def release(self) -> None:
        """Have the parked messages finished."""
        assert self._process.stdin is not None
        self._process.stdin.write("release\n")
        self._process.stdin.flush()

    def finish(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait for a driver that ends by itself, and return its exit code."""
        return self._process.wait(seconds)

    def stop(self) -> int:
        """End the driver's input, wait for it to go, and return its exit code."""
        assert self._process.stdin is not None
        # One that has ended already is told apart by its exit code.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            code = self._process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        for reader in self._readers:
            reader.join(DEADLINE_SECONDS)
        return code

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self.events.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr:
            for line in self._process.stderr:
                self._errors.append(line)
