"""``drain``: a batch job's rows, leased while it runs, acknowledged when it has ended well.

The batch API of Spark ends at reading: nothing in it tells a source that a job has succeeded. So
somebody outside commits, and that is the ``with`` block.
"""

import logging
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from nsqpy.client.leases import LeaseNode, LeaseState
from nsqpy.client.nodes import NodeAddress
from nsqpy.errors import NSQError
from nsqpy.scalars import format_duration
from nsqpy.spark.cluster import Cluster, Keeper
from nsqpy.spark.options import ReadOptions
from nsqpy.spark.plan import PlannedLease, drain_lease_id, plan_to_text, take
from nsqpy.spark.source import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["AlreadyDrained", "Drain", "LeaseLost", "UnreadWarning", "commit"]

log = logging.getLogger(__name__)

Addresses = str | Sequence[str]


class LeaseLost(NSQError):
    """Leases ended before they were committed: what they held is or was delivered again."""

    def __init__(self, drain_id: str, states: Mapping[str, LeaseState]) -> None:
        super().__init__(drain_id, states)
        self.drain_id = drain_id
        self.states = states

    def __str__(self) -> str:
        told = ", ".join(f"{lease_id}: {state}" for lease_id, state in self.states.items())
        return (
            f"drain {self.drain_id} lost leases ({told}); their messages are back in the queue, "
            "and rows already written will come again"
        )


class AlreadyDrained(NSQError):
    """A drain of this id was committed before: its rows are where that run put them."""

    def __init__(self, drain_id: str) -> None:
        super().__init__(drain_id)
        self.drain_id = drain_id

    def __str__(self) -> str:
        return f"drain {self.drain_id} has been committed already"


class UnreadWarning(UserWarning):
    """Leases were put back because nobody had read them to their end."""


