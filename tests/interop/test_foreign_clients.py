"""Clients that others wrote, against the real daemon as a process.

Each test runs with each client. What the client saw comes from its driver, what the daemon
thinks comes from ``/stats``; where both can be asked, they must agree.
"""

from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon
from tests.e2e.test_lookupd import LookupDaemon
from tests.interop.clients import CLIENTS, Client, Driver
from tests.interop.drivers.conversation import Options

pytestmark = pytest.mark.slow

CHANNEL = "archive"
HEARTBEAT_MS = 1_000
MSG_TIMEOUT_MS = 1_000
# Every byte value, so that no client and no hop takes a body for text.
BINARY = bytes(range(256)).decode("latin-1")


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest) -> Client:
    found = request.param
    assert isinstance(found, Client)
    return found


def consumer(client: Client, nsqd: Daemon, topic: str, max_in_flight: int = 1) -> Driver:
    """A driver that consumes with a short message timeout and the shortest heartbeat there is."""
    options = Options(
        mode="consume",
        tcp_address=nsqd.tcp_address,
        topic=topic,
        channel=CHANNEL,
        max_in_flight=max_in_flight,
        heartbeat_interval_ms=HEARTBEAT_MS,
        msg_timeout_ms=MSG_TIMEOUT_MS,
    )
    return Driver(client, options)


@pytest.fixture
def nsqd(client: Client, start_nsqd: StartDaemon) -> Daemon:
    return start_nsqd(*client.daemon_flags(MSG_TIMEOUT_MS))


def test_publishes(client: Client, nsqd: Daemon) -> None:
    single = ("plain", BINARY, "x" * 100_000)
    batch = tuple(f"batch {number}" for number in range(50))
    options = Options(
        mode="publish",
        tcp_address=nsqd.tcp_address,
        topic="published",
        single=single,
        batch=batch,
        deferred=("later",),
        defer_ms=500,
    )
    assert nsqd.request("/topic/create?topic=published", b"").status == 200
    assert nsqd.request("/channel/create?topic=published&channel=archive", b"").status == 200
    with Driver(client, options) as publisher:
        assert publisher.finish() == 0
    replies = [(event["command"], event["reply"]) for event in publisher.of("published")]
    assert replies == [("pub", "OK")] * 3 + [("mpub", "OK"), ("dpub", "OK")]
    nsqd.wait_channel("published", CHANNEL, message_count=54)

    with consumer(client, nsqd, "published", max_in_flight=10) as reader:
        reader.wait_for("message", 54)
    expected = [body.encode("latin-1") for body in (*single, *batch, "later")]
    assert sorted(reader.bodies()) == sorted(expected)
    nsqd.wait_channel("published", CHANNEL, depth=0, in_flight_count=0, deferred_count=0)


def test_rdy_limits_what_is_in_flight(client: Client, nsqd: Daemon) -> None:
    with consumer(client, nsqd, "rdy", max_in_flight=3) as reader:
        # Clients start with RDY 1 and raise it once a message has come through.
        nsqd.publish("rdy", b"finish")
        reader.wait_for("message", 1)
        nsqd.wait(
            lambda: (
                [c["ready_count"] for c in nsqd.channel_stats("rdy", CHANNEL)["clients"]] == [3]
            ),
            "the consumer's RDY to be 3",
        )
        nsqd.publish("rdy", *(b"park %d" % number for number in range(5)))
        # In flight and left in the queue: the daemon has nothing more that it could send.
        nsqd.wait_channel("rdy", CHANNEL, in_flight_count=3, depth=2)
        reader.wait_for("message", 4)
        reader.release()
        reader.wait_for("message", 6)
        reader.release()
        nsqd.wait_channel("rdy", CHANNEL, in_flight_count=0, depth=0)
    assert sorted(reader.bodies()) == [b"finish", *(b"park %d" % number for number in range(5))]


