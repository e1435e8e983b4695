"""A daemon that wants tokens: a job with the right one reads and writes, and no secret shows."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqpy.client.nodes import HTTPNode, NodeAddress, NodeRefused
from nsqpy.spark import drain
from nsqpy.tokens import hash_token
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon
from tests.spark.messages import CHANNEL, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKENS = {"admin": "admin >", "reader": "consume orders", "writer": "publish orders"}


@pytest.fixture
def guarded(start_nsqd: StartDaemon, tmp_path: Path) -> Daemon:
    lines = [f"{name} {hash_token(name.encode())} {what}" for name, what in TOKENS.items()]
    file = tmp_path / "tokens"
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o600)
    return start_nsqd(f"--auth-token-file={file}")


def test_each_token_does_what_it_is_for(spark: "SparkSession", guarded: Daemon) -> None:
    with HTTPNode(NodeAddress.parse(guarded.http_address), secret="admin") as node:
        assert node.call("POST", "/topic/create", {"topic": TOPIC}).status == 200
        node.create_channel(TOPIC, CHANNEL)
    rows = spark.createDataFrame([(f"{number}",) for number in range(200)], "value string")
    writer = rows.write.format("nsq").mode("append").option("topic", TOPIC)
    writer.option("nsqdHttpAddresses", guarded.http_address).option("authSecret", "writer").save()

    def reading(secret: str) -> drain:
        return drain(
            spark,
            topic=TOPIC,
            channel=CHANNEL,
            nsqd=guarded.http_address,
            create_channel=False,
            auth_secret=secret,
        )

    for secret, refusal in (("", "401 UNAUTHORIZED"), ("writer", "403 FORBIDDEN")):
        with pytest.raises(NodeRefused, match=refusal):
            reading(secret).__enter__()
    with reading("reader") as df:
        assert sorted(int(bytes(row.body)) for row in df.collect()) == list(range(200))
        assert "reader" not in df._jdf.queryExecution().toString()
    for secret in TOKENS:
        assert f"Bearer {secret}" not in guarded.log
