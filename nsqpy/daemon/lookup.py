"""Keep every nsqlookupd told of what this daemon has, and ask them about new topics.

Each configured nsqlookupd is a ``LookupPeer`` with a task of its own, so that one that hangs
delays nobody.

A new topic is held until every nsqlookupd has said which channels it has elsewhere, or has let
the time pass: what is published meanwhile waits in the topic's own queue, and publishers get
their OK from there. Source: docs/discovery.md; nsqd/lookup.go.
"""

import asyncio
import json
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from nsqpy.clock import SECOND
from nsqpy.config import AUTO_ADDRESS
from nsqpy.daemon.lookup_peer import DEFAULT_LIMITS, Limits, LookupPeer
from nsqpy.errors import ConnectionClosed, NSQError
from nsqpy.names import is_ephemeral, is_valid_name
from nsqpy.net.http_client import HTTPClient
from nsqpy.protocol import lookup as v1
from nsqpy.version import NSQ_VERSION

if TYPE_CHECKING:
    from nsqpy.core.broker import Broker
    from nsqpy.core.catalogue import TopologyEvent
    from nsqpy.core.topic import Topic

__all__ = ["Lookups"]

log = logging.getLogger(__name__)

_HEADERS = {"Accept": "application/vnd.nsq; version=1.0"}
_ANSWER_MAX_BYTES = 256 * 1024


