"""A scripted nsqd over real sockets: it records what clients say and says what it is told to.

It answers the handshake and publishes like nsqd, unless a reply is scripted, and keeps no
messages: tests deliver what they want delivered.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Self

from nsqpy.protocol.frames import (
    CLOSE_WAIT_FRAME,
    HEARTBEAT_FRAME,
    OK_FRAME,
    error_frame,
    response_frame,
)

DEADLINE_S = 5.0


def message_frame(number: int, body: bytes = b"body", attempts: int = 1) -> bytes:
    """A message frame; its id is ``number`` in 16 digits."""
    fields = (1_800_000_000_000_000_000).to_bytes(8, "big") + attempts.to_bytes(2, "big")
    data = b"\0\0\0\x02" + fields + message_id(number) + body
    return len(data).to_bytes(4, "big") + data


def message_id(number: int) -> bytes:
    return b"%016d" % number


class FakeConnection:
    """One client's connection: ``commands`` are its lines so far, bodies apart."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.commands: list[str] = []
        self.bodies: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def heartbeat(self) -> None:
        self.send(HEARTBEAT_FRAME)

    def close(self) -> None:
        self.writer.close()

    async def wait_closed(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.writer.wait_closed()


class FakeNsqd:
    """Use as ``async with FakeNsqd() as nsqd``; ``nsqd.address`` is where it listens.

    ``path`` makes it a Unix socket; ``features`` go into the reply to IDENTIFY.
    """

    def __init__(self, path: str = "", /, **features: object) -> None:
        self.path = path
        self.features = {"max_rdy_count": 2500, "auth_required": False, **features}
        self.connections: list[FakeConnection] = []
        self.replies: dict[str, Callable[[], bytes]] = {}
        self.changed = asyncio.Condition()
        self.serving: set[asyncio.Task[None] | None] = set()
        self.port = 0

    @property
    def address(self) -> str:
        return self.path or f"127.0.0.1:{self.port}"

    @property
    def connection(self) -> FakeConnection:
        return self.connections[-1]

    def refuse(self, command: str, error: bytes) -> None:
        self.replies[command] = lambda: error_frame(error)

    def silence(self, command: str) -> None:
        self.replies[command] = lambda: b""

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a command made ``condition`` true."""
        async with asyncio.timeout(DEADLINE_S), self.changed:
            await self.changed.wait_for(condition)

    async def wait_command(self, command: str, connection: FakeConnection | None = None) -> None:
        def seen() -> bool:
            where = [connection] if connection else self.connections
            return any(command in one.commands for one in where)

        await self.wait(seen)

    async def wait_count(self, command: str, count: int) -> None:
        await self.wait(lambda: self.connection.commands.count(command) == count)

    async def start(self) -> None:
        if self.path:
            self._server = await asyncio.start_unix_server(self._serve, self.path)
            return
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()
        for connection in self.connections:
            connection.close()
        await asyncio.gather(*filter(None, self.serving))
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = FakeConnection(reader, writer)
        self.serving.add(asyncio.current_task())
        try:
            assert await reader.readexactly(4) == b"  V2"
            self.connections.append(connection)
            while line := (await reader.readline()).decode().removesuffix("\n"):
                if line.split()[0] in ("IDENTIFY", "PUB", "MPUB", "DPUB"):
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    connection.bodies.append(await reader.readexactly(size))
                connection.commands.append(line)
                connection.send(self._reply(line.split()[0]))
                async with self.changed:
                    self.changed.notify_all()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _reply(self, command: str) -> bytes:
        if command in self.replies:
            return self.replies[command]()
        match command:
            case "IDENTIFY":
                return response_frame(json.dumps(self.features).encode())
            case "SUB" | "PUB" | "MPUB" | "DPUB":
                return OK_FRAME
            case "CLS":
                return CLOSE_WAIT_FRAME
            case _:
                return b""
