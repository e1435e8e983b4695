"""V1: fed whole, byte by byte and with trailing data; every refusal, to the character."""

import json

import pytest

from nsqpy.errors import ErrorCode, ProtocolError
from nsqpy.protocol import lookup
from nsqpy.protocol.commands import LINE_MAX_BYTES, Malformed
from nsqpy.protocol.frames import BadFrame
from nsqpy.protocol.lookup import (
    BODY_MAX_BYTES,
    MAGIC,
    PING,
    REPLY_MAX_BYTES,
    Identify,
    LookupCommand,
    LookupParser,
    PeerInfo,
    Ping,
    Register,
    ReplyParser,
    Unregister,
    decode_peer_info,
    identify,
    identify_reply,
    register,
    reply_frame,
    unregister,
)
from tests.unit.protocol.feeding import number, sized

INFO = PeerInfo(
    hostname="h1",
    broadcast_address="hostA",
    tcp_port=5000,
    http_port=5555,
    version="1.2.3",
    topology_zone="z",
    topology_region="r",
)
IDENTIFY = identify(INFO)


def body(text: bytes) -> bytes:
    return b"IDENTIFY\n" + sized(text)


def parser(*before: bytes) -> LookupParser:
    made = LookupParser()
    for data in (MAGIC, *before):
        made.feed(data)
    assert not made.closed
    return made


def in_pieces(made: LookupParser, data: bytes, step: int = 1) -> list[LookupCommand]:
    commands: list[LookupCommand] = []
    for at in range(0, len(data), step):
        commands += made.feed(data[at : at + step])
    return commands


GOOD: list[tuple[bytes, LookupCommand]] = [
    (b"PING\n", Ping()),
    (b"PING extra words\r\n", Ping()),
    (b"  PING\t \n", Ping()),
    (b"REGISTER t\n", Register("t", "")),
    (b"REGISTER t \n", Register("t", "")),
    (b"REGISTER t  c\n", Register("t", "")),
    (b"REGISTER t c more words\n", Register("t", "c")),
    (b"REGISTER t#ephemeral c#ephemeral\r\n", Register("t#ephemeral", "c#ephemeral")),
    (b"REGISTER " + b"t" * 64 + b" " + b"c" * 64 + b"\n", Register("t" * 64, "c" * 64)),
    (b"UNREGISTER t\n", Unregister("t", "")),
    (b"UNREGISTER t c\n", Unregister("t", "c")),
]


@pytest.mark.parametrize(("data", "command"), GOOD)
def test_a_command(data: bytes, command: LookupCommand) -> None:
    assert parser(IDENTIFY).feed(data) == [command]
    assert in_pieces(parser(IDENTIFY), data) == [command]
    assert parser(IDENTIFY).feed(data + PING + b"PIN") == [command, Ping()]


def test_identify() -> None:
    for extra in (b"", b"PING\n"):
        pings = [Ping()] if extra else []
        assert parser().feed(IDENTIFY + extra) == [Identify(INFO), *pings]
        assert in_pieces(parser(), IDENTIFY + extra) == [Identify(INFO), *pings]


def test_what_is_pipelined_comes_in_order() -> None:
    data = MAGIC + PING + IDENTIFY + register("t", "c") + unregister("t") + PING
    expected = [Ping(), Identify(INFO), Register("t", "c"), Unregister("t", ""), Ping()]
    assert LookupParser().feed(data) == expected
    for step in (1, 3, 7):
        assert in_pieces(LookupParser(), data, step) == expected


# --- IDENTIFY ---

LEAST = {"broadcast_address": "b", "tcp_port": 1, "http_port": 2, "version": "v"}


def test_what_may_be_left_out_is_empty() -> None:
    (command,) = parser().feed(body(json.dumps(LEAST).encode()))
    info = PeerInfo(broadcast_address="b", tcp_port=1, http_port=2, version="v")
    assert command == Identify(info)


@pytest.mark.parametrize(
    "text",
    [
        b'{"BROADCAST_ADDRESS":"b","TCP_Port":70000,"http_port":-2,"version":"v"}',
        b'\n {"broadcast_address":"b","tcp_port":70000,"http_port":-2,"version":"v",'
        b'"remote_address":"1.2.3.4:5","hostname":null,"other":[{}]}\r\n',
    ],
)
def test_ports_are_not_checked_and_unknown_keys_do_no_harm(text: bytes) -> None:
    info = PeerInfo(broadcast_address="b", tcp_port=70000, http_port=-2, version="v")
    assert parser().feed(body(text)) == [Identify(info)]


def test_text_that_no_encoding_knows_is_replaced() -> None:
    info = decode_peer_info(b'{"hostname":"\xff","version":"\\ud800x"}')
    assert (info.hostname, info.version) == ("\ufffd", "\ufffdx")