class Lookups:
    """Every nsqlookupd that the configuration names. Made inside a running event loop.

    Made before any client can connect, since what is created from then on is told of; ``start``
    once the ports are known. ``broker.config`` is read anew for each connection.
    """

    def __init__(self, broker: "Broker", hostname: str, limits: Limits = DEFAULT_LIMITS) -> None:
        self._broker = broker
        self._hostname = hostname
        self._limits = limits
        self._peers: dict[str, LookupPeer] = {}
        self._tasks: dict[LookupPeer, asyncio.Task[None]] = {}
        self._questions: set[asyncio.Task[None]] = set()
        self._http: HTTPClient | None = None
        self._started = asyncio.Event()
        self._left = False
        self._stopped = False
        broker.listeners.append(self._note)
        if self._configured:
            # Messages in a topic itself: perhaps the daemon ended before it had its answer.
            for topic in broker.topics.values():
                if not topic.is_empty():
                    self._hold(topic)

    @property
    def peers(self) -> list[LookupPeer]:
        return list(self._peers.values())

    @property
    def announced_address(self) -> str:
        """How others reach this daemon, as far as it is known: for ``/info``."""
        address = self._broker.config.broadcast_address
        if address != AUTO_ADDRESS:
            return address
        found = (peer.local_host for peer in self._peers.values() if peer.local_host)
        return next(found, self._hostname)

    @property
    def _configured(self) -> Sequence[str]:
        return self._broker.config.nsqlookupd_tcp_addresses

    def start(self) -> None:
        """Begin to connect. The configuration has the ports that are to be announced."""
        config = self._broker.config
        self._http = HTTPClient(
            config.http_client_request_timeout_ns / SECOND,
            _HEADERS,
            connect_timeout_s=config.http_client_connect_timeout_ns / SECOND,
        )
        self._started.set()
        self.follow_config()

    def follow_config(self) -> None:
        """The configured addresses may have changed: leave some, connect to others."""
        if self._left or not self._started.is_set():
            return
        wanted = dict.fromkeys(self._configured)
        for address in self._peers.keys() - wanted.keys():
            log.info("LOOKUP(%s): removing peer", address)
            self._tasks[self._peers.pop(address)].cancel()
        for address in wanted:
            if address not in self._peers:
                log.info("LOOKUP(%s): adding peer", address)
                self._add(LookupPeer(address, self._broker, self._peer_info, self._limits))

    def leave(self) -> None:
        """Be found no more: close every connection, and make no new one. New topics are still
        asked about, at those known by now."""
        if not self._left:
            if self._peers:
                log.info("LOOKUP: closing")
            self._left = True
            for task in self._tasks.values():
                task.cancel()

    async def stop(self) -> None:
        """Leave, and end every task. Topics that are held stay so."""
        self._stopped = True
        self.leave()
        for question in self._questions:
            question.cancel()
        tasks = [*self._tasks.values(), *self._questions]
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    def _add(self, peer: LookupPeer) -> None:
        self._peers[peer.address] = peer
        task = self._tasks[peer] = asyncio.create_task(peer.run())
        task.add_done_callback(lambda _: self._ended(peer))

    def _ended(self, peer: LookupPeer) -> None:
        del self._tasks[peer]
        peer.tried.set()  # whoever waits for its answer gets none

    def _peer_info(self, local_host: str) -> v1.PeerInfo:
        """What IDENTIFY says over a connection whose own end is at ``local_host``."""
        config = self._broker.config
        address = config.broadcast_address
        return v1.PeerInfo(
            hostname=self._hostname,
            broadcast_address=local_host if address == AUTO_ADDRESS else address,
            tcp_port=config.broadcast_tcp_port,
            http_port=config.broadcast_http_port,
            version=NSQ_VERSION,
            topology_zone=config.topology_zone,
            topology_region=config.topology_region,
        )

    # -- new topics -------------------------------------------------------------------------

    def _note(self, event: "TopologyEvent") -> None:
        for peer in self._peers.values():
            peer.note(event)
        if event.exists and event.channel is None and self._configured:
            self._hold(self._broker.topics[event.topic])

    def _hold(self, topic: "Topic") -> None:
        topic.hold()
        if self._stopped:
            return  # it is asked about after the next start
        question = asyncio.create_task(self._complete(topic))
        self._questions.add(question)
        question.add_done_callback(self._questions.discard)

    async def _complete(self, topic: "Topic") -> None:
        """Create the channels that the topic has elsewhere, and let it go."""
        try:
            await self._started.wait()
            for name in await self._channels_of(topic.name):
                if self._broker.topics.get(topic.name) is not topic:
                    break  # deleted meanwhile
                self._broker.create_channel(topic.name, name)
        except NSQError as error:
            log.error("TOPIC(%s): cannot create its channels - %s", topic.name, error)
        except Exception:
            log.critical("TOPIC(%s): internal error", topic.name, exc_info=True)
        if self._broker.topics.get(topic.name) is topic:
            topic.release()

    async def _channels_of(self, topic: str) -> Sequence[str]:
        peers = self.peers
        answers = await asyncio.gather(*(self._ask(peer, topic) for peer in peers))
        if peers and not any(peer.http_address for peer in peers):
            log.error("TOPIC(%s): no nsqlookupd to ask for its channels", topic)
        names = sorted(set().union(*answers))
        return [name for name in names if is_valid_name(name) and not is_ephemeral(name)]

    async def _ask(self, peer: LookupPeer, topic: str) -> Iterable[str]:
        """The names that one nsqlookupd tells; none if it does not answer.

        However many topics are new at once, each is asked about while there are answers. When
        one is too long in coming, those who wait to ask give up with it: no topic is held for
        more than about twice the timeout by an nsqlookupd that hangs.
        """
        config = self._broker.config
        timeout_s = config.http_client_request_timeout_ns / SECOND
        patience_s = min(config.http_client_connect_timeout_ns / SECOND, timeout_s)
        time = asyncio.get_running_loop().time
        came_s = began_s = time()
        try:
            async with asyncio.timeout(timeout_s):
                await peer.tried.wait()
            if not peer.http_address:
                return ()
            async with peer.questions:
                began_s = time()
                if peer.silent_at_s >= came_s:
                    raise ConnectionClosed("others had no answer")
                async with asyncio.timeout(timeout_s):
                    return await self._get_channels(peer.http_address, topic)
        except TimeoutError:
            why = "no answer in time"
        except ConnectionClosed as error:
            why = str(error)
        if time() - began_s >= patience_s:
            peer.silent_at_s = time()
        log.warning("LOOKUPD(%s): cannot tell the channels of %s - %s", peer, topic, why)
        return ()

    async def _get_channels(self, address: str, topic: str) -> Iterable[str]:
        """Raises ConnectionClosed."""
        assert self._http is not None
        path = f"/channels?topic={quote(topic, safe='')}"
        status, body = await self._http.get(f"http://{address}{path}", _ANSWER_MAX_BYTES)
        if status == 403 and (port := _object(body).get("https_port")):
            host = address.rpartition(":")[0]
            url = f"https://{host}:{port}{path}"
            status, body = await self._http.get(url, _ANSWER_MAX_BYTES)
        if status != 200:
            raise ConnectionClosed(f"answered with {status}")
        answer = _object(body)
        # Very old ones wrap it.
        inner = answer.get("data")
        names = (inner if isinstance(inner, dict) else answer).get("channels")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else ()


def _object(body: bytes) -> dict[str, object]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ConnectionClosed("answered with no JSON object")
    return answer
