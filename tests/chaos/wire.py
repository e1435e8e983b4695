"""Connections to the daemon, as thin as they can be: what was answered is what counts."""

import asyncio
import json
import struct
from typing import NamedTuple, Self

from nsqpy.protocol import requests
from tests.chaos.target import ChaosError

__all__ = ["ANSWER_SECONDS", "Answer", "HTTPConnection", "TCPConnection"]

ANSWER_SECONDS = 15.0
_HOST = "127.0.0.1"
_FRAME = struct.Struct(">ii")


class Answer(NamedTuple):
    """Whether it is OK, and the text: an error's code, or a status line and ``body``."""

    ok: bool
    text: str
    body: bytes = b""


class _Connection:
    """A stream, of which everything is bounded in time: a daemon that stands still is a failure.

    All calls raise OSError or EOFError when the daemon is gone.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int) -> Self:
        async with asyncio.timeout(ANSWER_SECONDS):
            connection = cls(*await asyncio.open_connection(_HOST, port))
        try:
            await connection.greet()
        except BaseException:
            connection.close()
            raise
        return connection

    async def greet(self) -> None:
        """What is to be said first."""

    async def answer(self) -> Answer:
        """The next answer.

        Raises:
            ChaosError: none came in time.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._answer()
        except TimeoutError as error:
            raise ChaosError(f"no answer within {ANSWER_SECONDS:g} s") from error

    async def call(self, request: bytes) -> Answer:
        self.writer.write(request)
        return await self.answer()

    def close(self) -> None:
        self.writer.close()

    async def _answer(self) -> Answer:
        raise NotImplementedError


class TCPConnection(_Connection):
    """V2 of the protocol, without heartbeats: for publishers."""

    async def greet(self) -> None:
        greeting = {"client_id": "chaos", "heartbeat_interval": -1}
        answer = await self.call(requests.MAGIC + requests.identify(greeting))
        if not answer.ok:
            raise ChaosError(f"IDENTIFY: {answer.text}")

    async def _answer(self) -> Answer:
        size, kind = _FRAME.unpack(await self.reader.readexactly(_FRAME.size))
        data = await self.reader.readexactly(size - 4)
        return Answer(kind == 0 and data == b"OK", data.decode(errors="replace"))


class HTTPConnection(_Connection):
    """HTTP/1.1, kept open."""

    async def post(self, path: str, body: bytes = b"") -> Answer:
        self.writer.write(http_post(path, body))
        return await self.answer()

    async def get(self, path: str) -> Answer:
        return await self.call(f"GET {path} HTTP/1.1\r\nHost: {_HOST}\r\n\r\n".encode())

    async def stats(self) -> dict[str, object]:
        text = (await self.get("/stats?format=json")).text
        return dict(json.loads(text.partition("\n")[2]))

    async def _answer(self) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, *fields = head.rstrip().split("\r\n")
        lengths = [
            int(value)
            for name, _, value in (line.partition(":") for line in fields)
            if name.lower() == "content-length"
        ]
        body = await self.reader.readexactly(lengths[0] if lengths else 0)
        text = f"{status}\n{body.decode(errors='replace')}"
        return Answer(status.split()[1] == "200", text, body)


def http_post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {_HOST}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body
