"""What a user submits to a cluster: three drains into Parquet, two of them with a mishap.

    python tests/spark/cluster_job.py MASTER ADDRESS OUT MARKS [ZIP]

Run as a file, so that nothing of the tests reaches the executors but by value. The mishaps: an
executor that is killed while it reads, and a task so slow that Spark runs it a second time.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import SparkSession

__all__: list[str] = []

Map = Callable[[Iterator[Any]], Iterator[Any]]


def noting(marks: str) -> Map:
    """Leaves a mark with the interpreter's path, and whether it has what executors may lack."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib.util
        import sys
        from pathlib import Path

        has = [
            name
            for name in ("aiohttp", "uvloop", "google_crc32c")
            if importlib.util.find_spec(name)
        ]
        (Path(marks) / "python").write_text(f"{sys.executable} {has}")
        yield from batches

    return pass_on


def killing(marks: str) -> Map:
    """The first to come kills its executor, after a batch."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import signal
        import time
        from pathlib import Path

        for batch in batches:
            yield batch
            try:
                (Path(marks) / "killed").touch(exist_ok=False)
            except FileExistsError:
                continue
            # This worker is a child of Spark's forking daemon, whose parent is the executor.
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
            time.sleep(60)

    return pass_on


def dawdling(marks: str) -> Map:
    """The first attempt of the first partition takes so long that a second one overtakes it."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            (Path(marks) / f"attempt-{context.attemptNumber()}").touch()
        for batch in batches:
            yield batch
            if (context.partitionId(), context.attemptNumber()) == (0, 0):
                time.sleep(40)

    return pass_on


def main(master: str, address: str, out: str, marks: str, package: str = "") -> None:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.log.level": "ERROR",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "2s",
        # How one gives a submitted job its --py-files.
        "spark.submit.pyFiles": package,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    from nsqpy.spark import drain, register

    if package:
        spark.sparkContext.addPyFile(package)
        register(spark)
    for topic, mishap in (("plain", noting), ("lost", killing), ("slow", dawdling)):
        if not package and topic != "plain":
            continue
        with drain(spark, topic=topic, channel="lake", nsqd=address, min_partitions=4) as df:
            df.mapInArrow(mishap(marks), df.schema).write.parquet(f"{out}/{topic}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
