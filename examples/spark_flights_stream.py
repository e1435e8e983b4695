"""A streaming job, run by a scheduler: what has come since the last run, exactly once, as Parquet.

    spark-submit examples/spark_flights_stream.py --to=/lake/flights --checkpoint=/lake/checkpoint

``availableNow`` takes what waits, batch by batch, and ends. Which batch is in the table stands in
the checkpoint, so a run that is killed is made up for by the next one. Flights that were more than
an hour late are published again, to the topic ``flights-late``; that is at least once.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from nsqpy.options import option, parse_flags
from nsqpy.spark import register

__all__ = ["Options", "main", "run"]

FLIGHT = "carrier string, origin string, dest string, arr_delay int, distance int, time_hour string"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    nsqd_http_address: str = option("127.0.0.1:4151", metavar="ADDRESS", help="an nsqd's HTTP API")
    topic: str = option("flights", help="topic of the flights")
    channel: str = option("stream", help="channel of this job, and of no other")
    to: str = option("", required=True, metavar="PATH", help="directory of the table")
    checkpoint: str = option("", required=True, metavar="PATH", help="directory of the checkpoint")


def run(spark: SparkSession, options: Options) -> None:
    """Take what waits into the table, and publish what of it is late."""
    body = F.from_json(F.col("body").cast("string"), FLIGHT)
    flights = (
        spark.readStream.format("nsq")
        .option("topic", options.topic)
        .option("channel", options.channel)
        .option("nsqdHttpAddresses", options.nsqd_http_address)
        .load()
        .select("id", body.alias("flight"))
        .select("id", "flight.*")
    )
    (
        flights.writeStream.option("checkpointLocation", f"{options.checkpoint}/table")
        .trigger(availableNow=True)
        .start(options.to, format="parquet")
        .awaitTermination()
    )
    # A stream of its own over the table, since two queries on one channel would share its messages.
    late = spark.readStream.schema(flights.schema).parquet(options.to).where("arr_delay > 60")
    (
        late.select(F.to_json(F.struct("*")).alias("body"))
        .writeStream.format("nsq")
        .option("topic", "flights-late")
        .option("nsqdHttpAddresses", options.nsqd_http_address)
        .option("checkpointLocation", f"{options.checkpoint}/late")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


def main(arguments: Sequence[str]) -> int:
    options = parse_flags(Options, arguments, "spark_flights_stream", intro=__doc__ or "")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName("flights, as they come")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    run(spark, options)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
