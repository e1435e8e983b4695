"""AUTH servers over real HTTP: what they are asked, and what becomes of their answers."""

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import trustme

from nsqpy.clock import SECOND, SystemClock
from nsqpy.config import NsqdConfig
from nsqpy.core.auth import Applicant, Grant
from nsqpy.daemon.auth import AuthServers, Gatekeeper
from nsqpy.net.http import HTTPServer, Reply, Request, Route
from nsqpy.net.tls import ClientTLS
from nsqpy.tokens import hash_token, parse_tokens

SECRET = b"s3cr/t+ &=\xff"
GOOD = json.dumps({"ttl": 1, "authorizations": [{"permissions": [], "topic": "", "channels": []}]})
JOE = Applicant(SECRET, "10.0.0.1", tls=True, common_name="joe")


class FakeServer:
    """Answers ``/auth`` with ``status`` and ``body``, and remembers what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.body = GOOD.encode()
        self.asked: list[tuple[str, str, bytes]] = []
        self.headers: list[tuple[str, str]] = []
        self.address = ""
        self.port = 0
        routes = {"/auth": {"GET": Route(self._answer), "POST": Route(self._answer)}}
        self._server = HTTPServer(routes, lambda *_: None)

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        host, self.port = await self._server.listen("127.0.0.1", 0, tls)
        self.address = f"{host}:{self.port}"

    async def stop(self) -> None:
        await self._server.stop()

    async def _answer(self, request: Request) -> Reply:
        body = await request.body(10_000, "TOO_BIG")
        self.asked.append((request.method, request.target, body))
        self.headers.append((request.header("Accept"), request.header("Content-Type")))
        return Reply(self.status, self.body)


@pytest.fixture
async def servers() -> AsyncIterator[list[FakeServer]]:
    servers = [FakeServer(), FakeServer()]
    for server in servers:
        await server.start()
    yield servers
    for server in servers:
        await server.stop()


async def ask(
    config: NsqdConfig,
    *addresses: str,
    applicant: Applicant = JOE,
    tls: ssl.SSLContext | None = None,
) -> Grant | None:
    asker = AuthServers(addresses, config, SystemClock(), Random(0), tls)
    answer: asyncio.Future[Grant | None] = asyncio.get_running_loop().create_future()
    asker.ask(applicant, lambda grant, _: answer.set_result(grant))
    try:
        async with asyncio.timeout(10):
            return await answer
    finally:
        await asker.stop()


async def test_get(servers: list[FakeServer]) -> None:
    server = servers[0]
    assert await ask(NsqdConfig(), server.address) is not None
    query = "common_name=joe&remote_ip=10.0.0.1&secret=s3cr%2Ft%2B+%26%3D%FF&tls=true"
    assert server.asked == [("GET", f"/auth?{query}", b"")]
    assert server.headers == [("application/vnd.nsq; version=1.0", "")]


async def test_post(servers: list[FakeServer]) -> None:
    server = servers[0]
    config = NsqdConfig(auth_http_request_method="post")
    assert await ask(config, server.address, applicant=Applicant(b"x", "127.0.0.1")) is not None
    body = b'{"common_name":[""],"remote_ip":["127.0.0.1"],"secret":["x"],"tls":["false"]}'
    assert server.asked == [("POST", "/auth", body)]
    assert server.headers == [("application/vnd.nsq; version=1.0", "application/json")]


async def test_an_address_with_a_scheme_is_the_whole_url(servers: list[FakeServer]) -> None:
    server = servers[0]
    assert await ask(NsqdConfig(), f"http://{server.address}/auth?realm=a") is not None
    assert server.asked[0][1].startswith("/auth?realm=a&common_name=joe&")


async def test_the_next_one_is_asked_when_one_fails(servers: list[FakeServer]) -> None:
    servers[0].status = 500
    servers[1].body = b"no json"
    assert await ask(NsqdConfig(), *(server.address for server in servers)) is None
    assert [len(server.asked) for server in servers] == [1, 1]
    servers[1].body = GOOD.encode()
    for _ in range(3):
        assert await ask(NsqdConfig(), *(server.address for server in servers)) is not None


@pytest.mark.parametrize("status", [201, 204, 400, 401, 403, 404, 500])
async def test_only_200_is_an_answer(servers: list[FakeServer], status: int) -> None:
    servers[0].status = status
    assert await ask(NsqdConfig(), servers[0].address) is None


async def test_nobody_there(unused_tcp_port: int) -> None:
    assert await ask(NsqdConfig(), f"127.0.0.1:{unused_tcp_port}") is None


async def test_an_answer_that_does_not_come_and_one_that_does_not_end(
    servers: list[FakeServer],
) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        config = NsqdConfig(http_client_request_timeout_ns=SECOND // 10)
        assert await ask(config, f"{host}:{port}") is None
    finally:
        server.close()
    servers[0].body = GOOD.encode() + b" " * 2_000_000
    assert await ask(NsqdConfig(), servers[0].address) is None


async def test_a_server_that_wants_tls_is_asked_over_https(
    servers: list[FakeServer], tmp_path: Path
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_tls)
    secure = FakeServer()
    await secure.start(server_tls)
    servers[0].status = 403
    servers[0].body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % secure.port
    known = ClientTLS(root_ca_file=str(tmp_path / "ca.pem")).context()
    assert await ask(NsqdConfig(), servers[0].address, tls=known) is not None
    assert await ask(NsqdConfig(), f"https://{secure.address}/auth", tls=known) is not None
    assert len(secure.asked) == 2
    # Without the authority it might be anybody: nothing is sent.
    assert await ask(NsqdConfig(), servers[0].address) is None
    assert len(secure.asked) == 2
    await secure.stop()


async def test_no_secret_reaches_the_log(
    servers: list[FakeServer], unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = Applicant(b"UNSPEAKABLE", "10.0.0.1")
    broken = ["http://[::bad/", "http://u:UNSPEAKABLE@127.0.0.1:1/", "gopher://x/", "http://"]
    for address in (f"127.0.0.1:{unused_tcp_port}", servers[0].address, *broken):
        for status, body in ((500, b""), (200, b"{"), (302, b""), (200, b"{}")):
            servers[0].status, servers[0].body = status, body
            assert await ask(NsqdConfig(), address, applicant=secret) is None
    assert "failed" in caplog.text
    assert "UNSPEAKABLE" not in caplog.text


async def test_tokens_come_before_servers(servers: list[FakeServer]) -> None:
    clock = SystemClock()
    asker = AuthServers([servers[0].address], NsqdConfig(), clock, Random(0))
    book = parse_tokens(f"me {hash_token(b'known')} publish >")
    gatekeeper = Gatekeeper(clock, book, asker)
    known: list[Grant | None] = []
    gatekeeper.ask(Applicant(b"known", ""), lambda grant, _: known.append(grant))
    assert known[0] is not None
    assert known[0].identity == "me"
    answer: asyncio.Future[Grant | None] = asyncio.get_running_loop().create_future()
    gatekeeper.ask(Applicant(b"x", ""), lambda grant, _: answer.set_result(grant))
    async with asyncio.timeout(10):
        assert await answer is not None
    await asker.stop()
    assert len(servers[0].asked) == 1
    refused: list[Grant | None] = []
    Gatekeeper(clock, book).ask(Applicant(b"x", ""), lambda grant, _: refused.append(grant))
    assert refused == [None]
