"""The daemon as an operator meets it: started, stopped, killed, started again."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def make_channel(nsqd: Daemon, topic: str, channel: str) -> None:
    assert nsqd.request(f"/topic/create?topic={topic}", b"").status == 200
    assert nsqd.request(f"/channel/create?topic={topic}&channel={channel}", b"").status == 200


@pytest.mark.parametrize("graceful", [True, False], ids=["SIGTERM", "SIGKILL"])
def test_what_was_published_is_there_after_a_restart(nsqd: Daemon, graceful: bool) -> None:
    make_channel(nsqd, "kept", "archive")
    nsqd.publish("kept", b"one", b"two", b"three")
    nsqd.publish("kept", b"much later", defer_ms=3_000_000)
    nsqd.wait_channel("kept", "archive", depth=3, deferred_count=1)
    if graceful:
        assert nsqd.terminate() == 0
    else:
        nsqd.kill()
    nsqd.start()
    nsqd.wait_channel("kept", "archive", depth=3, deferred_count=1)


def test_what_waits_in_a_topic_without_channels_survives_too(nsqd: Daemon) -> None:
    nsqd.publish("waiting", b"one", b"two")
    nsqd.kill()
    nsqd.start()
    assert nsqd.topic_stats("waiting")["depth"] == 2
    assert nsqd.request("/channel/create?topic=waiting&channel=first", b"").status == 200
    nsqd.wait_channel("waiting", "first", depth=2)


def test_a_wrong_flag_is_one_clear_line() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "nsqpy", "nsqd", "--mem-queue-size=lots"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 2
    first, *rest = result.stderr.splitlines()
    assert "mem-queue-size" in first
    assert "lots" in first
    assert len(rest) <= 1


def test_a_second_daemon_on_the_same_data_is_refused(start_nsqd: StartDaemon) -> None:
    first = start_nsqd()
    second = Daemon(first.data_path)
    with pytest.raises(AssertionError, match="the daemon ended with 1"):
        second.start()
    (line,) = second.log.splitlines()
    assert " FATAL: failed to instantiate nsqd - " in line
    assert first.request("/ping").text == "OK"


def test_sigquit_shows_what_every_thread_does(nsqd: Daemon) -> None:
    nsqd.send_signal(signal.SIGQUIT)
    nsqd.wait(lambda: "Current thread 0x" in nsqd.log and "runner.py" in nsqd.log, "the stacks")
    assert nsqd.request("/ping").text == "OK"
