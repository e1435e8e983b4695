"""The HTTP API: from a URL to a call on the registry. Source: HTTP in docs/nsqlookupd.md."""

import asyncio
import logging
from collections.abc import Mapping

from prometheus_client import CONTENT_TYPE_LATEST

from nsqpy.clock import Clock, Instant
from nsqpy.config import split_address
from nsqpy.gojson import JSON, go_json
from nsqpy.net.http import (
    EMPTY,
    HTTPError,
    HTTPServer,
    Reply,
    Request,
    Route,
    argument,
    json_reply,
    legal_name,
    log_request,
    text_reply,
)
from nsqpy.net.limits import ConnectionLimit
from nsqpy.version import NSQ_VERSION
from nsqpy_lookupd.metrics import Metrics
from nsqpy_lookupd.registry import Node, Registry
from nsqpy_lookupd.session import printable

__all__ = ["HTTPApi"]

log = logging.getLogger(__name__)

# What the original shows as the moment of a tombstone that was never set.
_NEVER_NS = -6795364578871345152
# How many names are encoded before others get their turn, a fifth of a millisecond each.
_PIECE_COUNT = 250


class HTTPApi:
    """The API of one daemon and its listener. Made inside a running event loop."""

    def __init__(self, registry: Registry, clock: Clock, metrics: Metrics) -> None:
        self._registry = registry
        self._clock = clock
        self._metrics = metrics
        self._server = HTTPServer(self._routes(), log_request, ConnectionLimit("HTTP", 0))

    async def listen(self, address: str) -> tuple[str, int]:
        """Serve ``host:port``; return what is really listened on.

        Raises:
            OSError: the address cannot be had.
        """
        place = split_address(address)
        assert place is not None
        return await self._server.listen(*place)

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        await self._server.stop()

    def _routes(self) -> Mapping[str, Mapping[str, Route]]:
        return {
            "/ping": {"GET": Route(self._ping)},
            "/info": {"GET": Route(self._info)},
            "/topics": {"GET": Route(self._topics)},
            "/channels": {"GET": Route(self._channels)},
            "/lookup": {"GET": Route(self._lookup)},
            "/nodes": {"GET": Route(self._nodes)},
            "/debug": {"GET": Route(self._debug)},
            "/metrics": {"GET": Route(self._show_metrics)},
            "/topic/create": {"POST": Route(self._create_topic)},
            "/topic/delete": {"POST": Route(self._delete_topic)},
            "/topic/tombstone": {"POST": Route(self._tombstone)},
            "/channel/create": {"POST": Route(self._create_channel)},
            "/channel/delete": {"POST": Route(self._delete_channel)},
        }

    async def _ping(self, request: Request) -> Reply:
        return text_reply("OK", nsq=False)

    async def _info(self, request: Request) -> Reply:
        return json_reply({"version": NSQ_VERSION})

    async def _show_metrics(self, request: Request) -> Reply:
        return Reply(200, self._metrics.page(), [("Content-Type", CONTENT_TYPE_LATEST)])

    # -- questions --------------------------------------------------------------------------

    async def _topics(self, request: Request) -> Reply:
        topics = self._registry.topics()
        pieces = []
        for first in range(0, len(topics), _PIECE_COUNT):
            pieces.append(go_json(topics[first : first + _PIECE_COUNT])[1:-1])
            await asyncio.sleep(0)
        return json_reply(b'{"topics":[' + b",".join(pieces) + b"]}")

    async def _channels(self, request: Request) -> Reply:
        topic = argument(request.query, "topic")
        return json_reply({"channels": self._registry.channels(topic)})

    async def _lookup(self, request: Request) -> Reply:
        topic = argument(request.query, "topic")
        found = self._registry.lookup(topic, self._clock.now())
        if found is None:
            raise HTTPError(404, "TOPIC_NOT_FOUND")
        nodes = [_node_json(node) for node in found.nodes]
        return json_reply({"channels": found.channels, "producers": nodes})

    async def _nodes(self, request: Request) -> Reply:
        pieces = []
        count = 0
        for found in self._registry.nodes(self._clock.now()):
            shown = _node_json(found.node)
            shown["tombstones"] = found.tombstones
            shown["topics"] = found.topics
            pieces.append(go_json(shown))
            count = await _breathe(count, 1 + len(found.topics))
        return json_reply(b'{"producers":[' + b",".join(pieces) + b"]}")

    async def _debug(self, request: Request) -> Reply:
        pieces = []
        count = 0
        for registration, nodes in self._registry.registrations():
            if nodes:
                name = go_json(":".join(registration))
                shown = [_debug_json(node, stone) for node, stone in nodes.items()]
                pieces.append(name + b":" + go_json(shown))
            count = await _breathe(count, 10 * len(nodes))
        return json_reply(b"{" + b",".join(pieces) + b"}")

    # -- administration ---------------------------------------------------------------------

    async def _create_topic(self, request: Request) -> Reply:
        topic = legal_name(request.query, "topic")
        log.info("DB: adding topic(%s)", topic)
        self._registry.create_topic(topic)
        return EMPTY

    async def _delete_topic(self, request: Request) -> Reply:
        topic = argument(request.query, "topic")
        log.info("DB: removing topic(%s)", printable(topic))
        self._registry.delete_topic(topic)
        return EMPTY

    async def _tombstone(self, request: Request) -> Reply:
        topic = argument(request.query, "topic")
        address = argument(request.query, "node")
        log.info(
            "DB: setting tombstone for producer@%s of topic(%s)",
            *(printable(address), printable(topic)),
        )
        self._registry.tombstone(topic, address, self._clock.now())
        return EMPTY

    async def _create_channel(self, request: Request) -> Reply:
        topic, channel = legal_name(request.query, "topic"), legal_name(request.query, "channel")
        log.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        self._registry.create_channel(topic, channel)
        return EMPTY

    async def _delete_channel(self, request: Request) -> Reply:
        topic, channel = legal_name(request.query, "topic"), legal_name(request.query, "channel")
        if not self._registry.delete_channel(topic, channel):
            raise HTTPError(404, "CHANNEL_NOT_FOUND")
        log.info("DB: removing channel(%s) from topic(%s)", channel, topic)
        return EMPTY


async def _breathe(count: int, more: int) -> int:
    """Count work done in one go; when it is enough, let others have their turn."""
    if count + more < _PIECE_COUNT:
        return count + more
    await asyncio.sleep(0)
    return 0


def _node_json(node: Node) -> dict[str, JSON]:
    info = node.info
    return {
        "remote_address": node.remote_address,
        "hostname": info.hostname,
        "broadcast_address": info.broadcast_address,
        "tcp_port": info.tcp_port,
        "http_port": info.http_port,
        "version": info.version,
        "topology_zone": info.topology_zone,
        "topology_region": info.topology_region,
    }


def _debug_json(node: Node, tombstoned: Instant | None) -> JSON:
    return {
        "broadcast_address": node.info.broadcast_address,
        "hostname": node.info.hostname,
        "http_port": node.info.http_port,
        "id": node.remote_address,
        "last_update": node.seen.wall_ns,
        "tcp_port": node.info.tcp_port,
        "tombstoned": tombstoned is not None,
        "tombstoned_at": _NEVER_NS if tombstoned is None else tombstoned.wall_ns,
        "topology_region": node.info.topology_region,
        "topology_zone": node.info.topology_zone,
        "version": node.info.version,
    }
