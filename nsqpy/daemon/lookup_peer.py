"""One nsqlookupd, kept told of what this daemon has.

A new connection is told everything; then come the changes, in their order, and a PING every
15 s. Whatever goes wrong ends the connection, and with it all that nsqlookupd knew from it: the
next one tells everything anew, so nothing can stay stale.

Source: docs/discovery.md; nsqd/lookup_peer.go, lookup.go.
"""

import asyncio
import contextlib
import logging
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from nsqpy.config import split_address
from nsqpy.errors import ConnectionClosed, NSQError
from nsqpy.net.listeners import shown_address
from nsqpy.protocol import lookup as v1
from nsqpy.protocol.frames import BadFrame

if TYPE_CHECKING:
    from nsqpy.core.broker import Broker
    from nsqpy.core.catalogue import TopologyEvent

__all__ = ["DEFAULT_LIMITS", "Limits", "LookupPeer"]

log = logging.getLogger(__name__)

# Commands on their way before their replies are awaited.
_COMMANDS_AT_ONCE = 256
_QUESTIONS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is not configurable, but for tests.

    ``reply_s`` is the longest time to connect, and from one reply to the next. A connection that
    lived for ``stable_s`` was a good one: the next wait is the shortest again. ``events_max`` is
    how many changes may wait for a slow nsqlookupd; of more it is told by telling everything.

    Source: nsqd/lookup_peer.go, lookup.go. The original tries again when the next command or
    PING is due, so 15 s is its longest wait too.
    """

    reply_s: float = 1.0
    ping_interval_s: float = 15.0
    retry_min_s: float = 0.25
    retry_max_s: float = 15.0
    stable_s: float = 2.0
    events_max: int = 10_000


DEFAULT_LIMITS = Limits()


class LookupPeer:
    """What one nsqlookupd is told. ``run`` does it, until it is cancelled.

    ``http_address`` is where it said that its HTTP API is, empty if it has not said so;
    ``local_host`` is this daemon's own address on the way to it. ``tried`` is set when the first
    connection stands or has failed. ``questions`` and ``silent_at_s`` are of its HTTP API: who may
    ask now, and when an answer was last waited for in vain (on the loop's clock).
    """

    def __init__(
        self,
        address: str,
        broker: "Broker",
        peer_info: Callable[[str], v1.PeerInfo],
        limits: Limits,
    ) -> None:
        self.address = address
        self.http_address = ""
        self.local_host = ""
        self.tried = asyncio.Event()
        self.questions = asyncio.Semaphore(_QUESTIONS_AT_ONCE)
        self.silent_at_s = 0.0
        self._broker = broker
        self._peer_info = peer_info
        self._limits = limits
        self._random = random.Random()
        self._changed = asyncio.Event()
        self._events: deque[TopologyEvent] = deque()
        self._following = False
        self._overflowed = False
        self._told_since_s = 0.0
        self._last_failure = ""

    def __str__(self) -> str:
        return self.address

    def note(self, event: "TopologyEvent") -> None:
        """Something appeared or went."""
        if self._following:
            if len(self._events) < self._limits.events_max:
                self._events.append(event)
            else:
                self._overflowed = True
        self._changed.set()

    async def run(self) -> None:
        """Connect, tell, follow; and again after a while, whatever happens."""
        time = asyncio.get_running_loop().time
        limits = self._limits
        failures = 0
        while True:
            self._told_since_s = 0.0
            try:
                await self._serve()
            except (OSError, NSQError) as error:
                self._log_failure(error)
            except Exception:
                log.critical("LOOKUPD(%s): internal error", self, exc_info=True)
            self.tried.set()
            if self._told_since_s and time() - self._told_since_s >= limits.stable_s:
                failures = 0
            delay_s = min(limits.retry_min_s * 2 ** min(failures, 16), limits.retry_max_s)
            failures += 1
            await self._pause(delay_s * self._random.uniform(0.5, 1.0))

    async def _pause(self, delay_s: float) -> None:
        """Wait; but when something changes, only for the shortest time."""
        self._changed.clear()
        shortest_s = self._limits.retry_min_s
        await asyncio.sleep(min(delay_s, shortest_s))
        if delay_s > shortest_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s - shortest_s):
                    await self._changed.wait()

    def _log_failure(self, error: Exception) -> None:
        """Once at ERROR, the same again at DEBUG: it may be away for days."""
        if isinstance(error, TimeoutError):
            why = f"no answer within {self._limits.reply_s:g}s"
        else:
            number = error.errno if isinstance(error, OSError) else None
            why = os.strerror(number).lower() if number and number > 0 else str(error)
        log.log(
            logging.DEBUG if why == self._last_failure else logging.ERROR,
            "LOOKUPD(%s): %s",
            *(self, why),
        )
        self._last_failure = why

    async def _serve(self) -> None:
        """One connection, to its end.

        Raises:
            OSError, ConnectionClosed, ProtocolError: why it ended.
        """
        place = split_address(self.address)
        if place is None:
            raise ConnectionClosed("must be host:port")
        log.debug("LOOKUP connecting to %s", self)
        link = _Link(self._changed, self._limits.reply_s)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._limits.reply_s):
            await loop.create_connection(lambda: link, place[0] or "localhost", place[1])
        try:
            await self._identify(link)
            await self._tell_everything(link)
            self._told_since_s = loop.time()
            self._last_failure = ""
            self.tried.set()
            await self._follow(link)
        finally:
            self._following = False
            link.close()

    async def _identify(self, link: "_Link") -> None:
        self.local_host = link.local_host
        (reply,) = await link.ask([v1.MAGIC + v1.identify(self._peer_info(link.local_host))])
        info = v1.decode_peer_info(reply)
        log.info("LOOKUPD(%s): peer info %s", self, reply.decode("utf-8", "replace"))
        if info.broadcast_address and info.http_port > 0:
            self.http_address = shown_address(info.broadcast_address, info.http_port)
        else:
            log.error("LOOKUPD(%s): no broadcast address", self)
            self.http_address = ""

    async def _tell_everything(self, link: "_Link") -> None:
        """What changes from here on comes as events, after it."""
        self._events.clear()
        self._overflowed = False
        self._following = True
        names = [
            (topic.name, channel)
            for topic in self._broker.topics.values()
            for channel in topic.channels or ("",)
        ]
        for at in range(0, len(names), _COMMANDS_AT_ONCE):
            some = names[at : at + _COMMANDS_AT_ONCE]
            await link.ask([v1.register(topic, channel) for topic, channel in some])
        log.info("LOOKUPD(%s): told of %d topics and channels", self, len(names))

    async def _follow(self, link: "_Link") -> None:
        time = asyncio.get_running_loop().time
        ping_at_s = time() + self._limits.ping_interval_s
        while True:
            link.check()
            if self._overflowed:
                raise ConnectionClosed("too many changes at once, telling everything anew")
            if time() >= ping_at_s:
                # Also when there is other traffic: only a PING counts as a sign of life.
                log.debug("LOOKUPD(%s): sending heartbeat", self)
                ping_at_s = time() + self._limits.ping_interval_s
                await link.ask([v1.PING])
            elif self._events:
                await link.ask(self._next_commands())
            else:
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(ping_at_s):
                        await self._changed.wait()

    def _next_commands(self) -> list[bytes]:
        commands: list[bytes] = []
        while self._events and len(commands) < _COMMANDS_AT_ONCE:
            event = self._events.popleft()
            encode = v1.register if event.exists else v1.unregister
            command = encode(event.topic, event.channel or "")
            log.debug("LOOKUPD(%s): %s", self, command)
            commands.append(command)
        return commands


class _Link(asyncio.Protocol):
    """One connection. ``changed`` is set when something comes, or when it is lost."""

    def __init__(self, changed: asyncio.Event, reply_s: float) -> None:
        self._changed = changed
        self._reply_s = reply_s
        self._parser = v1.ReplyParser()
        self._replies: deque[bytes] = deque()
        self._owed = 0
        self._lost = ""
        self._transport: asyncio.Transport
        self.local_host = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.local_host = transport.get_extra_info("sockname")[0]

    def data_received(self, data: bytes) -> None:
        for reply in self._parser.feed(data):
            self._owed -= 1
            if isinstance(reply, BadFrame):
                self._lose(reply.reason)
            elif self._owed < 0:
                self._lose("it replied to nothing")
            else:
                self._replies.append(reply)
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc) if exc else "connection closed")

    def close(self) -> None:
        """Let go of it. After a partition the system still gets the end through to nsqlookupd,
        which would otherwise keep the dead connection, and what was registered over it."""
        self._changed = asyncio.Event()  # that it is lost now is news to nobody
        self._transport.abort()

    def check(self) -> None:
        """Raises ConnectionClosed if it is lost."""
        if self._lost:
            raise ConnectionClosed(self._lost)

    async def ask(self, commands: Sequence[bytes]) -> list[bytes]:
        """Send commands, and wait for the reply to each.

        Raises:
            ConnectionClosed: the connection is lost, or a reply is an error.
            TimeoutError: the next reply does not come in time.
        """
        time = asyncio.get_running_loop().time
        self._owed += len(commands)
        self._transport.write(b"".join(commands))
        replies: list[bytes] = []
        until_s = time() + self._reply_s
        while len(replies) < len(commands):
            if self._replies:
                reply = self._replies.popleft()
                if reply.startswith(b"E_"):
                    raise ConnectionClosed(f"lookupd returned {reply.decode('utf-8', 'replace')}")
                replies.append(reply)
                until_s = time() + self._reply_s
                continue
            self.check()
            self._changed.clear()
            async with asyncio.timeout_at(until_s):
                await self._changed.wait()
        return replies

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        self._changed.set()
