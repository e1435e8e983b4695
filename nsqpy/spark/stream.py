"""The stream source: every batch is a set of leases, named in the offset that Spark writes down.

What makes it sound, each rule found by killing it:

* The leases of batch N are committed when ``latestOffset(start)`` shows N's offset: only then is N
  in the sink and in the checkpoint. ``commit(end)`` comes late, or never.
* Only ``latestOffset`` creates leases, under ids that it would find again after a crash.
* After a restart a lease is first extended. One that has expired is left out of the batch that is
  run again, since its messages are in the queue and come in a later one. It must then never be
  committed: so a lease that this run did not itself plan is committed only after ``extend`` says
  that it lives. A late commit would acknowledge what no batch has.

Source: docs/spark.md. Needs PySpark 4.2: older ones give ``latestOffset`` no start.
"""

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from nsqpy.client.leases import Lease, LeaseGone, LeaseNode, LeaseState
from nsqpy.client.nodes import NodeUnavailable
from nsqpy.clock import SECOND
from nsqpy.errors import ConfigError, NSQError
from nsqpy.spark.cluster import Cluster, Keeper, spread
from nsqpy.spark.options import ReadOptions
from nsqpy.spark.partitions import LeasePartition, partitions_of, read_partition
from nsqpy.spark.plan import PlannedLease, planned, take_from

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DataLoss", "LeaseRun", "NSQStreamReader", "StreamOffset"]

log = logging.getLogger(__name__)

# The source's name is in no checkpoint before the first batch is: what is leased under a name that
# a crash forgets comes back this soon.
_FIRST_TTL_NS = 60 * SECOND
_FRESH_IDS_MAX = 16
# A node that is away does not hold up the others' batches for longer than this.
_COMMIT_PATIENCE_S = 5.0

Offset = dict[str, Any]


class DataLoss(NSQError):
    """Rows of a batch cannot be read again. Option ``failOnDataLoss=false`` goes on without."""

    def __init__(self, lease_id: str, state: LeaseState) -> None:
        super().__init__(lease_id, state)
        self.lease_id = lease_id
        self.state = state

    def __str__(self) -> str:
        why = {
            LeaseState.COMMITTED: "it is committed already: the checkpoint was set back, or copied",
            LeaseState.UNKNOWN: "its node does not know it: the node's data are gone, or it ended "
            "more than a day ago",
        }
        return (
            f"lease {self.lease_id} of an unfinished batch is gone; "
            f"{why.get(self.state, self.state)}. With the option failOnDataLoss=false the query "
            "goes on without it"
        )


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """What a batch ends with: its leases, and earlier ones whose node could not be told yet.

    ``source`` names the stream; it is empty before the first batch.
    """

    topic: str
    channel: str
    source: str = ""
    sequence: int = 0
    leases: tuple[PlannedLease, ...] = ()
    pending: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> Offset:
        return {
            "topic": self.topic,
            "channel": self.channel,
            "source": self.source,
            "sequence": self.sequence,
            "leases": [lease.as_json() for lease in self.leases],
            "pending": [list(one) for one in self.pending],
        }

    @classmethod
    def of(cls, told: Mapping[str, Any], options: ReadOptions) -> "StreamOffset":
        """Raises ConfigError when the checkpoint is of another topic or channel."""
        topic, channel = told["topic"], told["channel"]
        for name, old, new in (
            ("topic", topic, options.topic),
            ("channel", channel, options.channel),
        ):
            if old != new:
                raise ConfigError(
                    name, new, f"option {name} is {new!r}, but the checkpoint is of {old!r}"
                )
        return cls(
            topic,
            channel,
            told["source"],
            told["sequence"],
            tuple(PlannedLease.of(one, topic, channel) for one in told["leases"]),
            tuple((node, lease_id) for node, lease_id in told["pending"]),
        )

    def owed(self) -> list[tuple[str, str]]:
        """Node and lease of all that is to be committed once this offset's batch is done."""
        return [*self.pending, *((lease.node, lease.id) for lease in self.leases)]


