"""The nodes that have a topic: who they are, where they are now, and what each may be asked for."""

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import NoReturn

from nsqpy.client.leases import Lease, LeaseNode, LeaseState, Split
from nsqpy.client.node_tls import NodeTLS
from nsqpy.client.nodes import (
    HTTPNode,
    NodeAddress,
    NodeRefused,
    NodeUnavailable,
    TopicNotFound,
    find_nodes,
    secured,
)
from nsqpy.clock import SECOND
from nsqpy.errors import NSQError
from nsqpy.spark.options import ReadOptions

__all__ = ["Cluster", "Keeper", "coalesce", "parts_of", "spread"]

log = logging.getLogger(__name__)

# How old an answer of the lookupds may get before they are asked again.
_REFRESH_S = 15.0
# As large as Spark makes the partitions of a file.
_PARTITION_MAX_BYTES = 128 << 20
_KEEP_PATIENCE_S = 5.0
_ASK_PATIENCE_S = 10.0
# A node that says so has nothing to give; whatever else it refuses is told.
_NOT_THERE = ("TOPIC_NOT_FOUND", "CHANNEL_NOT_FOUND")


class Cluster:
    """The nodes of one topic, by their stable ids. For one thread at a time.

    With lookupds, a node counts while they know it; given addresses all have to answer.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._nodes: dict[str, LeaseNode] = {}
        self._listed_as: dict[NodeAddress, NodeAddress] = {}  # by where they are spoken with
        self._asked_s = float("-inf")

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()
        self._nodes = {}

    @property
    def patience_s(self) -> float:
        return self._options.node_timeout_ns / SECOND

    @property
    def known(self) -> Mapping[str, LeaseNode]:
        """The nodes that were found when they were last looked for; none before that."""
        return self._nodes

    def nodes(self) -> dict[str, LeaseNode]:
        """The nodes that have the topic and its channel, which is made where it may be.

        Raises:
            NodeUnavailable: no lookupd answers, or a node that counts does not.
            TopicNotFound: none has the topic.
            NodeRefused: the channel is not there, or another refusal.
        """
        if not self._nodes:
            self._find()
        elif self._options.lookupd and time.monotonic() - self._asked_s > _REFRESH_S:
            try:
                self._find()
            except (NodeUnavailable, TopicNotFound) as error:
                # A lookupd that is away stops nobody who knows the nodes already.
                log.warning("going on with the nodes known before: %s", error)
                self._asked_s = time.monotonic()
        return self._nodes

    def node(self, node_id: str, patience_s: float | None = None) -> LeaseNode:
        """The node of that id, looked for again if it is not known.

        Raises:
            NodeUnavailable: nobody knows where it is, for ``patience_s`` or what the options say.
        """
        patience_s = self.patience_s if patience_s is None else patience_s
        deadline_s = time.monotonic() + patience_s
        while node_id not in self._nodes:
            try:
                self._find()
            except NSQError:
                if time.monotonic() > deadline_s:
                    raise
            if node_id not in self._nodes:
                if time.monotonic() > deadline_s:
                    raise NodeUnavailable(node_id, "no node of this id is known any more")
                time.sleep(0.5)
        return self._nodes[node_id]

    def depths(self, nodes: Mapping[str, LeaseNode]) -> dict[str, int]:
        """How many messages wait at each of them."""
        topic, channel = self._options.topic, self._options.channel
        return {node_id: node.depth(topic, channel) for node_id, node in nodes.items()}

    def _find(self) -> None:
        options = self._options
        addresses: Sequence[NodeAddress] = options.nsqd
        if not addresses:
            listed = self._listed(self.patience_s)
            if not listed:
                asked = [f"nsqlookupd {address}" for address in options.lookupd]
                raise TopicNotFound(options.topic, asked)
            self._listed_as = {
                secured(address) if options.tls is not None else address: address
                for address in listed
            }
            addresses = list(self._listed_as)
        found: dict[str, LeaseNode] = {}
        refusals: list[NodeRefused] = []
        opened = [
            LeaseNode(
                address, patience_s=self.patience_s, secret=options.auth_secret, tls=options.tls
            )
            for address in addresses
        ]
        try:
            for node in opened:
                try:
                    self._join(node, found)
                except NodeRefused as error:
                    if error.code not in _NOT_THERE:
                        raise
                    refusals.append(error)
        finally:
            for node in opened:
                node.close()
        if not found:
            self._refuse(refusals, addresses)
        self.close()
        self._nodes = found
        self._asked_s = time.monotonic()

    def _join(self, node: LeaseNode, found: dict[str, LeaseNode]) -> None:
        """Add the node under its id, unless it has gone. Raises NodeRefused."""
        try:
            self._need_channel(node)
            found.setdefault(node.node_id(), node)
        except NodeUnavailable:
            if not self._has_left(node.address):
                raise
            log.warning("node %s does not answer, and no nsqlookupd knows it now", node.address)

    def _refuse(self, refusals: Sequence[NodeRefused], asked: Sequence[NodeAddress]) -> NoReturn:
        """Nobody has what is asked for; the most telling reason."""
        for refusal in refusals:
            if refusal.code == "CHANNEL_NOT_FOUND":
                raise refusal
        raise TopicNotFound(self._options.topic, [f"node {address}" for address in asked])

    def _need_channel(self, node: HTTPNode) -> None:
        topic, channel = self._options.topic, self._options.channel
        if self._options.create_channel:
            node.create_channel(topic, channel)
        else:
            node.check_channel(topic, channel)

    def _has_left(self, address: NodeAddress) -> bool:
        if self._options.nsqd:
            return False
        return self._listed_as[address] not in self._listed(_ASK_PATIENCE_S)

    def _listed(self, patience_s: float) -> list[NodeAddress]:
        """As the lookupds know them. Raises NodeUnavailable, TopicNotFound."""
        options = self._options
        return find_nodes(options.lookupd, options.topic, patience_s=patience_s, tls=options.tls)


def spread(budget: int, depths: Mapping[str, int]) -> dict[str, int]:
    """How many to take where: as evenly as the depths permit, ``budget`` in all.

    A node with nothing is left out.
    """
    shares: dict[str, int] = {}
    left = budget
    waiting = sorted((depth, key) for key, depth in depths.items() if depth > 0)
    for position, (depth, key) in enumerate(waiting):
        shares[key] = min(depth, ceil(left / (len(waiting) - position)))
        left -= shares[key]
    return {key: share for key, share in shares.items() if share}


def coalesce(splits: Sequence[Split], parts: int) -> list[Split]:
    """At most ``parts`` (1 or more) neighbouring groups of about the same length."""
    total = sum(split.length for split in splits)
    groups: list[Split] = []
    for split in splits:
        # A new group begins where the last one has its share of all that came before.
        full = groups and (split.offset - splits[0].offset) * parts >= len(groups) * total
        if groups and (not full or len(groups) == parts):
            last = groups[-1]
            groups[-1] = Split(
                last.offset, last.length + split.length, last.messages + split.messages
            )
        else:
            groups.append(split)
    return groups


def parts_of(leases: Iterable[Lease], wanted: int) -> dict[str, int]:
    """How many partitions each lease gets: ``wanted`` in all or more, by length."""
    leases = list(leases)
    total = sum(lease.length for lease in leases) or 1
    return {
        lease.id: max(
            ceil(wanted * lease.length / total), ceil(lease.length / _PARTITION_MAX_BYTES)
        )
        for lease in leases
    }


class Keeper:
    """A daemon thread that extends leases until they are dropped, or the process ends.

    It never says that a lease is lost: whoever reads or commits it finds out.
    """

    def __init__(self, ttl_ns: int, secret: str = "", tls: NodeTLS | None = None) -> None:
        self._ttl_ns = ttl_ns
        self._secret = secret
        self._tls = tls
        self._lock = threading.Lock()
        self._held: dict[str, tuple[NodeAddress, set[str]]] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, node_id: str, address: NodeAddress, lease_ids: Iterable[str]) -> None:
        with self._lock:
            _, held = self._held.get(node_id, (address, set()))
            self._held[node_id] = (address, held | set(lease_ids))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="nsqpy-lease-keeper", daemon=True
                )
                self._thread.start()

    def drop(self, node_id: str, lease_ids: Iterable[str]) -> None:
        with self._lock:
            if node_id in self._held:
                self._held[node_id][1].difference_update(lease_ids)

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._ttl_ns / 3 / SECOND):
            with self._lock:
                held = [(address, sorted(ids)) for address, ids in self._held.values() if ids]
            for address, lease_ids in held:
                self._extend(address, lease_ids)

    def _extend(self, address: NodeAddress, lease_ids: Sequence[str]) -> None:
        patience_s = min(_KEEP_PATIENCE_S, self._ttl_ns / 6 / SECOND)
        with LeaseNode(address, patience_s=patience_s, secret=self._secret, tls=self._tls) as node:
            try:
                states = node.extend(lease_ids, self._ttl_ns)
            except NSQError as error:
                log.warning("leases are not extended: %s", error)
                return
        for lease_id, state in states.items():
            if state is LeaseState.LEASED:
                continue
            self._forget(lease_id)
            # Committed by its owner while this call was on its way: nothing to tell.
            if state is not LeaseState.COMMITTED:
                log.warning("lease %s at node %s is gone: %s", lease_id, address, state)

    def _forget(self, lease_id: str) -> None:
        with self._lock:
            for _, held in self._held.values():
                held.discard(lease_id)
