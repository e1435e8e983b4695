"""A batch job: the flights that wait in a channel, as Parquet, and their mean delay by carrier.

    spark-submit examples/spark_flights.py --nsqd-http-address=127.0.0.1:4151 --to=/lake/flights

It leases what waits, writes it to ``TO/flights``, reads that back, and writes the means to
``TO/delays``. The messages are acknowledged when all of it is written; if it fails they go back
into the queue. The last act of ``make demo``.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from nsqpy.options import option, parse_flags
from nsqpy.spark import drain, register

__all__ = ["main", "mean_delays"]

FLIGHT = "carrier string, origin string, dest string, arr_delay int, distance int, time_hour string"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    nsqd_http_address: str = option("127.0.0.1:4151", metavar="ADDRESS", help="an nsqd's HTTP API")
    topic: str = option("flights", help="topic of the flights")
    channel: str = option("lake", help="channel to drain")
    to: str = option("", required=True, metavar="PATH", help="directory for the two tables")


def mean_delays(flights: DataFrame) -> DataFrame:
    """Carrier, flights that arrived, the minutes they were late in all, and on the mean."""
    return (
        flights.where("arr_delay is not null")
        .groupBy("carrier")
        .agg(
            F.count("*").alias("arrived"),
            F.sum("arr_delay").alias("minutes_late"),
            F.avg("arr_delay").alias("mean_delay"),
        )
        .orderBy("carrier")
    )


def main(arguments: Sequence[str]) -> int:
    options = parse_flags(_Options, arguments, "spark_flights", intro=__doc__ or "")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName("flights")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    job = drain(spark, topic=options.topic, channel=options.channel, nsqd=options.nsqd_http_address)
    started = time.monotonic()
    with job as messages:
        body = F.from_json(F.col("body").cast("string"), FLIGHT)
        flights = messages.select("id", body.alias("flight")).select("id", "flight.*")
        flights.write.mode("overwrite").parquet(f"{options.to}/flights")
        written = spark.read.parquet(f"{options.to}/flights")
        mean_delays(written).coalesce(1).write.mode("overwrite").parquet(f"{options.to}/delays")
    seconds = time.monotonic() - started
    sys.stdout.write(json.dumps({"messages": job.messages, "seconds": seconds}) + "\n")
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
