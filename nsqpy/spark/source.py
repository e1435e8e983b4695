"""The format ``nsq`` as PySpark knows it: what ``spark.read`` and ``df.write`` ask for first.

Importing this module needs PySpark and the standard library only; PyArrow is looked for when the
format is used, so that its absence is told in words. Source: docs/spark.md.
"""

import importlib.util
from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from nsqpy.client.nodes import NodeAddress
from nsqpy.errors import ConfigError
from nsqpy.spark.cluster import Cluster
from nsqpy.spark.options import ReadOptions, WriteOptions
from nsqpy.spark.partitions import partitions_of, read_partition
from nsqpy.spark.plan import plan_from_text, take

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FORMAT", "SCHEMA", "NSQBatchReader", "NSQDataSource"]

FORMAT = "nsq"
SCHEMA = StructType(
    [
        StructField("id", StringType()),
        StructField("body", BinaryType()),
        StructField("timestamp", TimestampType()),
        StructField("attempts", IntegerType()),
        StructField("topic", StringType()),
        StructField("channel", StringType()),
        StructField("node", StringType()),
    ]
)


class NSQDataSource(DataSource):
    """``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream`` for ``nsq``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        _need_pyarrow()

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        _check_schema(schema)
        options = ReadOptions.of(self.options)
        if not options.plan and not options.drain_id:
            raise ConfigError(
                "drainId",
                "",
                "a batch read has nobody who commits it: use nsqpy.spark.drain(...), or give the "
                "option drainId and call nsqpy.spark.commit(...) when its rows are safe",
            )
        return NSQBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        _check_schema(schema)
        try:
            from nsqpy.spark.stream import NSQStreamReader
        except ImportError as error:
            raise ConfigError("format", FORMAT, "the stream source needs PySpark 4.2") from error
        return NSQStreamReader(ReadOptions.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from nsqpy.spark.sink import NSQWriter

        return NSQWriter(WriteOptions.of(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        try:
            from nsqpy.spark.stream_sink import NSQStreamWriter
        except ImportError as error:
            raise ConfigError("format", FORMAT, "the stream sink needs PySpark 4.1") from error
        return NSQStreamWriter(WriteOptions.of(self.options), schema, overwrite)


class NSQBatchReader(DataSourceReader):
    """Reads what ``drain`` has leased, or what it leases itself under the caller's ``drainId``."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Asked for again and again, in some versions: the ids are fixed, so are the leases."""
        options = self._options
        if options.plan:
            leases = plan_from_text(options.plan)
        else:
            cluster = Cluster(options)
            try:
                leases = take(cluster, options, options.drain_id, options.max_messages)
            finally:
                cluster.close()
        return [
            partition
            for lease in leases
            for partition in partitions_of(lease, NodeAddress.parse(lease.address), options)
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_partition(partition)


def _check_schema(schema: StructType) -> None:
    found: list[tuple[str, Any]] = [(one.name, one.dataType) for one in schema.fields]
    if found != [(one.name, one.dataType) for one in SCHEMA.fields]:
        raise ConfigError(
            "schema",
            schema.simpleString(),
            f"the nsq source has the schema {SCHEMA.simpleString()}; it cannot be given another "
            f"({schema.simpleString()}): select and cast its columns instead",
        )


def _need_pyarrow() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(
            "pyarrow", "", "the nsq format needs PyArrow 18 or later: pip install 'nsqpy[spark]'"
        )
