"""The nsqd that a producer publishes to: the connections, which are open, and whose turn it is."""

import asyncio
import contextlib
import ipaddress
import logging
import random
import socket
import time
from collections import deque
from collections.abc import Collection, Sequence

from nsqpy.client.connection import (
    ClientConnection,
    open_connection,
    parse_address,
    reconnect_delays_s,
)
from nsqpy.client.lookup import Lookupd, LookupPoller, Node
from nsqpy.client.options import ClientOptions
from nsqpy.clock import SECOND
from nsqpy.errors import ConnectionClosed, LocalProtocolError, NSQError, ServerError
from nsqpy.protocol.frames import MessageFields

__all__ = ["Pool", "PooledConnection"]

log = logging.getLogger(__name__)

# Of a directory with more, the first are used.
_NODES_MAX = 1000


class PooledConnection:
    """The connection to one address: made when asked for, made again when lost.

    Replies carry no id, so the outstanding calls are a queue: each reply is for the oldest.
    """

    def __init__(
        self, node: Node, options: ClientOptions, outstanding_max: int, *, local: bool
    ) -> None:
        self.address = node.address
        self.local = local
        self.connection: ClientConnection | None = None
        self.outstanding: deque[asyncio.Future[bytes]] = deque()
        self._options = options
        self._outstanding_max = outstanding_max
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._opening: asyncio.Task[None] | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._stopped = False

    def open(self) -> "asyncio.Task[None]":
        """Connect, unless it is connected; all who ask at the same time share one attempt.

        The task raises ConnectionClosed or ServerError, as ``open_connection`` does. Nobody
        may cancel it.
        """
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            # Whoever waited may be gone: the failure must not be reported as unseen.
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._opening

    @property
    def has_room(self) -> bool:
        """True if a call may be made: few enough wait, and nsqd reads what is written."""
        return (
            self.connection is not None
            and self.connection.writable
            and len(self.outstanding) < self._outstanding_max
        )

    def call(self, data: bytes) -> asyncio.Future[bytes]:
        assert self.connection is not None
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.outstanding:
            self.connection.send(data)
        else:
            self.connection.send_now(data)
        self.outstanding.append(reply)
        return reply

    async def wait_room(self) -> None:
        """Wait until a call may be made, or the connection is lost."""
        while self.connection is not None and not self.has_room:
            if not self.connection.writable:
                await self.connection.wait_writable()
                continue
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                if waiting.done() and not waiting.cancelled():
                    self._wake_one()  # the room it was woken for is another's
                raise

    async def leave(self) -> None:
        """Stop when the calls made so far are answered; the pool makes no new ones."""
        self._stopped = True
        if self.outstanding:
            await asyncio.wait(self.outstanding.copy())
        await self.stop()

    async def stop(self) -> None:
        """Close; outstanding calls fail with ``ConnectionClosed``."""
        self._stopped = True
        tasks = [task for task in (self._reconnecting, self._opening) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.connection is not None:
            connection = self.connection
            connection.close("stopped")
            await connection.wait_closed()

    # What the connection tells (ConnectionOwner).

    def messages_received(
        self, connection: ClientConnection, messages: list[MessageFields]
    ) -> None:
        connection.abort("nsqd sent messages to a producer")

    def response_received(self, connection: ClientConnection, data: bytes) -> None:
        reply = self._take_oldest(connection)
        if reply is not None and not reply.done():
            reply.set_result(data)

    def error_received(self, connection: ClientConnection, error: ServerError) -> None:
        reply = self._take_oldest(connection)
        if reply is not None and not reply.done():
            reply.set_exception(error)

    def connection_closed(self, connection: ClientConnection, reason: str) -> None:
        self.connection = None
        outstanding, self.outstanding = self.outstanding, deque()
        for reply in outstanding:
            if not reply.done():
                reply.set_exception(ConnectionClosed(f"{self.address}: {reason}"))
        while self._waiting:
            self._wake_one()
        if not self._stopped:
            log.warning("(%s) connection lost: %s", self.address, reason)
            self._reconnect_later()

    def _take_oldest(self, connection: ClientConnection) -> asyncio.Future[bytes] | None:
        if not self.outstanding:
            connection.abort("nsqd replied to nothing")
            return None
        reply = self.outstanding.popleft()
        self._wake_one()
        return reply

    def _wake_one(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    async def _open(self) -> None:
        try:
            if self.connection is None:
                self.connection = await open_connection(self.address, self._options, self)
        except asyncio.CancelledError:
            # Only ``stop`` cancels it. Those who share the attempt were not cancelled.
            raise ConnectionClosed(f"{self.address}: stopped") from None
        except NSQError:
            self._reconnect_later()
            raise
        finally:
            self._opening = None

    def _reconnect_later(self) -> None:
        if not self._stopped and (self._reconnecting is None or self._reconnecting.done()):
            self._reconnecting = asyncio.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        for delay_s in reconnect_delays_s(self._options):
            await asyncio.sleep(delay_s)
            try:
                await asyncio.shield(self.open())
            except NSQError as error:
                log.warning("(%s) cannot connect: %s", self.address, error)
            else:
                return


class Pool:
    """Gives each call a connection: the next that is open and has room.

    Nodes are those given, and those that lookupd lists. One that is listed no more gets no new
    calls and is closed when it has answered the others. An empty directory changes nothing, as
    it is most likely that of an nsqlookupd that has just started.

    Raises:
        LocalProtocolError: there is nowhere to publish to.
        ConfigError: an address is none.
    """

    def __init__(
        self,
        nsqd: Sequence[str],
        lookupd: Sequence[str],
        options: ClientOptions,
        outstanding_max: int,
        *,
        prefer_local: bool,
    ) -> None:
        if not nsqd and not lookupd:
            raise LocalProtocolError("give the address of at least one nsqd or lookupd")
        self._options = options
        self._outstanding_max = outstanding_max
        self._prefer_local = prefer_local
        self._hostnames = {socket.gethostname(), options.hostname, "localhost"}
        self._members: dict[str, PooledConnection] = {}
        self._leaving: dict[PooledConnection, asyncio.Task[None]] = {}
        self._given = frozenset(nsqd)
        for address in nsqd:
            where = parse_address(address)
            host = "localhost" if isinstance(where, str) else where[0]
            self._add(Node(address, "", host))
        # Those of the first that are open are used; those of the second when there are none.
        self._tiers: list[list[PooledConnection]] = []
        self._arrange()
        self._poller: LookupPoller[str] | None = None
        if lookupd:
            self._poller = LookupPoller(lookupd, _nodes, self._found, options, random.Random())
        self._polling = False
        self._changed = asyncio.Event()
        self._turn = 0
        self._stopped = False

    @property
    def calls_outstanding(self) -> int:
        return sum(len(pooled.outstanding) for pooled in (*self._members.values(), *self._leaving))

    @property
    def connections(self) -> int:
        return sum(pooled.connection is not None for pooled in self._members.values())

    async def choose(self, tried: Collection[PooledConnection] = ()) -> PooledConnection:
        """A connection that is open and has room for a call, but none of those ``tried``.

        Raises:
            ConnectionClosed: there is none.
            LocalProtocolError: the producer was stopped.
        """
        while True:
            if self._stopped:
                raise LocalProtocolError("the producer was stopped")
            for tier in self._tiers:
                for _ in tier:
                    self._turn += 1
                    pooled = tier[self._turn % len(tier)]
                    if pooled.has_room and pooled not in tried:
                        return pooled
                full = [one for one in tier if one.connection is not None and one not in tried]
                if full:
                    await full[self._turn % len(full)].wait_room()
                    break
            else:
                await self._wait_open(tried)

    async def stop(self) -> None:
        self._stopped = True
        self._changed.set()
        if self._poller is not None:
            await self._poller.stop()
        leaving = dict(self._leaving)
        for pooled in (*self._members.values(), *leaving):
            await pooled.stop()
        await asyncio.gather(*leaving.values(), return_exceptions=True)

    async def _wait_open(self, tried: Collection[PooledConnection]) -> None:
        """Return when a connection is open, or the producer was stopped.

        With lookupd it waits for a node up to ``discovery_timeout``, but not for a retry.

        Raises:
            ConnectionClosed: nobody answers.
        """
        if self._poller is not None and not self._polling:
            self._polling = True
            self._poller.start()
        patience_s = self._options.discovery_timeout_ns / SECOND
        until_s = time.monotonic() + patience_s
        while not self._stopped:
            changed = self._changed
            failures = await self._open(tried)
            if failures is None:
                return
            left_s = until_s - time.monotonic()
            if self._poller is None or tried or left_s <= 0:
                raise self._nobody(failures)
            self._poller.hurry()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await changed.wait()

    async def _open(self, tried: Collection[PooledConnection]) -> list[BaseException] | None:
        """Try every address of a tier at once, then of the next; None when one has answered."""
        failures: list[BaseException] = []
        for tier in self._tiers:
            pending = {pooled.open() for pooled in tier if pooled not in tried}
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    failure = task.exception()
                    if failure is None:
                        return None
                    failures.append(failure)
        return failures

    def _nobody(self, failures: list[BaseException]) -> ConnectionClosed:
        """The error for a call that nobody takes."""
        if self._members or self._poller is None:
            reasons = "; ".join(sorted(str(failure) for failure in failures))
            error = ConnectionClosed(f"no open connections: {reasons}")
        else:
            patience_s = self._options.discovery_timeout_ns / SECOND
            told = self._poller.told()
            error = ConnectionClosed(f"no nsqd found within {patience_s:g}s by lookupd {told}")
        error.__cause__ = failures[0] if failures else None
        return error

    def _add(self, node: Node) -> PooledConnection:
        local = self._prefer_local and _is_here(node, self._hostnames)
        pooled = PooledConnection(node, self._options, self._outstanding_max, local=local)
        self._members[node.address] = pooled
        return pooled

    def _arrange(self) -> None:
        """Order the members into tiers, of which none is empty."""
        members = self._members.values()
        local = [pooled for pooled in members if pooled.local]
        others = [pooled for pooled in members if not pooled.local]
        self._tiers = [tier for tier in (local, others) if tier]

    def _found(self, directory: dict[str, Node]) -> None:
        if directory:
            for address in self._members.keys() - directory.keys() - self._given:
                self._let_go(self._members.pop(address))
        room = _NODES_MAX - len(self._members)
        unknown = [node for address, node in directory.items() if address not in self._members]
        if len(unknown) > room:
            log.warning("lookupd lists %d nsqd, %d are used", len(directory), _NODES_MAX)
        added = [self._add(node) for node in unknown[:room]]
        self._arrange()
        for pooled in added:
            if pooled in self._tiers[0]:
                pooled.open()
        self._changed.set()
        self._changed = asyncio.Event()

    def _let_go(self, pooled: PooledConnection) -> None:
        log.info("(%s) is listed no more", pooled.address)
        task = asyncio.create_task(pooled.leave())
        self._leaving[pooled] = task
        task.add_done_callback(lambda _: self._leaving.pop(pooled))


async def _nodes(lookupd: Lookupd) -> dict[str, Node]:
    return {node.address: node for node in await lookupd.nodes()}


def _is_here(node: Node, hostnames: Collection[str]) -> bool:
    """True if a node is on this host, by its names or by an address that is this host's."""
    if node.hostname in hostnames or node.broadcast_address in hostnames:
        return True
    try:
        address = ipaddress.ip_address(node.broadcast_address)
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))  # only one's own addresses can be bound
    except (ValueError, OSError):
        return False
    return True
