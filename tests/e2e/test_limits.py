"""Clients that are too many, or too slow to say what they want."""

import http.client
import time
from pathlib import Path

import pytest

from nsqpy.protocol import requests
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon
from tests.e2e.peer import MAGIC, Frame, Peer

pytestmark = pytest.mark.slow

OK = Frame(0, b"OK")


class CrampedDaemon(Daemon):
    """May have few files open, and cannot raise that."""

    def command(self) -> list[str]:
        return ["sh", "-c", 'ulimit -n 160 && exec "$@"', "sh", *super().command()]


def samples(daemon: Daemon) -> dict[str, float]:
    lines = daemon.request("/metrics").text.splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
    }


def test_no_more_clients_than_allowed(start_nsqd: StartDaemon) -> None:
    daemon = start_nsqd("--max-connections=2")
    peers = [Peer(daemon.tcp_address) for _ in range(3)]
    for peer in peers[:2]:
        peer.send(MAGIC, requests.pub("t", b"a"))
        assert peer.frame() == OK
    assert peers[2].frames() == []
    peers[0].close()
    daemon.wait(lambda: samples(daemon)['nsqd_connections{port="TCP"}'] == 1, "one to have left")
    with Peer(daemon.tcp_address) as again:
        again.send(MAGIC, requests.pub("t", b"a"))
        assert again.frame() == OK
    assert samples(daemon)['nsqd_connections_refused_total{port="TCP",reason="max_connections"}']
    assert "TCP: 1 connections refused, there are 2" in daemon.log
    for peer in peers:
        peer.close()


def test_clients_never_take_the_descriptors_of_the_queues(tmp_path: Path) -> None:
    with CrampedDaemon(tmp_path) as daemon, Peer(daemon.tcp_address) as publisher:
        publisher.send(MAGIC)
        crowd = [Peer(daemon.tcp_address) for _ in range(200)]
        daemon.wait(lambda: "the open-file limit is near" in daemon.log, "the crowd to be refused")
        for number in range(5):
            publisher.send(requests.pub(f"t{number}", b"a"))
            assert publisher.frame() == OK
        assert "oo many open files" not in daemon.log
        host, _, port = daemon.http_address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.request("GET", "/ping")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (503, b'{"message":"TOO_MANY_CONNECTIONS"}')
        connection.close()
        for peer in crowd:
            peer.close()
        daemon.wait(lambda: daemon.request("/ping").status == 200, "HTTP to be served again")


def test_a_command_that_comes_byte_by_byte_is_no_sign_of_life(nsqd: Daemon) -> None:
    with Peer(nsqd.tcp_address) as peer:
        peer.send(MAGIC, requests.identify({"heartbeat_interval": 1000}))
        assert peer.frame() == OK
        peer.send(b"PUB t\n\x00\x00\x10\x00")
        started = time.monotonic()
        while not peer.is_closed():
            assert time.monotonic() - started < 20
            try:
                peer.send(b"x")
            except ConnectionError:
                break
            time.sleep(0.1)
    assert "was silent for two heartbeats" in nsqd.log
    assert samples(nsqd)['nsqd_clients_cut_off_total{reason="silent"}'] == 1
