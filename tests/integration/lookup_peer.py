"""A daemon's connection to nsqlookupd, over a stream, for tests that say every byte."""

import asyncio
from typing import TYPE_CHECKING, Self

from nsqpy.protocol.lookup import MAGIC, PeerInfo, ReplyParser, identify

if TYPE_CHECKING:
    from nsqpy.protocol.frames import BadFrame

__all__ = ["LookupPeer"]

_DEADLINE_S = 10


class LookupPeer:
    """One connection; every wait has a deadline."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = ReplyParser()
        self._replies: list[bytes | BadFrame] = []

    @classmethod
    async def open(cls, address: str, start: bytes = MAGIC) -> Self:
        """``start`` is sent at once."""
        host, _, port = address.rpartition(":")
        peer = cls(*await asyncio.open_connection(host, int(port)))
        peer.send(start)
        return peer

    @classmethod
    async def identified(cls, address: str, host: str = "host") -> Self:
        peer = await cls.open(address)
        info = PeerInfo(broadcast_address=host, tcp_port=4150, http_port=4151, version="1.3.0")
        assert b"http_port" in await peer.ask(identify(info))
        return peer

    @property
    def name(self) -> str:
        """Its ``remote_address``, as the server sees it."""
        host, port = self._writer.get_extra_info("sockname")[:2]
        return f"{host}:{port}"

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def end(self) -> None:
        """Nothing more will be sent."""
        self._writer.write_eof()

    async def ask(self, data: bytes) -> bytes:
        self.send(data)
        return await self.reply()

    async def reply(self) -> bytes:
        while not self._replies:
            async with asyncio.timeout(_DEADLINE_S):
                data = await self._reader.read(1 << 16)
            assert data, "closed by the server"
            self._replies = list(self._parser.feed(data))
        reply = self._replies.pop(0)
        assert isinstance(reply, bytes)
        return reply

    async def rest(self) -> bytes:
        """All bytes until the server closes the connection."""
        async with asyncio.timeout(_DEADLINE_S):
            return await self._reader.read()

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()
