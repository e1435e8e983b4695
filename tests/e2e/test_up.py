"""``nsqpy up``: a whole cluster in one process."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.e2e.daemon import DEADLINE_SECONDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
_ROW = re.compile(r"(nsqd|nsqlookupd) (TCP|HTTP) +(\S+)")
FLAGS = (
    *("--nsqd-tcp-address", "--nsqd-http-address"),
    *("--lookupd-tcp-address", "--lookupd-http-address"),
)


class Up:
    """The process, and the addresses that it printed."""

    def __init__(self, data_path: Path, *flags: str) -> None:
        free = [f"{flag}=127.0.0.1:0" for flag in FLAGS]
        self._command = [
            *(sys.executable, "-m", "nsqpy", "up", *free, f"--data-path={data_path}", *flags)
        ]
        self.addresses: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        deadline = threading.Timer(DEADLINE_SECONDS, self._process.kill)
        deadline.start()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := _ROW.match(line):
                self.addresses[f"{found[1]} {found[2]}"] = found[3]
            if line.startswith("Ctrl-C"):
                break
        deadline.cancel()
        assert len(self.addresses) == 4, self._process.communicate()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """The exit code, and all of the log."""
        self._process.send_signal(number)
        _, log = self._process.communicate(timeout=DEADLINE_SECONDS)
        return self._process.returncode, log


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nsqpy", *arguments],
        cwd=ROOT,
        input=text,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_published_and_consumed_by_the_directory_alone(
    tmp_path: Path, number: signal.Signals
) -> None:
    data_path = tmp_path / "made" / "here"
    with Up(data_path) as up:
        lookupd = f"--lookupd-http-address={up.addresses['nsqlookupd HTTP']}"
        sent = run("pub", "--topic=orders.new", lookupd, text="one\ntwo\n")
        assert sent.returncode == 0, sent.stderr
        assert up.end(number) == (0, "")
    with Up(data_path, "--log-level=info") as up:
        lookupd = f"--lookupd-http-address={up.addresses['nsqlookupd HTTP']}"
        got = run("tail", "--topic=orders.*", "--channel=c", "-n=2", lookupd)
        assert got.stdout == "orders.new | one\norders.new | two\n", got.stderr
        code, log = up.end(number)
        assert code == 0
        # nsqd first: whoever looks for a node must not find one that is gone.
        assert log.index("NSQ: bye") < log.rindex("TCP: closing " + up.addresses["nsqlookupd TCP"])


def test_a_drain_ends_both(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        url = f"http://{up.addresses['nsqd HTTP']}/drain?wait=true"
        with urllib.request.urlopen(url, data=b"", timeout=DEADLINE_SECONDS) as answer:
            assert json.load(answer)["draining"]
        assert up._process.wait(DEADLINE_SECONDS) == 0


@pytest.mark.parametrize("flag", FLAGS)
def test_a_port_that_is_taken(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flags = [f"{other}=127.0.0.1:0" for other in FLAGS]
        result = run("up", f"--data-path={tmp_path}", *flags, f"{flag}={address}")
    assert (result.returncode, result.stdout) == (1, "")
    bind = f"listen tcp {address}: bind: address already in use"
    assert result.stderr == f"nsqpy up: listen ({address}) failed - {bind}\n"


def test_a_data_path_that_cannot_be() -> None:
    result = run("up", "--data-path=/dev/null/data")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "nsqpy up: cannot make /dev/null/data: not a directory\n"


def test_wrong_addresses() -> None:
    result = run("up", "--nsqd-tcp-address=/a/socket")
    assert result.returncode == 1
    assert '--nsqd-tcp-address "/a/socket" must be host:port' in result.stderr
    assert run("up", "--nsqd-port=1").returncode == 2


def test_help_has_three_commands_to_try_next() -> None:
    text = run("up", "--help").stdout
    for command in ("nsqpy tail --topic", "nsqpy pub --topic", "curl 'http://127.0.0.1:4151/"):
        assert f"\n  {command}" in text
