"""nsqlookupd as a process: start, stop, refused starts, and bad input beside a healthy client."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nsqpy.protocol.commands import LINE_MAX_BYTES
from nsqpy.protocol.lookup import (
    BODY_MAX_BYTES,
    MAGIC,
    PING,
    PeerInfo,
    identify,
    register,
    unregister,
)
from tests.e2e.daemon import Daemon
from tests.e2e.peer import Healthy, Peer, memory_bytes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
INFO = PeerInfo(broadcast_address="host", tcp_port=4150, http_port=4151, version="1.3.0")
IDENTIFIED = MAGIC + identify(INFO)


class LookupDaemon(Daemon):
    """``python -m nsqpy nsqlookupd`` on free ports of the loopback."""

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "nsqpy", "nsqlookupd"),
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            *self.flags,
        ]


class LookupPeer(Peer):
    """One V1 connection."""

    def reply(self) -> bytes | None:
        """The next reply; None at the end of the stream."""
        while True:
            stop = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) >= max(stop, 4):
                found, self._received = self._received[4:stop], self._received[stop:]
                return found
            if not self._read():
                assert not self._received, f"cut off in the middle: {self._received!r}"
                return None

    def replies(self) -> list[bytes]:
        """All there is until the server closes the connection."""
        found = []
        while (reply := self.reply()) is not None:
            found.append(reply)
        return found


class HealthyDaemon(Healthy):
    """Registers, is looked up and unregisters."""

    def __init__(self, lookupd: Daemon) -> None:
        self._lookupd = lookupd
        self._peer = LookupPeer(lookupd.tcp_address)
        super().__init__(self._peer)
        self._peer.send(IDENTIFIED)
        assert self._peer.reply()

    def round(self) -> None:
        for command, count in ((register("healthy"), 1), (unregister("healthy"), 0)):
            self._peer.send(command)
            assert self._peer.reply() == b"OK"
            found = self._lookupd.request("/lookup?topic=healthy").json
            assert len(found["producers"]) == count


@pytest.fixture(scope="module")
def lookupd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all of it: what one row does to it, the next would notice."""
    with LookupDaemon(tmp_path_factory.mktemp("nsqlookupd")) as running:
        yield running


@pytest.fixture(scope="module")
def healthy(lookupd: Daemon) -> Iterator[HealthyDaemon]:
    with HealthyDaemon(lookupd) as client:
        yield client
        assert client.longest_seconds < 2


# --- the process ---


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nsqpy", "nsqlookupd", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_started_used_and_stopped(tmp_path: Path) -> None:
    with LookupDaemon(tmp_path) as lookupd, LookupPeer(lookupd.tcp_address) as peer:
        peer.send(IDENTIFIED, register("t", "c"))
        (identity, ok) = (peer.reply(), peer.reply())
        assert identity is not None
        assert f'"tcp_port":{lookupd.tcp_address.rpartition(":")[2]}'.encode() in identity
        assert f'"http_port":{lookupd.http_address.rpartition(":")[2]}'.encode() in identity
        assert ok == b"OK"
        assert lookupd.request("/channels?topic=t").body == b'{"channels":["c"]}'
        with LookupPeer(lookupd.tcp_address) as silent:
            assert lookupd.terminate() == 0
            assert silent.replies() == []
        assert peer.replies() == []
    first, *rest = lookupd.log.splitlines()
    assert first.startswith("[nsqlookupd] ")
    assert " INFO: nsqlookupd v1.3.0 (built w/python" in first
    text = "\n".join(rest)
    for part in ("REGISTER category:channel key:t subkey:c", "INFO: 200 GET /channels?topic=t ("):
        assert part in text


class CrampedLookupDaemon(LookupDaemon):
    """May have few files open, and cannot raise that."""

    def command(self) -> list[str]:
        return ["sh", "-c", 'ulimit -n 100 && exec "$@"', "sh", *super().command()]


