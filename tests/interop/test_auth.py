"""Clients that others wrote show a token, those that can be told to; in clear and over layers."""

from dataclasses import replace
from pathlib import Path

import pytest

from nsqpy.tokens import Role, hash_token
from tests.certificates import Certificates
from tests.conftest import StartDaemon
from tests.interop.clients import CLIENTS, Client, Driver
from tests.interop.drivers.conversation import Options

pytestmark = pytest.mark.slow

SECRET = "nsqpy_secret"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(f"me {hash_token(SECRET.encode())} {Role.PUBLISH},{Role.CONSUME} own.*\n")
    return file


WITH_AUTH = [client for client in CLIENTS if client.name in {"pynsq", "nsqjs"}]


@pytest.mark.parametrize(
    ("tls", "compression"),
    [(False, ""), (True, ""), (True, "snappy"), (True, "deflate")],
    ids=["clear", "tls", "tls-snappy", "tls-deflate"],
)
@pytest.mark.parametrize("client", WITH_AUTH, ids=lambda client: client.name)
def test_publishes_and_consumes_with_a_token(
    client: Client,
    tls: bool,
    compression: str,
    start_nsqd: StartDaemon,
    certificates: Certificates,
    token_file: Path,
) -> None:
    flags = (*certificates.server.flags, "--tls-required=tcp-https") if tls else ()
    daemon = start_nsqd(f"--auth-token-file={token_file}", *flags)
    bodies = ("finish", "finish too")
    options = Options(
        mode="publish",
        tcp_address=daemon.tcp_address,
        topic="own.a",
        single=bodies,
        auth_secret=SECRET,
        tls_ca_file=str(certificates.ca) if tls else "",
        compression=compression,
    )
    with Driver(client, options) as publisher:
        assert publisher.finish() == 0
    assert [event["reply"] for event in publisher.of("published")] == ["OK", "OK"]
    with Driver(client, replace(options, mode="consume", channel="c")) as reader:
        reader.wait_for("message", 2)
    assert sorted(reader.bodies()) == [body.encode() for body in bodies]
    assert SECRET not in daemon.log
