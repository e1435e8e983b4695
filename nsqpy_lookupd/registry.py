"""Who serves what: nodes, their topics and channels, tombstones. Pure; time is an argument.

What the JSON calls a producer is a ``Node`` here: one identified connection. Each registration is
kept on both sides, with the topic or channel and with the node: every question is answered from
an index. A node that goes is in no answer from then on; what it had registered, thousands of
topics perhaps, is swept up in small pieces.

Source: nsqlookupd/registration_db.go.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from nsqpy.clock import Instant
from nsqpy.names import is_ephemeral
from nsqpy.protocol.lookup import PeerInfo

__all__ = ["Category", "Lookup", "Node", "NodeTopics", "Registration", "Registry", "Totals"]


class Category(StrEnum):
    """What a registration is of."""

    CLIENT = "client"
    TOPIC = "topic"
    CHANNEL = "channel"


class Registration(NamedTuple):
    """``key`` is the topic, ``subkey`` the channel; empty where there is none."""

    category: Category
    key: str = ""
    subkey: str = ""

    def __str__(self) -> str:
        return f"category:{self.category} key:{self.key} subkey:{self.subkey}"


class Node:
    """One connection of a daemon; two of them are two nodes, even if they announce one address.

    ``remote_address`` is the peer's ``ip:port``; ``seen`` is when it identified or last sent a
    PING. ``gone``: its connection is lost, and only the registry still knows it.
    """

    __slots__ = (
        *("channels", "gone", "info", "registration_count", "remote_address", "seen", "topics"),
    )

    def __init__(self, remote_address: str, info: PeerInfo, now: Instant) -> None:
        self.remote_address = remote_address
        self.info = info
        self.seen = now
        self.topics: dict[str, None] = {}
        self.channels: dict[str, dict[str, None]] = {}  # of each topic
        self.registration_count = 0
        self.gone = False

    def is_called(self, address: str) -> bool:
        """Whether that is its broadcast address and HTTP port; IPv6 in brackets or without."""
        host, port = self.info.broadcast_address, self.info.http_port
        return address == f"{host}:{port}" or (":" in host and address == f"[{host}]:{port}")


class Lookup(NamedTuple):
    """Who can be asked for a topic, and its channels."""

    channels: list[str]
    nodes: list[Node]


class NodeTopics(NamedTuple):
    """A node's topics, and whether each is tombstoned there."""

    node: Node
    topics: list[str]
    tombstones: list[bool]


class Totals(NamedTuple):
    """How much there is; ``registrations`` are pairs of a node and a topic or channel."""

    topics: int
    channels: int
    nodes: int
    registrations: int


