"""The HTTP API of the daemon: from a URL to a call on the broker. Source: HTTP in docs/protocol.md.

Everything but publishing is done when the call returns. A publish waits for its ticket: ``OK``
means what ``--durability`` says, and any failure to store is 503 EXITING.
"""

import asyncio
import json
import logging
import re
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST

from nsqpy.clock import Clock
from nsqpy.config import TLSRequired, change_config, config_value, split_address
from nsqpy.core.broker import DrainingError
from nsqpy.core.dead_letters import DeadLetterPolicy
from nsqpy.core.stats import MemoryStats, restrict, stats_json, stats_text
from nsqpy.core.topic import ExitingError, Ticket
from nsqpy.daemon.access import Access
from nsqpy.daemon.auth import Gatekeeper
from nsqpy.daemon.debug import debug_routes
from nsqpy.daemon.drain import DEFAULT_TIMEOUT_NS, Drain
from nsqpy.daemon.http_bodies import (
    BOOLEANS,
    defer_ns,
    drain_timeout_ns,
    split_lines,
    split_records,
)
from nsqpy.daemon.lease_api import LeaseAPI
from nsqpy.daemon.lookup import Lookups
from nsqpy.daemon.memory import MemoryMeter
from nsqpy.daemon.metrics import Metrics
from nsqpy.daemon.refusals import refusals
from nsqpy.daemon.statsd import expanded_prefix
from nsqpy.errors import ConfigError, NSQError
from nsqpy.logs import set_level
from nsqpy.names import is_valid_name
from nsqpy.net.http import (
    EMPTY,
    OK,
    ClosedRouter,
    Handler,
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
from nsqpy.net.listeners import shown_address
from nsqpy.tokens import Role
from nsqpy.version import NSQ_VERSION

if TYPE_CHECKING:
    from nsqpy.core.broker import Broker

__all__ = ["HTTPApi"]

log = logging.getLogger(__name__)

_CHANNEL_CONFIG_MAX_BYTES = 4096
_REDRIVE_MAX_MESSAGES = 100_000  # one call's; a whole turn waits for it


class HTTPApi:
    """The API of one daemon and its listener.

    Made inside a running event loop, when the TCP listener is open: ``tcp_port`` is its port, -1
    for a Unix socket. ``/stats`` counts uptime from now. ``broker.config`` is read anew for each
    request; this is also where ``PUT /config`` puts a changed one.
    """

    def __init__(
        self,
        broker: "Broker",
        clock: Clock,
        *,
        hostname: str,
        tcp_port: int,
        lookups: Lookups,
        drain: Drain,
        gatekeeper: Gatekeeper | None,
        metrics: Metrics,
    ) -> None:
        self._broker = broker
        self._lookups = lookups
        self._drain = drain
        self._access = Access(gatekeeper)
        self._clock = clock
        self._started_ns = clock.now().monotonic_ns
        self._hostname = hostname
        self._tcp_port = tcp_port
        self._http_port = 0
        self._https_port = 0
        self._memory = MemoryMeter()
        self._metrics = metrics
        self._limit = ConnectionLimit("HTTP", broker.config.max_connections)
        self._server = HTTPServer(self._access.guard(self._routes()), log_request, self._limit)
        self._metrics.http = self._server
        self._plain_server = self._server

    async def listen(self, address: str) -> str:
        """Serve ``host:port`` or a Unix socket's path; return what is really listened on.

        Raises:
            OSError: the address cannot be had.
        """
        if self._broker.config.tls_required is TLSRequired.ALL:
            refusal = b'{"message": "TLS_REQUIRED", "https_port": %d}' % self._https_port
            router = ClosedRouter(json_reply(refusal, 403))
            self._plain_server = HTTPServer(router, log_request, self._limit)
        place = split_address(address)
        if place is None:
            await self._plain_server.listen_unix(Path(address))
            self._http_port = -1
            return address
        bound_host, self._http_port = await self._plain_server.listen(*place)
        return shown_address(bound_host, self._http_port)

    async def listen_https(self, host: str, port: int, tls: ssl.SSLContext) -> str:
        """Serve HTTPS too; return what is really listened on. Raises: as ``listen``.

        This comes before ``listen``: a plain port that is closed by ``--tls-required`` says where
        to go.
        """
        bound_host, self._https_port = await self._server.listen(host, port, tls)
        return shown_address(bound_host, self._https_port)

    async def renew_tls(self, tls: ssl.SSLContext) -> None:
        """Use ``tls`` for connections to come. Raises: OSError: all is as before."""
        await self._server.renew_tls(tls)

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        self._memory.close()
        await self._server.stop()
        if self._plain_server is not self._server:
            await self._plain_server.stop()

    def read_memory(self) -> MemoryStats:
        return self._memory.read()

    def _routes(self) -> Mapping[str, Mapping[str, Route]]:
        broker = self._broker
        return {
            "/ping": {"GET": Route(self._ping)},
            "/healthz": {"GET": Route(self._healthz, logged=False)},
            "/healthz/*": {"GET": Route(self._healthz, logged=False)},
            "/info": {"GET": Route(self._info)},
            "/stats": {"GET": Route(self._stats)},
            "/metrics": {"GET": Route(self._show_metrics)},
            "/pub": {"POST": Route(self._pub, logged=False)},
            "/mpub": {"POST": Route(self._mpub, logged=False)},
            "/config/*": {"GET": Route(self._get_config), "PUT": Route(self._put_config)},
            "/topic/create": _post(_on_topic(broker.topic, checked=True)),
            "/topic/delete": _post(_on_topic(broker.delete_topic)),
            "/topic/pause": _post(_on_topic(broker.pause_topic)),
            "/topic/unpause": _post(_on_topic(broker.unpause_topic)),
            "/topic/empty": _post(_on_topic(broker.empty_topic, checked=True)),
            "/channel/create": _post(_on_channel(broker.create_channel)),
            "/channel/delete": _post(_on_channel(broker.delete_channel)),
            "/channel/pause": _post(_on_channel(broker.pause_channel)),
            "/channel/unpause": _post(_on_channel(broker.unpause_channel)),
            "/channel/empty": _post(_on_channel(self._empty_channel)),
            "/channel/config": {
                "GET": Route(self._get_channel_config),
                "POST": Route(self._set_channel_config),
            },
            "/channel/redrive": _post(self._redrive),
            "/drain": {"GET": Route(self._get_drain), "POST": Route(self._start_drain)},
            **LeaseAPI(broker, self._clock, self._access).routes(),
            **debug_routes(),
        }

    # -- about the daemon -------------------------------------------------------------------

    async def _ping(self, request: Request) -> Reply:
        health = self._broker.health
        return text_reply(health, 200 if health == "OK" else 500, nsq=False)

    async def _healthz(self, request: Request) -> Reply:
        """``live``: this answers, so a restart would not help. ``disk``: it takes writes.
        ``ready``: whoever connects is served."""
        broker = self._broker
        ready = "NOK - stopping" if broker.exiting else broker.health
        checks = {"live": "OK", "ready": ready, "disk": broker.disk_health}
        if request.segment:
            if request.segment not in checks:
                raise HTTPError(404, "NOT_FOUND")
            checks = {request.segment: checks[request.segment]}
        return json_reply(checks, 200 if set(checks.values()) == {"OK"} else 503)

    async def _info(self, request: Request) -> Reply:
        broker = self._broker
        config = broker.config
        return json_reply(
            {
                "version": NSQ_VERSION,
                "broadcast_address": self._lookups.announced_address,
                "hostname": self._hostname,
                "http_port": self._http_port,
                "tcp_port": self._tcp_port,
                "start_time": broker.start_time_s,
                "max_heartbeat_interval": config.max_heartbeat_interval_ns,
                "max_output_buffer_size": config.max_output_buffer_size,
                "max_output_buffer_timeout": config.max_output_buffer_timeout_ns,
                "max_deflate_level": config.max_deflate_level,
                "topology_zone": config.topology_zone,
                "topology_region": config.topology_region,
                "max_msg_size": config.max_msg_size,
                "max_body_size": config.max_body_size,
            }
        )

    async def _stats(self, request: Request) -> Reply:
        query = request.query
        include_clients = BOOLEANS.get(query.get("include_clients", ""), True)
        include_mem = BOOLEANS.get(query.get("include_mem", ""), True)
        stats = self._broker.stats(
            query.get("topic", ""),
            query.get("channel", ""),
            include_clients=include_clients,
            wall_ns=self._clock.now().wall_ns,
        )
        if (sees := self._access.sees(request)) is not None:
            stats = restrict(stats, sees)
        memory = self._memory.read() if include_mem else None
        if query.get("format") == "json":
            return json_reply(stats_json(stats, memory))
        now = self._clock.now()
        uptime_ns = now.monotonic_ns - self._started_ns
        return text_reply(stats_text(stats, memory, now_ns=now.wall_ns, uptime_ns=uptime_ns))

    async def _show_metrics(self, request: Request) -> Reply:
        now_ns = self._clock.now().wall_ns
        page = await self._metrics.page(now_ns, self._access.sees(request))
        return Reply(200, page, [("Content-Type", CONTENT_TYPE_LATEST)])

    async def _get_config(self, request: Request) -> Reply:
        return self._config_reply(request.segment)

    async def _put_config(self, request: Request) -> Reply:
        config = self._broker.config
        body = await request.body(config.max_msg_size, "INVALID_VALUE")
        if not body:
            raise HTTPError(413, "INVALID_VALUE")
        try:
            changed = change_config(config, request.segment, body)
        except KeyError:
            raise HTTPError(400, "INVALID_OPTION") from None
        except ValueError:
            raise HTTPError(400, "INVALID_VALUE") from None
        self._broker.config = changed
        set_level(changed.log_level)
        self._lookups.follow_config()
        return self._config_reply(request.segment)

    def _config_reply(self, name: str) -> Reply:
        config = self._broker.config
        shown = config_value(config, name)
        if shown is None:
            raise HTTPError(400, "INVALID_OPTION")
        if name == "statsd_prefix":  # as it is in use, which dashboards ask for
            host, port = self._lookups.announced_address, config.broadcast_http_port
            shown = expanded_prefix(shown, host, port)
        # The level is text in the file but a number here, as in the original.
        is_text = isinstance(getattr(config, name, None), str) and name != "log_level"
        return text_reply(shown) if is_text else json_reply(shown.encode())

    def _empty_channel(self, topic: str, channel: str) -> None:
        self._broker.empty_channel(topic, channel, self._clock.now())

    # -- dead letters -----------------------------------------------------------------------

    async def _get_channel_config(self, request: Request) -> Reply:
        topic, channel = _topic_and_channel(request.query)
        with refusals():
            return json_reply(self._broker.channel_config(topic, channel).as_json())

    async def _set_channel_config(self, request: Request) -> Reply:
        topic, channel = _topic_and_channel(request.query)
        body = await request.body(_CHANNEL_CONFIG_MAX_BYTES, "BODY_TOO_BIG")
        try:
            policy = DeadLetterPolicy.from_json(json.loads(body))
            if policy.dead_letter_topic:
                self._access.require(request, Role.ADMIN, policy.dead_letter_topic)
            with refusals():
                self._broker.set_channel_config(topic, channel, policy)
        except ConfigError as error:
            raise HTTPError(400, f"INVALID_CONFIG {error}") from None
        except (ValueError, RecursionError):
            raise HTTPError(400, "INVALID_CONFIG the body must be a JSON object") from None
        return await self._get_channel_config(request)

    async def _redrive(self, request: Request) -> Reply:
        query = request.query
        topic, channel = _topic_and_channel(query)
        wanted = query.get("max", str(_REDRIVE_MAX_MESSAGES))
        if not re.fullmatch("[1-9][0-9]{0,5}", wanted) or int(wanted) > _REDRIVE_MAX_MESSAGES:
            raise HTTPError(400, "INVALID_ARG_MAX")
        with refusals():
            count, left = self._broker.redrive(topic, channel, int(wanted), self._clock.now())
        return json_reply({"count": count, "left": left})

    # -- draining ---------------------------------------------------------------------------

    async def _get_drain(self, request: Request) -> Reply:
        return json_reply(self._drain.status())

    async def _start_drain(self, request: Request) -> Reply:
        query = request.query
        timeout_ns = self._broker.config.drain_timeout_ns or DEFAULT_TIMEOUT_NS
        if "timeout" in query:
            timeout_ns = drain_timeout_ns(query["timeout"])
        if "timeout" in query or not self._drain.begun:
            self._drain.begin(timeout_ns)
        if BOOLEANS.get(query.get("wait", ""), False):
            await self._drain.ended.wait()
        return json_reply(self._drain.status())

    # -- publishing -------------------------------------------------------------------------

    async def _pub(self, request: Request) -> Reply:
        config = self._broker.config
        body = await request.body(config.max_msg_size, "MSG_TOO_BIG")
        if not body:
            raise HTTPError(400, "MSG_EMPTY")
        query = request.query
        topic = _valid_topic(query)
        deliver_at_ns = 0
        if "defer" in query:
            self._make_topic(topic)  # even if the delay turns out to be wrong, as in the original
            delay_ns = defer_ns(query["defer"], config.max_defer_timeout_ns)
            deliver_at_ns = self._clock.now().wall_ns + delay_ns if delay_ns else 0
        return await self._publish(topic, [body], deliver_at_ns)

    async def _mpub(self, request: Request) -> Reply:
        config = self._broker.config
        request.refuse_length_over(config.max_body_size, "BODY_TOO_BIG")
        query = request.query
        topic = _valid_topic(query)
        self._make_topic(topic)
        binary = query.get("binary", "false")
        if binary not in BOOLEANS:
            log.warning("deprecated value %r used for /mpub binary param", binary)
        body = await request.body(config.max_body_size, "BODY_TOO_BIG")
        if BOOLEANS.get(binary, True):
            messages = split_records(body, config.max_msg_size, config.max_body_size)
        else:
            messages = split_lines(body, config.max_msg_size)
        return await self._publish(topic, messages) if messages else OK

    def _make_topic(self, name: str) -> None:
        try:
            self._broker.topic_to_publish(name)
        except NSQError as error:
            raise _not_published(name, error) from error

    async def _publish(self, topic: str, bodies: list[bytes], deliver_at_ns: int = 0) -> Reply:
        try:
            ticket = self._broker.publish(topic, bodies, deliver_at_ns=deliver_at_ns)
        except NSQError as error:
            raise _not_published(topic, error) from error
        await _wait_done(ticket)
        if ticket.error is not None:
            raise _not_published(topic, ticket.error)
        return OK


async def _wait_done(ticket: Ticket) -> None:
    if ticket.done:
        return
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: Ticket) -> None:
        if not done.done():  # the connection may have been closed meanwhile
            done.set_result(None)

    ticket.on_done = wake
    await done


