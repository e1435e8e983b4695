"""Daemons that speak HTTPS only, to who shows a certificate, found through a real nsqlookupd."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from nsqpy.client.nodes import NodeNotTrusted, NodeRefused, NodeUnavailable
from nsqpy.spark import drain
from tests.certificates import Certificates, Pair
from tests.e2e.daemon import Daemon
from tests.spark.conftest import StartListed
from tests.spark.messages import CHANNEL, bodies_of, fingerprint, wait_listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "sealed"


@pytest.fixture
def sealed(start_listed: StartListed, lookupd: Daemon, certificates: Certificates) -> Daemon:
    """What answers in clear is the refusal that names the HTTPS port."""
    nsqd = start_listed(
        *certificates.server.flags,
        "--https-address=127.0.0.1:0",
        f"--tls-root-ca-file={certificates.ca}",
        "--tls-client-auth-policy=require-verify",
    )
    wait_listed(lookupd, 1)
    return nsqd


def flags(ca: Path, pair: Pair) -> dict[str, str]:
    return {"tlsCaFile": str(ca), "tlsCertFile": str(pair.cert), "tlsKeyFile": str(pair.key)}


def test_write_stream_and_drain(
    spark: "SparkSession",
    sealed: Daemon,
    lookupd: Daemon,
    certificates: Certificates,
    tmp_path: Path,
) -> None:
    tls = flags(certificates.ca, certificates.client)
    source = spark.readStream.format("nsq").options(
        topic=TOPIC, channel=CHANNEL, lookupdHttpAddresses=lookupd.http_address, **tls
    )
    rows = spark.createDataFrame([(f"{number}",) for number in range(500)], "value string")

    def publish() -> None:
        writer = rows.write.format("nsq").mode("append").options(topic=TOPIC, **tls)
        writer.option("lookupdHttpAddresses", lookupd.http_address).save()
        wait_listed(lookupd, 1, TOPIC)

    def stream() -> None:
        query = source.load().writeStream.option("checkpointLocation", str(tmp_path / "point"))
        query = query.trigger(availableNow=True)
        assert query.start(str(tmp_path / "out"), format="parquet").awaitTermination(60)

    publish()
    stream()
    table = spark.read.parquet(str(tmp_path / "out"))
    assert fingerprint(bodies_of(table)) == fingerprint(b"%d" % n for n in range(500))
    assert {row.node for row in table.select("node").distinct().collect()} == {
        f"https://{sealed.https_address}"
    }
    publish()
    # Executors do not have the files: what they need of them comes with the tasks.
    shown = tmp_path / "shown"
    shown.mkdir()
    ca, cert, key = (
        Path(shutil.copy(path, shown))
        for path in (certificates.ca, certificates.client.cert, certificates.client.key)
    )
    job = drain(
        spark,
        topic=TOPIC,
        channel=CHANNEL,
        lookupd=lookupd.http_address,
        tls_ca_file=str(ca),
        tls_cert_file=str(cert),
        tls_key_file=str(key),
    )
    with job as df:
        assert df.count() == 500
        shutil.rmtree(shown)
        assert fingerprint(bodies_of(df)) == fingerprint(b"%d" % n for n in range(500))
        assert "PRIVATE KEY" not in df._jdf.queryExecution().toString()
        assert "PRIVATE KEY" not in repr(job._options)


def test_what_is_wrong_with_tls_is_said_at_once(
    spark: "SparkSession", sealed: Daemon, certificates: Certificates, tmp_path: Path
) -> None:
    client = certificates.client
    foreign = tmp_path / "foreign.pem"
    shutil.copy(certificates.other_client.cert, foreign)

    def enter(address: str, ca: Path | None = None, pair: Pair | None = None) -> None:
        drain(
            spark,
            topic=TOPIC,
            channel=CHANNEL,
            nsqd=address,
            node_timeout="1s",
            tls_ca_file=str(ca or ""),
            tls_cert_file=str(pair.cert if pair else ""),
            tls_key_file=str(pair.key if pair else ""),
        ).__enter__()

    there = f"https://{sealed.https_address}"
    with pytest.raises(NodeRefused, match="403 TLS_REQUIRED"):
        enter(sealed.http_address)
    with pytest.raises(NodeNotTrusted, match=f"no TLS with node {there}: its certificate is not"):
        enter(there, foreign, client)
    with pytest.raises(NodeUnavailable, match="it may want a client's certificate"):
        enter(there, certificates.ca)
    with pytest.raises(NodeNotTrusted, match="wrong version number"):
        enter(sealed.http_address, certificates.ca, client)
    reader = spark.read.format("nsq").options(topic=TOPIC, channel=CHANNEL, drainId="x")
    reader = reader.options(nsqdHttpAddresses=there, tlsCaFile="/no/ca.pem")
    with pytest.raises(PySparkException, match=r"option tlsCaFile: open /no/ca.pem: no such file"):
        reader.load().count()
