"""An nsqlookupd over real sockets that answers as a test tells it to, and remembers commands."""

import asyncio
import json
from collections.abc import Callable
from typing import Self

from nsqpy.net.http import HTTPServer, Reply, Request, Route, json_reply
from nsqpy.protocol.lookup import (
    OK_FRAME,
    Identify,
    LookupCommand,
    LookupParser,
    PeerInfo,
    identify_reply,
    reply_frame,
)

__all__ = ["ScriptedLookupd"]

_DEADLINE_S = 10
Answer = Callable[[LookupCommand], bytes | None]


class ScriptedLookupd:
    """Use as ``async with ScriptedLookupd() as lookupd``; ``address`` is of its TCP protocol.

    ``answer`` replaces the reply to a command; None is no reply at all. ``channels`` are what it
    tells of every topic, once ``open`` is set, and then after ``delay_s``.
    """

    def __init__(self, *channels: str, answer: Answer | None = None, **identity: object) -> None:
        self.commands: list[LookupCommand] = []
        self.connected_at_s: list[float] = []
        self.asked: list[str] = []
        self.channels = list(channels)
        self.reply: Reply | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.delay_s = 0.0
        self._answer = answer
        self._identity = identity
        self._changed = asyncio.Condition()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        routes = {"/channels": {"GET": Route(self._tell_channels)}}
        self._http = HTTPServer(routes, lambda *_: None)

    async def __aenter__(self) -> Self:
        host, self.http_port = await self._http.listen("127.0.0.1", 0)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.address = f"{host}:{self.port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        self.open.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.stop()

    def default_reply(self, command: LookupCommand) -> bytes:
        if not isinstance(command, Identify):
            return OK_FRAME
        info = PeerInfo(
            broadcast_address="127.0.0.1",
            hostname="scripted",
            tcp_port=self.port,
            http_port=self.http_port,
            version="1.3.0",
        )
        return reply_frame(json.dumps(json.loads(identify_reply(info)) | self._identity).encode())

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until what was said fulfils ``condition``."""
        async with asyncio.timeout(_DEADLINE_S), self._changed:
            await self._changed.wait_for(condition)

    def of(self, kind: type) -> list[LookupCommand]:
        return [command for command in self.commands if isinstance(command, kind)]

    def drop(self) -> None:
        """Lose every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connected_at_s.append(asyncio.get_running_loop().time())
        parser = LookupParser()
        try:
            while data := await reader.read(1 << 16):
                for command in parser.feed(data):
                    self.commands.append(command)
                    answer = self._answer or self.default_reply
                    if (reply := answer(command)) is not None:
                        writer.write(reply)
                async with self._changed:
                    self._changed.notify_all()
        except OSError:
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _tell_channels(self, request: Request) -> Reply:
        self.asked.append(request.query["topic"])
        async with self._changed:
            self._changed.notify_all()
        channels = list(self.channels)
        await self.open.wait()
        await asyncio.sleep(self.delay_s)
        return self.reply or json_reply({"channels": channels})
