"""Clients that take nothing of what they are sent, or half send what they began: the daemon keeps
little for them, ends them within their heartbeats, serves others meanwhile, and has its memory
back afterwards.
"""

import time

import pytest

from nsqpy.protocol import requests
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon, wait_until
from tests.e2e.peer import (
    MAGIC,
    Frame,
    HealthyClient,
    Peer,
    memory_bytes,
    settled_memory_bytes,
)

MIB = 1 << 20
# What a connection may hold in the daemon (two high-water marks and a read), and slack for an
# allocator that does not give everything back.
CONNECTION_BYTES = 8 * MIB
SLACK_BYTES = 16 * MIB
QUICK_HEARTBEAT = requests.identify({"heartbeat_interval": 1000})
SMALL_BUFFER = 4096
CUT = "does not read what it is sent, closing"

pytestmark = pytest.mark.slow


def number(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def warmed_up_bytes(daemon: Daemon) -> int:
    """The daemon's memory once it has done a little of everything."""
    with HealthyClient(daemon) as healthy:
        healthy.served_again(20)
    body = b"x" * 500_000
    with Peer(daemon.tcp_address) as peer:
        peer.send(MAGIC, requests.sub("warm", "c"), requests.rdy(5))
        assert peer.frame() == Frame(0, b"OK")
        for _ in range(10):
            peer.send(requests.pub("warm", body))
            found = [peer.frame(), peer.frame()]
            (message,) = (frame for frame in found if frame is not None and frame.type == 2)
            peer.send(requests.fin(message.data[10:26]))
    return memory_bytes(daemon)


def publish(daemon: Daemon, topic: str, count: int, body: bytes) -> None:
    with Peer(daemon.tcp_address) as peer:
        peer.send(MAGIC)
        for _ in range(count):
            peer.send(requests.pub(topic, body))
            assert peer.frame() == Frame(0, b"OK")


def wait_closed(peer: Peer) -> None:
    """Long before the 30 s after which somebody else's heartbeat would come."""
    wait_until(peer.is_closed, "the connection to be closed")


def test_a_consumer_that_does_not_read(start_nsqd: StartDaemon) -> None:
    daemon = start_nsqd("--mem-queue-size=10")
    before = warmed_up_bytes(daemon)
    daemon.request("/topic/create?topic=large", b"")
    daemon.request("/channel/create?topic=large&channel=c", b"")
    publish(daemon, "large", 200, b"x" * 500_000)
    with HealthyClient(daemon) as healthy, Peer(daemon.tcp_address, SMALL_BUFFER) as peer:
        peer.send(MAGIC, requests.identify({"heartbeat_interval": 2000}))
        peer.send(requests.sub("large", "c"), requests.rdy(2500))
        daemon.wait(
            lambda: daemon.channel_stats("large", "c")["in_flight_count"], "a first delivery"
        )
        healthy.served_again(20)
        # It goes on being alive the other way, and is still found out.
        deadline = time.monotonic() + 20
        peak = 0
        while CUT not in daemon.log and time.monotonic() < deadline:
            peer.send(requests.NOP)
            peak = max(peak, memory_bytes(daemon))
            healthy.served_again(3)
        assert CUT in daemon.log
        assert peak - before < 10 * 500_000 + CONNECTION_BYTES + SLACK_BYTES
        healthy.served_again(10)
        assert healthy.longest_seconds < 2
    # What it was sent is there for others at once, not after the timeout of a minute.
    stats = daemon.wait_channel("large", "c", client_count=0, in_flight_count=0)
    assert stats["depth"] == 200
    assert stats["timeout_count"] > 0
    assert 'nsqd_clients_cut_off_total{reason="slow"} 1.0' in daemon.request("/metrics").text
    settled_memory_bytes(daemon, before + 10 * 500_000 + SLACK_BYTES)


def test_the_limits_can_be_set(start_nsqd: StartDaemon) -> None:
    """Long before the heartbeat of 30 s would find it out, and with less in the daemon's memory."""
    daemon = start_nsqd("--max-unsent-size=65536", "--write-timeout=1s")
    for _ in range(4):
        daemon.request("/mpub?topic=small", b"\n".join([b"x" * 10_000] * 500))
    with Peer(daemon.tcp_address, SMALL_BUFFER) as peer:
        peer.send(MAGIC, requests.sub("small", "c"), requests.rdy(2500))
        daemon.wait(lambda: CUT in daemon.log, "the cut", seconds=20)
    stats = daemon.wait_channel("small", "c", client_count=0, in_flight_count=0)
    assert stats["depth"] == 2000


def test_a_publisher_that_floods_and_does_not_read_its_replies(start_nsqd: StartDaemon) -> None:
    daemon = start_nsqd()
    before = warmed_up_bytes(daemon)
    with HealthyClient(daemon) as healthy, Peer(daemon.tcp_address, SMALL_BUFFER) as peer:
        peer.send(MAGIC, QUICK_HEARTBEAT)
        sent = peak = 0
        deadline = time.monotonic() + 20
        while CUT not in daemon.log and time.monotonic() < deadline:
            sent += peer.flood(requests.pub("flood#ephemeral", b"x") * 5000, 256 * MIB - sent)
            peak = max(peak, memory_bytes(daemon))
            healthy.served_again(3)
        assert CUT in daemon.log
        assert sent < 256 * MIB
        assert peak - before < CONNECTION_BYTES + SLACK_BYTES
        healthy.served_again(10)
        assert healthy.longest_seconds < 2
    settled_memory_bytes(daemon, before + SLACK_BYTES)


def test_a_flood_of_answers_whose_errors_are_not_read(start_nsqd: StartDaemon) -> None:
    daemon = start_nsqd()
    before = warmed_up_bytes(daemon)
    with HealthyClient(daemon) as healthy, Peer(daemon.tcp_address, SMALL_BUFFER) as peer:
        peer.send(MAGIC, QUICK_HEARTBEAT, requests.sub("errors#ephemeral", "c"))
        sent = peer.flood(requests.fin(b"0123456789abcdef") * 3000, 256 * MIB)
        assert sent < 256 * MIB
        healthy.served_again(10)
        assert memory_bytes(daemon) - before < CONNECTION_BYTES + SLACK_BYTES
        wait_closed(peer)
        healthy.served_again(10)
        assert healthy.longest_seconds < 2
    settled_memory_bytes(daemon, before + SLACK_BYTES)


def test_a_consumer_that_reads_slowly_gets_everything(start_nsqd: StartDaemon) -> None:
    """Being held up is no fault: only taking nothing at all for a whole interval is."""
    daemon = start_nsqd()
    body = b"x" * 200_000
    publish(daemon, "slow", 40, body)
    with Peer(daemon.tcp_address, SMALL_BUFFER) as peer:
        peer.send(MAGIC, QUICK_HEARTBEAT, requests.sub("slow", "c"), requests.rdy(2500))
        assert [peer.frame(), peer.frame()] == [Frame(0, b"OK")] * 2
        started = time.monotonic()
        ids: set[bytes] = set()
        while len(ids) < 40:
            frame = peer.frame()
            assert frame is not None, "closed while it was reading"
            assert frame.data[26:] == body
            ids.add(frame.data[10:26])
            peer.send(requests.fin(frame.data[10:26]))
            # A message every twentieth of a second: the whole takes two intervals.
            time.sleep(max(started + len(ids) / 20 - time.monotonic(), 0))
        daemon.wait_channel("slow", "c", depth=0, in_flight_count=0)


def test_bodies_that_are_begun_and_not_finished(start_nsqd: StartDaemon) -> None:
    daemon = start_nsqd()
    before = warmed_up_bytes(daemon)
    begun = b"MPUB t#ephemeral\n" + number(5 * MIB) + number(5) + number(MIB) + bytes(4 * MIB)
    with HealthyClient(daemon) as healthy:
        peers = [Peer(daemon.tcp_address) for _ in range(10)]
        for peer in peers:
            peer.send(MAGIC, QUICK_HEARTBEAT, begun)
        healthy.served_again(10)
        # Two intervals without a byte more.
        for peer in peers:
            wait_closed(peer)
            peer.close()
        assert daemon.log.count("was silent for two heartbeats, closing") == 10
        assert healthy.longest_seconds < 2
    assert daemon.topic_stats("t#ephemeral") == {}
    settled_memory_bytes(daemon, before + SLACK_BYTES)


def test_connections_that_say_nothing(start_nsqd: StartDaemon) -> None:
    """They have a minute for the magic, and cost little."""
    daemon = start_nsqd()
    before = warmed_up_bytes(daemon)
    with HealthyClient(daemon) as healthy:
        peers = [Peer(daemon.tcp_address) for _ in range(300)]
        healthy.served_again(10)
        assert memory_bytes(daemon) - before < SLACK_BYTES
        for peer in peers:
            peer.close()
        healthy.served_again(10)
    assert daemon.terminate() == 0


def test_half_closed_clients_get_their_replies(start_nsqd: StartDaemon) -> None:
    daemon = start_nsqd("--durability=fsync")
    with Peer(daemon.tcp_address) as peer:
        peer.send(MAGIC, *[requests.pub("half", b"x")] * 100)
        peer.end()
        assert peer.frames() == [Frame(0, b"OK")] * 100
    assert daemon.topic_stats("half")["depth"] == 100


def test_a_stop_does_not_wait_for_clients_that_do_not_read(start_nsqd: StartDaemon) -> None:
    daemon = start_nsqd()
    publish(daemon, "large", 20, b"x" * 500_000)
    with Peer(daemon.tcp_address, SMALL_BUFFER) as peer, Peer(daemon.tcp_address):
        peer.send(MAGIC, requests.sub("large", "c"), requests.rdy(2500))
        daemon.wait(lambda: daemon.channel_stats("large", "c").get("in_flight_count"), "a delivery")
        assert daemon.terminate() == 0
    daemon.start()
    assert daemon.channel_stats("large", "c")["depth"] == 20
