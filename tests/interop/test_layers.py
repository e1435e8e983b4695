"""The official clients over TLS and compression, against the real daemon."""

from dataclasses import replace

import pytest

from tests.certificates import Certificates
from tests.conftest import StartDaemon
from tests.interop.clients import CLIENTS, Driver
from tests.interop.drivers.conversation import Options

pytestmark = pytest.mark.slow

# Every byte value, what shrinks, and what fills many chunks.
BODIES = (bytes(range(256)).decode("latin-1"), "x" * 100_000, *(f"n {n}" for n in range(50)))


@pytest.mark.parametrize("compression", ["", "snappy", "deflate"])
@pytest.mark.parametrize("tls", [True, False], ids=["tls", "clear"])
@pytest.mark.parametrize("name", ["pynsq", "nsqjs"])
def test_messages_go_through(
    start_nsqd: StartDaemon, certificates: Certificates, name: str, tls: bool, compression: str
) -> None:
    (client,) = (found for found in CLIENTS if found.name == name)
    daemon = start_nsqd(*certificates.server.flags, "--https-address=")
    publishing = Options(
        mode="publish",
        tcp_address=daemon.tcp_address,
        topic="t",
        single=BODIES[:3],
        batch=BODIES[3:],
        tls_ca_file=str(certificates.ca) if tls else "",
        compression=compression,
    )
    consuming = replace(publishing, mode="consume", channel="c", max_in_flight=10)
    with Driver(client, publishing) as publisher:
        assert publisher.finish() == 0
    assert [event["reply"] for event in publisher.of("published")] == ["OK"] * 4
    with Driver(client, consuming) as consumer:
        consumer.wait_for("message", len(BODIES))
        (seen,) = daemon.channel_stats("t", "c")["clients"]
    assert sorted(consumer.bodies()) == sorted(body.encode("latin-1") for body in BODIES)
    shown = {name: seen[name] for name in ("tls", "snappy", "deflate")}
    assert shown == {
        "tls": tls,
        "snappy": compression == "snappy",
        "deflate": compression == "deflate",
    }
