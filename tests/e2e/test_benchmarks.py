"""The benchmarks run and give figures; how good the figures are is not a test's business."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.compare import DAEMON, WORKS, YARDSTICK, BenchmarkError, Target, Work
from tests.e2e.daemon import Daemon

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ("seconds", "wall_ms", "own_ms", "cpu_ms")
ADDRESSES = ("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0")


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_every_work_gives_figures() -> None:
    result = run("benchmarks.compare", "--rounds=1", "--seconds=0.3", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert list(report["medians"]) == [work.name for work in WORKS]
    for work in WORKS:
        for figure, medians in report["medians"][work.name].items():
            both = {YARDSTICK, DAEMON, "ratio", "lowest", "highest"}
            assert medians.keys() == (both if work.yardstick_can else {DAEMON}), work.name
            assert all(value > 0 for value in medians.values()), (work.name, figure, medians)


def test_a_table_for_people() -> None:
    flags = ("--rounds=2", "--seconds=0.05", "--durability=memory", "--work=latency", "--work=pub")
    result = run("benchmarks.compare", *flags)
    assert result.returncode == 0, result.stderr
    for part in ("--durability=memory", "  pub, 16 connections ", " messages/s ", "ratio"):
        assert part in result.stdout
    assert "mpub" not in result.stdout


def test_one_level_against_another() -> None:
    flags = ("--rounds=1", "--seconds=0.05", "--work=pub", "--flag=--mem-queue-size=0", "--json")
    result = run("benchmarks.compare", "--against=memory", "--durability=fsync", *flags)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)["medians"]["pub, 2 connections"]["messages/s"]
    assert figures.keys() == {"memory", "fsync", "ratio", "lowest", "highest"}
    assert run("benchmarks.compare", "--against=paper").returncode == 2


def test_idle_connections(nsqd: Daemon) -> None:
    where = (f"--tcp-address={nsqd.tcp_address}", f"--pid={nsqd.pid}")
    result = run("benchmarks.load", "idle", *where, "--connections=20", "--seconds=0.1")
    assert json.loads(result.stdout)["connections"] == 20


def test_idle_connections_stay(nsqd: Daemon) -> None:
    """For longer than the two heartbeats after which one that does not answer is cut off."""
    where = (f"--tcp-address={nsqd.tcp_address}", f"--pid={nsqd.pid}")
    flags = ("--connections=5", "--seconds=3.5", "--heartbeat-interval-ms=1000")
    result = run("benchmarks.load", "idle", *where, *flags)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["heartbeats"] >= 5
    assert "was silent" not in nsqd.log


def test_a_directory_under_load() -> None:
    result = run("benchmarks.lookupd", "--topics=50", "--nodes=5", "--lookups=20")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    for phase in ("flood", "quiet", "beside", "leaving"):
        assert report[phase]["count"] > 0


def test_a_large_lease() -> None:
    result = run("benchmarks.lease", "--messages=4000", "--cold")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    stages = ("idle", "create", "read", "release", "create again", "read again", "commit")
    assert all(figures[stage].keys() == {*MEASURED, "over_10"} for stage in stages)


def test_a_load_says_why_it_failed(nsqd: Daemon) -> None:
    nsqd.kill()
    result = run("benchmarks.load", "pub", f"--tcp-address={nsqd.tcp_address}", "--seconds=9")
    assert (result.returncode, result.stdout) == (1, "")
    assert "refused" in result.stderr
    assert run("benchmarks.load", "mpud").returncode == 2


def test_a_daemon_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    command = ["nsqpy", "nsqd", *ADDRESSES, f"--data-path={tmp_path / 'nowhere'}"]
    with Target(DAEMON, command, tmp_path / "log") as target:
        with pytest.raises(BenchmarkError, match="does not listen") as failed:
            target.wait_listening("TCP")
        assert "failed to lock data-path" in str(failed.value)


def test_a_daemon_that_dies_under_load_ends_the_measurement(tmp_path: Path) -> None:
    command = ["nsqpy", "nsqd", *ADDRESSES, f"--data-path={tmp_path}"]
    with Target(DAEMON, command, tmp_path / "log") as target:
        target.wait_listening("TCP", "HTTP")
        threading.Timer(0.5, os.kill, (target.pid, signal.SIGKILL)).start()
        with pytest.raises(BenchmarkError, match="ended with -9") as failed:
            target.load(Work("pub", "pub", ""), 60.0)
        assert "HTTP: listening on" in str(failed.value)
