"""The jobs that come with the package: ``nsqpy drain``, and the streaming example."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.spark_flights_stream import Options, run
from nsqpy.client.leases import LeaseNode
from nsqpy.client.node_tls import NodeTLS
from nsqpy.client.nodes import HTTPNode, NodeAddress
from nsqpy.spark import AlreadyDrained, drain
from nsqpy.spark.job import FileFormat, JobFailed, drain_to_files
from nsqpy.tokens import hash_token
from tests.certificates import Certificates
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon
from tests.spark.messages import CHANNEL, TOPIC, bodies_of, fingerprint, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nsqpy.spark.drain import Drain

WHERE = ["--topic=t", "--channel=c", "--to=/x"]
NSQD = "--nsqd-http-address=127.0.0.1:4151"
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


def test_the_command_writes_json_lines(
    start_nsqd: StartDaemon, certificates: Certificates, tmp_path: Path
) -> None:
    """From a daemon that wants a token, over HTTPS."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"job {hash_token(b'hush-hush')} consume {TOPIC}\n")
    tokens.chmod(0o600)
    nsqd = start_nsqd()
    bodies = [b'{"n":1}', "häuser".encode(), b"\xff\x00\xfe"]
    with HTTPNode(NodeAddress.parse(nsqd.http_address)) as node:
        node.call("POST", "/topic/create", {"topic": TOPIC})
        node.create_channel(TOPIC, CHANNEL)
        node.publish(TOPIC, bodies)
    nsqd.terminate()
    secure = (f"--auth-token-file={tokens}", "--https-address=127.0.0.1:0")
    nsqd.flags = (*certificates.server.flags, *secure)
    nsqd.start()
    result = subprocess.run(
        [
            *(sys.executable, "-m", "nsqpy", "drain", f"--topic={TOPIC}", f"--channel={CHANNEL}"),
            *("--format=json", f"--nsqd-http-address={nsqd.https_address}", "--master=local[1]"),
            *("--consumer-opt=auth_secret,hush-hush", "--create-channel=false"),
            f"--consumer-opt=tls_root_ca_file,{certificates.ca}",
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
    for line in lines:
        assert re.search(r"T\d\d:\d\d:\d\d\.\d{6}", line["timestamp"])
    secure_node = NodeAddress.parse(f"https://{nsqd.https_address}")
    tls = NodeTLS.read(str(certificates.ca), "", "", verify=True)
    with LeaseNode(secure_node, secret="hush-hush", tls=tls) as lease_node:
        assert lease_node.depth(TOPIC, CHANNEL) == 0
        assert lease_node.leases(TOPIC, CHANNEL) == []
    assert "hush" not in nsqd.log


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        ([], 1, "--topic is required"),
        ([*WHERE, "--format=csv"], 2, "parquet, json"),
        (WHERE, 1, "--nsqd-http-address or --lookupd-http-address is required, and not both"),
        ([*WHERE, "--nsqd-http-address=one"], 2, "flag -nsqd-http-address: 'one' is not an HTTP"),
        ([*WHERE, "--channel=a b", NSQD], 1, '--channel "a b" is not a valid name'),
        ([*WHERE, NSQD, "--consumer-opt=max_attempts,1"], 2, "max_attempts is not for this tool"),
        ([*WHERE, NSQD, "--consumer-opt=tls_root_ca_file,/no"], 2, "--consumer-opt: open /no: no"),
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


def test_a_job_that_spark_cannot_do_says_why(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    publish(nsqd, 10)
    (tmp_path / "file").touch()
    out = str(tmp_path / "file" / "out")
    with pytest.raises(JobFailed, match=r"messages are back in the queue: .*Exception") as told:
        drain_to_files(job(spark, nsqd), out, FileFormat.PARQUET)
    assert "\n" not in str(told.value)
    nsqd.wait_channel(TOPIC, CHANNEL, depth=10)


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
