"""The token file and AUTH servers, at the real daemon."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nsqpy.client.consumer import Consumer
from nsqpy.client.options import client_options
from nsqpy.client.producer import Producer
from nsqpy.errors import NSQError, ServerError
from nsqpy.protocol import requests
from tests.certificates import Certificates
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon
from tests.e2e.peer import MAGIC, Frame, Peer

pytestmark = pytest.mark.slow

OK = Frame(0, b"OK")


def make_token(file: Path, name: str, role: str, topic: str) -> str:
    made = subprocess.run(
        [
            *(sys.executable, "-m", "nsqpy", "token", f"--file={file}"),
            *(f"--name={name}", f"--role={role}", f"--topic={topic}"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stderr == ""
    return made.stdout.strip()


def auth(secret: str) -> bytes:
    return b"AUTH\n" + len(secret).to_bytes(4, "big") + secret.encode()


def test_tokens_from_making_to_revoking(start_nsqd: StartDaemon, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    billing = make_token(file, "billing", "publish,consume", "orders.*")
    scraper = make_token(file, "scraper", "observe", ">")
    assert file.stat().st_mode & 0o777 == 0o600
    assert billing not in file.read_text()
    daemon = start_nsqd(f"--auth-token-file={file}", "--log-level=debug")
    assert "AUTH: 2 tokens in" in daemon.log
    with Peer(daemon.tcp_address) as publisher, Peer(daemon.tcp_address) as consumer:
        for peer in (publisher, consumer):
            peer.send(MAGIC, auth(billing))
            welcome = peer.frame()
            assert welcome is not None
            assert welcome.data == b'{"identity":"billing","identity_url":"","permission_count":1}'
        publisher.send(requests.pub("orders.eu", b"a"))
        assert publisher.frame() == OK
        consumer.send(requests.sub("orders.eu", "c"), requests.rdy(1))
        assert consumer.frame() == OK
        message = consumer.frame()
        assert message is not None
        assert message.data.endswith(b"a")
        with Peer(daemon.tcp_address) as other:
            other.send(MAGIC, auth(billing), requests.pub("flights", b"a"))
            assert [frame.data for frame in other.frames()][1:] == [
                b'E_UNAUTHORIZED AUTH failed for PUB on "flights" ""'
            ]
        with Peer(daemon.tcp_address) as unknown:
            unknown.send(MAGIC, auth("nsqpy_guess"))
            assert unknown.frames() == [Frame(1, b"E_AUTH_FAILED AUTH failed")]
        # A file that cannot be used changes nothing.
        good = file.read_text()
        file.write_text("nonsense\n")
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait(lambda: "the tokens stay as they were" in daemon.log, "the refusal")
        publisher.send(requests.pub("orders.eu", b"b"))
        assert publisher.frame() == OK
        # Without the line, who came with it is cut off, and not let in again.
        file.write_text("".join(f"{line}\n" for line in good.splitlines() if "scraper" in line))
        os.kill(daemon.pid, signal.SIGHUP)
        daemon.wait(lambda: "AUTH: 1 tokens, 2 connections cut" in daemon.log, "the change")
        assert publisher.frames() == []
    with Peer(daemon.tcp_address) as again:
        again.send(MAGIC, auth(billing))
        assert again.frames() == [Frame(1, b"E_AUTH_FAILED AUTH failed")]
    assert daemon.request("/stats").status == 401
    assert daemon.terminate() == 0
    for secret in (billing, scraper, "nsqpy_guess"):
        assert secret not in daemon.log


def test_the_tool_refuses_what_the_daemon_would(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    make_token(file, "a", "publish", ">")
    before = file.read_text()
    for flags in (
        ["--name=a", "--role=publish", "--topic=>"],
        ["--name=b", "--role=root", "--topic=>"],
        ["--name=b", "--role=admin", "--topic=x$"],
        ["--name=b c", "--role=admin", "--topic=>"],
    ):
        made = subprocess.run(
            [sys.executable, "-m", "nsqpy", "token", f"--file={file}", *flags],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 1, flags
        assert made.stdout == ""
        assert made.stderr.startswith("nsqpy token: ")
    assert file.read_text() == before


@pytest.mark.parametrize("content", ["nonsense\n", None])
def test_no_start_without_a_good_token_file(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "tokens"
    if content is not None:
        file.write_text(content)
    daemon = Daemon(tmp_path, f"--auth-token-file={file}")
    with pytest.raises(AssertionError, match="ended with 1"):
        daemon.start()
    assert "FATAL: failed to instantiate nsqd - --auth-token-file: " in daemon.log


def test_a_token_file_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    make_token(file, "a", "publish", ">")
    file.chmod(0o666)
    daemon = Daemon(tmp_path, f"--auth-token-file={file}")
    with pytest.raises(AssertionError, match="ended with 1"):
        daemon.start()
    assert "can be written by every user" in daemon.log


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        (["--tcp-address=0.0.0.0:0"], True),
        (["--http-address=[::]:0"], True),
        ([], False),
    ],
)
def test_an_open_door_is_said_loudly(
    start_nsqd: StartDaemon, flags: list[str], warned: bool
) -> None:
    daemon = start_nsqd(*flags)
    lines = [line for line in daemon.log.splitlines() if "NO AUTHENTICATION" in line]
    assert len(lines) == warned
    assert all("WARNING" in line for line in lines)


async def test_the_client_library(start_nsqd: StartDaemon, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    token = make_token(file, "both", "publish,consume", "t")
    daemon = start_nsqd(f"--auth-token-file={file}")
    async with Producer(daemon.tcp_address, auth_secret=token) as producer:
        await producer.publish("t", b"hello")
        with pytest.raises(ServerError, match='E_UNAUTHORIZED AUTH failed for PUB on "u" ""'):
            await producer.publish("u", b"hello")
    async with Consumer("t", "c", nsqd=daemon.tcp_address, auth_secret=token) as consumer:
        async for message in consumer:
            assert message.body == b"hello"
            break
    for secret, why in (("", "auth required, and no auth_secret is set"), ("x", "E_AUTH_FAILED")):
        with pytest.raises(NSQError, match=why):
            async with Producer(daemon.tcp_address, auth_secret=secret) as producer:
                await producer.publish("t", b"hello")


def test_a_request_that_is_no_http_does_not_show_its_token_in_the_log(
    start_nsqd: StartDaemon, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    token = make_token(file, "admin", "admin", ">")
    daemon = start_nsqd(f"--auth-token-file={file}", "--log-level=debug")
    shown = f"Authorization: Bearer {token}".encode()
    for data in (
        b"GET /stats HTTP/1.1\r\nHost: x\r\n" + shown + b"\0\r\n\r\n",
        b"GET /stats HTTP/1.1\r\nHost: x\r\n" + shown + b"x" * 10_000 + b"\r\n\r\n",
        b"GET /stats HTTP/1.1\r\n" + shown + b"\r\n\r\n",
        shown + b"\r\n\r\n",
    ):
        with Peer(daemon.http_address) as peer:
            peer.send(data)
            assert peer.http_answer().startswith(b"HTTP/1.1 400 ")
    assert daemon.log.count("HTTP: bad request from 127.0.0.1: ") == 4
    assert token.removeprefix("nsqpy_")[:16] not in daemon.log


async def test_over_tls_and_snappy(
    start_nsqd: StartDaemon, certificates: Certificates, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    token = make_token(file, "both", "publish,consume", "t")
    daemon = start_nsqd(
        f"--auth-token-file={file}",
        *certificates.server.flags,
        "--tls-required=tcp-https",
        "--https-address=",
    )
    settings = client_options(
        {
            "tls_v1": True,
            "tls_root_ca_file": str(certificates.ca),
            "snappy": True,
            "auth_secret": token,
        }
    )
    async with Producer(daemon.tcp_address, options=settings) as producer:
        await producer.publish("t", b"hello")
    async with Consumer("t", "c", nsqd=daemon.tcp_address, options=settings) as consumer:
        async for message in consumer:
            assert message.body == b"hello"
            break
    assert token not in daemon.log


def test_the_tools(start_nsqd: StartDaemon, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    token = make_token(file, "both", "publish,consume", "t")
    daemon = start_nsqd(f"--auth-token-file={file}")
    nsqd = f"--nsqd-tcp-address={daemon.tcp_address}"
    for command, output in (
        (["pub", "--topic=t", nsqd, f"--producer-opt=auth_secret,{token}", "hello"], ""),
        (["tail", "--topic=t", "-n=1", nsqd, f"--consumer-opt=auth_secret,{token}"], "hello\n"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "nsqpy", *command],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        assert done.stdout == output
        assert token not in done.stderr


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = (
            b'{"ttl":3600,"identity":"joe","identity_url":"http://joe","authorizations":'
            b'[{"permissions":["subscribe","publish"],"topic":"^t.*$","channels":[".*"]}]}'
        )
        self.send_response(200 if "secret=open" in self.path else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def auth_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_auth_server(start_nsqd: StartDaemon, auth_server: str) -> None:
    daemon = start_nsqd(
        f"--auth-http-address={auth_server}", "--log-level=debug", "--log-format=json"
    )
    with Peer(daemon.tcp_address) as peer:
        # All in one write: what follows AUTH waits for the server's answer.
        peer.send(MAGIC, auth("open sesame"), requests.pub("t", b"a"), requests.sub("t", "c"))
        peer.send(requests.rdy(1))
        welcome = b'{"identity":"joe","identity_url":"http://joe","permission_count":1}'
        assert peer.frame() == Frame(0, welcome)
        assert [peer.frame(), peer.frame()] == [OK, OK]
        message = peer.frame()
        assert message is not None
        assert message.data.endswith(b"a")
        (client,) = daemon.channel_stats("t", "c")["clients"]
        assert (client["authed"], client["auth_identity"]) == (True, "joe")
    with Peer(daemon.tcp_address) as peer:
        peer.send(MAGIC, auth("UNSPEAKABLE"), requests.pub("t", b"a"))
        assert peer.frames() == [Frame(1, b"E_AUTH_FAILED AUTH failed")]
    assert daemon.terminate() == 0
    assert "status 403" in daemon.log
    assert "UNSPEAKABLE" not in daemon.log
    assert "sesame" not in daemon.log


def test_whoever_waits_for_an_auth_server_is_not_read_from(start_nsqd: StartDaemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        daemon = start_nsqd(
            f"--auth-http-address=127.0.0.1:{silent.getsockname()[1]}",
            "--http-client-request-timeout=1500ms",
        )
        with Peer(daemon.tcp_address) as waiting, Peer(daemon.tcp_address) as other:
            # The shortest heartbeats there are: it is not taken for dead meanwhile.
            waiting.send(MAGIC, requests.identify({"heartbeat_interval": 1000}), auth("x"))
            assert waiting.frame() == OK
            sent = waiting.flood(requests.pub("t", b"x" * 1000) * 100, 64 << 20, seconds=1)
            assert sent < 32 << 20  # what sockets take, and one read
            other.send(MAGIC, requests.pub("t", b"a"))
            assert other.frames() == [Frame(1, b"E_AUTH_FIRST AUTH required before PUB")]
            assert waiting.frame() == Frame(1, b"E_AUTH_FAILED AUTH failed")
        daemon.wait(lambda: "no answer within 1.5s" in daemon.log, "the log to say why")
