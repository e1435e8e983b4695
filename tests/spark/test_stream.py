"""Streams into files: the rows of the failure matrix, with a real session and a real daemon."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon, wait_until
from tests.ports import free_port
from tests.spark.driver import keyed_by_batch
from tests.spark.messages import (
    CHANNEL,
    TOPIC,
    bodies_of,
    fail_always,
    fail_once,
    fingerprint,
    publish,
    waiting,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROOT = Path(__file__).resolve().parents[2]
QUERY_SECONDS = 60


class Table:
    """A stream from one channel into a Parquet table, run again and again on one checkpoint."""

    def __init__(self, spark: "SparkSession", path: Path, address: str, **options: str) -> None:
        self.spark = spark
        self.path = path
        self.options = {
            "topic": TOPIC,
            "channel": CHANNEL,
            "nsqdHttpAddresses": address,
            "maxMessagesPerTrigger": "1000",
        } | options

    def source(self) -> "DataFrame":
        return self.spark.readStream.format("nsq").options(**self.options).load()

    def start(
        self, frame: "DataFrame | None" = None, *, available_now: bool = True
    ) -> "StreamingQuery":
        writer = (self.source() if frame is None else frame).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.path / "checkpoint"))
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start(str(self.path / "out"))

    def run(self, frame: "DataFrame | None" = None) -> "StreamingQuery":
        """Everything that waits now, to its end. Raises what ended the query."""
        query = self.start(frame)
        assert query.awaitTermination(QUERY_SECONDS)
        return query

    def rows(self) -> tuple[int, str]:
        """Count and hash of the table, as Spark reads it; ids are checked to be distinct."""
        table = self.spark.read.parquet(str(self.path / "out"))
        bodies = bodies_of(table)
        assert table.select("id").distinct().count() == len(bodies)
        return fingerprint(bodies)

    def batches(self, log: str) -> list[int]:
        """The batches that one of the checkpoint's logs has."""
        found = (self.path / "checkpoint" / log).iterdir()
        return sorted(int(path.name) for path in found if path.name.isdecimal())

    def forget(self, log: str, batch: int) -> None:
        """As if the driver had been killed before it wrote that."""
        for path in (self.path / "checkpoint" / log).glob(f"*{batch}*"):
            path.unlink()

    def offset(self, batch: int) -> dict[str, Any]:
        text = (self.path / "checkpoint" / "offsets" / str(batch)).read_text()
        return dict(json.loads(text.splitlines()[2]))


