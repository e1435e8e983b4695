"""Publishers that never give up: what is not acknowledged is never sent again, so that every
message that arrives twice was delivered twice."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from nsqpy.protocol import requests
from tests.chaos.ledger import ChannelBook, Ledger, body_of, make_key
from tests.chaos.target import Target
from tests.chaos.wire import HTTPConnection, TCPConnection, http_post

__all__ = ["publish_by_http", "publish_by_tcp"]

C = TypeVar("C", TCPConnection, HTTPConnection)

_RECONNECT_SECONDS = 0.01
_BURST_MAX = 8
_BATCH_MAX = 40
_BODY_SIZE_MAX_BYTES = 1500
_DELAY_MAX_MS = 2500
_PAUSE_MAX_SECONDS = 0.02
_BEHIND_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class _Publish:
    """One request, and who is owed what when it is acknowledged."""

    request: bytes
    how: str
    keys: Sequence[bytes]
    books: Sequence[ChannelBook]


class _Author:
    """Thinks up what one publisher sends."""

    def __init__(self, number: int, ledger: Ledger, rng: random.Random) -> None:
        self._number = number
        self._ledger = ledger
        self._rng = rng
        self._written = 0

    def tcp(self) -> _Publish:
        topic = self._rng.choice(self._ledger.topics)
        match self._rng.choices(("PUB", "MPUB", "DPUB"), (5, 3, 2))[0]:
            case "MPUB":
                keys = self._keys(self._rng.randint(1, _BATCH_MAX))
                request = requests.mpub(topic, [body_of(key) for key in keys])
                return self._publish(topic, request, "MPUB", keys)
            case "DPUB":
                delay_ms = self._rng.randint(1, _DELAY_MAX_MS)
                keys = self._keys(1, delay_ms)
                request = requests.dpub(topic, delay_ms, body_of(keys[0]))
                return self._publish(topic, request, "DPUB", keys)
            case _:
                keys = self._keys(1)
                return self._publish(topic, requests.pub(topic, body_of(keys[0])), "PUB", keys)

    def http(self) -> _Publish:
        topic = self._rng.choice(self._ledger.topics)
        match self._rng.choices(("/pub", "/mpub", "defer"), (5, 3, 2))[0]:
            case "/mpub":
                keys = self._keys(self._rng.randint(1, _BATCH_MAX))
                body = b"\n".join(body_of(key) for key in keys)
                request = http_post(f"/mpub?topic={topic}", body)
                return self._publish(topic, request, "/mpub", keys)
            case "defer":
                delay_ms = self._rng.randint(1, _DELAY_MAX_MS)
                keys = self._keys(1, delay_ms)
                request = http_post(f"/pub?topic={topic}&defer={delay_ms}", body_of(keys[0]))
                return self._publish(topic, request, "/pub?defer", keys)
            case _:
                keys = self._keys(1)
                request = http_post(f"/pub?topic={topic}", body_of(keys[0]))
                return self._publish(topic, request, "/pub", keys)

    def _publish(self, topic: str, request: bytes, how: str, keys: list[bytes]) -> _Publish:
        return _Publish(request, how, keys, self._ledger.creditors(topic))

    def _keys(self, count: int, delay_ms: int = 0) -> list[bytes]:
        due_ns = time.time_ns() + delay_ms * 1_000_000 if delay_ms else 0
        keys = []
        for _ in range(count):
            self._written += 1
            size = self._rng.randint(40, _BODY_SIZE_MAX_BYTES)
            keys.append(make_key(self._number, self._written, due_ns, size))
        return keys


class _Pace:
    """When to publish: now and then, and not while the consumers are far behind.

    A daemon that was killed is called at once, so that the first OK says when it serves again.
    """

    def __init__(
        self, target: Target, ledger: Ledger, rng: random.Random, backlog_max: int
    ) -> None:
        self._lives = target.lives
        self._ledger = ledger
        self._rng = rng
        self._backlog_max = backlog_max

    async def wait(self, life: int, stop: asyncio.Event) -> None:
        await asyncio.sleep(self._rng.uniform(0, _PAUSE_MAX_SECONDS))
        while life == self._lives.now and self._ledger.backlog > self._backlog_max:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _BEHIND_SECONDS)
                return


async def publish_by_tcp(
    number: int, target: Target, ledger: Ledger, rng: random.Random, backlog_max: int,
    stop: asyncio.Event,
) -> None:  # fmt: skip
    """Bursts of PUB, MPUB and DPUB, sent together and answered one by one."""
    author, pace = _Author(number, ledger, rng), _Pace(target, ledger, rng, backlog_max)

    async def exchange(connection: TCPConnection, life: int) -> None:
        burst = [author.tcp() for _ in range(rng.randint(1, _BURST_MAX))]
        connection.writer.write(b"".join([publish.request for publish in burst]))
        for publish in burst:
            answer = await connection.answer()
            _note(publish, answer.ok, life, target, ledger)

    await _publish(lambda: TCPConnection.open(target.tcp_port), exchange, target, pace, stop)


async def publish_by_http(
    number: int, target: Target, ledger: Ledger, rng: random.Random, backlog_max: int,
    stop: asyncio.Event,
) -> None:  # fmt: skip
    """``/pub``, with and without a delay, and ``/mpub``, one after the other."""
    author, pace = _Author(number, ledger, rng), _Pace(target, ledger, rng, backlog_max)

    async def exchange(connection: HTTPConnection, life: int) -> None:
        publish = author.http()
        answer = await connection.call(publish.request)
        _note(publish, answer.ok, life, target, ledger)

    await _publish(lambda: HTTPConnection.open(target.http_port), exchange, target, pace, stop)


async def _publish(
    open_connection: Callable[[], Awaitable[C]],
    exchange: Callable[[C, int], Awaitable[None]],
    target: Target,
    pace: _Pace,
    stop: asyncio.Event,
) -> None:
    """Exchange after exchange, on one connection after the other, until ``stop``."""
    while not stop.is_set():
        life = target.lives.now
        try:
            connection = await open_connection()
        except (OSError, EOFError):
            await asyncio.sleep(_RECONNECT_SECONDS)
            continue
        try:
            while not stop.is_set():
                await exchange(connection, life)
                await pace.wait(life, stop)
        except (OSError, EOFError):
            pass
        finally:
            connection.close()


def _note(publish: _Publish, ok: bool, life: int, target: Target, ledger: Ledger) -> None:
    if not ok:
        ledger.refused += len(publish.keys)
        return
    ledger.acknowledge(publish.books, publish.keys, publish.how)
    target.served(life)
