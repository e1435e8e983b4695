"""Nodes with leases in memory, for whoever plans them: no sockets, no files, no threads."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nsqpy.client.leases import Lease, LeaseGone, LeaseNode, LeaseState, Split
from nsqpy.client.nodes import NodeAddress, NodeUnavailable
from nsqpy.spark.cluster import Cluster, Keeper
from nsqpy.spark.options import ReadOptions

__all__ = ["FakeCluster", "FakeKeeper", "FakeNode", "read_options"]

_MESSAGE_BYTES = 100


def read_options(**changes: str) -> ReadOptions:
    given = {"topic": "orders", "channel": "lake", "nsqdHttpAddresses": "one:4151,two:4151"}
    return ReadOptions.of(given | changes)


@dataclass
class FakeLease:
    """A lease with the numbers of its messages."""

    messages: list[int]
    state: LeaseState = LeaseState.LEASED
    reads: int = 0
    ttl_ns: int = 0


@dataclass
class FakeNode(LeaseNode):
    """A channel whose messages are numbers, and its leases.

    ``expire`` and ``forget`` do what time and a lost disk do. While ``away``, every call fails.
    """

    host: str
    waiting: list[int] = field(default_factory=list)
    leases_by_id: dict[str, FakeLease] = field(default_factory=dict)
    acknowledged: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    away: bool = False

    def __post_init__(self) -> None:
        super().__init__(NodeAddress(self.host, 4151), patience_s=0)

    def create(
        self,
        topic: str,
        channel: str,
        lease_id: str,
        *,
        max_messages: int,
        max_bytes: int,
        ttl_ns: int,
        wait_ns: int = 0,
    ) -> Lease | None:
        self._call(f"create {lease_id}")
        found = self.leases_by_id.get(lease_id)
        if found is None:
            if not self.waiting:
                return None
            taken = min(max_messages, max(1, max_bytes // _MESSAGE_BYTES))
            found = FakeLease(self.waiting[:taken])
            del self.waiting[:taken]
            self.leases_by_id[lease_id] = found
        elif found.state is not LeaseState.LEASED:
            raise LeaseGone(str(self.address), lease_id, found.state)
        found.ttl_ns = max(found.ttl_ns, ttl_ns)
        return self._told(lease_id, found)

    def extend(
        self, lease_ids: Sequence[str], ttl_ns: int, patience_s: float | None = None
    ) -> dict[str, LeaseState]:
        self._call("extend " + " ".join(lease_ids))
        for lease_id in lease_ids:
            if self._state(lease_id) is LeaseState.LEASED:
                self.leases_by_id[lease_id].ttl_ns = ttl_ns
        return {lease_id: self._state(lease_id) for lease_id in lease_ids}

    def commit(
        self, lease_ids: Sequence[str], patience_s: float | None = None
    ) -> dict[str, LeaseState]:
        self._call("commit " + " ".join(lease_ids))
        for lease_id in lease_ids:
            lease = self.leases_by_id.get(lease_id)
            if lease is None:
                continue
            # As the daemon does: what nobody was given since expiry is acknowledged late.
            late = lease.state is LeaseState.EXPIRED and set(lease.messages) <= set(self.waiting)
            if lease.state is LeaseState.LEASED or late:
                lease.state = LeaseState.COMMITTED
                self.acknowledged += lease.messages
                self.waiting = [one for one in self.waiting if one not in lease.messages]
        return {lease_id: self._state(lease_id) for lease_id in lease_ids}

    def release(self, lease_ids: Sequence[str]) -> dict[str, LeaseState]:
        self._call("release " + " ".join(lease_ids))
        for lease_id in lease_ids:
            if self._state(lease_id) is LeaseState.LEASED:
                self._end(lease_id, LeaseState.RELEASED)
        return {lease_id: self._state(lease_id) for lease_id in lease_ids}

    def leases(self, topic: str, channel: str) -> list[Lease]:
        self._call("leases")
        return [
            self._told(lease_id, lease)
            for lease_id, lease in self.leases_by_id.items()
            if lease.state is LeaseState.LEASED
        ]

    def depth(self, topic: str, channel: str) -> int:
        self._call("depth")
        return len(self.waiting)

    def expire(self, lease_id: str) -> None:
        self._end(lease_id, LeaseState.EXPIRED)

    def forget(self, lease_id: str) -> None:
        del self.leases_by_id[lease_id]

    def calls(self, verb: str) -> list[str]:
        """The ids of the calls of that verb, in order."""
        return [one.partition(" ")[2] for one in self.asked if one.startswith(verb)]

    def _end(self, lease_id: str, state: LeaseState) -> None:
        lease = self.leases_by_id[lease_id]
        lease.state = state
        self.waiting += lease.messages

    def _state(self, lease_id: str) -> LeaseState:
        lease = self.leases_by_id.get(lease_id)
        return lease.state if lease is not None else LeaseState.UNKNOWN

    def _told(self, lease_id: str, lease: FakeLease) -> Lease:
        length = _MESSAGE_BYTES * len(lease.messages)
        return Lease(
            id=lease_id,
            topic="orders",
            channel="lake",
            node=self.host,
            count=len(lease.messages),
            length=length,
            expires_ns=0,
            reads=lease.reads,
            splits=(Split(0, length, len(lease.messages)),),
        )

    def _call(self, what: str) -> None:
        if self.away:
            raise NodeUnavailable(str(self.address), "it is away")
        self.asked.append(what)


class FakeCluster(Cluster):
    """The nodes it is given, under their hosts as ids."""

    def __init__(self, options: ReadOptions, *nodes: FakeNode) -> None:
        super().__init__(options)
        self.by_id: dict[str, LeaseNode] = {node.host: node for node in nodes}

    def nodes(self) -> dict[str, LeaseNode]:
        return self.by_id

    def node(self, node_id: str, patience_s: float | None = None) -> LeaseNode:
        return self.by_id[node_id]


class FakeKeeper(Keeper):
    """Remembers what it holds, and extends nothing."""

    def __init__(self) -> None:
        super().__init__(1)
        self.held: set[str] = set()

    def hold(self, node_id: str, address: NodeAddress, lease_ids: Iterable[str]) -> None:
        self.held |= set(lease_ids)

    def drop(self, node_id: str, lease_ids: Iterable[str]) -> None:
        self.held -= set(lease_ids)
