"""Calls to the HTTP APIs of nsqd and nsqlookupd, over ``http.client``.

Here for code that has no event loop and no aiohttp: the executors of a Spark job have the
standard library only. A call is repeated while a node does not answer, so only what may be
repeated goes through ``HTTPNode.call``; ``HTTPNode.once`` does it a single time.

Source: HTTP in docs/protocol.md and docs/nsqlookupd.md.
"""

import http.client
import json
import logging
import ssl
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode, urlsplit

from nsqpy.client.node_tls import NodeTLS
from nsqpy.errors import ConfigError, NSQError

__all__ = [
    "Answer",
    "HTTPNode",
    "NodeAddress",
    "NodeNotTrusted",
    "NodeRefused",
    "NodeUnavailable",
    "TopicNotFound",
    "find_nodes",
    "secured",
    "split_addresses",
]

log = logging.getLogger(__name__)

Params = Mapping[str, str | int]

_TIMEOUT_S = 30.0
_SECURED_TIMEOUT_S = 5.0  # one node after the other is asked
_FIRST_PAUSE_S, _PAUSE_MAX_S = 0.05, 1.0
_ANSWER_MAX_BYTES = 64 << 20
_EXITING = 503
_FORBIDDEN = 403
_SIZE = struct.Struct(">i")


class NodeUnavailable(NSQError):
    """A node gave no answer for as long as the caller was ready to wait."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"node {self.address} does not answer: {self.reason}"


class NodeRefused(NSQError):
    """A node answered with an error, such as ``404 TOPIC_NOT_FOUND``."""

    def __init__(self, address: str, call: str, status: int, code: str) -> None:
        super().__init__(address, call, status, code)
        self.address = address
        self.call = call
        self.status = status
        self.code = code

    def __str__(self) -> str:
        return f"node {self.address} refused {self.call}: {self.status} {self.code}"


class NodeNotTrusted(NSQError):
    """TLS did not come about, and will not if it is tried again: no good certificate, or no TLS."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"no TLS with node {self.address}: {self.reason}"


class TopicNotFound(NSQError):
    """Nobody that was asked has the topic."""

    def __init__(self, topic: str, asked: Sequence[str]) -> None:
        super().__init__(topic, asked)
        self.topic = topic
        self.asked = asked

    def __str__(self) -> str:
        return f"topic {self.topic!r} is unknown to {', '.join(self.asked)}"


