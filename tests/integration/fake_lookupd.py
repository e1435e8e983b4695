"""A directory over real sockets that says what tests tell it to, and counts who asks."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from aiohttp import web

from tests.integration.fake_nsqd import DEADLINE_S, FakeNsqd

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FakeLookupd"]


@dataclass(frozen=True, slots=True)
class _Entry:
    topics: tuple[str, ...]
    producer: dict[str, object]


class FakeLookupd:
    """Use as ``async with FakeLookupd() as lookupd``; ``lookupd.address`` is of its HTTP API.

    ``answer`` replaces every answer by another; ``old`` puts answers into the old envelope.
    """

    def __init__(self, *, old: bool = False) -> None:
        self.port = 0
        self.asked: list[str] = []
        self.answer: Callable[[], web.Response] | None = None
        self._old = old
        self._entries: dict[str, _Entry] = {}
        self._changed = asyncio.Condition()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def register(
        self, nsqd: FakeNsqd, *topics: str, host: str = "127.0.0.1", hostname: str = "elsewhere"
    ) -> None:
        """Tell of a node, and of all the topics it has."""
        self.tell(
            nsqd.address,
            topics,
            {
                "remote_address": "127.0.0.1:1",
                "hostname": hostname,
                "broadcast_address": host,
                "tcp_port": nsqd.port,
                "http_port": 1,
                "version": "1.3.0",
            },
        )

    def tell(self, key: str, topics: tuple[str, ...], producer: dict[str, object]) -> None:
        self._entries[key] = _Entry(topics, producer)

    def forget(self, nsqd: FakeNsqd) -> None:
        del self._entries[nsqd.address]

    async def wait_asked(self, path: str, times: int = 1) -> None:
        """Wait until ``path``, with its query, was asked that often from now on."""
        wanted = self.asked.count(path) + times
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(lambda: self.asked.count(path) >= wanted)

    async def start(self) -> None:
        self._runner = web.ServerRunner(web.Server(self._serve), shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def _serve(self, request: web.BaseRequest) -> web.Response:
        reply = self._reply(request) if self.answer is None else self.answer()
        self.asked.append(request.raw_path)
        async with self._changed:
            self._changed.notify_all()
        return reply

    def _reply(self, request: web.BaseRequest) -> web.Response:
        topics = {topic for entry in self._entries.values() for topic in entry.topics}
        match request.path:
            case "/topics":
                return self._json(200, {"topics": sorted(topics)})
            case "/nodes":
                return self._json(200, {"producers": [e.producer for e in self._entries.values()]})
            case "/lookup":
                topic = request.query["topic"]
                found = [e.producer for e in self._entries.values() if topic in e.topics]
                if topic in topics:
                    return self._json(200, {"channels": [], "producers": found})
                return self._json(404, {"message": "TOPIC_NOT_FOUND"})
            case _:
                return self._json(404, {"message": "NOT_FOUND"})

    def _json(self, status: int, data: dict[str, object]) -> web.Response:
        if not self._old:
            headers = {"X-NSQ-Content-Type": "nsq; version=1.0"}
            return web.json_response(data, status=status, headers=headers)
        word = data.get("message", "OK")
        old = {"status_code": status, "status_txt": word, "data": None if status != 200 else data}
        return web.json_response(old, status=status)
