"""Leases of the real daemon: killed at random moments, and what a large one costs."""

import gc
import http.client
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from nsqpy.clock import SECOND, SystemClock
from nsqpy.config import NsqdConfig
from nsqpy.core.broker import Broker
from nsqpy.core.lease import LeaseRequest, LeaseTerms
from nsqpy.core.lease_desk import LeaseDesk
from nsqpy.storage.files import OSFiles
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon, Reply
from tests.e2e.peer import memory_bytes
from tests.unit.core.leasing import messages_of

MB = 1_000_000
BODY = b"x" * 200
LARGE = 300_000


def make_channel(nsqd: Daemon) -> None:
    assert nsqd.request("/topic/create?topic=t", b"").status == 200
    assert nsqd.request("/channel/create?topic=t&channel=c", b"").status == 200


def create(nsqd: Daemon, lease_id: str, query: str = "") -> Reply:
    return nsqd.request(f"/lease/create?topic=t&channel=c&id={lease_id}{query}", b"")


def mpub(nsqd: Daemon, bodies: list[bytes]) -> None:
    records = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    payload = struct.pack(">I", len(bodies)) + records
    assert nsqd.request("/mpub?topic=t&binary=true", payload).status == 200


def one_batch(
    nsqd: Daemon, lease_id: str, limit: int, killer: threading.Timer | None
) -> list[bytes]:
    """Lease, read and commit, each call until it is answered; nothing if there was nothing."""
    restarts = iter([killer] if killer is not None else [])
    if killer is not None:
        killer.start()

    def answered(target: str, body: bytes | None = None) -> Reply:
        while True:
            with suppress(OSError, http.client.HTTPException):
                return nsqd.request(target, body)
            next(restarts).join()
            nsqd.start()

    bodies: list[bytes] = []
    query = f"topic=t&channel=c&id={lease_id}&max_messages={limit}"
    created = answered(f"/lease/create?{query}", b"")
    if created.status != 204:
        assert created.status == 200
        stream = answered(f"/lease/read?id={lease_id}").body
        bodies = [body for body, _ in messages_of(stream)]
        assert len(bodies) == created.json["count"]
        assert answered(f"/lease/commit?id={lease_id}", b"").status == 200
    for timer in restarts:
        timer.join()
        nsqd.start()
    return bodies


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_killed_at_random_moments_every_message_comes_once(
    start_nsqd: StartDaemon, durability: str
) -> None:
    """A job that repeats each call until it is answered, as Spark does, with every lease read
    before it is committed. Nothing else takes messages, so there may not be a single twin."""
    random = Random(7)
    nsqd = start_nsqd(
        f"--durability={durability}", "--mem-queue-size=100", "--max-bytes-per-file=20000"
    )
    make_channel(nsqd)
    published = [b"%d" % number for number in range(5000)]
    for at in range(0, len(published), 100):
        mpub(nsqd, published[at : at + 100])
    got: list[bytes] = []
    for serial in range(100):
        killer = threading.Timer(random.uniform(0, 0.01), nsqd.kill) if serial < 4 else None
        limit = random.choice([50, 500, 1000])
        bodies = one_batch(nsqd, f"lease-{serial}", limit, killer)
        got += bodies
        if not bodies:
            break
    assert sorted(got) == sorted(published)
    nsqd.wait_channel("t", "c", depth=0, in_flight_count=0)


@pytest.mark.slow
def test_a_large_one_costs_no_memory(start_nsqd: StartDaemon) -> None:
    nsqd = start_nsqd()
    make_channel(nsqd)
    for _ in range(LARGE // 5000):
        mpub(nsqd, [BODY] * 5000)
    before = memory_bytes(nsqd)
    lease = create(nsqd, "a", f"&max_messages={LARGE}").json
    assert lease["count"] == LARGE
    assert memory_bytes(nsqd) - before < 5 * MB
    assert nsqd.request("/lease/release?id=a", b"").status == 200
    nsqd.wait_channel("t", "c", depth=LARGE)
    assert memory_bytes(nsqd) - before < 5 * MB


def longest_turn_seconds(broker: Broker, clock: SystemClock, done: Callable[[], bool]) -> float:
    """Take turns until ``done``; the processor's time, since others use it too."""
    longest = 0.0
    while not done():
        began = time.thread_time()
        broker.turn(clock.now())
        longest = max(longest, time.thread_time() - began)
        broker.trash.take().run()  # the daemon does that in a thread
    return longest


@pytest.mark.slow
def test_no_turn_takes_long(tmp_path: Path) -> None:
    clock = SystemClock()
    config = NsqdConfig(data_path=str(tmp_path), node_id=1)
    broker = Broker(config, OSFiles(), Random(1), wake=lambda: None, start=clock.now())
    broker.load(clock.now())
    broker.topic("t")
    channel = broker.create_channel("t", "c")
    gc.freeze()  # as the daemon does: what other tests left is not to be looked through
    for _ in range(LARGE // 5000):
        broker.publish("t", [BODY] * 5000)
        broker.turn(clock.now())
    desk = LeaseDesk(broker)
    request = LeaseRequest("a", LeaseTerms(LARGE, 1 << 40, 3600 * SECOND))
    desk.create("t", "c", request, clock.now())
    taking = longest_turn_seconds(broker, clock, lambda: request.done)
    assert channel.leased_count == LARGE
    settling = longest_turn_seconds(broker, clock, lambda: channel.log.depth == 0)
    desk.release(["a"], clock.now())
    returning = longest_turn_seconds(broker, clock, lambda: channel.leased_count == 0)
    assert channel.depth == LARGE
    broker.close()
    gc.unfreeze()
    assert max(taking, settling, returning) < 0.01, (taking, settling, returning)
