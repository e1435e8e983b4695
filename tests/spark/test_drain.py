"""Batch jobs: ``drain`` against a real daemon."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqpy.spark import AlreadyDrained, LeaseLost, UnreadWarning, commit, drain
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon, wait_until
from tests.ports import free_port
from tests.spark.messages import (
    CHANNEL,
    TOPIC,
    bodies_of,
    fail_once,
    fingerprint,
    publish,
    waiting,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_normal_exit_commits(spark: "SparkSession", nsqd: Daemon, tmp_path: Path) -> None:
    bodies = publish(nsqd, 3000)
    job = drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address)
    with job as df:
        assert job.messages == 3000
        assert waiting(nsqd) == (0, 3000)
        df.write.parquet(str(tmp_path / "out"))
    assert waiting(nsqd) == (0, 0)
    written = spark.read.parquet(str(tmp_path / "out"))
    assert fingerprint(bodies_of(written)) == fingerprint(bodies)
    assert written.select("id").distinct().count() == 3000


def test_an_exception_puts_everything_back(spark: "SparkSession", nsqd: Daemon) -> None:
    bodies = publish(nsqd, 100)
    job = drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address)

    def fail() -> None:
        with job as df:
            assert df.count() == 100
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert waiting(nsqd) == (100, 0)
    with drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address) as df:
        rows = df.select("body", "attempts").collect()
    assert fingerprint(bytes(row.body) for row in rows) == fingerprint(bodies)
    assert {row.attempts for row in rows} == {2}


def test_every_action_reads_the_same_rows(spark: "SparkSession", nsqd: Daemon) -> None:
    publish(nsqd, 2000)
    with drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address) as df:
        first = df.collect()
        publish(nsqd, 100, first=2000)
        assert df.collect() == first
        assert df.union(df).count() == 4000
        assert df.orderBy("id").count() == 2000
    assert waiting(nsqd) == (100, 0)


def test_the_columns_are_what_was_published(spark: "SparkSession", nsqd: Daemon) -> None:
    publish(nsqd, 1)
    with drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address) as df:
        (row,) = df.selectExpr(
            "*", "timestamp between now() - interval 1 hour and now() as ok"
        ).collect()
    assert len(row.id) == 16
    assert (row.topic, row.channel, row.node) == (TOPIC, CHANNEL, nsqd.http_address)
    assert (bytes(row.body)[:2], row.attempts, row.ok) == (b"0|", 1, True)


def test_what_nobody_read_is_put_back(spark: "SparkSession", nsqd: Daemon) -> None:
    publish(nsqd, 100)
    with (
        pytest.warns(UnreadWarning, match="100 messages of drain"),
        drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address),
    ):
        pass
    assert waiting(nsqd) == (100, 0)


def test_what_limit_did_not_reach_is_put_back(spark: "SparkSession", nsqd: Daemon) -> None:
    publish(nsqd, 20_000, size=200)
    job = drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address, min_partitions=4)
    df = job.__enter__()
    assert df.rdd.getNumPartitions() > 1
    assert len(df.limit(5).collect()) == 5
    with pytest.warns(UnreadWarning):
        job.__exit__(None, None, None)
    nsqd.wait_channel(TOPIC, CHANNEL, depth=20_000)


def test_an_empty_channel_is_an_empty_dataframe(spark: "SparkSession", nsqd: Daemon) -> None:
    publish(nsqd, 0)
    job = drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address)
    with job as df:
        assert (df.count(), job.leases, job.messages) == (0, [], 0)


def test_max_messages_bounds_the_input_over_all_nodes(
    spark: "SparkSession", start_nsqd: StartDaemon
) -> None:
    one, two = start_nsqd("--node-id=1"), start_nsqd("--node-id=2")
    bodies = publish(one, 100) + publish(two, 1000, first=100)
    job = drain(
        spark,
        topic=TOPIC,
        channel=CHANNEL,
        nsqd=[one.http_address, two.http_address],
        max_messages=500,
    )
    with job as df:
        assert sorted(lease.count for lease in job.leases) == [100, 400]
        seen = bodies_of(df)
    with drain(
        spark, topic=TOPIC, channel=CHANNEL, nsqd=[one.http_address, two.http_address]
    ) as df:
        seen += bodies_of(df)
    assert fingerprint(seen) == fingerprint(bodies)
    assert waiting(one) == waiting(two) == (0, 0)


def test_a_drain_with_an_id_reads_the_same_again_after_a_failure(
    spark: "SparkSession", nsqd: Daemon
) -> None:
    def attempt() -> drain:
        return drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address, id="orders-21")

    bodies = publish(nsqd, 500)
    with pytest.raises(ZeroDivisionError), attempt():
        raise ZeroDivisionError
    publish(nsqd, 100, first=500)
    with attempt() as df:
        assert fingerprint(bodies_of(df)) == fingerprint(bodies)
    assert waiting(nsqd) == (100, 0)
    with pytest.raises(AlreadyDrained, match="drain orders-21 has been committed already"):
        attempt().__enter__()
    assert waiting(nsqd) == (100, 0)


def test_a_drain_with_an_id_that_expired_is_lost(spark: "SparkSession", nsqd: Daemon) -> None:
    publish(nsqd, 10)
    job = drain(
        spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address, id="orders-22", ttl="1s"
    )
    with pytest.raises(ZeroDivisionError), job:
        raise ZeroDivisionError
    nsqd.wait_channel(TOPIC, CHANNEL, depth=10)
    with pytest.raises(LeaseLost, match=r"drain orders-22 lost leases .*expired"):
        drain(
            spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address, id="orders-22"
        ).__enter__()


def test_leases_are_extended_while_the_job_runs(spark: "SparkSession", nsqd: Daemon) -> None:
    publish(nsqd, 10)
    began = time.monotonic()
    with drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address, ttl="1s") as df:
        wait_until(lambda: time.monotonic() > began + 2.5, "two and a half times the ttl")
        assert df.count() == 10
    assert waiting(nsqd) == (0, 0)


def test_use_after_the_exit_fails_with_the_leases_state(
    spark: "SparkSession", nsqd: Daemon
) -> None:
    publish(nsqd, 10)
    with drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address) as df:
        df.count()
    with pytest.raises(Exception, match=r"lease drain-.* is gone: committed"):
        df.count()


def test_a_read_by_hand_is_committed_by_hand(spark: "SparkSession", nsqd: Daemon) -> None:
    bodies = publish(nsqd, 100)
    df = (
        spark.read.format("nsq")
        .option("topic", TOPIC)
        .option("channel", CHANNEL)
        .option("nsqdHttpAddresses", nsqd.http_address)
        .option("drainId", "by-hand")
        .load()
    )
    assert fingerprint(bodies_of(df)) == fingerprint(bodies)
    assert waiting(nsqd) == (0, 100)
    for _ in range(2):
        commit("by-hand", topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address)
        assert waiting(nsqd) == (0, 0)
    with pytest.raises(LeaseLost, match="unknown"):
        commit("another", topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address)


def test_a_node_that_restarts_keeps_its_leases(
    spark: "SparkSession", start_nsqd: StartDaemon
) -> None:
    port = free_port()
    nsqd = start_nsqd(f"--http-address=127.0.0.1:{port}")
    bodies = publish(nsqd, 1000)
    with drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address) as df:
        nsqd.kill()
        nsqd.start()
        assert fingerprint(bodies_of(df)) == fingerprint(bodies)
    assert waiting(nsqd) == (0, 0)


def test_a_failed_task_reads_the_same_rows_again(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    bodies = publish(nsqd, 2000)
    with drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address) as df:
        (tmp_path / "once").mkdir()
        seen = df.mapInArrow(fail_once(tmp_path / "once"), df.schema)
        assert fingerprint(bodies_of(seen)) == fingerprint(bodies)
        assert list((tmp_path / "once").iterdir())
    assert waiting(nsqd) == (0, 0)