class LeaseRun:
    """One run of a query: what it has leased and planned, and what is committed."""

    def __init__(self, options: ReadOptions, cluster: Cluster, keeper: Keeper) -> None:
        self._options = options
        self._cluster = cluster
        self._keeper = keeper
        # Leases that this run has handed out to be read; made here, or found alive and extended.
        self._planned: set[str] = set()
        self._done: set[str] = set()
        self._expired: set[str] = set()
        self._expired_count = 0
        # Whether leases of a batch that never reached the offset log have been looked for.
        self._looked_back = False
        # What availableNow may still take from each node; None for any other trigger.
        self._budget: dict[str, int] | None = None

    def prepare_available_now(self) -> None:
        """Note what waits now. Takes nothing: an unfinished batch may have to run first."""
        self._budget = self._cluster.depths(self._cluster.nodes())

    def next_offset(self, told: Offset, max_messages: int) -> Offset:
        """The offset after a new batch, or ``told`` itself if there is nothing new."""
        start = StreamOffset.of(told, self._options)
        pending = self.settle(start)
        self._forget_all_but({lease_id for _, lease_id in start.owed()})
        source = start.source or uuid.uuid4().hex
        sequence = start.sequence + 1
        first = not start.source
        nodes = self._cluster.nodes()
        leases = self._take(nodes, f"{source}-{sequence}", max_messages, first=first)
        if not leases:
            return told
        plan = planned(leases, nodes, self._options.min_partitions)
        if not first:
            self._hand_out(plan)
        return StreamOffset(
            start.topic, start.channel, source, sequence, tuple(plan), tuple(pending)
        ).as_json()

    def settle(self, offset: StreamOffset) -> list[tuple[str, str]]:
        """Commit what the offset owes; what is left since its node does not answer."""
        by_node: dict[str, list[str]] = {}
        for node_id, lease_id in offset.owed():
            if lease_id not in self._done:
                by_node.setdefault(node_id, []).append(lease_id)
        left: list[tuple[str, str]] = []
        for node_id, lease_ids in by_node.items():
            try:
                self._commit(node_id, lease_ids)
            except NodeUnavailable as error:
                log.warning("%d leases are committed later: %s", len(lease_ids), error)
                left += [(node_id, lease_id) for lease_id in lease_ids]
        return left

    def plan(self, told: Offset) -> list[LeasePartition]:
        """The partitions of the batch that ends with this offset.

        Raises:
            DataLoss: a lease is gone that no later batch will bring again.
            NodeUnavailable: a lease's node does not answer.
        """
        offset = StreamOffset.of(told, self._options)
        living = [
            lease for lease in offset.leases if lease.id in self._planned or self._find(lease)
        ]
        self._hand_out(living)
        return [
            partition
            for lease in living
            for partition in partitions_of(
                lease, self._cluster.node(lease.node).address, self._options
            )
        ]

    def report(self) -> dict[str, Any]:
        """For people, in ``query.lastProgress``."""
        return {
            "waiting": self._cluster.depths(self._cluster.nodes()),
            "leased": len(self._planned - self._done),
            "expired": self._expired_count,
        }

    def _forget_all_but(self, lease_ids: set[str]) -> None:
        """A stream runs for months: it remembers the leases of the batches under way."""
        for remembered in (self._planned, self._done, self._expired):
            remembered.intersection_update(lease_ids)

    def _note_expired(self, lease_id: str) -> None:
        if lease_id not in self._expired:
            self._expired.add(lease_id)
            self._expired_count += 1

    def _take(
        self, nodes: Mapping[str, LeaseNode], name: str, max_messages: int, *, first: bool
    ) -> dict[str, Lease]:
        depths = self._cluster.depths(nodes)
        if self._budget is not None:
            depths = {node: min(depths[node], self._budget.get(node, 0)) for node in depths}
        shares = spread(max_messages, depths)
        if not (first or self._looked_back):
            shares |= {node: max(1, shares.get(node, 0)) for node in self._left_behind(nodes, name)}
        self._looked_back = True
        leases = self._take_shares(name, nodes, shares, 0, first=first)
        if not leases and self._budget is None:
            # Idle: wait at each node for a part of the time, until one has something.
            share = max(1, max_messages // len(nodes))
            wait_ns = self._options.poll_timeout_ns // len(nodes)
            for node_id in nodes:
                leases = self._take_shares(name, nodes, {node_id: share}, wait_ns, first=first)
                if leases:
                    break
        return leases

    def _left_behind(self, nodes: Mapping[str, LeaseNode], name: str) -> list[str]:
        """Nodes that know the batch's lease already: a crash kept its offset from being logged.

        What such a lease holds is in no depth, so the node might not be asked otherwise.
        """
        ttl_ns = self._options.lease_ttl_ns
        return [
            node_id
            for node_id, node in nodes.items()
            if node.extend([f"{name}-{node_id}"], ttl_ns)[f"{name}-{node_id}"]
            is not LeaseState.UNKNOWN
        ]

    def _take_shares(
        self,
        name: str,
        nodes: Mapping[str, LeaseNode],
        shares: Mapping[str, int],
        wait_ns: int,
        *,
        first: bool,
    ) -> dict[str, Lease]:
        total = sum(shares.values()) or 1
        leases: dict[str, Lease] = {}
        for node_id, share in shares.items():
            max_bytes = max(1, self._options.max_bytes * share // total)
            lease = self._create(
                nodes[node_id], f"{name}-{node_id}", share, max_bytes, wait_ns, first=first
            )
            if lease is not None:
                leases[node_id] = lease
            if self._budget is not None:
                # Others consume too: a node that gives nothing is done, whatever it had before.
                left = self._budget.get(node_id, 0) - lease.count if lease is not None else 0
                self._budget[node_id] = max(0, left)
        return leases

    def _create(
        self, node: LeaseNode, name: str, share: int, max_bytes: int, wait_ns: int, *, first: bool
    ) -> Lease | None:
        """The lease of that name, or of one derived from it when that has ended unread."""
        ttl_ns = self._options.lease_ttl_ns
        if first:
            ttl_ns = min(ttl_ns, _FIRST_TTL_NS)
        lease_id = name
        for attempt in range(1, _FRESH_IDS_MAX + 1):
            try:
                return take_from(
                    *(node, self._options, lease_id, share, ttl_ns),
                    max_bytes=max_bytes,
                    wait_ns=wait_ns,
                )
            except LeaseGone as gone:
                # Its batch was done once: a sink may take the new rows for the old and skip them.
                if gone.state is LeaseState.COMMITTED:
                    self._loss(lease_id, gone.state)
                lease_id = f"{name}.{attempt}"
        raise LeaseGone(str(node.address), lease_id, LeaseState.EXPIRED)

    def _find(self, lease: PlannedLease) -> bool:
        """Whether a lease from the checkpoint lives; it is extended."""
        node = self._cluster.node(lease.node)
        state = node.extend([lease.id], self._options.lease_ttl_ns)[lease.id]
        if state is LeaseState.LEASED:
            return True
        if state in (LeaseState.EXPIRED, LeaseState.RELEASED):
            log.warning(
                "lease %s is %s: its %d messages are back in the queue and come in a later batch",
                *(lease.id, state, lease.count),
            )
            self._note_expired(lease.id)
        else:
            self._loss(lease.id, state)
        return False

    def _loss(self, lease_id: str, state: LeaseState) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(lease_id, state)
        log.warning("%s", DataLoss(lease_id, state))

    def _hand_out(self, leases: Sequence[PlannedLease]) -> None:
        for lease in leases:
            self._planned.add(lease.id)
            self._keeper.hold(lease.node, self._cluster.node(lease.node).address, [lease.id])

    def _commit(self, node_id: str, lease_ids: Sequence[str]) -> None:
        node = self._cluster.node(node_id, _COMMIT_PATIENCE_S)
        ours = [one for one in lease_ids if one in self._planned]
        others = [one for one in lease_ids if one not in self._planned]
        states: dict[str, LeaseState] = {}
        if others:
            states = node.extend(others, self._options.lease_ttl_ns, _COMMIT_PATIENCE_S)
            ours += [one for one in others if states[one] is LeaseState.LEASED]
        if ours:
            states |= node.commit(ours, _COMMIT_PATIENCE_S)
        for lease_id, state in states.items():
            if state is not LeaseState.COMMITTED and lease_id not in self._expired:
                log.warning(
                    "lease %s is %s: rows that are in the sink already will come again",
                    *(lease_id, state),
                )
                self._note_expired(lease_id)
        self._keeper.drop(node_id, lease_ids)
        self._done.update(lease_ids)


class NSQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream.format("nsq")``.

    Made twice for each run and pickled in between, so it holds nothing but options until Spark
    asks for offsets.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._run: LeaseRun | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_run": None}

    @property
    def run(self) -> LeaseRun:
        if self._run is None:
            options = self._options
            self._run = LeaseRun(
                options,
                Cluster(options),
                Keeper(options.lease_ttl_ns, options.auth_secret, options.tls),
            )
        return self._run

    def initialOffset(self) -> Offset:
        """Always the same: it is asked for again, and not stored."""
        return StreamOffset(self._options.topic, self._options.channel).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        self.run.prepare_available_now()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        # Anything else is "all there is", and that has a bound too.
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        return self.run.next_offset(start, rows)

    def reportLatestOffset(self) -> Offset | None:
        try:
            return self.run.report()
        except NSQError:
            return None

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self.run.plan(end)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(partition)

    def commit(self, end: Offset) -> None:
        """Comes one batch late, or not at all; by then it is done, or nearly always."""
        self.run.settle(StreamOffset.of(end, self._options))

    def stop(self) -> None:
        """Nothing: this is called after errors only, and leases outlive a run on purpose."""