class Drain:
    """What waits in a channel, as a DataFrame inside a ``with`` block::

        with drain(spark, topic="orders", channel="lake", lookupd="http://l1:4161") as df:
            df.write.mode("append").parquet("/lake/orders")

    All leases are taken on entry, here, so that plans, retries and actions cannot take more. A
    normal exit commits every lease that was read to its end, and puts the others back with an
    ``UnreadWarning``; an exception puts back all. With ``id`` the leases have fixed names: after a
    failure they stay as they are until they expire, and a run of the same id reads the same rows.

    ``max_messages`` bounds the input (``limit`` does not: what it leaves out is acknowledged as
    well); without it that is all that waits at the moment. ``ttl`` is how long the leases outlive
    this process.

    Attributes:
        leases: what was taken, from the entry on.
        messages: how many messages that are.
        keeps_id: whether the caller has named it, so that a run of the same id may follow.
    """

    def __init__(
        self,
        spark: "SparkSession",
        *,
        topic: str,
        channel: str,
        lookupd: Addresses = (),
        nsqd: Addresses = (),
        max_messages: int | None = None,
        ttl: str = "1h",
        id: str | None = None,
        min_partitions: int | None = None,
        node_timeout: str = "60s",
        create_channel: bool = True,
        auth_secret: str = "",
        tls_ca_file: str = "",
        tls_cert_file: str = "",
        tls_key_file: str = "",
        tls_insecure_skip_verify: bool = False,
    ) -> None:
        if max_messages is not None and max_messages < 1:
            raise ValueError("max_messages must be 1 or more")
        self._spark = spark
        self.keeps_id = id is not None
        self._max_messages = max_messages
        self._access = _access(
            auth_secret, tls_ca_file, tls_cert_file, tls_key_file, tls_insecure_skip_verify
        )
        given = (
            self._access
            | _where(topic, channel, lookupd, nsqd, node_timeout)
            | {
                "leaseTtl": ttl,
                "createChannel": str(create_channel).lower(),
                "drainId": id if id is not None else f"drain-{uuid.uuid4().hex}",
            }
        )
        given |= _partitions(spark, min_partitions)
        self._options = ReadOptions.of(given)
        self._cluster = Cluster(self._options)
        options = self._options
        self._keeper = Keeper(options.lease_ttl_ns, options.auth_secret, options.tls)
        self._done = False
        self.leases: list[PlannedLease] = []

    @property
    def id(self) -> str:
        """The name of this drain, of which its leases' ids are made."""
        return self._options.drain_id

    @property
    def messages(self) -> int:
        return sum(lease.count for lease in self.leases)

    def __enter__(self) -> "DataFrame":
        """Take the leases.

        Raises:
            AlreadyDrained: a drain of this id was committed before.
            LeaseLost: a drain of this id had leases that expired or were released.
            TopicNotFound, NodeUnavailable, NodeRefused: nothing stays leased.
        """
        try:
            if self.keeps_id:
                self._check_states()
            options = self._options
            self.leases = take(self._cluster, options, options.drain_id, self._max_messages)
            return self._frame()
        except BaseException:
            self._keeper.stop()
            if not self.keeps_id:
                self._release_quietly()
            self._cluster.close()
            raise

    def _frame(self) -> "DataFrame":
        for lease in self.leases:
            self._keeper.hold(lease.node, NodeAddress.parse(lease.address), [lease.id])
        log.info("drain %s: %d messages on %d leases", self.id, self.messages, len(self.leases))
        plan = plan_to_text(self._options.topic, self._options.channel, self.leases)
        reader = self._spark.read.format(FORMAT).option("nsqDrainPlan", plan)
        timeout = format_duration(self._options.node_timeout_ns)
        return reader.options(**self._access).option("nodeTimeout", timeout).load()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.commit()
            elif not self.keeps_id:
                self._release_quietly()
            else:
                log.warning("drain %s failed; its leases stay until they expire", self.id)
        finally:
            self._keeper.stop()
            self._cluster.close()

    def commit(self) -> None:
        """Acknowledge what was read to its end, put back the rest. Once; then it does nothing.

        Raises:
            LeaseLost: some had ended before; all others are committed.
            NodeUnavailable: a node does not answer; call again to go on.
        """
        if not self._done:
            lease_ids = {lease.node: [lease.id] for lease in self.leases}
            _commit_read(self._cluster, self._options, lease_ids)
            self._done = True

    def release(self) -> None:
        """Put everything back into the queue, whatever was read of it."""
        if not self._done:
            for lease in self.leases:
                self._cluster.node(lease.node).release([lease.id])
            self._done = True

    def _release_quietly(self) -> None:
        """What was taken so far, too: the exception that ends the block is the one to be seen."""
        for node_id, node in self._cluster.known.items():
            try:
                node.release([drain_lease_id(self.id, node_id)])
            except NSQError as error:
                log.warning("drain %s: a lease stays until it expires: %s", self.id, error)

    def _check_states(self) -> None:
        """What an earlier run of this id has left behind. It creates nothing."""
        options = self._options
        states: dict[str, LeaseState] = {}
        living: dict[str, list[str]] = {}
        for node_id, node in self._cluster.nodes().items():
            lease_id = drain_lease_id(options.drain_id, node_id)
            states[lease_id] = node.extend([lease_id], options.lease_ttl_ns)[lease_id]
            if states[lease_id] is LeaseState.LEASED:
                living[node_id] = [lease_id]
        if LeaseState.COMMITTED in states.values():
            # Releases come before the first commit: what lives was written, and only not yet told.
            for node_id, lease_ids in living.items():
                self._cluster.node(node_id).commit(lease_ids)
            raise AlreadyDrained(options.drain_id)
        ended = {
            lease_id: state
            for lease_id, state in states.items()
            if state in (LeaseState.EXPIRED, LeaseState.RELEASED)
        }
        if ended:
            raise LeaseLost(options.drain_id, ended)


