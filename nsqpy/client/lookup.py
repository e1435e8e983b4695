"""Ask nsqlookupd who has which topic, and keep asking.

Every nsqlookupd is asked, and what they say is put together. One that fails is logged, and what
it said last still counts: a directory that cannot be reached must not look like an empty one.

Source: docs/client.md, docs/nsqlookupd.md.
"""

import asyncio
import contextlib
import json
import logging
import random
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat, takewhile
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from nsqpy.client.connection import reconnect_delays_s
from nsqpy.client.options import ClientOptions
from nsqpy.clock import SECOND
from nsqpy.errors import ConfigError, ConnectionClosed, NSQError
from nsqpy.names import is_valid_name
from nsqpy.net.listeners import shown_address
from nsqpy.patterns import TopicTrie, is_pattern

if TYPE_CHECKING:
    from nsqpy.net.http_client import HTTPClient

__all__ = ["LookupPoller", "Lookupd", "Node", "Target", "TopicQuery", "lookupd_url"]

log = logging.getLogger(__name__)

_HEADERS = {"Accept": "application/vnd.nsq; version=1.0"}
# Room for the nodes of thousands of daemons and some 100,000 topics.
_ANSWER_MAX_BYTES = 32 * 1024 * 1024
_TOPICS_MAX = 5_000
# Requests under way at once at each nsqlookupd, when a pattern matches many topics.
_LOOKUPS_AT_ONCE = 8
_HOST = re.compile(r"[A-Za-z0-9_.:%-]+", re.ASCII)

Key = TypeVar("Key")


class Node(NamedTuple):
    """An nsqd as a directory tells of it. ``address`` is ``host:port`` of its TCP protocol."""

    address: str
    hostname: str
    broadcast_address: str


class Target(NamedTuple):
    """What a consumer's connection is for. ``address`` is an nsqd's."""

    topic: str
    address: str


class Lookupd:
    """One nsqlookupd.

    Every question raises ConnectionClosed when it is not answered, or not understandably.
    """

    def __init__(self, address: str, http: "HTTPClient") -> None:
        self.address = address
        self._url = lookupd_url(address)
        self._http = http

    async def topics(self) -> list[str]:
        """The legal ones of the names it tells."""
        names = _list((await self._get("/topics")).get("topics"))
        return [name for name in names if isinstance(name, str) and is_valid_name(name)]

    async def nodes_of(self, topic: str) -> list[Node]:
        """Who has ``topic``; nobody if it is not known."""
        return self._nodes(await self._get(f"/lookup?topic={quote(topic, safe='')}"))

    async def nodes(self) -> list[Node]:
        return self._nodes(await self._get("/nodes"))

    def _nodes(self, answer: dict[str, object]) -> list[Node]:
        nodes: list[Node] = []
        for entry in _list(answer.get("producers")):
            if (node := _node(entry)) is None:
                log.warning("LOOKUPD(%s): a node without a usable address", self.address)
            else:
                nodes.append(node)
        return nodes

    async def _get(self, path: str) -> dict[str, object]:
        """The answer's object, out of the envelope that old ones put it in."""
        status, body = await self._http.get(self._url + path, _ANSWER_MAX_BYTES)
        try:
            answer = json.loads(body) if body.strip() else {}
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise ConnectionClosed(f"{path} was answered with {status} and no JSON object")
        if "status_code" in answer and "data" in answer:
            status, data = answer["status_code"], answer["data"]
            answer = {"message": answer.get("status_txt")} | (
                data if isinstance(data, dict) else {}
            )
        if status == 200:
            return answer
        if answer.get("message") == "TOPIC_NOT_FOUND":
            return {}
        raise ConnectionClosed(f"{path} was answered with {status} {answer.get('message', '')}")


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _node(entry: object) -> Node | None:
    """What of a producer's entry a client needs; None if it cannot be used."""
    if not isinstance(entry, dict):
        return None
    host, port, hostname = (entry.get(key) for key in ("broadcast_address", "tcp_port", "hostname"))
    if not isinstance(host, str) or not _HOST.fullmatch(host := host.strip("[]")):
        return None
    if not isinstance(port, int) or not 0 < port < 65536:
        return None
    return Node(shown_address(host, port), hostname if isinstance(hostname, str) else "", host)


def lookupd_url(address: str) -> str:
    """The URL that paths are added to: of ``host:port``, or of a URL, with or without /lookup.

    Raises:
        ConfigError: no port, or another scheme than http.
    """
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError("lookupd", address, f'lookupd address "{address}": {error}') from error
    if parts.scheme != "http":
        reason = f'lookupd address "{address}": {parts.scheme} is not supported'
        raise ConfigError("lookupd", address, reason)
    if not port:
        raise ConfigError("lookupd", address, f'lookupd address "{address}": missing port')
    path = parts.path.rstrip("/").removesuffix("/lookup")
    return f"http://{shown_address(host or '127.0.0.1', port)}{path}"