def replaced(**fields: object) -> bytes:
    return json.dumps(LEAST | fields).encode()


NOT_JSON = "IDENTIFY failed to decode JSON body"
MISSING = "IDENTIFY missing fields"

BAD_BODIES: list[tuple[bytes, str]] = [
    *(
        (text, NOT_JSON)
        for text in [
            b"",
            b"not json",
            b"{",
            b"[]",
            b"5",
            b'"x"',
            b"{}{}",
            b"\xef\xbb\xbf{}",
            b"\xff\xfe{\0}\0",
            b"[" * 100_000,
            b'{"tcp_port":' + b"9" * 9999 + b"}",
            b'{"tcp_port":NaN}',
            replaced(tcp_port="5"),
            replaced(tcp_port=5.0),
            replaced(tcp_port=True),
            replaced(http_port=2**63),
            replaced(version=5),
            replaced(hostname=[]),
            replaced(remote_address=5),
            b'{"a":"\n"}',
        ]
    ),
    *(
        (text, MISSING)
        for text in [
            b"null",
            b"{}",
            replaced(broadcast_address=""),
            replaced(tcp_port=0),
            replaced(http_port=None),
            replaced(version=""),
        ]
    ),
]


@pytest.mark.parametrize(("text", "reason"), BAD_BODIES)
def test_a_bad_body(text: bytes, reason: str) -> None:
    expected = [Malformed(ErrorCode.BAD_BODY, reason)]
    assert parser().feed(body(text) + PING) == expected
    assert in_pieces(parser(), body(text), 1000) == expected


# --- refusals ---

INVALID, BAD_TOPIC, BAD_CHANNEL = ErrorCode.INVALID, ErrorCode.BAD_TOPIC, ErrorCode.BAD_CHANNEL

# Before the IDENTIFY, after it, and in any state.
BEFORE: list[tuple[bytes, ErrorCode, str]] = [
    (verb + rest, INVALID, "client must IDENTIFY")
    for verb in (b"REGISTER", b"UNREGISTER")
    for rest in (b"\n", b" t\n", b" $ $\n")
]
AFTER: list[tuple[bytes, ErrorCode, str]] = [
    (b"IDENTIFY\n", INVALID, "cannot IDENTIFY again"),
    (b"REGISTER\n", INVALID, "REGISTER insufficient number of params"),
    (b"REGISTER \n", INVALID, "REGISTER insufficient number of params"),
    (b"UNREGISTER\r\n", INVALID, "UNREGISTER insufficient number of params"),
    (b"REGISTER $\n", BAD_TOPIC, "REGISTER topic name '$' is not valid"),
    (b"REGISTER  t\n", BAD_TOPIC, "REGISTER topic name '' is not valid"),
    (b"REGISTER *\n", BAD_TOPIC, "REGISTER topic name '*' is not valid"),
    (b"REGISTER a\tb\n", BAD_TOPIC, "REGISTER topic name 'a\tb' is not valid"),
    (b"REGISTER \xff c\n", BAD_TOPIC, "REGISTER topic name '\udcff' is not valid"),
    (b"REGISTER " + b"x" * 65 + b"\n", BAD_TOPIC, f"REGISTER topic name '{'x' * 65}' is not valid"),
    (b"UNREGISTER . #\n", BAD_CHANNEL, "UNREGISTER channel name '#' is not valid"),
    (b"REGISTER t #ephemeral\n", BAD_CHANNEL, "REGISTER channel name '#ephemeral' is not valid"),
    (b"UNREGISTER t a/b\n", BAD_CHANNEL, "UNREGISTER channel name 'a/b' is not valid"),
]  # fmt: skip
ANYWHERE: list[tuple[bytes, ErrorCode, str]] = [
    (b"\n", INVALID, "invalid command "),
    (b" \r\n", INVALID, "invalid command "),
    (b"ping\n", INVALID, "invalid command ping"),
    (b"PINGX a b\n", INVALID, "invalid command PINGX"),
    (b"\xff\x00\n", INVALID, "invalid command \udcff\0"),
    (b"PING " + b"x" * LINE_MAX_BYTES, INVALID, "command line too long"),
]
SIZES: list[tuple[bytes, ErrorCode, str]] = [
    (b"IDENTIFY\n" + number(-1), ErrorCode.BAD_BODY, "IDENTIFY invalid body size -1"),
    (
        b"IDENTIFY\n" + number(-(2**31)),
        ErrorCode.BAD_BODY,
        "IDENTIFY invalid body size -2147483648",
    ),
    (
        b"IDENTIFY\n" + number(BODY_MAX_BYTES + 1),
        ErrorCode.BAD_BODY,
        "IDENTIFY body too big 4194305 > 4194304",
    ),
]


