"""What goes wrong is told in the driver, in one error that names it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from nsqpy.client.nodes import NodeRefused, NodeUnavailable, TopicNotFound
from nsqpy.errors import ConfigError
from nsqpy.spark import drain
from tests.e2e.daemon import Daemon
from tests.ports import free_port
from tests.spark.conftest import StartListed
from tests.spark.messages import (
    CHANNEL,
    TOPIC,
    bodies_of,
    fingerprint,
    publish,
    wait_listed,
    waiting,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_nodes_are_found_through_lookupd(
    spark: "SparkSession", start_listed: StartListed, lookupd: Daemon
) -> None:
    one, two = start_listed("--node-id=1"), start_listed("--node-id=2")
    bodies = publish(one, 100) + publish(two, 50, first=100)
    wait_listed(lookupd, 2, TOPIC)
    # One that does not answer is left out.
    asked = [f"127.0.0.1:{free_port()}", lookupd.http_address]
    job = drain(spark, topic=TOPIC, channel=CHANNEL, lookupd=asked, node_timeout="1s")
    with job as df:
        assert fingerprint(bodies_of(df)) == fingerprint(bodies)
    assert waiting(one) == waiting(two) == (0, 0)


def test_an_unknown_topic(spark: "SparkSession", nsqd: Daemon, lookupd: Daemon) -> None:
    with pytest.raises(
        TopicNotFound, match=f"topic 'nothing' is unknown to node {nsqd.http_address}"
    ):
        drain(spark, topic="nothing", channel=CHANNEL, nsqd=nsqd.http_address).__enter__()
    asked = lookupd.http_address
    with pytest.raises(TopicNotFound, match=f"topic 'nothing' is unknown to nsqlookupd {asked}"):
        drain(spark, topic="nothing", channel=CHANNEL, lookupd=asked).__enter__()


def test_an_unknown_channel_that_may_not_be_made(spark: "SparkSession", nsqd: Daemon) -> None:
    publish(nsqd, 1)
    job = drain(spark, topic=TOPIC, channel="other", nsqd=nsqd.http_address, create_channel=False)
    with pytest.raises(
        NodeRefused, match="refused channel other of topic orders: 404 CHANNEL_NOT_FOUND"
    ):
        job.__enter__()


def test_no_lookupd(spark: "SparkSession") -> None:
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(NodeUnavailable, match=f"nsqlookupd {nobody} does not answer"):
        drain(spark, topic=TOPIC, channel=CHANNEL, lookupd=nobody, node_timeout="1s").__enter__()


def test_a_node_that_is_down(spark: "SparkSession", nsqd: Daemon) -> None:
    bodies = publish(nsqd, 10)
    nobody = f"127.0.0.1:{free_port()}"
    job = drain(
        spark, topic=TOPIC, channel=CHANNEL, nsqd=[nsqd.http_address, nobody], node_timeout="1s"
    )
    with pytest.raises(NodeUnavailable, match=f"node {nobody} does not answer"):
        job.__enter__()
    assert waiting(nsqd) == (len(bodies), 0)


def test_a_wrong_option_in_the_driver(spark: "SparkSession", nsqd: Daemon) -> None:
    with pytest.raises(ConfigError, match="option leaseTtl, 'soon'"):
        drain(spark, topic=TOPIC, channel=CHANNEL, nsqd=nsqd.http_address, ttl="soon")
    reader = spark.read.format("nsq").option("topic", TOPIC)
    with pytest.raises(PySparkException, match="option channel is required"):
        reader.load().count()
    reader = reader.option("channel", CHANNEL).option("nsqdHttpAddresses", nsqd.http_address)
    with pytest.raises(PySparkException, match=r"use nsqpy.spark.drain\(...\)"):
        reader.load().count()


def test_a_schema_of_ones_own(spark: "SparkSession", nsqd: Daemon) -> None:
    reader = spark.read.format("nsq").schema("carrier string").option("drainId", "x")
    reader = reader.options(topic=TOPIC, channel=CHANNEL, nsqdHttpAddresses=nsqd.http_address)
    with pytest.raises(PySparkException, match="it cannot be given another"):
        reader.load().count()


def test_a_stream_from_an_unknown_topic(
    spark: "SparkSession", nsqd: Daemon, tmp_path: Path
) -> None:
    source = spark.readStream.format("nsq").options(
        topic="nothing", channel=CHANNEL, nsqdHttpAddresses=nsqd.http_address
    )
    query = (
        source.load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException, match="topic 'nothing' is unknown to node"):
        query.awaitTermination(30)


def test_without_pyarrow(nsqd: Daemon, tmp_path: Path) -> None:
    """In a Python that cannot find it: the check that the planner's worker makes first."""
    program = (
        "import sys, importlib.util as u; found = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'pyarrow' else found(name, *a)\n"
        "sys.modules['pyarrow'] = None\n"
        "from pyspark_nsq import DefaultSource\n"
        "try:\n    DefaultSource({})\n"
        "except Exception as error:\n    print(error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=Path(__file__).resolve().parents[2],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.stdout == (
        "the nsq format needs PyArrow 18 or later: pip install 'nsqpy[spark]'\n"
    ), result.stderr