@dataclass(frozen=True, slots=True)
class Answer:
    """A status and a body that was read to its end."""

    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as an object; empty for an empty body."""
        return dict(json.loads(self.body)) if self.body else {}

    @property
    def code(self) -> str:
        """The code word of an error, such as ``TOPIC_NOT_FOUND``."""
        try:
            return str(self.json().get("message", ""))
        except ValueError:
            return self.body[:200].decode(errors="replace")


class NodeAddress(NamedTuple):
    """Where a daemon's HTTP API is. ``port`` is 0 to 65535; ``host`` has no brackets."""

    host: str
    port: int
    tls: bool = False

    def __str__(self) -> str:
        place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"https://{place}" if self.tls else place

    @classmethod
    def parse(cls, text: str) -> "NodeAddress":
        """``host:port``, with ``http://`` or ``https://`` before it or not.

        Raises:
            ConfigError: it is neither.
        """
        raw = text.strip()
        try:
            parts = urlsplit(raw if "://" in raw else f"http://{raw}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        else:
            if parts.scheme not in ("http", "https") or parts.path not in ("", "/"):
                host = None
        if not host or port is None:
            raise ConfigError("address", text, f"{raw!r} is not an HTTP address, host:port")
        return cls(host, port, parts.scheme == "https")


def split_addresses(text: str) -> tuple[NodeAddress, ...]:
    """Addresses with commas between them. Raises ConfigError."""
    return tuple(NodeAddress.parse(part) for part in text.split(",") if part.strip())


class HTTPNode:
    """One daemon's HTTP API on a connection that is kept; for one thread at a time.

    ``patience_s`` is how long a call goes on while the node does not answer, or says that it
    is stopping; ``timeout_s`` how long one attempt waits. ``secret`` is a token of the node's.
    ``tls`` is for an address that wants it; without one the system's authorities are trusted.
    """

    def __init__(
        self,
        address: NodeAddress,
        *,
        patience_s: float = 60.0,
        timeout_s: float = _TIMEOUT_S,
        secret: str = "",
        tls: NodeTLS | None = None,
    ) -> None:
        self.address = address
        self._secret = secret
        self._tls = tls
        self._context: ssl.SSLContext | None = None  # once it is needed
        self.patience_s = patience_s
        self.timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        body: bytes = b"",
        *,
        patience_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """The answer, whatever its status; asked again while there is none.

        Raises:
            NodeUnavailable: the patience ran out.
            NodeNotTrusted: there is no TLS with it.
        """
        patience_s = self.patience_s if patience_s is None else patience_s
        deadline_s = time.monotonic() + patience_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                answer = self.once(method, path, params, body, timeout_s=timeout_s)
            except NodeUnavailable:
                if time.monotonic() + pause_s > deadline_s:
                    raise
            else:
                if answer.status != _EXITING:
                    return answer
                if time.monotonic() + pause_s > deadline_s:
                    raise NodeUnavailable(str(self.address), f"it answers 503 {answer.code}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def once(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
    ) -> Answer:
        """One attempt. Raises NodeUnavailable, after which it may or may not have been done."""
        with self.stream(method, path, params, body, timeout_s=timeout_s) as reply:
            try:
                data = reply.read(_ANSWER_MAX_BYTES)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                raise self.unavailable(error) from error
            if reply.will_close or not reply.isclosed():
                self.close()
            return Answer(reply.status, data)

    def stream(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> http.client.HTTPResponse:
        """One attempt, whose answer the caller reads to its end, and closes, before the next call.

        Raises:
            NodeUnavailable: no answer began.
            NodeNotTrusted: there is no TLS with it.
        """
        target = f"{path}?{urlencode(params)}" if params else path
        sent = dict(headers or {})
        if self._secret:
            sent["Authorization"] = f"Bearer {self._secret}"
        # A kept connection may have been closed by the node meanwhile, which shows only now.
        for kept in (True, False) if self._connection is not None else (False,):
            try:
                connection = self._open(timeout_s or self.timeout_s)
                connection.request(method, target, body or None, sent)
                return connection.getresponse()
            except (ConnectionError, http.client.HTTPException) as error:
                self.close()
                if not kept or method != "GET":
                    raise self.unavailable(error) from error
            except OSError as error:
                self.close()
                if isinstance(error, ssl.SSLError) and not isinstance(error, _BROKEN_OFF):
                    raise NodeNotTrusted(str(self.address), _reason(error)) from error
                raise self.unavailable(error) from error
        raise AssertionError("unreachable")

    def unavailable(self, error: Exception) -> NodeUnavailable:
        reason = str(error) or type(error).__name__
        closed = isinstance(error, http.client.RemoteDisconnected)
        if closed and self.address.tls and not (self._tls and self._tls.cert):
            reason += "; it may want a client's certificate"
        return NodeUnavailable(str(self.address), reason)

    def refused(self, call: str, answer: Answer) -> NodeRefused:
        return NodeRefused(str(self.address), call, answer.status, answer.code)

    def _open(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = self._connect(timeout_s)
        elif self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)
        self._connection.timeout = timeout_s
        return self._connection

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        host, port, secure = self.address
        if not secure:
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        if self._context is None:
            self._context = (self._tls or NodeTLS()).context()
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._context)

    # -- what a source and a sink ask of any nsqd -------------------------------------------

    def info(self) -> dict[str, Any]:
        """``/info``: versions, ports, limits, and who the node is."""
        return self._get("/info", {}).json()

    def body_max_bytes(self) -> tuple[int, int]:
        """The longest message and the longest body of ``/mpub`` that the node takes.

        nsqpy's says so to whoever has a token. Of another nsqd the configuration is asked for;
        where that is closed, the defaults have to do.
        """
        info = self.info()
        if "max_msg_size" in info and "max_body_size" in info:
            return int(info["max_msg_size"]), int(info["max_body_size"])
        found = []
        for name, default in (("max_msg_size", 1024 * 1024), ("max_body_size", 5 * 1024 * 1024)):
            answer = self.call("GET", f"/config/{name}")
            if answer.status not in (200, 403):
                raise self.refused(f"/config/{name}", answer)
            found.append(int(answer.body) if answer.status == 200 else default)
        return found[0], found[1]

    def depth(self, topic: str, channel: str) -> int:
        """Messages that wait in the channel; 0 if there is no such channel.

        While a topic has no channel they wait in the topic.
        """
        found = self._topic_stats(topic, channel=channel)
        channels = found.get("channels") or []
        return int(found.get("depth", 0)) + sum(int(one["depth"]) for one in channels)

    def check_channel(self, topic: str, channel: str) -> None:
        """Raises NodeRefused: the node does not have the topic, or not the channel."""
        found = self._topic_stats(topic)
        names = [one["channel_name"] for one in found.get("channels") or []]
        if channel not in names:
            code = "CHANNEL_NOT_FOUND" if found else "TOPIC_NOT_FOUND"
            raise NodeRefused(str(self.address), f"channel {channel} of topic {topic}", 404, code)

    def _topic_stats(self, topic: str, **only: str) -> dict[str, Any]:
        """The topic in ``/stats``; empty if there is no such topic."""
        params = {
            "format": "json", "topic": topic, "include_clients": "false", "include_mem": "false",
            **only,
        }  # fmt: skip
        for found in self._get("/stats", params).json().get("topics") or []:
            if found["topic_name"] == topic:
                return dict(found)
        return {}

    def create_channel(self, topic: str, channel: str) -> None:
        """Raises NodeRefused (404 TOPIC_NOT_FOUND), NodeUnavailable."""
        params = {"topic": topic, "channel": channel}
        answer = self.call("POST", "/channel/create", params)
        if answer.status != 200:
            raise self.refused("/channel/create", answer)

    def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """``/mpub``, one attempt. Raises NodeRefused, NodeUnavailable."""
        parts: list[bytes] = [b""] * (2 * len(bodies))
        sizes = {size: _SIZE.pack(size) for size in set(map(len, bodies))}
        parts[0::2] = [sizes[len(body)] for body in bodies]
        parts[1::2] = bodies
        data = _SIZE.pack(len(bodies)) + b"".join(parts)
        self._publish("/mpub", {"topic": topic, "binary": "true"}, data)

    def publish_deferred(self, topic: str, body: bytes, defer_ms: int) -> None:
        """``/pub`` with a delay, one attempt. Raises NodeRefused, NodeUnavailable."""
        self._publish("/pub", {"topic": topic, "defer": defer_ms}, body)

    def _publish(self, path: str, params: Params, data: bytes) -> None:
        answer = self.once("POST", path, params, data)
        if answer.status == _EXITING:
            raise NodeUnavailable(str(self.address), f"it answers 503 {answer.code}")
        if answer.status != 200:
            raise self.refused(path, answer)

    def _get(self, path: str, params: Params) -> Answer:
        answer = self.call("GET", path, params)
        if answer.status != 200:
            raise self.refused(path, answer)
        return answer


# TLS that was cut off is a node that went away.
_BROKEN_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError)


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}"
    return str(error.reason or error).lower().replace("_", " ")


