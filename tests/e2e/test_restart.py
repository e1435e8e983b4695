"""What a restart of the real process keeps: everything that was promised."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from nsqpy.protocol.frames import ErrorFrame, Frame, FrameParser, MessageFrames, ResponseFrame
from tests.conftest import StartDaemon
from tests.e2e.daemon import DEADLINE_SECONDS, Daemon

pytestmark = pytest.mark.slow


class Message(NamedTuple):
    attempts: int
    id: bytes
    body: bytes


class Peer:
    """A raw V2 connection, answered within the deadline or failed."""

    def __init__(self, daemon: Daemon) -> None:
        host, _, port = daemon.tcp_address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), DEADLINE_SECONDS)
        self._parser = FrameParser()
        self._messages: list[Message] = []
        self._replies: list[bytes] = []
        self.send(b"  V2")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def publish(self, topic: str, *bodies: bytes) -> None:
        """One MPUB; returns when it has got its OK."""
        sized = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
        content = len(bodies).to_bytes(4, "big") + sized
        self.send(f"MPUB {topic}\n".encode() + len(content).to_bytes(4, "big") + content)
        assert self.reply() == b"OK"

    def subscribe(self, topic: str, channel: str, ready_count: int) -> None:
        self.send(f"SUB {topic} {channel}\n".encode())
        assert self.reply() == b"OK"
        self.ready(ready_count)

    def ready(self, count: int) -> None:
        self.send(b"RDY %d\n" % count)

    def finish(self, *messages: Message) -> None:
        self.send(b"".join(b"FIN %s\n" % message.id for message in messages))

    def reply(self) -> bytes:
        while not self._replies:
            self._read()
        return self._replies.pop(0)

    def messages(self, count: int) -> list[Message]:
        """The next ``count`` messages."""
        while len(self._messages) < count:
            self._read()
        taken, self._messages = self._messages[:count], self._messages[count:]
        return taken

    def _read(self) -> None:
        data = self._socket.recv(1 << 20)
        assert data, "the daemon closed the connection"
        for frame in self._parser.feed(data):
            self._take(frame)

    def _take(self, frame: Frame) -> None:
        match frame:
            case ResponseFrame(b"_heartbeat_"):
                self.send(b"NOP\n")
            case ResponseFrame(data):
                self._replies.append(data)
            case MessageFrames(messages):
                self._messages += [Message(*message[1:]) for message in messages]
            case ErrorFrame(data):
                raise AssertionError(data)
            case _:
                raise AssertionError(frame)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def connected(daemon: Daemon) -> Iterator[Peer]:
    peer = Peer(daemon)
    try:
        yield peer
    finally:
        peer.close()


def restart(daemon: Daemon) -> None:
    assert daemon.terminate() == 0
    daemon.start()


def bodies(messages: list[Message]) -> list[bytes]:
    return sorted(message.body for message in messages)


def numbered(count: int) -> list[bytes]:
    return [b"message %06d" % number for number in range(count)]


@pytest.fixture(params=["memory", "disk", "fsync"])
def daemon(request: pytest.FixtureRequest, start_nsqd: StartDaemon) -> Daemon:
    return start_nsqd(f"--durability={request.param}", "--mem-queue-size=50")


def test_a_graceful_restart_keeps_everything(daemon: Daemon) -> None:
    published = numbered(200)
    with connected(daemon) as peer:
        peer.subscribe("t", "c", 10)
        peer.publish("t", *published)
        out = peer.messages(10)
        assert {message.attempts for message in out} == {1}
        peer.ready(0)
        peer.finish(*out[:4])
        daemon.wait_channel("t", "c", in_flight_count=6, depth=190)
    daemon.request("/channel/create?topic=t&channel=idle", b"")
    daemon.request("/channel/pause?topic=t&channel=idle", b"")
    daemon.request("/topic/create?topic=lonely", b"")
    daemon.request("/topic/pause?topic=lonely", b"")
    daemon.publish("lonely", b"alone")
    restart(daemon)
    daemon.wait_channel("t", "c", depth=196, in_flight_count=0, deferred_count=0)
    assert daemon.channel_stats("t", "idle")["paused"] is True
    lonely = daemon.topic_stats("lonely")
    assert (lonely["paused"], lonely["depth"]) == (True, 1)
    with connected(daemon) as peer:
        peer.subscribe("t", "c", 2500)
        again = peer.messages(196)
        finished = {message.body for message in out[:4]}
        assert bodies(again) == sorted(set(published) - finished)
        attempts = {message.body: message.attempts for message in again}
        assert {attempts[message.body] for message in out[4:]} == {2}
        assert {message.id for message in out[4:]} <= {message.id for message in again}
        peer.finish(*again)
        daemon.wait_channel("t", "c", in_flight_count=0, depth=0)
    restart(daemon)
    daemon.wait_channel("t", "c", depth=0, in_flight_count=0)


def test_a_delay_survives_and_is_not_cut_short(daemon: Daemon) -> None:
    began = time.monotonic()
    restart(daemon)
    delay_seconds = 1 + 4 * (time.monotonic() - began)  # not over before the daemon is back
    with connected(daemon) as peer:
        peer.subscribe("t", "c", 1)
        peer.publish("t", b"requeued")
        (message,) = peer.messages(1)
        due = time.monotonic() + delay_seconds
        peer.send(b"REQ %s %d\n" % (message.id, delay_seconds * 1000))
        daemon.publish("t", b"deferred", defer_ms=int(delay_seconds * 1000))
        daemon.wait_channel("t", "c", deferred_count=2)
    restart(daemon)
    assert time.monotonic() < due, "too slow to tell"
    daemon.wait_channel("t", "c", deferred_count=2, depth=0)
    with connected(daemon) as peer:
        peer.subscribe("t", "c", 10)
        again = peer.messages(2)
        assert time.monotonic() >= due
    assert {message.body: message.attempts for message in again} == {
        b"requeued": 2,
        b"deferred": 1,
    }


@pytest.mark.parametrize("flags", [(), ("--mem-queue-size=0",), ("--durability=fsync",)])
def test_a_kill_loses_nothing_that_got_its_ok(
    start_nsqd: StartDaemon, flags: tuple[str, ...]
) -> None:
    daemon = start_nsqd("--max-bytes-per-file=20000", *flags)
    published = numbered(2000)
    finished: set[bytes] = set()
    with connected(daemon) as peer:
        peer.subscribe("t", "c", 100)
        for start in range(0, len(published), 100):
            peer.publish("t", *published[start : start + 100])
        out = peer.messages(100)
        finished = {message.body for message in out[:50]}
        peer.finish(*out[:50])
        peer.messages(50)  # so the answers have been taken in, and their turn is over
    daemon.publish("t", b"deferred", defer_ms=3_600_000)
    daemon.kill()
    daemon.start()
    left = daemon.channel_stats("t", "c")
    assert left["deferred_count"] == 1
    assert left["depth"] == 1950
    with connected(daemon) as peer:
        peer.subscribe("t", "c", 2500)
        again = peer.messages(1950)
        assert bodies(again) == sorted(set(published) - finished)


def test_many_kills_while_publishing_lose_nothing(start_nsqd: StartDaemon) -> None:
    daemon = start_nsqd()
    daemon.request("/topic/create?topic=t", b"")
    daemon.request("/channel/create?topic=t&channel=c", b"")
    confirmed: list[bytes] = []
    for life in range(3):
        with connected(daemon) as peer:
            for number in range(30):
                body = b"%d.%d" % (life, number)
                peer.publish("t", body)
                confirmed.append(body)
            daemon.kill()
        daemon.start()
    with connected(daemon) as peer:
        peer.subscribe("t", "c", 2500)
        assert bodies(peer.messages(len(confirmed))) == sorted(confirmed)
