"""The real daemon on a directory of the original: there, back, and rescued from its files."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon
from tests.unit.storage.original_files import record

pytestmark = pytest.mark.slow

METADATA = (
    b'{"topics":[{"name":"t","paused":false,"channels":[{"name":"c","paused":true}]},'
    b'{"name":"waiting","paused":true,"channels":null}],"version":"1.3.0"}'
)


def write_original(root: Path, count: int) -> None:
    """A channel with ``count`` messages, a paused topic with one."""
    root.mkdir()
    (root / "nsqd.dat").write_bytes(METADATA)
    content = b"".join(record(number, b"message %d" % number) for number in range(count))
    for name, data, depth in (("t:c", content, count), ("waiting", record(0, b"alone"), 1)):
        (root / f"{name}.diskqueue.000000.dat").write_bytes(data)
        meta = b"%d\n0,0\n0,%d\n" % (depth, len(data))
        (root / f"{name}.diskqueue.meta.dat").write_bytes(meta)


def nsqpy(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "nsqpy", *arguments]
    return subprocess.run(command, capture_output=True, timeout=60, check=False)


def originals(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.glob("*.diskqueue.*")}


def test_there_and_back(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_original(root, 5000)
    before = originals(root)
    with Daemon(root) as daemon:
        channel = daemon.channel_stats("t", "c")
        assert (channel["depth"], channel["paused"]) == (5000, True)
        waiting = daemon.topic_stats("waiting")
        assert (waiting["depth"], waiting["paused"]) == (1, True)
        refused = nsqpy("export-original", f"--data-path={root}", f"--to={tmp_path / 'back'}")
        assert refused.returncode == 1
        assert daemon.terminate() == 0
    (aside,) = root.glob("original-*")
    assert originals(aside) == before
    assert not originals(root)
    exported = nsqpy("export-original", f"--data-path={root}", f"--to={tmp_path / 'back'}")
    assert exported.returncode == 0, exported.stderr
    assert originals(tmp_path / "back") == before
    with Daemon(root) as again:
        assert again.channel_stats("t", "c")["depth"] == 5000


def test_killed_while_it_takes_over(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_original(root, 60_000)
    for delay_ms in range(0, 250, 50):
        command = Daemon(root).command()
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if "taking over" in line or "listening" in line:
                    break
            time.sleep(delay_ms / 1000)  # a moment to be killed at; nothing is waited for
            process.kill()
    with Daemon(root) as daemon:
        assert daemon.channel_stats("t", "c")["depth"] == 60_000
        assert daemon.topic_stats("waiting")["depth"] == 1
    assert not originals(root)


def test_a_directory_of_both_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    with Daemon(root) as daemon:
        daemon.publish("ours", b"kept")
        assert daemon.terminate() == 0
    (root / "t.diskqueue.000000.dat").write_bytes(record(1, b"theirs"))
    refused = subprocess.run(
        Daemon(root).command(), capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode == 1
    assert "move one of the two away" in refused.stderr.splitlines()[-1]
    assert (root / "t.diskqueue.000000.dat").exists()


def test_salvaged_messages_are_published(tmp_path: Path) -> None:
    damaged = tmp_path / "t.diskqueue.000000.dat.bad"
    damaged.write_bytes(record(1, b"one") + b"\xff" * 40 + record(2, b"two"))
    root = tmp_path / "data"
    root.mkdir()
    with Daemon(root) as daemon:
        republish = f"--republish={daemon.tcp_address}"
        salvaged = nsqpy("salvage", republish, "--topic=rescued", str(damaged))
        assert salvaged.returncode == 1, "there was damage"
        assert b"republished 2 messages of 1 file, 1 damaged stretch" in salvaged.stderr
        assert daemon.topic_stats("rescued")["depth"] == 2
        daemon.kill()
        segments = str(root / "queues")
        printed = nsqpy("salvage", "--bodies", "--unacknowledged", segments)
        assert (printed.returncode, printed.stdout) == (0, b"one\ntwo\n")
