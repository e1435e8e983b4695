"""Replies made of files: whole, in part, encrypted, and to those who do not want them after all."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nsqpy.net.http import FileReply, HTTPServer, Reply, Request, Route
from nsqpy.net.sendfile import FilePart
from tests.certificates import Certificates

SIZE = 3_000_000
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
REQUEST = b"GET /file HTTP/1.1\r\nHost: a\r\n\r\n"


class Files:
    """A server whose one reply is two files."""

    def __init__(self, directory: Path) -> None:
        self.content = os.urandom(SIZE) * 4
        self.sent: list[tuple[int, int]] = []
        self.parts: list[FilePart] = []
        for index in range(2):
            path = directory / f"part{index}"
            path.write_bytes(b"before" + self.content[index * 2 * SIZE :][: 2 * SIZE])
            self.parts.append(FilePart(str(path), len("before"), 2 * SIZE))
        self.server = HTTPServer({"/file": {"GET": Route(self._reply)}}, lambda *_: None)

    async def _reply(self, request: Request) -> Reply:
        return FileReply(self.parts, request.range, lambda *sent: self.sent.append(sent))

    def open_count(self) -> int:
        """How many descriptors this process has for the files."""
        count = 0
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # that of the list itself
                count += str(descriptor.readlink()) in {part.path for part in self.parts}
        return count

    async def wait_closed(self) -> None:
        async with asyncio.timeout(10):
            while self.open_count() or self.server.connection_count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[Files]:
    files = Files(tmp_path)
    yield files
    await files.server.stop()
    assert files.open_count() == 0


@pytest.fixture(params=["clear", "tls"])
async def connection(
    files: Files, request: pytest.FixtureRequest, certificates: Certificates
) -> AsyncIterator[Streams]:
    server_tls = client_tls = None
    if request.param == "tls":
        server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_tls.load_cert_chain(certificates.server.cert, certificates.server.key)
        client_tls = certificates.context()
    host, port = await files.server.listen("127.0.0.1", 0, server_tls)
    name = "localhost" if client_tls else None
    opened = await asyncio.open_connection(host, port, ssl=client_tls, server_hostname=name)
    yield opened
    opened[1].close()
    with contextlib.suppress(OSError):
        await opened[1].wait_closed()


@pytest.mark.slow
async def test_they_arrive_as_they_are(files: Files, connection: Streams) -> None:
    reader, writer = connection
    ranged = REQUEST[:-2] + b"Range: bytes=%d-%d\r\n\r\n" % (SIZE, 3 * SIZE - 1)
    writer.write(REQUEST + ranged)
    async with asyncio.timeout(30):
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert await reader.readexactly(4 * SIZE) == files.content
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 206 ")
        assert await reader.readexactly(2 * SIZE) == files.content[SIZE : 3 * SIZE]
        while len(files.sent) < 2:  # noqa: ASYNC110 - told behind the last byte
            await asyncio.sleep(0)
    assert files.sent == [(0, 4 * SIZE), (SIZE, 2 * SIZE)]


@pytest.mark.parametrize("orderly", [True, False])
async def test_a_reader_that_goes_away_leaves_nothing_open(
    files: Files, connection: Streams, orderly: bool
) -> None:
    reader, writer = connection
    writer.write(REQUEST * 3)
    async with asyncio.timeout(10):
        await reader.readexactly(100)
    if orderly:
        writer.close()
    else:
        writer.transport.abort()
    await files.wait_closed()
    assert files.sent == []


async def test_one_that_takes_nothing_is_cut_off(
    files: Files, connection: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsqpy.net.sendfile._STALLED_S", 0.05)
    connection[1].write(REQUEST)  # and no more than the buffers take is read
    await files.wait_closed()
    assert files.sent == []
