"""What every daemon's HTTP listener does, whatever its routes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsqpy.net.http import OK, HTTPServer, Reply, Request, Route, text_reply
from tests.integration.http_exchange import HTTPConnection

MAX_BYTES = 1000
LARGE = text_reply(b"x" * 1_000_000)


class Service:
    """A server with a few routes, and what it was asked."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, str, str, str]] = []
        self.waiting = asyncio.Event()
        self.answered = 0
        self.server = HTTPServer(
            {
                "/echo": {"POST": Route(self._echo)},
                "/quiet": {"GET": Route(self._quiet, logged=False)},
                "/large": {"GET": Route(self._large, logged=False)},
                "/wait": {"GET": Route(self._wait)},
                "/fail": {"GET": Route(self._fail)},
            },
            self._on_request,
        )
        self.address = ""

    async def _echo(self, request: Request) -> Reply:
        return text_reply(await request.body(MAX_BYTES, "BODY_TOO_BIG"))

    async def _quiet(self, request: Request) -> Reply:
        return OK

    async def _large(self, request: Request) -> Reply:
        self.answered += 1
        return LARGE

    async def _wait(self, request: Request) -> Reply:
        self.waiting.set()
        await asyncio.Event().wait()
        return OK

    async def _fail(self, request: Request) -> Reply:
        raise RuntimeError("a bug")

    def _on_request(self, request: Request, status: int, elapsed_ns: int) -> None:
        assert elapsed_ns > 0
        self.logged.append((status, request.method, request.target, request.peer))


