"""Kills the daemon again and again while others publish and consume, then counts."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from tests.chaos.consumers import consume
from tests.chaos.ledger import ChannelBook, Ledger
from tests.chaos.lessees import lease
from tests.chaos.publishers import publish_by_http, publish_by_tcp
from tests.chaos.target import START_SECONDS, ChaosError, Target
from tests.chaos.wire import Answer, HTTPConnection

__all__ = ["Storm", "Strength"]

# What exists from the start. The last topic gets its consumers, hence its channel, half-way: what
# was published before is the first channel's, and until then the topic keeps it.
_CHANNELS = {"chaos.one": ("a",), "chaos.two": ("a", "b"), "chaos.three": ("a", "b")}
_LATE_TOPIC, _LATE_CHANNEL = "chaos.late", "a"
_CONSUMERS_PER_CHANNEL = 2
_DRAIN_SECONDS = 120.0
# How long the daemon lives: some are killed before they serve.
_KILLED_EARLY = 0.15
_EARLY_MAX_SECONDS = 0.6
_LIFE_MEAN_SECONDS = 0.35
_LIFE_MAX_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Strength:
    """How much is going on.

    ``backlog_max`` is what may be owed before publishers wait. The drain ends when nothing has
    arrived for ``quiet_seconds``; it must exceed the longest delay and message timeout in use.
    """

    kills: int
    seed: int
    quiet_seconds: float
    tcp_publishers: int = 4
    http_publishers: int = 2
    backlog_max: int = 3000


class Storm:
    """One run. ``on_kill`` is called after each kill, with how many there were."""

    def __init__(self, target: Target, strength: Strength, on_kill: Callable[[int], None]) -> None:
        self.target = target
        self.ledger = Ledger(target.lives)
        self._strength = strength
        self._on_kill = on_kill
        self._rng = random.Random(strength.seed)
        self._stop_publishing = asyncio.Event()
        self._calm = asyncio.Event()
        self._publishers: list[asyncio.Task[None]] = []
        self._consumers: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Returns when everything has arrived, or nothing more does.

        Raises:
            ChaosError: the daemon stood still, ended by itself, or broke the protocol.
        """
        storm = asyncio.ensure_future(self._run())
        try:
            while not storm.done():
                # Whoever fails first ends it; publishers end by themselves as well.
                going = [task for task in (*self._publishers, *self._consumers) if not task.done()]
                await asyncio.wait({storm, *going}, return_when="FIRST_COMPLETED", timeout=0.2)
                self._raise_failure()
            storm.result()
        finally:
            everybody = [storm, *self._publishers, *self._consumers]
            for task in everybody:
                task.cancel()
            await asyncio.gather(*everybody, return_exceptions=True)

    async def _run(self) -> None:
        self.target.start()
        await self._create_channels()
        for book in self.ledger.books:
            self._start_consumers(book)
        late = self.ledger.add_channel(_LATE_TOPIC, _LATE_CHANNEL)
        self._start_publishers()
        kills = self._strength.kills
        for kill in range(kills):
            await self._live()
            if kill == kills // 3:
                await self._create_one_more()
            if kill == kills // 2:
                self._start_consumers(late)
            self.target.kill()
            self._on_kill(kill + 1)
            self.target.start()
        await self.target.wait_serving()
        if not kills:
            self._start_consumers(late)
        self._stop_publishing.set()
        await asyncio.gather(*self._publishers)
        self._calm.set()
        await self._drain()

    async def _live(self) -> None:
        if self._rng.random() < _KILLED_EARLY:
            await asyncio.sleep(self._rng.uniform(0, _EARLY_MAX_SECONDS))
            return
        await self.target.wait_serving()
        life = self._rng.expovariate(1 / _LIFE_MEAN_SECONDS)
        await asyncio.sleep(min(life, _LIFE_MAX_SECONDS))

    async def _drain(self) -> None:
        """Wait until nothing is owed, or nothing more comes."""
        end = time.monotonic() + _DRAIN_SECONDS
        finished, since = self.ledger.finished, time.monotonic()
        while self.ledger.owed and time.monotonic() < min(
            end, since + self._strength.quiet_seconds
        ):
            self.target.check()
            await asyncio.sleep(0.02)
            if self.ledger.finished != finished:
                finished, since = self.ledger.finished, time.monotonic()

    async def _create_channels(self) -> None:
        for topic, channels in _CHANNELS.items():
            await self._post(f"/topic/create?topic={topic}")
            for channel in channels:
                await self._post(f"/channel/create?topic={topic}&channel={channel}")
                self.ledger.add_channel(topic, channel)

    async def _create_one_more(self) -> None:
        """A channel that is owed only what is published from now on."""
        await self.target.wait_serving()
        topic = next(iter(_CHANNELS))
        await self._post(f"/channel/create?topic={topic}&channel=new")
        self._start_consumers(self.ledger.add_channel(topic, "new"))

    def _start_publishers(self) -> None:
        strength = self._strength
        starters = [publish_by_tcp] * strength.tcp_publishers
        starters += [publish_by_http] * strength.http_publishers
        for number, start in enumerate(starters):
            rng = random.Random(self._rng.random())
            backlog = strength.backlog_max
            publisher = start(number, self.target, self.ledger, rng, backlog, self._stop_publishing)
            self._publishers.append(_started(publisher))

    def _start_consumers(self, book: ChannelBook) -> None:
        book.consumed = True
        for _ in range(_CONSUMERS_PER_CHANNEL):
            rng = random.Random(self._rng.random())
            self._consumers.append(_started(consume(self.target, book, rng, self._calm)))
        rng = random.Random(self._rng.random())
        self._consumers.append(_started(lease(self.target, book, rng, self._calm)))

    async def _post(self, path: str) -> Answer:
        """POST until there is an answer; the daemon may still be starting.

        Raises:
            ChaosError: it is refused, or there is none in time.
        """
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            self.target.check()
            try:
                connection = await HTTPConnection.open(self.target.http_port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            try:
                answer = await connection.post(path)
            finally:
                connection.close()
            if not answer.ok:
                raise ChaosError(f"POST {path}: {answer.text}")
            return answer
        raise ChaosError(f"POST {path}: no answer")

    def _raise_failure(self) -> None:
        for task in (*self._publishers, *self._consumers):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error


def _started(work: Coroutine[object, object, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)
