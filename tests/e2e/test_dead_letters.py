"""Dead letters in the real process: set aside, killed over, sent back."""

import json
import socket

import pytest

from nsqpy.protocol.frames import FrameParser, MessageFrames, ResponseFrame
from tests.conftest import StartDaemon
from tests.e2e.daemon import DEADLINE_SECONDS, Daemon

pytestmark = pytest.mark.slow

QUERY = "topic=t&channel=c"
DEAD = "t.c.dead"
MAX_ATTEMPTS = 2


class Consumer:
    """A consumer of t/c that answers every message with the same command."""

    def __init__(self, daemon: Daemon, command: str, ready_count: int) -> None:
        host, _, port = daemon.tcp_address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), DEADLINE_SECONDS)
        self._command = command
        self._parser = FrameParser()
        self._socket.sendall(f"  V2SUB t c\nRDY {ready_count}\n".encode())

    def answer(self, count: int) -> list[tuple[bytes, int]]:
        """Answer ``count`` messages; their bodies and attempts."""
        seen: list[tuple[bytes, int]] = []
        while len(seen) < count:
            data = self._socket.recv(1 << 16)
            assert data, "the daemon closed the connection"
            for frame in self._parser.feed(data):
                match frame:
                    case MessageFrames(messages):
                        for _, attempts, identity, body in messages:
                            seen.append((body, attempts))
                            answer = self._command.format(id=identity.decode())
                            self._socket.sendall(answer.encode())
                    case ResponseFrame(b"_heartbeat_"):
                        self._socket.sendall(b"NOP\n")
                    case ResponseFrame(data):
                        assert data == b"OK"
                    case _:
                        raise AssertionError(frame)
        assert len(seen) == count
        return seen

    def close(self) -> None:
        self._socket.close()


def kill_and_start(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_dead_letters_survive_kills_and_come_back(start_nsqd: StartDaemon, durability: str) -> None:
    daemon = start_nsqd(f"--durability={durability}")
    assert daemon.request("/topic/create?topic=t", b"").status == 200
    assert daemon.request(f"/channel/create?{QUERY}", b"").status == 200
    config = json.dumps({"max_attempts": MAX_ATTEMPTS}).encode()
    assert daemon.request(f"/channel/config?{QUERY}", config).json["dead_letter_topic"] == DEAD
    kill_and_start(daemon)
    assert daemon.request(f"/channel/config?{QUERY}").json["max_attempts"] == MAX_ATTEMPTS

    bodies = [b"poison %d" % number for number in range(5)]
    daemon.publish("t", *bodies)
    consumer = Consumer(daemon, "REQ {id} 0\n", ready_count=5)
    seen = consumer.answer(len(bodies) * MAX_ATTEMPTS)
    assert sorted(seen) == sorted((body, attempts) for body in bodies for attempts in (1, 2))
    stats = daemon.wait_channel("t", "c", depth=0, in_flight_count=0, dead_letter_count=5)
    assert stats["dead_letter_reasons"] == {"max_attempts exceeded by requeue": 5}
    daemon.wait_channel(DEAD, "redrive", depth=5)
    consumer.close()
    kill_and_start(daemon)
    daemon.wait_channel(DEAD, "redrive", depth=5)
    daemon.wait_channel("t", "c", depth=0)

    assert daemon.request(f"/channel/redrive?{QUERY}&max=3", b"").json == {"count": 3, "left": 2}
    assert daemon.request(f"/channel/redrive?{QUERY}", b"").json == {"count": 2, "left": 0}
    consumer = Consumer(daemon, "FIN {id}\n", ready_count=5)
    assert sorted(consumer.answer(5)) == [(body, 1) for body in bodies]
    daemon.wait_channel("t", "c", depth=0, in_flight_count=0)
    daemon.wait_channel(DEAD, "redrive", depth=0)
    consumer.close()
    assert daemon.terminate() == 0
    daemon.start()
    daemon.wait_channel("t", "c", depth=0, deferred_count=0)
    daemon.wait_channel(DEAD, "redrive", depth=0)


def test_a_kill_at_any_moment_of_a_redrive_loses_nothing(start_nsqd: StartDaemon) -> None:
    daemon = start_nsqd()
    for path in ("/topic/create?topic=t", f"/channel/create?{QUERY}"):
        assert daemon.request(path, b"").status == 200
    assert daemon.request(f"/channel/config?{QUERY}", b'{"max_attempts":1}').status == 200
    bodies = {b"poison %d" % number for number in range(50)}
    daemon.publish("t", *bodies)
    consumer = Consumer(daemon, "REQ {id} 0\n", ready_count=50)
    consumer.answer(50)
    daemon.wait_channel("t", "c", dead_letter_count=50)
    consumer.close()
    while daemon.request(f"/channel/redrive?{QUERY}&max=20", b"").json["left"]:
        kill_and_start(daemon)
    kill_and_start(daemon)
    left = daemon.channel_stats("t", "c")["depth"]
    consumer = Consumer(daemon, "FIN {id}\n", ready_count=50)
    assert {body for body, _ in consumer.answer(left)} == bodies
    consumer.close()
