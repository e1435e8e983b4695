"""``df.write`` and ``df.writeStream`` to real daemons."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from nsqpy.client.nodes import HTTPNode, NodeAddress
from nsqpy.spark import drain
from nsqpy.tokens import hash_token
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon
from tests.ports import free_port
from tests.spark.conftest import StartListed
from tests.spark.messages import (
    CHANNEL,
    bodies_of,
    fingerprint,
    publish,
    wait_listed,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def count_of(nsqd: Daemon, topic: str) -> int:
    return int(nsqd.topic_stats(topic).get("message_count", 0))


def test_every_row_is_published_once(spark: "SparkSession", nsqd: Daemon) -> None:
    publish(nsqd, 0, topic="scored")
    df = spark.range(5000).selectExpr("cast(id as string) as body")
    df.write.format("nsq").mode("append").options(
        topic="scored", nsqdHttpAddresses=nsqd.http_address
    ).save()
    with drain(spark, topic="scored", channel=CHANNEL, nsqd=nsqd.http_address) as back:
        assert fingerprint(bodies_of(back)) == fingerprint(b"%d" % n for n in range(5000))


def test_rows_name_topics_and_delays(spark: "SparkSession", nsqd: Daemon) -> None:
    rows = [(b"a", "one", None), (b"b", "two", 0), (b"c", None, None), (b"d", "one", 3_600_000)]
    df = spark.createDataFrame(rows, "value binary, topic string, defer_ms long")
    df.write.format("nsq").mode("append").options(
        topic="other", nsqdHttpAddresses=nsqd.http_address
    ).save()
    assert [count_of(nsqd, topic) for topic in ("one", "two", "other")] == [2, 1, 1]


def test_tasks_go_on_with_another_node(
    spark: "SparkSession", start_listed: StartListed, lookupd: Daemon
) -> None:
    one, two = start_listed(), start_listed()
    start_listed(f"--broadcast-http-port={free_port()}")  # nobody answers there
    wait_listed(lookupd, 3)
    df = spark.range(4000).repartition(4).selectExpr("cast(id as string) as body")
    df.write.format("nsq").mode("append").options(
        topic="scored", lookupdHttpAddresses=lookupd.http_address
    ).save()
    counts = [count_of(nsqd, "scored") for nsqd in (one, two)]
    assert sum(counts) == 4000
    assert min(counts) > 0


def test_bodies_of_any_size_fit(spark: "SparkSession", nsqd: Daemon) -> None:
    df = spark.range(40).selectExpr("repeat('x', cast(id * 26000 + 1 as int)) as body")
    df.write.format("nsq").mode("append").options(
        topic="large", nsqdHttpAddresses=nsqd.http_address
    ).save()
    assert count_of(nsqd, "large") == 40


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("cast(null as string)", "1 rows have no body"),
        ("''", "empty body"),
        ("repeat('x', 2000000)", "2,000,000 bytes; the node takes 1,048,576"),
    ],
)
def test_a_row_that_no_node_takes_fails_the_job(
    spark: "SparkSession", nsqd: Daemon, body: str, said: str
) -> None:
    df = spark.range(1).selectExpr(f"{body} as body")
    writer = df.write.format("nsq").mode("append")
    with pytest.raises(PySparkException, match=said):
        writer.options(topic="t", nsqdHttpAddresses=nsqd.http_address).save()


def test_what_cannot_be_written_is_refused_before_it_starts(
    spark: "SparkSession", nsqd: Daemon
) -> None:
    df = spark.range(1).selectExpr("cast(id as string) as body")
    with pytest.raises(PySparkException, match="cannot overwrite"):
        df.write.format("nsq").mode("overwrite").options(
            topic="t", nsqdHttpAddresses=nsqd.http_address
        ).save()
    with pytest.raises(PySparkException, match="option topic is required"):
        df.write.format("nsq").mode("append").option("nsqdHttpAddresses", nsqd.http_address).save()


def test_who_may_only_publish_learns_what_the_node_takes(
    spark: "SparkSession", start_nsqd: StartDaemon, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"writer {hash_token(b'writer')} publish large\n")
    tokens.chmod(0o600)
    nsqd = start_nsqd(
        f"--auth-token-file={tokens}", "--max-msg-size=3000000", "--max-body-size=4000"
    )
    df = spark.range(8, numPartitions=1).selectExpr("repeat('x', 1500) as body")
    writer = df.write.format("nsq").mode("append").option("authSecret", "writer")
    writer.options(topic="large", nsqdHttpAddresses=nsqd.http_address).save()
    with HTTPNode(NodeAddress.parse(nsqd.http_address), secret="writer") as node:
        stats = node.call("GET", "/stats", {"format": "json"}).json()
    assert stats["topics"][0]["message_count"] == 8


def test_a_stream_may_be_published(spark: "SparkSession", nsqd: Daemon, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text("\n".join(json.dumps({"n": n}) for n in range(300)))
    source = spark.readStream.schema("n int").json(str(tmp_path / "in"))
    query = (
        source.selectExpr("cast(n as string) as body")
        .writeStream.format("nsq")
        .options(topic="streamed", nsqdHttpAddresses=nsqd.http_address)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert count_of(nsqd, "streamed") == 300