def test_a_crowd_on_tcp_stops_no_lookups(tmp_path: Path) -> None:
    with CrampedLookupDaemon(tmp_path) as lookupd, LookupPeer(lookupd.tcp_address) as peer:
        peer.send(IDENTIFIED, register("t"))
        assert [peer.reply() is not None for _ in range(2)] == [True, True]
        crowd = [Peer(lookupd.tcp_address) for _ in range(200)]
        lookupd.wait(
            lambda: "the open-file limit is near" in lookupd.log, "the crowd to be refused"
        )
        assert len(lookupd.request("/lookup?topic=t").json["producers"]) == 1
        peer.send(register("u"))
        assert peer.reply() == b"OK"
        for one in crowd:
            one.close()

        def comes_in() -> bytes | None:
            with suppress(ConnectionError), LookupPeer(lookupd.tcp_address) as again:
                again.send(MAGIC, PING)
                return again.reply()
            return None

        assert lookupd.wait(comes_in, "one more to be let in") == b"OK"


def test_a_port_that_is_taken(lookupd: Daemon) -> None:
    result = run(f"--tcp-address={lookupd.tcp_address}", "--http-address=127.0.0.1:0")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert " FATAL: failed to instantiate nsqlookupd - listen (127.0.0.1:" in last
    assert last.endswith("bind: address already in use")


def test_a_wrong_flag_is_one_clear_line() -> None:
    result = run("--tombstone-lifetime=soon")
    assert result.returncode == 2
    first, *rest = result.stderr.splitlines()
    assert 'invalid value "soon" for flag -tombstone-lifetime' in first
    assert len(rest) <= 1


def test_a_wrong_file(tmp_path: Path) -> None:
    file = tmp_path / "lookupd.toml"
    file.write_text("tcp_address = 5\n")
    result = run(f"--config={file}")
    assert result.returncode == 1
    assert "FATAL: failed parsing tcp_address 5 in" in result.stderr


def test_version() -> None:
    result = run("-version")
    assert result.returncode == 0
    assert result.stdout.startswith("nsqlookupd v1.3.0 (built w/python")


