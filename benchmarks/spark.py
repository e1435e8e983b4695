"""How fast Spark drains two daemons into Parquet, and publishes to them, on this machine.

    python -m benchmarks.spark [--messages=2000000] [--rounds=3]

The scale is Spark itself: the same rows read from local Parquet, through an Arrow map that returns
what it is given, into Parquet. What it prints is a JSON object; ``drain_ratio`` is the drain's
share of that speed, all of it counted, from the first lease to the last commit.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from nsqpy.client.nodes import HTTPNode, NodeAddress
from nsqpy.options import option, parse_flags
from nsqpy.spark import drain, register

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[1]
_TOPIC, _CHANNEL = "measured", "lake"
_LISTENING = re.compile(r"HTTP: listening on (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    messages: int = option(2_000_000, minimum=1000, help="rows, divided among two daemons")
    size: int = option(200, minimum=20, help="bytes of a body")
    rounds: int = option(3, minimum=1, help="times; the medians count")


@contextlib.contextmanager
def _running_daemon(data_path: Path) -> Iterator[str]:
    """The HTTP address of a daemon on free ports."""
    data_path.mkdir()
    command = [
        *(sys.executable, "-m", "nsqpy", "nsqd", f"--data-path={data_path}"),
        *("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"),
    ]
    log = data_path.with_suffix(".log")
    with log.open("wb") as out, subprocess.Popen(command, cwd=_ROOT, stderr=out) as process:
        try:
            deadline_s = time.monotonic() + 20
            while (found := _LISTENING.search(log.read_text())) is None:
                if time.monotonic() > deadline_s:
                    raise SystemExit(f"the daemon did not start: {log.read_text()}")
                time.sleep(0.02)
            with HTTPNode(NodeAddress.parse(found[1])) as node:
                node.call("POST", "/topic/create", {"topic": _TOPIC})
                node.create_channel(_TOPIC, _CHANNEL)
            yield found[1]
        finally:
            process.kill()


def main(arguments: Sequence[str]) -> int:
    options = parse_flags(_Options, arguments, "python -m benchmarks.spark", intro=__doc__ or "")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    register(spark)
    work = Path(tempfile.mkdtemp(prefix="benchmark-spark-"))
    try:
        with _running_daemon(work / "one") as one, _running_daemon(work / "two") as two:
            _round(spark, work, [one, two], 20_000, options.size)  # warms everything up
            rounds = [
                _round(spark, work, [one, two], options.messages, options.size)
                for _ in range(options.rounds)
            ]
    finally:
        spark.stop()
        shutil.rmtree(work)
    figures = {name: median(one[name] for one in rounds) for name in rounds[0]}
    figures["drain_ratio"] = median(one["drain_per_s"] / one["identity_per_s"] for one in rounds)
    shown = {name: round(value, 2) for name, value in figures.items()}
    sys.stdout.write(
        json.dumps({"messages": options.messages, "size": options.size, **shown}) + "\n"
    )
    return 0


def _round(
    spark: SparkSession, work: Path, nodes: list[str], count: int, size: int
) -> dict[str, float]:
    """Rows a second of each of the three ways."""
    for name in ("rows", "drained", "identity"):
        shutil.rmtree(work / name, ignore_errors=True)
    body = f"rpad(cast(id as string), {size}, 'x') as body"
    # Ready-made, so that what is measured is publishing and not making rows.
    spark.range(count, numPartitions=2).selectExpr(body).write.parquet(str(work / "rows"))
    rows = spark.read.parquet(str(work / "rows"))
    publish = (
        rows.write.format("nsq")
        .mode("append")
        .options(topic=_TOPIC, nsqdHttpAddresses=",".join(nodes))
    )
    publish_s = _seconds(publish.save)

    def drain_all() -> None:
        job = drain(spark, topic=_TOPIC, channel=_CHANNEL, nsqd=nodes)
        with job as df:
            df.write.parquet(str(work / "drained"))
        assert job.messages == count, job.messages

    drain_s = _seconds(drain_all)
    drained = spark.read.parquet(str(work / "drained"))
    identity = drained.mapInArrow(_same, drained.schema)
    identity_s = _seconds(lambda: identity.write.parquet(str(work / "identity")))
    return {
        "write_per_s": count / publish_s,
        "drain_per_s": count / drain_s,
        "identity_per_s": count / identity_s,
    }


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


def _seconds(act: Callable[[], object]) -> float:
    began_s = time.monotonic()
    act()
    return time.monotonic() - began_s


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