def _not_published(topic: str, error: NSQError) -> HTTPError:
    if isinstance(error, DrainingError):
        return HTTPError(503, "DRAINING")
    if not isinstance(error, ExitingError):
        log.error("TOPIC(%s): failed to publish - %s", topic, error)
    return HTTPError(503, "EXITING")


# --- topics and channels ---


def _post(handler: Handler) -> Mapping[str, Route]:
    return {"POST": Route(handler)}


def _on_topic(act: Callable[[str], object], *, checked: bool = False) -> Handler:
    """A handler that does ``act`` to the topic; ``checked`` refuses bad names as such, where
    others merely do not find them."""

    async def handle(request: Request) -> Reply:
        query = request.query
        topic = _valid_topic(query) if checked else argument(query, "topic")
        return _done(lambda: act(topic))

    return handle


def _on_channel(act: Callable[[str, str], object]) -> Handler:
    """A handler that does ``act`` to the channel of a topic that exists."""

    async def handle(request: Request) -> Reply:
        topic, channel = _topic_and_channel(request.query)
        return _done(lambda: act(topic, channel))

    return handle


def _done(act: Callable[[], object]) -> Reply:
    """Call; an empty 200, or the refusal."""
    with refusals():
        act()
    return EMPTY


def _valid_topic(query: Mapping[str, str]) -> str:
    topic = argument(query, "topic")
    if not is_valid_name(topic):
        raise HTTPError(400, "INVALID_TOPIC")
    return topic


def _topic_and_channel(query: Mapping[str, str]) -> tuple[str, str]:
    return legal_name(query, "topic"), legal_name(query, "channel")
