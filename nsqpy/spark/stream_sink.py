"""``df.writeStream.format("nsq")``: as the batch sink, once for each micro-batch or more often.

Apart from the batch sink since it needs PySpark 4.1.
"""

import logging
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from nsqpy.spark.options import WriteOptions
from nsqpy.spark.sink import Published, SinkColumns, publish_rows, published

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

__all__ = ["NSQStreamWriter"]

log = logging.getLogger(__name__)


class NSQStreamWriter(DataSourceStreamArrowWriter):
    """The sink of a stream. A batch that Spark repeats after a crash is published again."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options
        self._columns = SinkColumns.of(schema, options, overwrite)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Published:
        return publish_rows(self._options, self._columns, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log.info("batch %d: published %d messages", batchId, published(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        log.warning(
            "batch %d failed after %d messages were published", batchId, published(messages)
        )
