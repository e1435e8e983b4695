"""The daemon on Unix sockets: what clients and operators see there, and whose file it is."""

import http.client
import json
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import Daemon, Reply, wait_until

pytestmark = pytest.mark.slow


class _UnixHTTP(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = connected(self._path)


class UnixDaemon(Daemon):
    """The daemon with both listeners on sockets of its data directory."""

    def __init__(self, data_path: Path, *flags: str) -> None:
        self.tcp_path = data_path / "tcp.sock"
        self.http_path = data_path / "http.sock"
        addresses = (f"--tcp-address={self.tcp_path}", f"--http-address={self.http_path}")
        super().__init__(data_path, *addresses, *flags)

    def request(
        self, path: str, body: bytes | None = None, method: str = "", seconds: float = 10.0
    ) -> Reply:
        connection = _UnixHTTP(self.http_path)
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, body)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.headers), answer.read())
        finally:
            connection.close()


def connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(os.fspath(path))
    return sock


def read_frame(sock: socket.socket) -> tuple[int, bytes]:
    """One frame's type and data."""
    size, kind = struct.unpack(">Ii", read_exactly(sock, 8))
    return kind, read_exactly(sock, size - 4)


def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        got = sock.recv(size - len(data))
        assert got, f"closed by the daemon after {data!r}"
        data += got
    return data


def bound_file(path: Path) -> None:
    """A socket's file that nobody listens to, as a killed daemon leaves it."""
    left = socket.socket(socket.AF_UNIX)
    left.bind(os.fspath(path))
    left.close()


@pytest.fixture
def unix_nsqd(tmp_path: Path) -> Iterator[UnixDaemon]:
    with UnixDaemon(tmp_path) as daemon:
        yield daemon


def test_messages_go_through(unix_nsqd: UnixDaemon) -> None:
    unix_nsqd.publish("t", b"hello")
    with connected(unix_nsqd.tcp_path) as consumer:
        consumer.sendall(b"  V2SUB t ch\nRDY 1\n")
        assert read_frame(consumer) == (0, b"OK")
        kind, data = read_frame(consumer)
        assert (kind, data[26:]) == (2, b"hello")
        consumer.sendall(b"FIN " + data[10:26] + b"\n")
        unix_nsqd.wait_channel("t", "ch", depth=0, in_flight_count=0)


def test_what_it_says_of_itself(unix_nsqd: UnixDaemon) -> None:
    info = unix_nsqd.request("/info").json
    assert (info["tcp_port"], info["http_port"]) == (-1, -1)
    for name in ("broadcast_tcp_port", "broadcast_http_port"):
        assert unix_nsqd.request(f"/config/{name}").text == "0"
    log = unix_nsqd.log
    assert f"TCP: listening on {unix_nsqd.tcp_path}\n" in log
    assert f"HTTP: listening on {unix_nsqd.http_path}\n" in log


def test_a_peer_has_no_address(unix_nsqd: UnixDaemon) -> None:
    with connected(unix_nsqd.tcp_path) as consumer:
        consumer.sendall(b"  V2SUB t ch\n")
        assert read_frame(consumer) == (0, b"OK")
        (client,) = unix_nsqd.channel_stats("t", "ch")["clients"]
    named = (client["client_id"], client["hostname"], client["remote_address"])
    assert named == ("", "", "@")
    assert "TCP: new client(@)\n" in unix_nsqd.log
    assert re.search(r"200 GET /stats\?format=json&topic=t \(@\) ", unix_nsqd.log)


def test_the_files_go_with_a_clean_exit(unix_nsqd: UnixDaemon) -> None:
    assert unix_nsqd.tcp_path.is_socket()
    assert unix_nsqd.http_path.is_socket()
    assert unix_nsqd.terminate() == 0
    assert not unix_nsqd.tcp_path.exists()
    assert not unix_nsqd.http_path.exists()
    assert f"TCP: closing {unix_nsqd.tcp_path}\n" in unix_nsqd.log
    assert f"HTTP: closing {unix_nsqd.http_path}\n" in unix_nsqd.log
    unix_nsqd.start()
    assert unix_nsqd.request("/ping").text == "OK"


