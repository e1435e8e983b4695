"""The jobs that come with the package: ``nsqpy drain``, and the streaming example."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.spark_flights_stream import Options, run
from nsqpy.client.nodes import HTTPNode, NodeAddress
from nsqpy.spark import AlreadyDrained, drain
from nsqpy.spark.job import FileFormat, drain_to_files
from tests.e2e.daemon import Daemon
from tests.spark.messages import CHANNEL, TOPIC, bodies_of, fingerprint, publish, waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsqpy.spark.drain import Drain

ROOT = Path(__file__).resolve().parents[2]


def job(spark: "SparkSession", nsqd: Daemon, id: str | None = None) -> "Drain":
    return drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address, id=id)


def test_parquet_is_added_to(spark: "SparkSession", nsqd: Daemon, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    bodies = publish(nsqd, 100)
    assert drain_to_files(job(spark, nsqd), out, FileFormat.PARQUET) == 100
    bodies += publish(nsqd, 50, first=100)
    assert drain_to_files(job(spark, nsqd), out, FileFormat.PARQUET) == 50
    assert drain_to_files(job(spark, nsqd), out, FileFormat.PARQUET) == 0
    assert fingerprint(bodies_of(spark.read.parquet(out))) == fingerprint(bodies)


def test_a_named_run_writes_once(spark: "SparkSession", nsqd: Daemon, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    bodies = publish(nsqd, 100)
    assert drain_to_files(job(spark, nsqd, "monday"), out, FileFormat.PARQUET) == 100
    bodies += publish(nsqd, 50, first=100)
    with pytest.raises(AlreadyDrained):
        drain_to_files(job(spark, nsqd, "monday"), out, FileFormat.PARQUET)
    assert drain_to_files(job(spark, nsqd, "tuesday"), out, FileFormat.PARQUET) == 50
    table = spark.read.parquet(out)
    assert fingerprint(bodies_of(table)) == fingerprint(bodies)
    assert {row["drain"] for row in table.select("drain").distinct().collect()} == {
        "monday",
        "tuesday",
    }


def test_the_command_writes_json_lines(nsqd: Daemon, tmp_path: Path) -> None:
    bodies = [b'{"n":1}', "häuser".encode(), b"\xff\x00\xfe"]
    with HTTPNode(NodeAddress.parse(nsqd.http_address)) as node:
        node.call("POST", "/topic/create", {"topic": TOPIC})
        node.publish(TOPIC, bodies)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "nsqpy", "drain", f"--topic={TOPIC}", f"--channel={CHANNEL}"),
            *("--format=json", f"--nsqd-http-address={nsqd.http_address}", "--master=local[1]"),
            f"--to={tmp_path / 'out'}",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "nsqpy drain: drained 3 messages of orders to " in result.stderr
    lines = [
        json.loads(line)
        for path in (tmp_path / "out").glob("*.json")
        for line in path.read_text().splitlines()
    ]
    found = {
        base64.b64decode(line["body_base64"]) if "body_base64" in line else line["body"].encode()
        for line in lines
    }
    assert found == set(bodies)
    assert {(line["topic"], line["attempts"]) for line in lines} == {(TOPIC, 1)}
    assert waiting(nsqd) == (0, 0)


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        ([], 1, "--topic is required"),
        (["--topic=t", "--channel=c", "--to=/x", "--format=csv"], 2, "parquet, json"),
    ],
)
def test_a_wrong_command_line_is_refused(flags: list[str], status: int, said: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "nsqpy", "drain", *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (result.returncode, said in result.stderr) == (status, True), result.stderr


def test_the_streaming_example(spark: "SparkSession", nsqd: Daemon, tmp_path: Path) -> None:
    delays = [None, 0, 61, 5, 300]
    flights = [
        json.dumps({"carrier": "UA", "origin": "JFK", "dest": "SFO", "arr_delay": delay}).encode()
        for delay in delays
    ]
    with HTTPNode(NodeAddress.parse(nsqd.http_address)) as node:
        node.call("POST", "/topic/create", {"topic": "flights"})
        node.create_channel("flights", "stream")
        node.publish("flights", flights)
    options = Options(
        nsqd_http_address=nsqd.http_address,
        to=str(tmp_path / "table"),
        checkpoint=str(tmp_path / "checkpoint"),
    )
    for _ in range(2):
        run(spark, options)
    table = spark.read.parquet(options.to)
    assert sorted(row.arr_delay or 0 for row in table.collect()) == [0, 0, 5, 61, 300]
    assert nsqd.topic_stats("flights-late")["message_count"] == 2
