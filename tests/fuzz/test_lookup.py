"""The V1 parsers and the registry against any bytes, however they are cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqpy.clock import Instant
from nsqpy.errors import ErrorCode
from nsqpy.names import is_valid_name
from nsqpy.protocol.commands import LINE_MAX_BYTES, Malformed
from nsqpy.protocol.frames import BadFrame
from nsqpy.protocol.lookup import (
    BODY_MAX_BYTES,
    MAGIC,
    Identify,
    LookupCommand,
    LookupParser,
    PeerInfo,
    Register,
    ReplyParser,
    Unregister,
    identify,
    reply_frame,
)
from nsqpy_lookupd.registry import Category, Registry
from nsqpy_lookupd.session import Directory, LookupSession
from tests.fuzz.cutting import cut_up, cuts, in_bytes
from tests.unit.protocol.feeding import number, sized

fuzzing = settings(max_examples=200, derandomize=True, deadline=None, database=None)

pytestmark = pytest.mark.slow

INFO = PeerInfo(broadcast_address="b", tcp_port=1, http_port=2, version="v")
IDENTIFY = identify(INFO)
CODES = {ErrorCode.BAD_PROTOCOL, ErrorCode.INVALID, ErrorCode.BAD_TOPIC}
CODES |= {ErrorCode.BAD_CHANNEL, ErrorCode.BAD_BODY}

names = st.sampled_from([b"t", b"u#ephemeral", b"c", b"d#ephemeral"])
good = st.one_of(
    st.sampled_from([b"PING\n", b"PING \r\n"]),
    st.builds(b"%b %b\n".__mod__, st.tuples(st.sampled_from([b"REGISTER", b"UNREGISTER"]), names)),
    st.builds(
        b"%b %b %b\r\n".__mod__,
        st.tuples(st.sampled_from([b"REGISTER", b"UNREGISTER"]), names, names),
    ),
)
words = st.sampled_from(
    [b"", b"t", b"x" * 64, b"x" * 65, b"$", b"\xff", b"*", b"\t", b"#ephemeral"]
)
verbs = st.sampled_from([b"IDENTIFY", b"REGISTER", b"UNREGISTER", b"PING", b"ping", b"", b" "])
sizes = st.sampled_from([-(2**31), -1, 0, 1, 30, BODY_MAX_BYTES, BODY_MAX_BYTES + 1, 2**31 - 1])
bad = st.one_of(
    st.builds(
        lambda verb, rest: b" ".join([verb, *rest]) + b"\n", verbs, st.lists(words, max_size=3)
    ),
    st.builds(lambda size: b"IDENTIFY\n" + number(size) + b"{}", sizes),
    st.builds(lambda body: b"IDENTIFY\n" + sized(body), st.binary(max_size=40)),
    st.just(b"PING " + b"x" * LINE_MAX_BYTES),
    st.binary(max_size=40),
)
starts = st.sampled_from([MAGIC, MAGIC + IDENTIFY, MAGIC + IDENTIFY, b"  V", b"  V2"])
streams = st.builds(
    lambda start, items, end: start + b"".join(items) + end,
    *(starts, st.lists(good, max_size=8), st.one_of(st.just(b""), bad)),
)


def parse(parts: list[bytes]) -> list[LookupCommand]:
    parser = LookupParser()
    return [*(command for part in parts for command in parser.feed(part)), *parser.eof()]


@fuzzing
@given(streams, cuts)
def test_only_documented_things_come_out(data: bytes, places: list[int]) -> None:
    whole = parse([data])
    for command in whole[:-1]:
        assert not isinstance(command, Malformed)
    for command in whole:
        if isinstance(command, Malformed):
            assert command.code in CODES
            command.reason.encode(errors="surrogateescape")
        elif isinstance(command, Identify):
            assert command.info.is_complete
        elif isinstance(command, Register | Unregister):
            assert is_valid_name(command.topic)
            assert not command.channel or is_valid_name(command.channel)
    assert parse(cut_up(data, places)) == whole
    assert parse(in_bytes(data)) == whole


@fuzzing
@given(st.lists(st.binary(max_size=30), max_size=8), st.binary(max_size=20), cuts)
def test_replies(replies: list[bytes], garbage: bytes, places: list[int]) -> None:
    data = b"".join(map(reply_frame, replies)) + garbage

    def read(parts: list[bytes]) -> list[bytes | BadFrame]:
        parser = ReplyParser()
        return [reply for part in parts for reply in parser.feed(part)]

    whole = read([data])
    assert whole[: len(replies)] == replies
    assert not any(isinstance(reply, BadFrame) for reply in whole[:-1])
    assert read(cut_up(data, places)) == whole
    assert read(in_bytes(data)) == whole


steps = st.one_of(
    st.tuples(st.integers(0, 2), good),
    st.tuples(st.integers(0, 2), st.just(b"leave")),
    st.tuples(st.integers(0, 2), st.just(b"sweep")),
    st.tuples(st.just(3), st.sampled_from([b"t", b"u#ephemeral", b"t/c", b"t/d#ephemeral"])),
)


@fuzzing
@given(st.lists(steps, max_size=40))
def test_the_two_sides_of_every_registration_agree(todo: list[tuple[int, bytes]]) -> None:
    """Three connections that come and go, and an operator (3) who deletes things."""
    registry = Registry(inactive_timeout_ns=10, tombstone_lifetime_ns=10)
    directory = Directory(registry)
    directory.identity = b"{}"
    now = Instant(0, 0)
    sessions: dict[int, tuple[LookupSession, LookupParser]] = {}
    for who, what in todo:
        if who == 3:
            topic, _, channel = what.decode().partition("/")
            if channel:
                registry.delete_channel(topic, channel)
            else:
                registry.delete_topic(topic)
            continue
        if what == b"sweep":
            assert len(registry.sweep(who)) <= who
            continue
        if who not in sessions:
            session, parser = LookupSession(directory, f"node{who}"), LookupParser()
            session.receive(parser.feed(MAGIC + IDENTIFY), now)
            sessions[who] = session, parser
        session, parser = sessions[who]
        if what == b"leave":
            session.disconnected()
            del sessions[who]
        else:
            session.receive(parser.feed(what), now)
            assert not session.finished
    by_topic = {
        (registration.key, registration.subkey, node)
        for registration, nodes in registry.registrations()
        for node in nodes
        if registration.category is not Category.CLIENT
    }
    nodes = [session.node for session, _ in sessions.values() if session.node is not None]
    by_node = {(topic, "", node) for node in nodes for topic in node.topics}
    by_node |= {
        (topic, channel, node)
        for node in nodes
        for topic, channels in node.channels.items()
        for channel in channels
    }
    assert by_topic == by_node
    assert registry.totals().registrations == len(by_node)
    assert [found.node for found in registry.nodes(now)] == nodes
