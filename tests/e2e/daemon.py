"""The real daemon as a child process, for tests that talk to it from outside.

Every wait has a deadline. What the daemon logged is kept, and shown when a wait runs out, so
that a failure on a machine out of reach can be read from its report. It goes into a file, where a
line is as soon as the daemon has written it: no reader can lag behind.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

__all__ = ["DEADLINE_SECONDS", "Daemon", "Reply", "wait_until"]

DEADLINE_SECONDS = 20.0
_POLL_SECONDS = 0.01
_LISTENING = re.compile(r"""\b(TCP|HTTPS?): listening on ([^\s"]+)""")
_ROOT = Path(__file__).resolve().parents[2]

T = TypeVar("T")


class Reply(NamedTuple):
    """An HTTP answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


def wait_until(
    condition: Callable[[], T | None], what: str, seconds: float = DEADLINE_SECONDS
) -> T:
    """Poll ``condition`` until it returns something true, and return that.

    Raises:
        AssertionError: ``seconds`` went by first; the text says ``what`` was waited for.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}; last seen: {found!r}")
        time.sleep(_POLL_SECONDS)


class Daemon:
    """``python -m nsqpy nsqd`` on free ports of the loopback, with its data in ``data_path``.

    ``flags`` are the daemon's own, and come last, so that they win over the addresses given
    here. ``start`` may be called again after ``terminate`` or ``kill``: the new process takes
    over the same data directory, on other ports.
    """

    def __init__(self, data_path: Path, *flags: str) -> None:
        self.data_path = data_path
        self.flags = flags
        self.tcp_address = ""
        self.http_address = ""
        self.https_address = ""  # where there is one
        self._process: subprocess.Popen[bytes] | None = None
        self._log, name = tempfile.mkstemp()
        os.unlink(name)  # noqa: PTH108 - it has no name that could be told
        weakref.finalize(self, os.close, self._log)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def log(self) -> str:
        """Everything the daemon wrote to standard error, over all its starts."""
        return os.pread(self._log, os.fstat(self._log).st_size, 0).decode(errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "nsqpy", "nsqd"),
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            f"--data-path={self.data_path}",
            *self.flags,
        ]

    def start(self) -> Self:
        """Start the process and wait until both listeners answer."""
        assert self._process is None, "already started"
        already_logged = len(self.log)
        self._process = subprocess.Popen(
            self.command(),
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stderr=self._log,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            addresses = self.wait(
                lambda: self._listening(already_logged), "the daemon to say where it listens"
            )
            self.tcp_address, self.http_address = addresses["TCP"], addresses["HTTP"]
            self.https_address = addresses.get("HTTPS", "")
            self.wait(lambda: self._answers("/ping"), "the daemon to answer GET /ping")
        except BaseException:
            self.kill()
            raise
        return self

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    def wait_ended(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Wait until the process has ended by itself, and return the exit code."""
        return self._end(None, seconds)

    def terminate(self, seconds: float = DEADLINE_SECONDS) -> int:
        """Ask for a graceful stop, as an operator would, and return the exit code."""
        return self._end(signal.SIGTERM, seconds)

    def kill(self) -> int:
        """End the process at once. Does nothing if there is none."""
        return self._end(signal.SIGKILL, DEADLINE_SECONDS) if self._process else 0

    def wait(
        self, condition: Callable[[], T | None], what: str, seconds: float = DEADLINE_SECONDS
    ) -> T:
        """``wait_until``, failing at once when the process has ended, and showing its log."""

        def alive_and_true() -> T | None:
            found = condition()
            if not found and self._process is not None and self._process.poll() is not None:
                raise AssertionError(
                    f"the daemon ended with {self._process.returncode} before {what}"
                )
            return found

        try:
            return wait_until(alive_and_true, what, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- log of the daemon\n{self.log}") from None

    def request(
        self, path: str, body: bytes | None = None, method: str = "", seconds: float = 10.0
    ) -> Reply:
        """One HTTP request; POST when there is a body. An error status is a reply like another."""
        request = urllib.request.Request(
            f"http://{self.http_address}{path}",
            data=body,
            method=method or ("GET" if body is None else "POST"),
        )
        try:
            with urllib.request.urlopen(request, timeout=seconds) as answer:
                return Reply(answer.status, dict(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, dict(error.headers), error.read())

    def publish(self, topic: str, *bodies: bytes, defer_ms: int = 0) -> None:
        """POST each body to ``/pub``."""
        for body in bodies:
            query = urllib.parse.urlencode({"topic": topic, "defer": defer_ms})
            reply = self.request(f"/pub?{query}", body)
            assert (reply.status, reply.body) == (200, b"OK"), reply

    def topic_stats(self, topic: str) -> dict[str, Any]:
        """The topic's object in ``/stats``; empty when there is no such topic."""
        query = urllib.parse.urlencode({"format": "json", "topic": topic})
        for found in self.request(f"/stats?{query}").json["topics"] or []:
            if found["topic_name"] == topic:
                return dict(found)
        return {}

    def channel_stats(self, topic: str, channel: str) -> dict[str, Any]:
        """The channel's object in ``/stats``; empty when there is no such channel."""
        for found in self.topic_stats(topic).get("channels") or []:
            if found["channel_name"] == channel:
                return dict(found)
        return {}

    def wait_channel(self, topic: str, channel: str, **expected: int) -> dict[str, Any]:
        """Wait until the channel's figures in ``/stats`` are the expected ones."""

        def reached() -> dict[str, Any] | None:
            stats = self.channel_stats(topic, channel)
            seen.update(stats)
            return stats if expected.items() <= stats.items() else None

        seen: dict[str, Any] = {}
        try:
            return self.wait(reached, f"{expected} on {topic}/{channel}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n--- /stats: {seen}") from None

    def _listening(self, already_logged: int) -> dict[str, str] | None:
        """By protocol; HTTP is the last."""
        found = dict(_LISTENING.findall(self.log[already_logged:]))
        return found if found.keys() >= {"TCP", "HTTP"} else None

    def _answers(self, path: str) -> bool:
        try:
            # 403: TLS is required. It is up, but not to be asked here.
            return self.request(path).status in (200, 403)
        except OSError:
            return False

    def _end(self, number: signal.Signals | None, seconds: float) -> int:
        process = self._process
        assert process is not None, "not started"
        if number is not None:
            process.send_signal(number)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"the daemon did not stop within {seconds:g} s\n--- log of the daemon\n{self.log}"
            ) from None
        finally:
            self._process = None
        return code