class TopicQuery:
    """Asks who has the topics of a consumer: names, and patterns over all that are known."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._names = {topic for topic in topics if not is_pattern(topic)}
        self._patterns = TopicTrie(topic for topic in topics if is_pattern(topic))
        self._has_patterns = any(map(is_pattern, topics))

    async def __call__(self, lookupd: Lookupd) -> dict[Target, Node]:
        """Raises ConnectionClosed if any of the questions fails."""
        topics = await self._topics(lookupd)
        found: dict[Target, Node] = {}
        for at in range(0, len(topics), _LOOKUPS_AT_ONCE):
            some = topics[at : at + _LOOKUPS_AT_ONCE]
            answers = await asyncio.gather(*map(lookupd.nodes_of, some), return_exceptions=True)
            for topic, nodes in zip(some, answers, strict=True):
                if isinstance(nodes, BaseException):
                    raise nodes
                found |= {Target(topic, node.address): node for node in nodes}
        return found

    async def _topics(self, lookupd: Lookupd) -> Sequence[str]:
        matching: set[str] = set()
        if self._has_patterns:
            matching = {name for name in await lookupd.topics() if self._patterns.matches(name)}
        topics = sorted(self._names) + sorted(matching - self._names)
        if len(topics) > _TOPICS_MAX:
            log.warning(
                "LOOKUPD(%s): %d topics match, only the first %d are followed",
                lookupd.address,
                len(topics),
                _TOPICS_MAX,
            )
        return topics[:_TOPICS_MAX]


class _Schedule:
    """When the next question is due."""

    def __init__(self, options: ClientOptions, jitter_s: float) -> None:
        self._options = options
        self._interval_s = options.lookupd_poll_interval_ns / SECOND
        self._jitter_s = jitter_s
        self._delays_s = self._steady()
        self._due_s = 0.0
        self._sooner = asyncio.Event()

    def _steady(self) -> Iterator[float]:
        return chain([self._interval_s + self._jitter_s], repeat(self._interval_s))

    def hurry(self) -> None:
        growing = reconnect_delays_s(self._options)
        soon = takewhile(lambda delay_s: delay_s < self._interval_s, growing)
        self._delays_s = chain(soon, self._steady())
        due_s = asyncio.get_running_loop().time() + next(reconnect_delays_s(self._options))
        if due_s < self._due_s:
            self._due_s = due_s
            self._sooner.set()

    async def wait(self) -> None:
        time = asyncio.get_running_loop().time
        self._due_s = time() + next(self._delays_s)
        while (left_s := self._due_s - time()) > 0:
            self._sooner.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._sooner.wait()


class LookupPoller(Generic[Key]):
    """Asks every nsqlookupd again and again, and hands on what they know together.

    Each is asked by itself, so that none waits for one that hangs: at once, then after an
    interval and a random part of it (the jitter), then each interval. While something is missing
    the questions come after 1 s, 2 s, 4 s and so on up to the interval; ``hurry`` begins that,
    and so does a question that fails.

    Args:
        addresses: of every nsqlookupd, ``host:port`` of its HTTP API, or URLs.
        query: what to ask each one; may raise ConnectionClosed.
        found: called after each answer, and each failure, with all that is known; must not wait.
        chance: draws the jitter.

    Raises:
        ConfigError: an address is none.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        query: Callable[[Lookupd], Awaitable[dict[Key, Node]]],
        found: Callable[[dict[Key, Node]], None],
        options: ClientOptions,
        chance: random.Random,
    ) -> None:
        self.addresses = list(dict.fromkeys(addresses))
        for address in self.addresses:
            lookupd_url(address)
        self._query = query
        self._found = found
        self._options = options
        jitter_max_s = options.lookupd_poll_jitter * options.lookupd_poll_interval_ns / SECOND
        self._schedules = {
            address: _Schedule(options, chance.random() * jitter_max_s)
            for address in self.addresses
        }
        self._known: dict[str, dict[Key, Node]] = {}
        self._failures: dict[str, str] = {}
        self._http: HTTPClient | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        # Here, because it takes longer to load than all the rest, and not everybody needs it.
        from nsqpy.net.http_client import HTTPClient

        assert self._http is None
        self._http = HTTPClient(self._options.lookupd_poll_timeout_ns / SECOND, _HEADERS)
        self._tasks = [
            asyncio.create_task(self._poll(Lookupd(address, self._http)))
            for address in self.addresses
        ]

    def hurry(self) -> None:
        """Something is missing: ask soon, and then less and less often."""
        for schedule in self._schedules.values():
            schedule.hurry()

    def halt(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        self.halt()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    def told(self) -> str:
        """Every address, and why it gave no answer if it gave none; for error texts."""
        return ", ".join(
            f"{address} ({self._failures[address]})" if address in self._failures else address
            for address in self.addresses
        )

    async def _poll(self, lookupd: Lookupd) -> None:
        try:
            while True:
                await self._ask(lookupd)
                self._found(dict(item for known in self._known.values() for item in known.items()))
                await self._schedules[lookupd.address].wait()
        except Exception:
            log.exception("LOOKUPD(%s): an internal error, it is asked no more", lookupd.address)

    async def _ask(self, lookupd: Lookupd) -> None:
        try:
            self._known[lookupd.address] = await self._query(lookupd)
        except NSQError as error:
            log.warning("LOOKUPD(%s): %s", lookupd.address, error)
            if lookupd.address not in self._failures:
                self._schedules[lookupd.address].hurry()
            self._failures[lookupd.address] = str(error)
        else:
            self._failures.pop(lookupd.address, None)
