"""A streaming job as a process of its own, so that it can be killed: for tests and chaos.

    python -m tests.spark.driver ADDRESS CHECKPOINT OUT [crash-before-write|crash-after-write]
    python -m tests.spark.driver ADDRESS CHECKPOINT OUT stream MAX_MESSAGES

The first form runs ``availableNow`` into files keyed by the batch, and may kill itself in its
first batch; the second streams into Parquet until it is killed.
"""

import os
import signal
import sys
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from nsqpy.spark import register
from tests.spark.messages import CHANNEL, TOPIC

__all__ = ["keyed_by_batch", "main"]


def main(address: str, checkpoint: str, out: str, how: str = "", max_messages: str = "") -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    source = (
        spark.readStream.format("nsq")
        .option("topic", TOPIC)
        .option("channel", CHANNEL)
        .option("nsqdHttpAddresses", address)
        .option("maxMessagesPerTrigger", max_messages or "1000")
        .load()
    )
    writer = source.writeStream.option("checkpointLocation", checkpoint)
    if how == "stream":
        query = writer.format("parquet").option("path", out).start()
    else:
        query = writer.trigger(availableNow=True).foreachBatch(keyed_by_batch(out, how)).start()
    query.awaitTermination()


def keyed_by_batch(out: str, how: str = "") -> Callable[[DataFrame, int], None]:
    """For ``foreachBatch``: each batch into a directory of its own, which a repeat overwrites."""

    def write(batch: DataFrame, number: int) -> None:
        if how == "crash-before-write":
            _die()
        batch.write.mode("overwrite").parquet(f"{out}/batch={number}")
        if how == "crash-after-write":
            _die()

    return write


def _die() -> None:
    """The driver and its JVM at once; the test gave them a process group of their own."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