def test_available_now_is_exactly_once_however_often_it_runs(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    table = Table(spark, tmp_path, nsqd.http_address)
    bodies = publish(nsqd, 3500)
    table.run()
    # The last batch is committed by the call that finds nothing more: no run after it is needed.
    assert waiting(nsqd) == (0, 0)
    assert table.batches("commits") == [0, 1, 2, 3]
    table.run()
    bodies += publish(nsqd, 10, first=3500)
    table.run()
    table.run()
    assert table.rows() == fingerprint(bodies)
    assert waiting(nsqd) == (0, 0)


def test_an_idle_stream_commits_its_last_batch(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    table = Table(spark, tmp_path, nsqd.http_address, pollTimeoutMs="200")
    bodies = publish(nsqd, 500)
    query = table.start(available_now=False)
    try:
        wait_until(lambda: nsqd.channel_stats(TOPIC, CHANNEL)["depth"] == 0, "the batch")
        wait_until(lambda: waiting(nsqd) == (0, 0), "its commit")
        bodies += publish(nsqd, 500, first=500)
        wait_until(lambda: waiting(nsqd) == (0, 0), "the next one")
    finally:
        query.stop()
    assert table.rows() == fingerprint(bodies)


def test_two_nodes_are_one_table(
    spark: "SparkSession", start_nsqd: StartDaemon, tmp_path: Path
) -> None:
    one, two = start_nsqd("--node-id=1"), start_nsqd("--node-id=2")
    table = Table(spark, tmp_path, f"{one.http_address},{two.http_address}")
    bodies = publish(one, 1500) + publish(two, 700, first=1500)
    table.run()
    assert table.rows() == fingerprint(bodies)
    assert waiting(one) == waiting(two) == (0, 0)


def test_a_crash_between_the_sinks_commit_and_sparks_own(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    table = Table(spark, tmp_path, nsqd.http_address)
    bodies = publish(nsqd, 800)
    with pytest.raises(Exception, match="this attempt fails on purpose"):
        table.run(table.source().mapInArrow(fail_always(), table.source().schema))
    assert (table.batches("offsets"), table.batches("commits")) == ([0], [])
    assert waiting(nsqd) == (0, 800)
    bodies += publish(nsqd, 100, first=800)
    table.run()
    assert table.rows() == fingerprint(bodies)
    table.forget("commits", 1)
    # The sink has batch 1, Spark does not know: it is skipped, and nothing is read or lost.
    table.run()
    assert table.rows() == fingerprint(bodies)
    assert waiting(nsqd) == (0, 0)


def test_a_failed_task_is_repeated_with_the_same_rows(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    table = Table(spark, tmp_path, nsqd.http_address)
    bodies = publish(nsqd, 1500)
    (tmp_path / "failed").mkdir()
    source = table.source()
    table.run(source.mapInArrow(fail_once(tmp_path / "failed"), source.schema))
    assert list((tmp_path / "failed").iterdir())
    assert table.rows() == fingerprint(bodies)


def test_a_node_killed_between_read_and_commit_forgets_nothing(
    spark: "SparkSession", start_nsqd: StartDaemon, tmp_path: Path
) -> None:
    nsqd = start_nsqd(f"--http-address=127.0.0.1:{free_port()}")
    table = Table(spark, tmp_path, nsqd.http_address)
    bodies = publish(nsqd, 2500)

    def kill_and_start(batch: "DataFrame", number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{tmp_path}/out/batch={number}")
        nsqd.kill()
        nsqd.start()

    writer = table.source().writeStream.foreachBatch(kill_and_start)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(QUERY_SECONDS)
    assert table.rows() == fingerprint(bodies)
    assert waiting(nsqd) == (0, 0)


def test_an_outage_longer_than_the_ttl_leaves_the_lease_to_a_later_batch(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    table = Table(spark, tmp_path, nsqd.http_address, leaseTtl="1s")
    bodies = publish(nsqd, 600)
    with pytest.raises(Exception, match="this attempt fails on purpose"):
        table.run(table.source().mapInArrow(fail_always(), table.source().schema))
    nsqd.wait_channel(TOPIC, CHANNEL, depth=600)
    table.run()  # batch 0 without its lease
    table.run()
    assert table.rows() == fingerprint(bodies)
    assert waiting(nsqd) == (0, 0)


def test_a_checkpoint_set_back_is_refused_unless_loss_is_allowed(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    table = Table(spark, tmp_path, nsqd.http_address)
    publish(nsqd, 1500)
    table.run()
    for log in ("offsets", "commits"):
        table.forget(log, 1)
    publish(nsqd, 10, first=1500)
    with pytest.raises(Exception, match="committed already: the checkpoint was set back"):
        table.run()
    assert waiting(nsqd)[0] == 10


def test_rows_not_yet_read_when_a_lease_ends_fail_the_query(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    table = Table(spark, tmp_path, nsqd.http_address)
    publish(nsqd, 600)

    def release_all(batch: "DataFrame", number: int) -> None:
        nsqd.request(f"/lease/release?id={table.offset(0)['leases'][0]['id']}", b"")
        batch.count()

    writer = table.source().writeStream.foreachBatch(release_all)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match="is gone: released"):
        query.awaitTermination(QUERY_SECONDS)


def test_a_killed_driver_before_and_after_the_sinks_commit(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    bodies = publish(nsqd, 2500)
    command = [sys.executable, "-m", "tests.spark.driver", nsqd.http_address]
    command += [str(tmp_path / "checkpoint"), str(tmp_path / "out")]
    for how in ("crash-before-write", "crash-after-write"):
        result = subprocess.run(
            [*command, how],
            cwd=ROOT,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=100,
            check=False,
        )
        assert result.returncode == -signal.SIGKILL, result.stderr
        assert waiting(nsqd) == (1500, 1000)
    table = Table(spark, tmp_path, nsqd.http_address)
    writer = table.source().writeStream.foreachBatch(keyed_by_batch(str(tmp_path / "out")))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(QUERY_SECONDS)
    assert table.rows() == fingerprint(bodies)
    assert waiting(nsqd) == (0, 0)


def test_progress_tells_what_waits(spark: "SparkSession", nsqd: Daemon, tmp_path: Path) -> None:
    table = Table(spark, tmp_path, nsqd.http_address)
    publish(nsqd, 1500)
    query = table.run()
    progress = query.lastProgress
    assert progress is not None
    (source,) = progress["sources"]
    assert source["numInputRows"] == 500
    told = json.loads(source["latestOffset"])
    assert (sum(told["waiting"].values()), told["expired"]) == (0, 0)
