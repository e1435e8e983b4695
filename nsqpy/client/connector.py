"""Keep a consumer connected: to the nsqd it was given, and to those that lookupd tells of.

A connection is for one topic at one nsqd, its target. An nsqd that was given by address is tried
again until the consumer stops. One that a directory told of is tried after each answer of the
directory, as long as it is listed; when it is listed no more, a connection that lives is kept,
and a lost one is not made again.
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from nsqpy.client.connection import (
    ClientConnection,
    ConnectionOwner,
    open_connection,
    parse_address,
    reconnect_delays_s,
)
from nsqpy.client.lookup import LookupPoller, Node, Target, TopicQuery
from nsqpy.client.options import ClientOptions
from nsqpy.errors import LocalProtocolError, NSQError
from nsqpy.names import is_valid_name
from nsqpy.patterns import check_pattern, is_pattern
from nsqpy.protocol import requests

__all__ = ["Connector", "ConnectorOwner"]

log = logging.getLogger(__name__)

# What a pattern may lead to; the system's limit of open files comes earlier, mostly.
_CONNECTIONS_MAX = 5_000
_DIALS_AT_ONCE = 32


class ConnectorOwner(ConnectionOwner, Protocol):
    """The consumer."""

    @property
    def name(self) -> str:
        """For the log."""

    def connection_made(self, connection: ClientConnection) -> None:
        """It is subscribed, and in ``connections``."""

    def target_given_up(self) -> None:
        """One that was lost, or could not be reached, is not tried again."""


class Connector:
    """Owns a consumer's connections. ``connections`` holds those that are subscribed.

    Raises:
        LocalProtocolError: a name or pattern is not legal, or there is nowhere to connect to.
        ConfigError: an address is none.
    """

    def __init__(
        self,
        topics: Sequence[str],
        channel: str,
        nsqd: Sequence[str],
        lookupd: Sequence[str],
        options: ClientOptions,
        owner: ConnectorOwner,
    ) -> None:
        _check(topics, channel, nsqd, lookupd)
        self.connections: dict[Target, ClientConnection] = {}
        self._names = [topic for topic in topics if not is_pattern(topic)]
        self._channel = channel
        self._addresses = list(dict.fromkeys(nsqd))
        self._options = options
        self._owner = owner
        self._listed: set[Target] = set()
        self._down: set[Target] = set()
        self._tasks: dict[Target, asyncio.Task[None]] = {}
        self._dials = asyncio.Semaphore(_DIALS_AT_ONCE)
        self._halted = False
        self._poller: LookupPoller[Target] | None = None
        if lookupd:
            query = TopicQuery(topics)
            self._poller = LookupPoller(lookupd, query, self._found, options, random.Random())

    async def start(self) -> None:
        """Connect to every nsqd that was given, and begin to ask lookupd.

        Raises:
            ConnectionClosed, ServerError: one of those given cannot be used.
        """
        for target in self._given():
            await self._subscribe(target)
        if self._poller is not None:
            self._poller.start()

    async def add(self, address: str) -> None:
        """Connect to one more nsqd. Raises as ``start``; then nothing has changed."""
        if address in self._addresses:
            return
        parse_address(address)
        self._addresses.append(address)
        try:
            for target in self._given():
                if target not in self.connections and target not in self._tasks:
                    await self._subscribe(target)
        except BaseException:
            self.remove(address)
            raise

    def remove(self, address: str) -> None:
        """Leave one nsqd at once. If lookupd lists it, its next answer brings it back."""
        if address in self._addresses:
            self._addresses.remove(address)
        self._listed = {target for target in self._listed if target.address != address}
        self._cancel_unwanted()
        for target, connection in self.connections.items():
            if target.address == address:
                connection.close("removed")

    def release(self, connection: ClientConnection) -> bool:
        """It has ended. False if it was never among ``connections``."""
        target = Target(connection.topic, connection.address)
        if self.connections.get(target) is not connection:
            return False
        del self.connections[target]
        return True

    def reconnect(self, connection: ClientConnection, reason: str) -> bool:
        """Make it again, after a while; False if nobody wants it any more."""
        target = Target(connection.topic, connection.address)
        if target not in self._wanted():
            log.info("%s (%s) left: %s", self._owner.name, target.address, reason)
            return False
        log.warning("%s (%s) connection lost: %s", self._owner.name, target.address, reason)
        self._down.add(target)
        if target in self._given():
            self._begin(target, wait=True)
        elif self._poller is not None:
            self._poller.hurry()
        return True

    def halt(self) -> None:
        """Make no connection any more, and ask nobody for some."""
        self._halted = True
        for task in self._tasks.values():
            task.cancel()
        if self._poller is not None:
            self._poller.halt()

    async def stop(self) -> None:
        """End every task; the connections are the owner's to end."""
        self.halt()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._poller is not None:
            await self._poller.stop()

    # Within.

    def _given(self) -> list[Target]:
        """What the user's own addresses are for: each topic named, and each that was found."""
        if not self._addresses:
            return []
        topics = dict.fromkeys([*self._names, *sorted({topic for topic, _ in self._listed})])
        return [Target(topic, address) for address in self._addresses for topic in topics]

    def _wanted(self) -> set[Target]:
        return self._listed.union(self._given())

    def _found(self, directory: dict[Target, Node]) -> None:
        if self._halted:
            return
        if len(directory) > _CONNECTIONS_MAX:
            log.warning(
                "%s is served in %d places, only %d are used",
                self._owner.name,
                len(directory),
                _CONNECTIONS_MAX,
            )
        self._listed = set(islice(directory, _CONNECTIONS_MAX))
        self._cancel_unwanted()
        for target in self._wanted() - self.connections.keys() - self._tasks.keys():
            self._begin(target, wait=False)

    def _cancel_unwanted(self) -> None:
        wanted = self._wanted()
        for target, task in self._tasks.items():
            if target not in wanted:
                task.cancel()
        if given_up := self._down - wanted:
            self._down -= given_up
            self._owner.target_given_up()

    def _begin(self, target: Target, *, wait: bool) -> None:
        task = asyncio.create_task(self._connect(target, wait=wait))
        self._tasks[target] = task
        task.add_done_callback(lambda task: self._ended(target, task))

    def _ended(self, target: Target, task: asyncio.Task[None]) -> None:
        del self._tasks[target]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s (%s) internal error", self._owner.name, target.address, exc_info=error)

    async def _connect(self, target: Target, *, wait: bool) -> None:
        """Try until it succeeds; what only a directory told of is tried once."""
        for delay_s in reconnect_delays_s(self._options):
            if wait:
                await asyncio.sleep(delay_s)
            wait = True
            if await self._try(target) or target not in self._given():
                return

    async def _try(self, target: Target) -> bool:
        try:
            async with self._dials:
                await self._subscribe(target)
        except NSQError as error:
            log.warning("%s (%s) cannot connect: %s", self._owner.name, target.address, error)
        else:
            return True
        if target not in self._down and self._poller is not None:
            self._poller.hurry()
        self._down.add(target)
        return False

    async def _subscribe(self, target: Target) -> None:
        topic, address = target
        connection = await open_connection(address, self._options, self._owner, topic)
        try:
            await connection.request(requests.sub(topic, self._channel))
        except BaseException:
            connection.abort("SUB failed")
            raise
        if self._halted:
            connection.close("stopped")
            return
        self._down.discard(target)
        self.connections[target] = connection
        self._owner.connection_made(connection)


def _check(
    topics: Sequence[str], channel: str, nsqd: Sequence[str], lookupd: Sequence[str]
) -> None:
    if not topics:
        raise LocalProtocolError("give at least one topic")
    for topic in topics:
        if is_pattern(topic):
            check_pattern(topic)
            if not lookupd:
                raise LocalProtocolError(f'topic pattern "{topic}" needs the address of a lookupd')
        elif not is_valid_name(topic):
            raise LocalProtocolError(f'topic name "{topic}" is not valid')
    if not is_valid_name(channel):
        raise LocalProtocolError(f'channel name "{channel}" is not valid')
    if not nsqd and not lookupd:
        raise LocalProtocolError("give the address of at least one nsqd or lookupd")
    for address in nsqd:
        parse_address(address)
