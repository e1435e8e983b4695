"""A few lines of HTTP over a stream, so that tests see and say every byte."""

import asyncio
from dataclasses import dataclass
from typing import Self

__all__ = ["Answer", "HTTPConnection"]

_DEADLINE_S = 10


@dataclass(frozen=True, slots=True)
class Answer:
    """Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class HTTPConnection:
    """One connection; every wait has a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: str) -> Self:
        """``host:port``, or the path of a Unix socket."""
        host, colon, port = address.rpartition(":")
        if not colon:
            return cls(*await asyncio.open_unix_connection(address))
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, method: str, target: str, body: bytes = b"", *headers: str) -> Answer:
        lines = [f"{method} {target} HTTP/1.1", "Host: test", *headers]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return await self.answer(with_body=method != "HEAD")

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def end(self) -> None:
        """Send no more, and go on reading."""
        self._writer.write_eof()

    async def answer(self, *, with_body: bool = True) -> Answer:
        async with asyncio.timeout(_DEADLINE_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head[:-4].split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            length = int(headers.get("content-length", "0")) if with_body else 0
            return Answer(int(first.split()[1]), headers, await self._reader.readexactly(length))

    async def closed(self) -> bool:
        """Whether the server ends the connection, nothing more being sent."""
        async with asyncio.timeout(_DEADLINE_S):
            return await self._reader.read() == b""

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()
