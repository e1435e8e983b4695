"""What an executor is given, and how it makes rows of it."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from nsqpy.client.leases import LeaseNode, Split
from nsqpy.client.nodes import NodeAddress
from nsqpy.clock import SECOND
from nsqpy.spark.options import ReadOptions
from nsqpy.spark.plan import PlannedLease

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

__all__ = ["LeasePartition", "partitions_of", "read_partition"]


class LeasePartition(InputPartition):
    """A part of a lease, and where to read it: what travels to an executor."""

    def __init__(
        self,
        lease: PlannedLease,
        split: Split,
        address: NodeAddress,
        options: ReadOptions,
    ) -> None:
        super().__init__(lease.id)
        self.lease_id = lease.id
        self.topic, self.channel = lease.topic, lease.channel
        self.node = lease.address
        self.split = split
        self.address = address
        self.patience_s = options.node_timeout_ns / SECOND
        self.secret = options.auth_secret
        self.tls = options.tls

    def __repr__(self) -> str:
        # PySpark's own shows everything, and Spark logs it.
        return f"LeasePartition({self.lease_id}, {self.split}, {self.address})"


def partitions_of(
    lease: PlannedLease, address: NodeAddress, options: ReadOptions
) -> list[LeasePartition]:
    """One partition for each split of the lease, to be read at ``address``."""
    return [LeasePartition(lease, split, address, options) for split in lease.splits]


def read_partition(partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """The rows of a partition, the same in every read.

    Raises:
        LeaseGone: the lease has ended; no rows instead would make two reads differ.
        NodeUnavailable: the node did not answer within ``nodeTimeout``.
    """
    # Spark reads one partition without a value where the plan has none.
    if not isinstance(partition, LeasePartition):
        return
    from nsqpy.spark.rows import Rows

    rows = Rows(partition.topic, partition.channel, partition.node)
    with LeaseNode(
        partition.address,
        patience_s=partition.patience_s,
        secret=partition.secret,
        tls=partition.tls,
    ) as node:
        yield from rows.batches(node.read(partition.lease_id, partition.split))