def commit(
    drain_id: str,
    *,
    topic: str,
    channel: str,
    lookupd: Addresses = (),
    nsqd: Addresses = (),
    node_timeout: str = "60s",
    auth_secret: str = "",
    tls_ca_file: str = "",
    tls_cert_file: str = "",
    tls_key_file: str = "",
    tls_insecure_skip_verify: bool = False,
) -> None:
    """Commit by hand what ``spark.read`` has leased with the option ``drainId``.

    Leases that nobody has read to their end are put back, with an ``UnreadWarning``. Repeating it
    is fine.

    Raises:
        LeaseLost: some had ended before, or there never were any; all others are committed.
    """
    given = _where(topic, channel, lookupd, nsqd, node_timeout) | _access(
        auth_secret, tls_ca_file, tls_cert_file, tls_key_file, tls_insecure_skip_verify
    )
    given["drainId"] = drain_id
    options = replace(ReadOptions.of(given), create_channel=False)
    cluster = Cluster(options)
    try:
        lease_ids = {node_id: [drain_lease_id(drain_id, node_id)] for node_id in cluster.nodes()}
        _commit_read(cluster, options, lease_ids)
    finally:
        cluster.close()


def _commit_read(
    cluster: Cluster, options: ReadOptions, lease_ids: Mapping[str, list[str]]
) -> None:
    """Release what was not read, everywhere, before the first commit anywhere.

    So a commit found later proves that nothing else of that drain is to be released.
    """
    read: dict[str, list[str]] = {}
    unread = 0
    ended: dict[str, list[str]] = {}
    for node_id, ids in lease_ids.items():
        node = cluster.node(node_id)
        living = {lease.id: lease for lease in node.leases(options.topic, options.channel)}
        read[node_id] = [one for one in ids if one in living and living[one].reads]
        ended[node_id] = [one for one in ids if one not in living]
        not_read = [one for one in ids if one in living and not living[one].reads]
        if not_read:
            unread += sum(living[one].count for one in not_read)
            node.release(not_read)
    if unread:
        warnings.warn(
            f"{unread:,} messages of drain {options.drain_id} were not read to their end and are "
            "back in the queue; bound the input by max_messages",
            UnreadWarning,
            stacklevel=4,
        )
    states: dict[str, LeaseState] = {}
    for node_id, ids in read.items():
        states |= _committed(cluster.node(node_id), ids)
    # Whether an ended lease was ever read is not known any more: only its state is asked for.
    for node_id, ids in ended.items():
        if ids:
            states |= cluster.node(node_id).extend(ids, options.lease_ttl_ns)
    known = {one: state for one, state in states.items() if state is not LeaseState.UNKNOWN}
    lost = {
        one: state
        for one, state in known.items()
        if state not in (LeaseState.COMMITTED, LeaseState.RELEASED)
    }
    if lost or (states and not known):
        raise LeaseLost(options.drain_id, lost or states)


def _committed(node: LeaseNode, lease_ids: Sequence[str]) -> dict[str, LeaseState]:
    return node.commit(lease_ids) if lease_ids else {}


def _where(
    topic: str,
    channel: str,
    lookupd: Addresses,
    nsqd: Addresses,
    node_timeout: str,
) -> dict[str, str]:
    given = {"topic": topic, "channel": channel, "nodeTimeout": node_timeout}
    for name, addresses in (("lookupdHttpAddresses", lookupd), ("nsqdHttpAddresses", nsqd)):
        text = addresses if isinstance(addresses, str) else ",".join(addresses)
        if text:
            given[name] = text
    return given


def _access(
    secret: str, ca_file: str, cert_file: str, key_file: str, insecure: bool
) -> dict[str, str]:
    """What the nodes are shown, and shown by, as the options of the format."""
    given = {
        "authSecret": secret,
        "tlsCaFile": ca_file,
        "tlsCertFile": cert_file,
        "tlsKeyFile": key_file,
        "tlsInsecureSkipVerify": "true" if insecure else "",
    }
    return {name: value for name, value in given.items() if value}


def _partitions(spark: "SparkSession", wanted: int | None) -> dict[str, str]:
    """As many as are asked for, or as the session runs at once; Connect's does not say."""
    context = getattr(spark, "sparkContext", None)
    count = wanted or (context.defaultParallelism if context is not None else None)
    return {"minPartitions": str(count)} if count else {}
