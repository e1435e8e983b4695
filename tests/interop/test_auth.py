"""Clients that others wrote show a token, those that can be told to."""

from dataclasses import replace
from pathlib import Path

import pytest

from nsqpy.tokens import Role, hash_token
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


@pytest.mark.parametrize("client", WITH_AUTH, ids=lambda client: client.name)
def test_publishes_and_consumes_with_a_token(
    client: Client, start_nsqd: StartDaemon, token_file: Path
) -> None:
    daemon = start_nsqd(f"--auth-token-file={token_file}")
    bodies = ("finish", "finish too")
    options = Options(
        mode="publish",
        tcp_address=daemon.tcp_address,
        topic="own.a",
        single=bodies,
        auth_secret=SECRET,
    )
    with Driver(client, options) as publisher:
        assert publisher.finish() == 0
    assert [event["reply"] for event in publisher.of("published")] == ["OK", "OK"]
    with Driver(client, replace(options, mode="consume", channel="c")) as reader:
        reader.wait_for("message", 2)
    assert sorted(reader.bodies()) == [body.encode() for body in bodies]
    assert SECRET not in daemon.log
