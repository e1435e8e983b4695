"""One connection, from its bytes to the bytes of its replies, with the registry behind it."""

import logging

import pytest

from nsqpy.clock import SECOND, ManualClock
from nsqpy.protocol.lookup import (
    MAGIC,
    OK_FRAME,
    PING,
    LookupParser,
    PeerInfo,
    identify,
    register,
    reply_frame,
    unregister,
)
from nsqpy_lookupd.registry import Registry
from nsqpy_lookupd.session import Directory, LookupSession, printable

INFO = PeerInfo(broadcast_address="host", tcp_port=4150, http_port=4151, version="1.3.0")
IDENTITY = b'{"who":"lookupd"}'


class Client:
    """Sends bytes to a session of its own, by way of the parser."""

    def __init__(
        self, directory: Directory, clock: ManualClock, address: str = "1.2.3.4:5"
    ) -> None:
        self._clock = clock
        self._parser = LookupParser()
        self.session = LookupSession(directory, address)
        assert self.say(MAGIC) == b""

    def say(self, *data: bytes) -> bytes:
        self.session.receive(self._parser.feed(b"".join(data)), self._clock.now())
        said, self.session.out = b"".join(self.session.out), []
        return said


@pytest.fixture
def directory() -> Directory:
    registry = Registry(inactive_timeout_ns=300 * SECOND, tombstone_lifetime_ns=45 * SECOND)
    made = Directory(registry)
    made.identity = IDENTITY
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def client(directory: Directory, clock: ManualClock) -> Client:
    return Client(directory, clock)


def nodes_of(directory: Directory, clock: ManualClock, topic: str) -> list[str] | None:
    found = directory.registry.lookup(topic, clock.now())
    return found and [node.remote_address for node in found.nodes]


def test_pipelined_commands_are_answered_in_order(
    client: Client, directory: Directory, clock: ManualClock
) -> None:
    said = client.say(PING, identify(INFO), register("t", "c"), PING)
    assert said == OK_FRAME + reply_frame(IDENTITY) + OK_FRAME + OK_FRAME
    assert nodes_of(directory, clock, "t") == ["1.2.3.4:5"]
    assert client.say(unregister("t"), unregister("nothing", "c")) == OK_FRAME * 2
    assert nodes_of(directory, clock, "t") == []
    assert not client.session.finished


def test_a_ping_counts_as_a_sign_of_life_and_a_register_does_not(
    client: Client, directory: Directory, clock: ManualClock
) -> None:
    client.say(identify(INFO), register("t"))
    clock.advance(300 * SECOND)
    client.say(register("t", "c"))
    clock.advance(1)
    assert nodes_of(directory, clock, "t") == []
    client.say(PING)
    assert nodes_of(directory, clock, "t") == ["1.2.3.4:5"]


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (identify(INFO) + b"IDENTIFY\n", b"E_INVALID cannot IDENTIFY again"),
        (
            identify(INFO) + b"REGISTER \xff\n",
            b"E_BAD_TOPIC REGISTER topic name '\xff' is not valid",
        ),
        (b"\n", b"E_INVALID invalid command "),
    ],
)
def test_a_fault_ends_the_connection(
    client: Client, directory: Directory, data: bytes, reply: bytes
) -> None:
    said = client.say(PING, data, PING)
    assert said.startswith(OK_FRAME)
    assert said.endswith(reply_frame(reply))
    assert client.session.finished
    assert directory.error_counts == {reply.split()[0].decode(): 1}
    assert client.say(PING) == b""


def test_another_magic(directory: Directory, clock: ManualClock) -> None:
    session = LookupSession(directory, "1.2.3.4:5")
    session.receive(LookupParser().feed(b"  V2"), clock.now())
    assert session.out == [reply_frame(b"E_BAD_PROTOCOL")]
    assert session.finished


def test_a_connection_that_ends_takes_its_registrations_along(
    client: Client, directory: Directory, clock: ManualClock
) -> None:
    client.say(identify(INFO), register("t", "c#ephemeral"))
    client.session.disconnected()
    client.session.disconnected()
    assert nodes_of(directory, clock, "t") == []
    assert directory.registry.channels("t") == ["c#ephemeral"]
    assert directory.registry.totals().nodes == 0


def test_a_connection_that_never_said_who_it_is(client: Client, directory: Directory) -> None:
    client.say(PING)
    client.session.disconnected()
    assert directory.registry.totals().nodes == 0


def test_what_the_log_says(
    client: Client, directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "nsqpy_lookupd")
    client.say(identify(INFO), register("t", "c"), register("t", "c"), unregister("t", "c"))
    client.session.disconnected()
    directory.sweep()
    client.say(b"nonsense\n")
    who = "client(1.2.3.4:5)"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "CLIENT(1.2.3.4:5): IDENTIFY Address:host TCP:4150 HTTP:4151 Version:1.3.0"),
        ("INFO", f"DB: {who} REGISTER category:client key: subkey:"),
        ("INFO", f"DB: {who} REGISTER category:channel key:t subkey:c"),
        ("INFO", f"DB: {who} REGISTER category:topic key:t subkey:"),
        ("INFO", f"DB: {who} UNREGISTER category:channel key:t subkey:c"),
        ("INFO", f"DB: {who} gone, UNREGISTER of all 1"),
        ("DEBUG", f"DB: {who} UNREGISTER category:topic key:t subkey:"),
        ("WARNING", "PROTOCOL(V1): [1.2.3.4:5] - E_INVALID invalid command nonsense"),
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("host", "host"), ("a\nFATAL: b", r"'a\nFATAL: b'"), ("x" * 9999, "x" * 200)],
)
def test_a_peer_cannot_write_log_lines_of_its_own(text: str, shown: str) -> None:
    assert printable(text) == shown