def test_requeue_comes_back_after_its_delay(client: Client, nsqd: Daemon) -> None:
    with consumer(client, nsqd, "requeue") as reader:
        nsqd.publish("requeue", b"requeue 700")
        nsqd.wait_channel("requeue", CHANNEL, deferred_count=1, in_flight_count=0)
        first, second = reader.wait_for("message", 2)
        nsqd.wait_channel("requeue", CHANNEL, deferred_count=0, depth=0, requeue_count=1)
    assert (first["attempts"], second["attempts"]) == (1, 2)
    assert second["at"] - first["at"] >= 0.7


def test_requeue_without_a_delay_comes_back_at_once(client: Client, nsqd: Daemon) -> None:
    with consumer(client, nsqd, "requeue0") as reader:
        nsqd.publish("requeue0", b"requeue 0")
        attempts = [message["attempts"] for message in reader.wait_for("message", 2)]
        nsqd.wait_channel("requeue0", CHANNEL, depth=0, in_flight_count=0, requeue_count=1)
    assert attempts == [1, 2]


def test_an_unanswered_message_times_out_and_is_sent_again(client: Client, nsqd: Daemon) -> None:
    with consumer(client, nsqd, "timeout", max_in_flight=2) as reader:
        nsqd.publish("timeout", b"hold")
        first, second = reader.wait_for("message", 2)
        nsqd.wait_channel("timeout", CHANNEL, in_flight_count=0, depth=0, timeout_count=1)
    assert (first["attempts"], second["attempts"]) == (1, 2)
    # Its time ran from the sending, which the driver saw a little later.
    assert second["at"] - first["at"] > MSG_TIMEOUT_MS / 1000 / 2


def test_touch_keeps_a_message_beyond_its_timeout(client: Client, nsqd: Daemon) -> None:
    with consumer(client, nsqd, "touch", max_in_flight=2) as reader:
        nsqd.publish("touch", b"touch 6 300")
        reader.wait_for("message", 1)
        nsqd.wait_channel("touch", CHANNEL, in_flight_count=1)
        stats = nsqd.wait_channel("touch", CHANNEL, in_flight_count=0, depth=0)
        assert [c["finish_count"] for c in stats["clients"]] == [1]
    assert (stats["timeout_count"], stats["requeue_count"]) == (0, 0)
    assert [message["attempts"] for message in reader.of("message")] == [1]


def test_heartbeats_are_answered_and_keep_the_connection(client: Client, nsqd: Daemon) -> None:
    def connections() -> list[str]:
        clients = nsqd.channel_stats("heartbeat", CHANNEL).get("clients") or []
        return [found["remote_address"] for found in clients]

    with consumer(client, nsqd, "heartbeat") as reader:
        before = nsqd.wait(connections, "the consumer to subscribe")
        # Unanswered, the second missing answer would end the connection.
        reader.wait_for("heartbeat", 4)
        nsqd.publish("heartbeat", b"finish")
        reader.wait_for("message", 1)
        nsqd.wait_channel("heartbeat", CHANNEL, depth=0, in_flight_count=0)
        assert connections() == before


def test_finds_its_topic_through_nsqlookupd(
    client: Client, start_nsqd: StartDaemon, tmp_path: Path
) -> None:
    if not client.asks_lookupd:
        pytest.skip(f"the driver for {client.name} does not ask nsqlookupd")
    with (
        LookupDaemon(tmp_path, "--broadcast-address=127.0.0.1") as first,
        LookupDaemon(tmp_path, "--broadcast-address=127.0.0.1") as second,
    ):
        flags = [f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in (first, second)]
        nsqds = [start_nsqd(*flags, "--broadcast-address=auto") for _ in range(2)]
        options = Options(
            mode="consume",
            topic="found",
            lookupd_http_addresses=(first.http_address, second.http_address),
            channel=CHANNEL,
            max_in_flight=10,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        nsqds[0].publish("found", b"before")
        with Driver(client, options) as reader:
            reader.wait_for("message", 1)
            first.kill()
            nsqds[1].publish("found", b"elsewhere", b"later")  # a node it has not met
            reader.wait_for("message", 3)
            for nsqd in nsqds:
                nsqd.wait_channel("found", CHANNEL, depth=0, in_flight_count=0, client_count=1)
    assert sorted(reader.bodies()) == [b"before", b"elsewhere", b"later"]