@pytest.fixture(params=["tcp", "unix"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Service]:
    service = Service()
    if request.param == "unix":
        service.address = str(tmp_path / "http.sock")
        await service.server.listen_unix(Path(service.address))
    else:
        host, port = await service.server.listen("127.0.0.1", 0)
        service.address = f"{host}:{port}"
    yield service
    await service.server.stop()


@pytest.fixture
async def http(service: Service) -> AsyncIterator[HTTPConnection]:
    connection = await HTTPConnection.open(service.address)
    yield connection
    with contextlib.suppress(ConnectionError):
        await connection.close()


class TestBodies:
    @pytest.mark.parametrize("size", [0, 1, MAX_BYTES])
    async def test_up_to_the_limit_is_read(self, http: HTTPConnection, size: int) -> None:
        answer = await http.ask("POST", "/echo", b"x" * size)
        assert (answer.status, answer.body) == (200, b"x" * size)

    async def test_an_announced_length_over_the_limit_is_refused_unread(
        self, http: HTTPConnection
    ) -> None:
        http.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n")
        answer = await http.answer()
        assert (answer.status, answer.body) == (413, b'{"message":"BODY_TOO_BIG"}')
        assert answer.headers["connection"] == "close"

    @pytest.mark.parametrize(("size", "status"), [(MAX_BYTES, 200), (MAX_BYTES + 1, 413)])
    async def test_chunks_are_read_to_the_limit(
        self, http: HTTPConnection, size: int, status: int
    ) -> None:
        http.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        http.send(b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"x" * size))
        answer = await http.answer()
        assert answer.status == status
        assert (answer.headers.get("connection") == "close") == (status == 413)

    async def test_endless_chunks_are_not_collected(self, http: HTTPConnection) -> None:
        http.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            http.send(b"fff\r\n" + b"x" * 4095 + b"\r\n")
        assert (await http.answer()).status == 413

    async def test_bad_chunks_are_the_client_s_fault(self, http: HTTPConnection) -> None:
        http.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert (await http.answer()).status == 400

    async def test_a_client_that_asks_is_told_to_go_on(self, http: HTTPConnection) -> None:
        http.send(
            b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        )
        assert (await http.answer()).status == 100
        http.send(b"abc")
        assert (await http.answer()).body == b"abc"

    async def test_compressed_bodies_are_left_as_they_are(self, http: HTTPConnection) -> None:
        answer = await http.ask("POST", "/echo", b"not gzip", "Content-Encoding: gzip")
        assert (answer.status, answer.body) == (200, b"not gzip")

    async def test_a_peer_that_leaves_in_the_middle_does_no_harm(
        self, http: HTTPConnection, service: Service
    ) -> None:
        http.send(b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab")
        await http.close()
        other = await HTTPConnection.open(service.address)
        assert (await other.ask("GET", "/quiet")).status == 200
        await other.close()


class TestConnections:
    async def test_requests_may_be_pipelined(self, http: HTTPConnection) -> None:
        http.send(b"GET /quiet HTTP/1.1\r\nHost: a\r\n\r\n" * 50)
        assert [(await http.answer()).status for _ in range(50)] == [200] * 50

    @pytest.mark.parametrize("count", [1, 3, 50])
    async def test_a_client_that_ends_its_side_gets_its_replies(
        self, http: HTTPConnection, service: Service, count: int
    ) -> None:
        echo = b"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
        http.send(echo * count + b"GET /quiet HTTP/1.1\r\nHost:")  # the last is not complete
        http.end()
        for _ in range(count):
            assert (await http.answer()).body == b"abc"
        assert await http.closed()
        async with asyncio.timeout(10):
            while service.server.connection_count:  # noqa: ASYNC110 - nobody tells that it is gone
                await asyncio.sleep(0.01)

    async def test_one_that_ends_its_side_while_it_reads_is_not_kept(
        self, http: HTTPConnection, service: Service
    ) -> None:
        http.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        other = await HTTPConnection.open(service.address)
        while not service.answered:
            assert (await other.ask("GET", "/quiet")).status == 200
        http.end()
        assert len((await http.answer()).body) == len(LARGE.body)
        assert await http.closed()
        await other.close()

    @pytest.mark.parametrize(
        "request_head", [b"HTTP/1.0\r\n", b"HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"]
    )
    async def test_end_when_the_client_says_so(
        self, http: HTTPConnection, request_head: bytes
    ) -> None:
        http.send(b"GET /quiet " + request_head + b"\r\n")
        assert (await http.answer()).body == b"OK"
        assert await http.closed()

    async def test_http_1_0_may_keep_alive(self, http: HTTPConnection) -> None:
        for _ in range(2):
            http.send(b"GET /quiet HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert (await http.answer()).headers["connection"] == "keep-alive"

    async def test_a_client_that_never_reads_is_not_answered_for_ever(
        self, http: HTTPConnection, service: Service
    ) -> None:
        asked = 200
        http.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n" * asked)
        other = await HTTPConnection.open(service.address)
        answered = -1
        while answered != service.answered:  # until the server has nothing more to do for it
            answered = service.answered
            for _ in range(10):
                assert (await other.ask("GET", "/quiet")).status == 200
        assert 0 < answered < asked
        await other.close()

    @pytest.mark.parametrize(
        "junk",
        [b"  V2", b"\x00\x01\x02\x03\r\n\r\n", b"GET /quiet\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"],
    )
    async def test_what_is_no_http_gets_plain_text(self, http: HTTPConnection, junk: bytes) -> None:
        http.send(junk + b"SUB a b\nRDY 1\n")
        answer = await http.answer()
        assert answer.status == 400
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.body == b"400 Bad Request"
        assert await http.closed()

    async def test_a_head_without_end_is_refused(self, http: HTTPConnection) -> None:
        http.send(b"GET /quiet HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000)
        assert (await http.answer()).status == 400

    async def test_a_host_is_required(self, http: HTTPConnection) -> None:
        http.send(b"GET /quiet HTTP/1.1\r\n\r\n")
        assert (await http.answer()).status == 400

    async def test_an_absolute_target_means_its_path(self, http: HTTPConnection) -> None:
        assert (await http.ask("GET", "http://other:1/quiet")).body == b"OK"

    async def test_replies_have_a_date_and_no_server(self, http: HTTPConnection) -> None:
        answer = await http.ask("GET", "/quiet")
        assert answer.headers["date"].endswith(" gmt")
        assert "server" not in answer.headers

    async def test_stopping_ends_what_goes_on(self, http: HTTPConnection, service: Service) -> None:
        http.send(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
        await service.waiting.wait()
        await service.server.stop(grace_s=0.01)
        assert await http.closed()
        with pytest.raises(OSError, match=r"[Cc]onnect|No such file"):
            await HTTPConnection.open(service.address)


class TestLog:
    async def test_hears_of_routes_that_are_logged_and_of_refusals(
        self, http: HTTPConnection, service: Service
    ) -> None:
        for method, target in (
            *(("POST", "/echo?a=%zz"), ("GET", "/quiet?x=1"), ("GET", "/nope"), ("PUT", "/quiet")),
        ):
            await http.ask(method, target)
        assert [entry[:3] for entry in service.logged] == [
            *((200, "POST", "/echo?a=%zz"), (404, "GET", "/nope"), (405, "PUT", "/quiet")),
        ]
        peers = {entry[3] for entry in service.logged}
        assert peers == {"@"} or all(peer.startswith("127.0.0.1:") for peer in peers)

    async def test_a_bug_is_an_internal_error_and_logged(
        self, http: HTTPConnection, service: Service, caplog: pytest.LogCaptureFixture
    ) -> None:
        answer = await http.ask("GET", "/fail")
        assert (answer.status, answer.body) == (500, b'{"message":"INTERNAL_ERROR"}')
        assert "a bug" in caplog.text
        assert (await http.ask("GET", "/quiet")).status == 200


async def test_a_socket_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "http.sock"
    first, second = Service(), Service()
    await first.server.listen_unix(path)
    with pytest.raises(OSError, match="in use"):
        await second.server.listen_unix(path)
    await second.server.stop()
    assert path.exists()
    await first.server.stop()
    assert not path.exists()
