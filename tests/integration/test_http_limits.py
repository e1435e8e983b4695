"""HTTP clients that are too many, or too slow to say what they want."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from nsqpy.net.http import HTTPServer, Reply, Request, Route, text_reply
from nsqpy.net.limits import ConnectionLimit
from tests.integration.http_exchange import HTTPConnection

LARGE = b"x" * (8 << 20)


async def echo(request: Request) -> Reply:
    return text_reply(await request.body(1000, "TOO_BIG"))


async def large(request: Request) -> Reply:
    return text_reply(LARGE)


@pytest.fixture
async def server() -> AsyncIterator[HTTPServer]:
    routes = {"/echo": {"POST": Route(echo), "GET": Route(echo)}, "/large": {"GET": Route(large)}}
    server = HTTPServer(routes, lambda *_: None, ConnectionLimit("HTTP", 2))
    yield server
    await server.stop(0.1)


@pytest.fixture
async def address(server: HTTPServer) -> str:
    host, port = await server.listen("127.0.0.1", 0)
    return f"{host}:{port}"


def after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


@pytest.mark.parametrize("begun", [b"", b"G", b"GET /echo HTTP/1.1\r\nHost: x\r\n", b"\r\n"])
async def test_a_request_has_to_begin_within_half_a_minute(
    server: HTTPServer, address: str, begun: bytes
) -> None:
    slow = await HTTPConnection.open(address)
    slow.send(begun)
    other = await HTTPConnection.open(address)
    assert (await other.ask("GET", "/echo")).status == 200
    server.sweep(after(29))
    assert server.connection_count == 2
    server.sweep(after(31))
    assert await slow.closed()
    # One that asked something may wait for ever before it asks again.
    server.sweep(after(3600))
    assert (await other.ask("GET", "/echo")).status == 200
    for connection in (slow, other):
        await connection.close()


async def test_the_second_request_too(server: HTTPServer, address: str) -> None:
    connection = await HTTPConnection.open(address)
    assert (await connection.ask("GET", "/echo")).status == 200
    connection.send(b"GET /echo HTTP/1.1\r\n")
    async with asyncio.timeout(10):
        while server.connection_count:
            await asyncio.sleep(0)
            server.sweep(after(31))
    assert await connection.closed()
    await connection.close()


async def test_a_body_has_to_come_in_time(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqpy.net.http.requests._BODY_MAX_S", 0.05)
    connection = await HTTPConnection.open(address)
    connection.send(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
    answer = await connection.answer()
    assert (answer.status, json.loads(answer.body)) == (408, {"message": "REQUEST_TIMEOUT"})
    assert await connection.closed()
    await connection.close()


async def test_a_reply_has_to_be_read_in_time(
    server: HTTPServer, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqpy.net.http.server._REPLY_MAX_S", 0.05)
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(10):
        await reader.readexactly(1)
        while server.connection_count:  # noqa: ASYNC110 - nobody tells that it is cut off
            await asyncio.sleep(0.01)
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_no_more_connections_than_allowed(server: HTTPServer, address: str) -> None:
    first, second = [await HTTPConnection.open(address) for _ in range(2)]
    for connection in (first, second):
        assert (await connection.ask("GET", "/echo")).status == 200
    third = await HTTPConnection.open(address)
    answer = await third.answer()
    assert (answer.status, json.loads(answer.body)) == (503, {"message": "TOO_MANY_CONNECTIONS"})
    assert await third.closed()
    await first.close()
    async with asyncio.timeout(10):
        while server.connection_count > 1:  # noqa: ASYNC110 - nobody tells that it is gone
            await asyncio.sleep(0.01)
    again = await HTTPConnection.open(address)
    assert (await again.ask("GET", "/echo")).status == 200
    assert server.limit is not None
    assert server.limit.refused == {"max_connections": 1}
    for connection in (second, third, again):
        await connection.close()


async def test_refusals_are_counted_by_code(server: HTTPServer, address: str) -> None:
    connection = await HTTPConnection.open(address)
    assert (await connection.ask("POST", "/echo", b"x" * 1001)).status == 413
    assert server.errors == {"TOO_BIG": 1}
    await connection.close()