def secured(address: NodeAddress) -> NodeAddress:
    """Where the node that lookupds know under ``address`` serves HTTPS.

    A plain port that ``--tls-required`` closes says so; any other is taken for the HTTPS port
    itself, and the next call tells if it is not. Nothing secret is sent in clear.
    """
    with HTTPNode(address, patience_s=0, timeout_s=_SECURED_TIMEOUT_S) as node:
        try:
            answer = node.once("GET", "/ping")
            port = answer.json().get("https_port") if answer.status == _FORBIDDEN else None
        except (NodeUnavailable, ValueError):
            port = None
    return NodeAddress(address.host, port if isinstance(port, int) else address.port, tls=True)


def find_nodes(
    lookupds: Iterable[NodeAddress],
    topic: str | None,
    *,
    patience_s: float = 10.0,
    tls: NodeTLS | None = None,
) -> list[NodeAddress]:
    """The nsqds that have the topic, or all there are for None, as the lookupds know them.

    A lookupd that does not answer is logged and left out; it takes one that does.

    Raises:
        NodeUnavailable: none of them answers.
        TopicNotFound: they answer, and none knows the topic.
    """
    found: dict[NodeAddress, None] = {}
    failures: list[str] = []
    asked = {str(address): address for address in lookupds}
    known = False
    for text, place in asked.items():
        with HTTPNode(place, patience_s=patience_s / len(asked), tls=tls) as lookupd:
            try:
                answer = (
                    lookupd.call("GET", "/nodes")
                    if topic is None
                    else lookupd.call("GET", "/lookup", {"topic": topic})
                )
            except NodeUnavailable as error:
                log.warning("nsqlookupd %s does not answer: %s", text, error.reason)
                failures.append(f"{text}: {error.reason}")
                continue
        if answer.status == 200:
            known = True
            for producer in answer.json().get("producers") or []:
                address = NodeAddress(producer["broadcast_address"], int(producer["http_port"]))
                found[address] = None
        elif answer.status != 404:
            failures.append(f"{text}: {answer.status} {answer.code}")
    if len(failures) == len(asked):
        raise NodeUnavailable("nsqlookupd " + ", ".join(asked), "; ".join(failures))
    if not known and topic is not None:
        raise TopicNotFound(topic, [f"nsqlookupd {text}" for text in asked])
    return sorted(found)
