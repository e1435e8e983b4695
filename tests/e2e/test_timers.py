"""Long delays in the real daemon: they cost the disk, not memory; they come in time, also after a
kill; and not before."""

import struct
import time

from nsqpy import Consumer
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon
from tests.e2e.peer import MAGIC, Peer, memory_bytes

DAY_MS = 24 * 3_600_000
BODY = b"x" * 200
MB = 1_000_000


def make_channel(daemon: Daemon) -> None:
    daemon.request("/topic/create?topic=t", method="POST")
    daemon.request("/channel/create?topic=t&channel=c", method="POST")


def defer(daemon: Daemon, delays_ms: list[int], at_once: int = 500) -> None:
    """DPUB each delay; its body says when it is due at the soonest, in Unix milliseconds."""
    with Peer(daemon.tcp_address) as peer:
        peer.send(MAGIC)
        for at in range(0, len(delays_ms), at_once):
            some = delays_ms[at : at + at_once]
            now_ms = time.time_ns() // 1_000_000
            bodies = [struct.pack(">Q", now_ms + delay_ms) + BODY for delay_ms in some]
            peer.send(
                *(
                    b"DPUB t %d\n%s%s" % (delay_ms, struct.pack(">I", len(body)), body)
                    for delay_ms, body in zip(some, bodies, strict=True)
                )
            )
            for _ in some:
                frame = peer.frame()
                assert frame is not None
                assert frame.data == b"OK"


def test_a_hundred_thousand_cost_no_more_memory_than_a_window(start_nsqd: StartDaemon) -> None:
    daemon = start_nsqd("--mem-queue-size=1000")
    make_channel(daemon)
    defer(daemon, [1000 * DAY_MS // 3000] * 1000)
    before = memory_bytes(daemon)
    defer(daemon, [600_000 + number * 300_000 for number in range(100_000)])
    assert daemon.wait_channel("t", "c", deferred_count=101_000)["depth"] == 0
    assert memory_bytes(daemon) - before < 4 * MB
    daemon.kill()
    daemon.start()
    daemon.wait_channel("t", "c", deferred_count=101_000, depth=0)
    assert memory_bytes(daemon) - before < 4 * MB


async def test_thousands_beyond_the_window_come_in_time_after_a_kill(
    start_nsqd: StartDaemon,
) -> None:
    daemon = start_nsqd("--mem-queue-size=100", "--max-bytes-per-file=100000")
    make_channel(daemon)
    count = 5000
    defer(daemon, [3000 + number * 2000 // count for number in range(count)][::-1])
    daemon.kill()
    daemon.start()
    assert daemon.channel_stats("t", "c")["deferred_count"] > 0
    late_ms: list[float] = []
    async with Consumer("t", "c", nsqd=daemon.tcp_address, max_in_flight=2500) as consumer:
        async for message in consumer:
            (due_ms,) = struct.unpack_from(">Q", message.body)
            late_ms.append(time.time_ns() / 1e6 - due_ms)
            message.finish()
            if len(late_ms) == count:
                break
    assert min(late_ms) >= 0
    assert sorted(late_ms)[count // 2] < 1000, "far from its time even on a busy machine"
    daemon.wait_channel("t", "c", deferred_count=0, depth=0, in_flight_count=0)
    assert not list(daemon.data_path.glob("queues/*/*/timers/*")), "a slot was left behind"


def test_the_longest_delay_is_an_option(start_nsqd: StartDaemon) -> None:
    daemon = start_nsqd("--max-defer-timeout=48h", "--max-req-timeout=1s")
    with Peer(daemon.tcp_address) as peer:
        peer.send(MAGIC, b"DPUB t %d\n\0\0\0\1x" % (2 * DAY_MS))
        frame = peer.frame()
        assert frame is not None
        assert frame.data == b"OK"
        peer.send(b"DPUB t %d\n\0\0\0\1x" % (2 * DAY_MS + 1))
        frame = peer.frame()
        assert frame is not None
        assert frame.data == b"E_INVALID DPUB timeout 172800001 out of range 0-172800000"
    answer = daemon.request(f"/pub?topic=t&defer={2 * DAY_MS}", b"x")
    assert answer.status == 200
    assert daemon.request(f"/pub?topic=t&defer={2 * DAY_MS + 1}", b"x").status == 400