def test_the_benchmark_gives_figures() -> None:
    result = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.lookupd"),
            *("--topics=50", "--nodes=5", "--lookups=20"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    for phase in ("flood", "quiet", "beside", "leaving", "/nodes"):
        assert 0 < report[phase]["p50_ms"] <= report[phase]["p99_ms"], phase


# --- bad input at the TCP port ---


def number(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


BAD_JSON = b"E_BAD_BODY IDENTIFY failed to decode JSON body"

BAD_COMMANDS: list[tuple[bytes, bytes]] = [
    (b"  V2", b"E_BAD_PROTOCOL"),
    (b"\0\0\0\0", b"E_BAD_PROTOCOL"),
    (b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n", b"E_BAD_PROTOCOL"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"E_BAD_PROTOCOL"),
    (MAGIC + b"\n", b"E_INVALID invalid command "),
    (MAGIC + b"\xff\x00\xfe\n", b"E_INVALID invalid command \xff\0\xfe"),
    (MAGIC + b"x" * LINE_MAX_BYTES, b"E_INVALID command line too long"),
    (MAGIC + b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
    (IDENTIFIED + identify(INFO), b"E_INVALID cannot IDENTIFY again"),
    (IDENTIFIED + b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
    (IDENTIFIED + b"REGISTER a/b\n", b"E_BAD_TOPIC REGISTER topic name 'a/b' is not valid"),
    (
        IDENTIFIED + b"UNREGISTER t \xff\n",
        b"E_BAD_CHANNEL UNREGISTER channel name '\xff' is not valid",
    ),
    (MAGIC + b"IDENTIFY\n" + number(-1), b"E_BAD_BODY IDENTIFY invalid body size -1"),
    (
        MAGIC + b"IDENTIFY\n" + number(-(2**31)),
        b"E_BAD_BODY IDENTIFY invalid body size -2147483648",
    ),
    (
        MAGIC + b"IDENTIFY\n" + number(2**31 - 1),
        b"E_BAD_BODY IDENTIFY body too big 2147483647 > 4194304",
    ),
    (MAGIC + b"IDENTIFY\n" + number(0), BAD_JSON),
    (MAGIC + b"IDENTIFY\n" + number(1_000_000) + b"[" * 1_000_000, BAD_JSON),
    (MAGIC + b"IDENTIFY\n" + number(2) + b"{}", b"E_BAD_BODY IDENTIFY missing fields"),
]

CUT_SHORT: list[tuple[bytes, list[bytes]]] = [
    (b"", []),
    (b"  V", []),
    (MAGIC + b"PIN", []),
    (MAGIC + b"IDENTIFY\n\0", [b"E_BAD_BODY IDENTIFY failed to read body size"]),
    (
        MAGIC + b"IDENTIFY\n" + number(BODY_MAX_BYTES) + b"x" * 1_000_000,
        [b"E_BAD_BODY IDENTIFY failed to read body"],
    ),
]


@pytest.mark.parametrize(("data", "error"), BAD_COMMANDS)
def test_a_bad_command(lookupd: Daemon, healthy: HealthyDaemon, data: bytes, error: bytes) -> None:
    with LookupPeer(lookupd.tcp_address) as peer:
        peer.send(data)
        assert [reply for reply in peer.replies() if reply[:1] == b"E"] == [error]
    healthy.served_again()


@pytest.mark.parametrize(("data", "errors"), CUT_SHORT)
def test_a_stream_that_ends_too_soon(
    lookupd: Daemon, healthy: HealthyDaemon, data: bytes, errors: list[bytes]
) -> None:
    with LookupPeer(lookupd.tcp_address) as peer:
        peer.send(data)
        peer.end()
        assert peer.replies() == errors
    healthy.served_again()


def test_an_endless_line(lookupd: Daemon, healthy: HealthyDaemon) -> None:
    before = memory_bytes(lookupd)
    with LookupPeer(lookupd.tcp_address) as peer:
        peer.send(MAGIC, b"REGISTER ")
        peer.flood(b"x" * 65536, 100_000_000)
        assert memory_bytes(lookupd) - before < 20_000_000
    healthy.served_again()


def test_who_sends_and_does_not_read_is_not_read_from(
    lookupd: Daemon, healthy: HealthyDaemon
) -> None:
    before = memory_bytes(lookupd)
    limit = 200_000_000
    with LookupPeer(lookupd.tcp_address, receive_buffer=4096) as peer:
        peer.send(IDENTIFIED)
        assert peer.flood(PING * 10_000, limit) < limit
        assert memory_bytes(lookupd) - before < 20_000_000
        healthy.served_again()
    healthy.served_again()


def test_many_that_say_nothing(lookupd: Daemon, healthy: HealthyDaemon) -> None:
    peers = [LookupPeer(lookupd.tcp_address) for _ in range(300)]
    healthy.served_again()
    for peer in peers:
        peer.close()
    healthy.served_again()


# --- bad input at the HTTP port ---


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\0\xff\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET /lookup?topic=%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /lookup?topic=\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"POST /topic/create HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400),
        (b"BREW /lookup HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"PUT /lookup HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    ],
)
def test_a_bad_request(lookupd: Daemon, healthy: HealthyDaemon, data: bytes, status: int) -> None:
    with Peer(lookupd.http_address) as peer:
        peer.send(data)
        assert peer.http_answer().split(b" ")[1] == str(status).encode()
    healthy.served_again()


def test_what_a_peer_says_of_itself_cannot_spoil_the_answers(
    lookupd: Daemon, healthy: HealthyDaemon
) -> None:
    body = b'{"broadcast_address":"<\\ud800\\n","tcp_port":1,"http_port":-2,"version":"\xff"}'
    with LookupPeer(lookupd.tcp_address) as peer:
        peer.send(MAGIC, b"IDENTIFY\n", number(len(body)), body, register("odd"))
        assert peer.reply()
        assert peer.reply() == b"OK"
        (node,) = lookupd.request("/lookup?topic=odd").json["producers"]
        assert (node["broadcast_address"], node["version"]) == ("<\ufffd\n", "\ufffd")
    healthy.served_again()
    assert "internal error" not in lookupd.log