class Registry:
    """All nodes and registrations. A topic or channel stays when its last node goes, unless it
    is ephemeral and was unregistered, as in the original.

    A node that was silent for longer than ``inactive_timeout_ns`` is hidden, and a tombstone
    hides it from one topic for ``tombstone_lifetime_ns``.
    """

    def __init__(self, *, inactive_timeout_ns: int, tombstone_lifetime_ns: int) -> None:
        self._inactive_timeout_ns = inactive_timeout_ns
        self._tombstone_lifetime_ns = tombstone_lifetime_ns
        self._nodes: dict[Node, None] = {}
        # The nodes of each topic, with the moment of the tombstone.
        self._topics: dict[str, dict[Node, Instant | None]] = {}
        # The nodes of each channel of each topic. A topic's channels may outlive it.
        self._channels: dict[str, dict[str, dict[Node, None]]] = {}
        # Nodes that have gone, as long as something of theirs is in the two above.
        self._gone: deque[Node] = deque()

    # -- what nodes do ----------------------------------------------------------------------

    def join(self, node: Node) -> Registration:
        """A daemon has identified itself."""
        assert node not in self._nodes
        self._nodes[node] = None
        return Registration(Category.CLIENT)

    def leave(self, node: Node) -> int:
        """A node's connection is gone, and from now on the node is; how much it had registered,
        which ``sweep`` will take away."""
        del self._nodes[node]
        node.gone = True
        self._gone.append(node)
        return node.registration_count

    @property
    def needs_sweep(self) -> bool:
        return bool(self._gone)

    def sweep(self, max_count: int) -> list[tuple[Node, Registration]]:
        """Take away up to ``max_count`` registrations of nodes that have gone; which."""
        removed: list[tuple[Node, Registration]] = []
        while self._gone and len(removed) < max_count:
            node = self._gone[0]
            # Always the last of a dict, which is found at once; the first is behind all that
            # were taken out before it.
            if node.channels:
                topic = next(reversed(node.channels))
                channel = next(reversed(node.channels[topic]))
                removed += [(node, one) for one in self._leave_channel(node, topic, channel)]
            elif node.topics:
                topic = next(reversed(node.topics))
                removed.append((node, self._leave_topic(node, topic)))
            else:
                self._gone.popleft()
        return removed

    def register(self, node: Node, topic: str, channel: str) -> list[Registration]:
        """Add a node to a topic, and to a channel if that is not empty; what is new."""
        added = []
        if channel:
            nodes = self._channels.setdefault(topic, {}).setdefault(channel, {})
            if node not in nodes:
                nodes[node] = None
                node.channels.setdefault(topic, {})[channel] = None
                added.append(Registration(Category.CHANNEL, topic, channel))
        tombstones = self._topics.setdefault(topic, {})
        if node not in tombstones:
            tombstones[node] = None
            node.topics[topic] = None
            added.append(Registration(Category.TOPIC, topic))
        node.registration_count += len(added)
        return added

    def unregister(self, node: Node, topic: str, channel: str) -> list[Registration]:
        """Take a node out of a channel, or out of a topic and all its channels; what it was in."""
        if channel:
            removed = self._leave_channel(node, topic, channel)
            if is_ephemeral(channel) and not _is_held(self._channels.get(topic, {}).get(channel)):
                self._drop_channel(topic, channel)
            return removed
        removed = []
        for of_node in list(node.channels.get(topic, ())):
            removed += self._leave_channel(node, topic, of_node)
        if topic in node.topics:
            removed.append(self._leave_topic(node, topic))
        if is_ephemeral(topic) and not _is_held(self._topics.get(topic)):
            self._drop_topic(topic)
        return removed

    def _leave_topic(self, node: Node, topic: str) -> Registration:
        del self._topics[topic][node]
        _forget_topic(node, topic)
        return Registration(Category.TOPIC, topic)

    def _leave_channel(self, node: Node, topic: str, channel: str) -> list[Registration]:
        of_topic = node.channels.get(topic, {})
        if channel not in of_topic:
            return []
        _forget_channel(node, topic, channel)
        del self._channels[topic][channel][node]
        return [Registration(Category.CHANNEL, topic, channel)]

    # -- what an operator does ---------------------------------------------------------------

    def create_topic(self, topic: str) -> None:
        self._topics.setdefault(topic, {})

    def create_channel(self, topic: str, channel: str) -> None:
        self._channels.setdefault(topic, {}).setdefault(channel, {})
        self.create_topic(topic)

    def delete_topic(self, topic: str) -> None:
        """Forget a topic and its channels, nodes and all, until somebody registers it again."""
        for channel in list(self._channels.get(topic, ())):
            self._drop_channel(topic, channel)
        self._drop_topic(topic)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Forget a channel; whether there was one."""
        return self._drop_channel(topic, channel)

    def _drop_topic(self, topic: str) -> None:
        for node in self._topics.pop(topic, {}):
            _forget_topic(node, topic)

    def _drop_channel(self, topic: str, channel: str) -> bool:
        of_topic = self._channels.get(topic, {})
        nodes = of_topic.pop(channel, None)
        if nodes is None:
            return False
        for node in nodes:
            _forget_channel(node, topic, channel)
        if not of_topic:
            del self._channels[topic]
        return True

    def tombstone(self, topic: str, address: str, now: Instant) -> list[Node]:
        """Hide the nodes that announce ``address`` (``host:http_port``) from a topic; which."""
        tombstones = self._topics.get(topic, {})
        hidden = [node for node in tombstones if not node.gone and node.is_called(address)]
        tombstones.update(dict.fromkeys(hidden, now))
        return hidden

    # -- what is asked -----------------------------------------------------------------------

    def topics(self) -> list[str]:
        return list(self._topics)

    def channels(self, topic: str) -> list[str]:
        """None of them for a topic that is not known."""
        return list(self._channels.get(topic, ()))

    def lookup(self, topic: str, now: Instant) -> Lookup | None:
        """A topic's channels, and its nodes that are neither silent nor tombstoned there."""
        tombstones = self._topics.get(topic)
        if tombstones is None:
            return None
        nodes = [
            node
            for node, tombstoned in tombstones.items()
            if self._is_active(node, now) and not self._counts(tombstoned, now)
        ]
        return Lookup(self.channels(topic), nodes)

    # The two below are long for a large cluster. Each step tells how things are at that step, so
    # that others may have their turn, and change things, between two of them.

    def nodes(self, now: Instant) -> Iterator[NodeTopics]:
        """Each node that is not silent."""
        for node in list(self._nodes):
            if node in self._nodes and self._is_active(node, now):
                topics = list(node.topics)
                stones = [self._counts(self._topics[topic][node], now) for topic in topics]
                yield NodeTopics(node, topics, stones)

    def registrations(self) -> Iterator[tuple[Registration, dict[Node, Instant | None]]]:
        """Everything, with the nodes and their tombstones, also those that lapsed."""
        yield Registration(Category.CLIENT), dict.fromkeys(self._nodes)
        for topic in list(self._topics):
            nodes = self._topics.get(topic, {}).items()
            yield (
                Registration(Category.TOPIC, topic),
                {node: stone for node, stone in nodes if not node.gone},
            )
        for topic in list(self._channels):
            for channel, held_by in {**self._channels.get(topic, {})}.items():
                yield (
                    Registration(Category.CHANNEL, topic, channel),
                    dict.fromkeys(node for node in held_by if not node.gone),
                )

    def totals(self) -> Totals:
        return Totals(
            topics=len(self._topics),
            channels=sum(map(len, self._channels.values())),
            nodes=len(self._nodes),
            registrations=sum(node.registration_count for node in self._nodes),
        )

    def _is_active(self, node: Node, now: Instant) -> bool:
        silent_ns = now.monotonic_ns - node.seen.monotonic_ns
        return not node.gone and silent_ns <= self._inactive_timeout_ns

    def _counts(self, tombstoned: Instant | None, now: Instant) -> bool:
        if tombstoned is None:
            return False
        return now.monotonic_ns - tombstoned.monotonic_ns < self._tombstone_lifetime_ns


def _is_held(nodes: Iterable[Node] | None) -> bool:
    return any(not node.gone for node in nodes or ())


# The node's own side of a registration that is no more.


def _forget_topic(node: Node, topic: str) -> None:
    del node.topics[topic]
    node.registration_count -= 1


def _forget_channel(node: Node, topic: str, channel: str) -> None:
    of_topic = node.channels[topic]
    del of_topic[channel]
    node.registration_count -= 1
    if not of_topic:
        del node.channels[topic]