def refused(before: bytes, data: bytes, code: ErrorCode, reason: str) -> None:
    expected = [Ping(), Malformed(code, reason)]
    assert parser(before).feed(PING + data + PING) == expected
    bytewise = parser(before)
    assert in_pieces(bytewise, PING + data) == expected
    assert bytewise.feed(PING) == []
    assert bytewise.eof() == []


@pytest.mark.parametrize(("data", "code", "reason"), [*BEFORE, *ANYWHERE, *SIZES])
def test_a_refusal_before_the_identify(data: bytes, code: ErrorCode, reason: str) -> None:
    refused(b"", data, code, reason)


@pytest.mark.parametrize(("data", "code", "reason"), [*AFTER, *ANYWHERE])
def test_a_refusal_after_it(data: bytes, code: ErrorCode, reason: str) -> None:
    refused(IDENTIFY, data, code, reason)


@pytest.mark.parametrize("data", [b"  V2", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\0", b"PING\n"])
def test_another_magic(data: bytes) -> None:
    expected = [Malformed(ErrorCode.BAD_PROTOCOL, "")]
    assert LookupParser().feed(data) == expected
    assert in_pieces(LookupParser(), data) == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"IDENTIFY\n", "IDENTIFY failed to read body size"),
        (b"IDENTIFY\n\0\0\0", "IDENTIFY failed to read body size"),
        (b"IDENTIFY\n" + number(9), "IDENTIFY failed to read body"),
        (IDENTIFY[:-1], "IDENTIFY failed to read body"),
    ],
)
def test_a_body_cut_short(data: bytes, reason: str) -> None:
    for made in (parser(data), parser(data[:5], data[5:])):
        assert made.eof() == [Malformed(ErrorCode.BAD_BODY, reason)]
        assert made.eof() == []


@pytest.mark.parametrize("data", [b"", b"PIN", b"IDENTIFY", IDENTIFY, IDENTIFY + b"REGISTER t c"])
def test_an_end_that_is_nobodys_fault(data: bytes) -> None:
    assert parser(data).eof() == []


def test_the_largest_body_is_taken() -> None:
    text = replaced(x="").replace(
        b'""', b'"' + b"x" * (BODY_MAX_BYTES - len(replaced(x=""))) + b'"'
    )
    assert len(text) == BODY_MAX_BYTES
    (command,) = in_pieces(parser(), body(text), 1 << 16)
    assert isinstance(command, Identify)


# --- what goes out ---


def test_the_encoders() -> None:
    assert (MAGIC, PING) == (b"  V1", b"PING\n")
    assert register("t") == b"REGISTER t\n"
    assert register("t", "c") == b"REGISTER t c\n"
    assert unregister("t") == b"UNREGISTER t\n"
    assert unregister("t", "c") == b"UNREGISTER t c\n"
    assert lookup.OK_FRAME == b"\0\0\0\x02OK"


def test_the_identify_reply_has_its_keys_in_order_and_no_topology() -> None:
    reply = identify_reply(INFO)
    assert reply == (
        b'{"broadcast_address":"hostA","hostname":"h1","http_port":5555,"tcp_port":5000,'
        b'"version":"1.2.3"}'
    )
    assert decode_peer_info(reply) == PeerInfo(
        hostname="h1", broadcast_address="hostA", tcp_port=5000, http_port=5555, version="1.2.3"
    )


def test_a_reply_that_is_no_peer_info() -> None:
    with pytest.raises(ProtocolError, match="failed to decode"):
        decode_peer_info(b"OK")


# --- replies ---

REPLIES = [b"OK", b"", b"x" * 300, b"E_INVALID cannot IDENTIFY again"]


def test_replies_however_they_are_cut() -> None:
    data = b"".join(map(reply_frame, REPLIES))
    assert ReplyParser().feed(data) == REPLIES
    for step in (1, 7):
        made = ReplyParser()
        found: list[bytes | BadFrame] = []
        for at in range(0, len(data), step):
            found += made.feed(data[at : at + step])
        assert found == REPLIES


def test_the_largest_reply_is_taken() -> None:
    assert ReplyParser().feed(reply_frame(b"x" * REPLY_MAX_BYTES)) == [b"x" * REPLY_MAX_BYTES]


@pytest.mark.parametrize(("size", "shown"), [(-1, "-1"), (REPLY_MAX_BYTES + 1, "65537")])
def test_a_size_that_cannot_be_is_the_last_reply(size: int, shown: str) -> None:
    made = ReplyParser()
    expected = [b"OK", BadFrame(f"reply size {shown} is not within 0-65536")]
    assert made.feed(reply_frame(b"OK") + number(size)) == expected
    assert made.feed(reply_frame(b"OK")) == []
