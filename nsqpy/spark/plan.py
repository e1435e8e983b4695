"""Taking leases, and writing down which ones: in a drain's option, in a stream's offsets."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nsqpy.client.leases import Lease, LeaseNode, LeaseState, Split
from nsqpy.spark.cluster import Cluster, coalesce, parts_of, spread
from nsqpy.spark.options import ReadOptions

__all__ = [
    "PlannedLease",
    "drain_lease_id",
    "plan_from_text",
    "plan_to_text",
    "planned",
    "take",
    "take_from",
]

log = logging.getLogger(__name__)

_PARTITIONS_PER_NODE = 2
_NO_LIMIT = 2**63 - 1


@dataclass(frozen=True, slots=True)
class PlannedLease:
    """A lease that somebody is going to read: all that finding and reading it takes.

    ``node`` is the node's stable id, ``address`` where it was when the lease was made, which is
    what the rows show: it must not change between two reads.
    """

    id: str
    node: str
    address: str
    topic: str
    channel: str
    count: int
    splits: tuple[Split, ...]

    def as_json(self) -> dict[str, Any]:
        """Short, since it stands in every offset of a stream."""
        return {
            "id": self.id,
            "node": self.node,
            "at": self.address,
            "count": self.count,
            "splits": [list(split) for split in self.splits],
        }

    @classmethod
    def of(cls, told: Mapping[str, Any], topic: str, channel: str) -> "PlannedLease":
        return cls(
            id=told["id"],
            node=told["node"],
            address=told["at"],
            topic=topic,
            channel=channel,
            count=told["count"],
            splits=tuple(Split(*split) for split in told["splits"]),
        )


def plan_to_text(topic: str, channel: str, leases: Iterable[PlannedLease]) -> str:
    told = [lease.as_json() for lease in leases]
    return json.dumps({"topic": topic, "channel": channel, "leases": told}, separators=(",", ":"))


def plan_from_text(text: str) -> list[PlannedLease]:
    plan = json.loads(text)
    return [PlannedLease.of(one, plan["topic"], plan["channel"]) for one in plan["leases"]]


def planned(
    leases: Mapping[str, Lease], nodes: Mapping[str, LeaseNode], min_partitions: int
) -> list[PlannedLease]:
    """The leases by node, each cut into the partitions that it is to be read in."""
    wanted = min_partitions or _PARTITIONS_PER_NODE * len(leases)
    parts = parts_of(leases.values(), wanted)
    return [
        PlannedLease(
            id=lease.id,
            node=node_id,
            address=str(nodes[node_id].address),
            topic=lease.topic,
            channel=lease.channel,
            count=lease.count,
            splits=tuple(coalesce(lease.splits, parts[lease.id])),
        )
        for node_id, lease in sorted(leases.items())
    ]


def drain_lease_id(drain_id: str, node_id: str) -> str:
    """The id of the one lease that a drain has at a node."""
    return f"{drain_id}.{node_id}"


def take(
    cluster: Cluster, options: ReadOptions, drain_id: str, max_messages: int | None
) -> list[PlannedLease]:
    """Take what waits at each node, ``max_messages`` in all; None for everything there is now.

    Taken again under the same ``drain_id``, it is the same leases.

    Raises:
        LeaseGone: one of that id has ended.
        NodeUnavailable, NodeRefused: a node did not do it. What others gave stays leased.
    """
    nodes = cluster.nodes()
    depths = cluster.depths(nodes)
    shares = depths if max_messages is None else spread(max_messages, depths)
    leases: dict[str, Lease] = {}
    for node_id, node in nodes.items():
        lease_id = drain_lease_id(drain_id, node_id)
        share = shares.get(node_id, 0)
        # A node that is empty by now may hold a lease of this id from an earlier attempt.
        if not share and not _lives(node, lease_id, options.lease_ttl_ns):
            continue
        lease = take_from(node, options, lease_id, max(1, share), options.lease_ttl_ns)
        if lease is not None:
            leases[node_id] = lease
    return planned(leases, nodes, options.min_partitions)


def _lives(node: LeaseNode, lease_id: str, ttl_ns: int) -> bool:
    return node.extend([lease_id], ttl_ns)[lease_id] is LeaseState.LEASED


def take_from(
    node: LeaseNode,
    options: ReadOptions,
    lease_id: str,
    max_messages: int,
    ttl_ns: int,
    *,
    max_bytes: int = _NO_LIMIT,
    wait_ns: int = 0,
) -> Lease | None:
    """Take messages of the options' channel at one node. Raises as ``LeaseNode.create``."""
    return node.create(
        options.topic,
        options.channel,
        lease_id,
        max_messages=min(max_messages, 1_000_000_000),
        max_bytes=max_bytes,
        ttl_ns=ttl_ns,
        wait_ns=wait_ns,
    )
