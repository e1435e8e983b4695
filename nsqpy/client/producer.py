"""Publish to one nsqd or to any of several, those given and those that lookupd knows.

::

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("orders", b"one")
        await producer.publish("orders", b"later", defer_ms=5000)
        await producer.publish_many("orders", [b"two", b"three"])

A call returns when nsqd has said OK. Calls made at the same time share a connection and a
write. When a connection is lost, or an nsqd cannot store, the calls it has not answered are made
again on another nsqd. **What they published may have been stored by the first one all the same,
so this may publish twice**; ``tries=1`` turns it off. Who is told ``ConnectionClosed`` in the end
does not know either.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from nsqpy.client.options import ClientOptions, Setting, client_options
from nsqpy.client.pool import Pool, PooledConnection
from nsqpy.errors import ConnectionClosed, ErrorCode, LocalProtocolError, NSQError, ServerError
from nsqpy.names import is_valid_name
from nsqpy.protocol import requests

__all__ = ["Producer", "ProducerStats"]

log = logging.getLogger(__name__)

# A node that says so cannot take anything: its disk is full, or it is about to stop.
_ANOTHER_MAY = frozenset({ErrorCode.PUB_FAILED, ErrorCode.MPUB_FAILED, ErrorCode.DPUB_FAILED})


@dataclass(frozen=True, slots=True)
class ProducerStats:
    messages_published: int
    calls_failed: int
    calls_outstanding: int
    connections: int
    calls_retried: int


class Producer:
    """Publishes over one connection to each nsqd, used in turn while they are open.

    It connects at the first call. A lost connection is made again in the background, and by
    the next call if none is left.

    Args:
        nsqd: TCP addresses, ``host:port``.
        lookupd: HTTP addresses of every nsqlookupd, ``host:port`` or URLs; the nsqd that they
            list are used too, as they come and go. While none is known, or none can be reached,
            a call waits for up to ``discovery_timeout`` (10 s).
        prefer_local: use the nsqd on this host, as names and addresses tell, and others only
            while there is none.
        tries: on how many nsqd a call may be made before it fails. More than 1 may publish
            twice, as said above.
        outstanding_max: calls that may wait for their reply on each connection; further ones
            wait for room.
        options: what ``settings`` change; by default go-nsq's defaults.
        settings: client options by name, such as ``dial_timeout="5s"``.

    Raises:
        LocalProtocolError: no address is given, or no call may be outstanding or tried.
        ConfigError: an option is unknown or out of range, or an address is none.
    """

    def __init__(
        self,
        *nsqd: str,
        lookupd: str | Sequence[str] = (),
        prefer_local: bool = False,
        tries: int = 3,
        outstanding_max: int = 1000,
        options: ClientOptions | None = None,
        **settings: Setting,
    ) -> None:
        for name, value in (("outstanding_max", outstanding_max), ("tries", tries)):
            if value < 1:
                raise LocalProtocolError(f"{name} {value} is below 1")
        self._pool = Pool(
            nsqd,
            [lookupd] if isinstance(lookupd, str) else lookupd,
            client_options(settings, options),
            outstanding_max,
            prefer_local=prefer_local,
        )
        self._tries = tries
        self._published = self._failed = self._retried = 0
        self._untold: Counter[str] = Counter()

    async def publish(self, topic: str, body: bytes, *, defer_ms: int = 0) -> None:
        """Publish one message; with ``defer_ms``, for delivery after that long.

        Raises:
            ServerError: nsqd refused it, or every one that was tried cannot store it.
            ConnectionClosed: no nsqd can be reached, or the connection was lost and no other
                nsqd took it.
            LocalProtocolError: the name is not legal, the body is empty, the delay is below 0,
                or the producer was stopped.
        """
        _check(topic, (body,))
        if defer_ms < 0:
            raise LocalProtocolError(f"defer_ms {defer_ms} is below 0")
        if defer_ms:
            await self._call(requests.dpub(topic, defer_ms, body), 1)
        else:
            await self._call(requests.pub(topic, body), 1)

    async def publish_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Publish messages with one MPUB; nsqd takes all of them or none.

        It takes at most ``max-body-size`` (5 MiB by default) at once.

        Raises:
            ServerError, ConnectionClosed, LocalProtocolError: as ``publish``.
        """
        _check(topic, bodies)
        if bodies:
            await self._call(requests.mpub(topic, bodies), len(bodies))

    async def ping(self) -> None:
        """Prove that an nsqd can be reached and takes this client.

        Raises:
            ConnectionClosed, ServerError: none does.
        """
        pooled = await self._pool.choose()
        if pooled.connection is not None:
            pooled.connection.send(requests.NOP)

    async def stop(self) -> None:
        """Close; outstanding calls fail with ``ConnectionClosed``, later ones are refused."""
        await self._pool.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def stats(self) -> ProducerStats:
        return ProducerStats(
            messages_published=self._published,
            calls_failed=self._failed,
            calls_outstanding=self._pool.calls_outstanding,
            connections=self._pool.connections,
            calls_retried=self._retried,
        )

    async def _call(self, data: bytes, messages: int) -> None:
        try:
            pooled = await self._pool.choose()
            try:
                await pooled.call(data)
            except (ConnectionClosed, ServerError) as error:
                await self._retry(data, pooled, error)
        except NSQError:
            self._failed += 1
            raise
        self._published += messages

    async def _retry(
        self, data: bytes, pooled: PooledConnection, error: ConnectionClosed | ServerError
    ) -> None:
        """Make a call that failed again on other nodes.

        Raises:
            ConnectionClosed, ServerError: the last failure, when no other node takes it either.
        """
        tried: list[PooledConnection] = []
        while _another_may(error) and len(tried) + 1 < self._tries:
            tried.append(pooled)
            try:
                pooled = await self._pool.choose(tried)
            except NSQError:
                break
            self._retried += 1
            self._tell(tried[-1], error)
            try:
                await pooled.call(data)
            except (ConnectionClosed, ServerError) as failure:
                error = failure
            else:
                return
        raise error

    def _tell(self, pooled: PooledConnection, error: NSQError) -> None:
        """Log a retry; one line for all those of a turn of the event loop."""
        if not self._untold:
            asyncio.get_running_loop().call_soon(self._tell_all)
        # What a lost connection says begins with the address.
        where = "" if isinstance(error, ConnectionClosed) else f"{pooled.address}: "
        self._untold[f"{where}{error}"] += 1

    def _tell_all(self) -> None:
        for reason, calls in self._untold.items():
            log.warning("%s: %d calls made again on another nsqd", reason, calls)
        self._untold.clear()


def _another_may(error: ConnectionClosed | ServerError) -> bool:
    return isinstance(error, ConnectionClosed) or error.code in _ANOTHER_MAY


def _check(topic: str, bodies: Sequence[bytes]) -> None:
    """Refuse here what nsqd would refuse by closing, which fails other calls too."""
    if not is_valid_name(topic):
        raise LocalProtocolError(f'topic name "{topic}" is not valid')
    if not all(bodies):
        raise LocalProtocolError("a message body is empty")