@pytest.mark.parametrize("listener", ["tcp", "http"])
def test_a_file_that_is_there_already_is_not_taken(tmp_path: Path, listener: str) -> None:
    daemon = UnixDaemon(tmp_path)
    path = {"tcp": daemon.tcp_path, "http": daemon.http_path}[listener]
    bound_file(path)
    with pytest.raises(AssertionError, match="the daemon ended with 1"):
        daemon.start()
    assert (
        f"FATAL: failed to instantiate nsqd - listen ({path}) failed - "
        f"listen unix {path}: bind: address already in use\n"
    ) in daemon.log
    assert path.is_socket()
    assert not (tmp_path / "tcp.sock").is_socket() or listener == "tcp"


def test_a_killed_daemon_leaves_its_files(unix_nsqd: UnixDaemon) -> None:
    unix_nsqd.kill()
    with pytest.raises(AssertionError, match="the daemon ended with 1"):
        unix_nsqd.start()
    assert "bind: address already in use" in unix_nsqd.log
    unix_nsqd.tcp_path.unlink()
    unix_nsqd.http_path.unlink()
    unix_nsqd.start()


class TestTCP:
    """The same on TCP, where there are ports to tell."""

    def test_the_ports_that_others_are_told(self, nsqd: Daemon) -> None:
        info = nsqd.request("/info").json
        ports = [int(address.rpartition(":")[2]) for address in self._addresses(nsqd)]
        assert [info["tcp_port"], info["http_port"]] == ports
        assert self._broadcast(nsqd) == ports
        assert nsqd.request("/config/log_level", b"debug", "PUT").status == 200
        assert self._broadcast(nsqd) == ports

    def test_told_ports_are_told_on(self, tmp_path: Path) -> None:
        with Daemon(tmp_path, "--broadcast-tcp-port=1", "--broadcast-http-port=2") as daemon:
            assert self._broadcast(daemon) == [1, 2]

    def test_the_address_that_was_listened_on_is_closed(self, nsqd: Daemon) -> None:
        assert nsqd.terminate() == 0
        tcp, http_ = self._addresses(nsqd)
        assert f"TCP: closing {tcp}\n" in nsqd.log
        assert f"HTTP: closing {http_}\n" in nsqd.log

    def test_an_address_in_use(self, tmp_path: Path, nsqd: Daemon) -> None:
        (other := tmp_path / "other").mkdir()
        with pytest.raises(AssertionError) as refused:
            Daemon(other, f"--tcp-address={nsqd.tcp_address}").start()
        assert (
            f"listen ({nsqd.tcp_address}) failed - "
            f"listen tcp {nsqd.tcp_address}: bind: address already in use\n"
        ) in str(refused.value)

    def test_accepted_sockets_have_keep_alive(self, nsqd: Daemon) -> None:
        host, port = nsqd.tcp_address.split(":")
        with socket.create_connection((host, int(port))) as client:
            peer = client.getsockname()
            wait_until(lambda: f"new client({host}:{peer[1]})" in nsqd.log, "the connection")
            assert keep_alive_runs(*peer)

    @staticmethod
    def _addresses(nsqd: Daemon) -> tuple[str, str]:
        return nsqd.tcp_address, nsqd.http_address

    @staticmethod
    def _broadcast(nsqd: Daemon) -> list[Any]:
        names = ("broadcast_tcp_port", "broadcast_http_port")
        return [json.loads(nsqd.request(f"/config/{name}").body) for name in names]


def keep_alive_runs(peer_host: str, peer_port: int) -> bool:
    """Whether the socket connected to that peer has a keep-alive timer.

    Source: Linux, Documentation/networking/proc_net_tcp.rst.
    """
    address = struct.unpack("=I", socket.inet_aton(peer_host))[0]
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, _, remote, _, _, timer, *_ = line.split()
        if remote == f"{address:08X}:{peer_port:04X}":
            return timer.startswith("02:")
    raise AssertionError("no such connection")
