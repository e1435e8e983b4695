"""What messages cost in the daemon's memory, and that memory does not follow the queue's depth."""

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.load import process_figures
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
BODY = b"x" * 200
BATCH = 200
OK = struct.pack(">Ii", 6, 0) + b"OK"
MILLION = 1_000_000
BYTES_EACH = 600
MB = 1_000_000


def rss_bytes(nsqd: Daemon) -> int:
    return process_figures(nsqd.pid)[0] * 1024


def make_channel(nsqd: Daemon) -> None:
    assert nsqd.request("/topic/create?topic=t", b"").status == 200
    assert nsqd.request("/channel/create?topic=t&channel=ch", b"").status == 200


def publish(nsqd: Daemon, command: bytes, times: int, at_once: int) -> None:
    """Send ``command`` so often, ``at_once`` ahead of the OKs."""
    host, port = nsqd.tcp_address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    with connection as sock, sock.makefile("rb") as replies:
        sock.sendall(b"  V2")
        for _ in range(times // at_once):
            sock.sendall(command * at_once)
            assert replies.read(len(OK) * at_once) == OK * at_once


def mpub_million(nsqd: Daemon) -> None:
    sized = struct.pack(">I", len(BODY)) + BODY
    payload = struct.pack(">I", BATCH) + sized * BATCH
    command = b"MPUB t\n" + struct.pack(">I", len(payload)) + payload
    publish(nsqd, command, MILLION // BATCH, 10)


def drain(nsqd: Daemon, count: int) -> None:
    """Take everything that is queued, in a process that costs next to nothing."""
    where = (f"--tcp-address={nsqd.tcp_address}", "--topic=t", f"--size={len(BODY)}")
    subprocess.run(
        [sys.executable, "-m", "benchmarks.load", "sub", *where, "--dry-seconds=0.2"],
        cwd=ROOT,
        timeout=60,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    stats = nsqd.wait_channel("t", "ch", depth=0, in_flight_count=0)
    assert stats["message_count"] == count


@contextmanager
def watched_peak(nsqd: Daemon) -> Iterator[list[int]]:
    """A list whose last element is, in the end, the most memory that was seen."""
    peak = [rss_bytes(nsqd)]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak.append(max(peak.pop(), rss_bytes(nsqd)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_a_million_messages_in_memory(start_nsqd: StartDaemon, durability: str) -> None:
    nsqd = start_nsqd(f"--mem-queue-size={MILLION}", f"--durability={durability}")
    make_channel(nsqd)
    before = rss_bytes(nsqd)
    mpub_million(nsqd)
    assert nsqd.wait_channel("t", "ch", depth=MILLION)["backend_depth"] == 0
    grown = rss_bytes(nsqd) - before
    assert grown < MILLION * BYTES_EACH
    drain(nsqd, MILLION)
    # What was taken out has become free, whether or not the allocator gave it back.
    mpub_million(nsqd)
    nsqd.wait_channel("t", "ch", depth=MILLION)
    assert rss_bytes(nsqd) - before < 1.1 * grown


@pytest.mark.parametrize(("at_once", "count"), [(100, 100_000), (1, 30_000)])
def test_messages_that_came_one_by_one(start_nsqd: StartDaemon, at_once: int, count: int) -> None:
    nsqd = start_nsqd(f"--mem-queue-size={MILLION}")
    make_channel(nsqd)
    before = rss_bytes(nsqd)
    publish(nsqd, b"PUB t\n" + struct.pack(">I", len(BODY)) + BODY, count, at_once)
    assert nsqd.wait_channel("t", "ch", depth=count)["backend_depth"] == 0
    assert rss_bytes(nsqd) - before < count * BYTES_EACH
    drain(nsqd, count)


def test_memory_does_not_follow_the_depth(nsqd: Daemon) -> None:
    make_channel(nsqd)
    before = rss_bytes(nsqd)
    with watched_peak(nsqd) as peak:
        mpub_million(nsqd)
        stats = nsqd.wait_channel("t", "ch", depth=MILLION)
        assert stats["backend_depth"] > 0.9 * MILLION
        drain(nsqd, MILLION)
    assert peak[-1] - before < 60 * MB
    assert rss_bytes(nsqd) - before < 20 * MB
