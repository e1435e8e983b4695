"""Bad input against the real daemon: each is answered as the protocol says, or closed, and a
healthy client does not notice.
"""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from nsqpy.protocol import requests
from tests.e2e.daemon import Daemon
from tests.e2e.peer import ERROR, MAGIC, Frame, HealthyClient, Peer, memory_bytes

ID = b"0123456789abcdef"
SUB = MAGIC + requests.sub("bad", "c")
CLS = SUB + requests.CLS
LINE_MAX_BYTES = 16384


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all of it: what one row does to it, the next would notice."""
    with Daemon(tmp_path_factory.mktemp("nsqd"), "--max-channel-consumers=3") as running:
        yield running


@pytest.fixture(scope="module")
def healthy(daemon: Daemon) -> Iterator[HealthyClient]:
    with HealthyClient(daemon) as client:
        yield client
        assert client.longest_seconds < 2


def number(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def sized(body: bytes) -> bytes:
    return number(len(body)) + body


def identify(body: bytes) -> bytes:
    return MAGIC + b"IDENTIFY\n" + sized(body)


INVALID, BAD_BODY, BAD_MESSAGE = "E_INVALID ", "E_BAD_BODY ", "E_BAD_MESSAGE "
NOT_JSON = BAD_BODY + "IDENTIFY failed to decode JSON body"

# What is sent, and the error that ends the connection; None ends it without a word.
COMMANDS: list[tuple[bytes, str | None]] = [
    (b"  V1", "E_BAD_PROTOCOL"),
    (b"\0\0\0\0", "E_BAD_PROTOCOL"),
    (b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n", "E_BAD_PROTOCOL"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "E_BAD_PROTOCOL"),
    # lines
    (MAGIC + b"\n", INVALID + "invalid command "),
    (MAGIC + b"\r\n", INVALID + "invalid command "),
    (MAGIC + b" \n", INVALID + "invalid command "),
    (MAGIC + b"pub t\n", INVALID + "invalid command pub"),
    (MAGIC + b"\xff\x00\xfe\n", INVALID + "invalid command \udcff\0\udcfe"),
    (MAGIC + b"x" * LINE_MAX_BYTES, None),
    (MAGIC + b"SUB " + b"x" * LINE_MAX_BYTES, None),
    # states
    (MAGIC + b"RDY 1\n", INVALID + "cannot RDY in current state"),
    (MAGIC + b"FIN " + ID + b"\n", INVALID + "cannot FIN in current state"),
    (MAGIC + b"CLS\n", INVALID + "cannot CLS in current state"),
    (SUB + b"SUB bad c\n", INVALID + "cannot SUB in current state"),
    (SUB + b"IDENTIFY\n" + sized(b"{}"), INVALID + "cannot IDENTIFY in current state"),
    (CLS + b"CLS\n", INVALID + "cannot CLS in current state"),
    (
        identify(b'{"heartbeat_interval":-1}') + b"SUB bad c\n",
        INVALID + "cannot SUB with heartbeats disabled",
    ),
    (MAGIC + b"AUTH\n" + sized(b"secret"), "E_AUTH_DISABLED AUTH disabled"),
    # parameters
    *(
        (MAGIC + verb.encode() + b"\n", INVALID + f"{verb} insufficient number of parameters")
        for verb in ("SUB", "PUB", "DPUB", "MPUB")
    ),
    *(
        (SUB + verb.encode() + b"\n", INVALID + f"{verb} insufficient number of params")
        for verb in ("FIN", "REQ", "TOUCH")
    ),
    (SUB + b"FIN " + ID[1:] + b"\n", INVALID + "invalid message ID"),
    (SUB + b"TOUCH " + ID + ID + b"\n", INVALID + "invalid message ID"),
    (SUB + b"REQ " + ID + b" -1\n", INVALID + "REQ could not parse timeout -1"),
    (SUB + b"RDY 1.5\n", INVALID + "RDY could not parse count 1.5"),
    (SUB + b"RDY 2501\n", INVALID + "RDY count 2501 out of range 0-2500"),
    (
        SUB + b"RDY " + b"9" * 16000 + b"\n",
        INVALID + "RDY count 9223372036854775807 out of range 0-2500",
    ),
    (MAGIC + b"DPUB bad soon\n", INVALID + "DPUB could not parse timeout soon"),
    (
        MAGIC + b"DPUB bad 31536000001\n",
        INVALID + "DPUB timeout 31536000001 out of range 0-31536000000",
    ),
    # names
    *(
        (MAGIC + line, error)
        for name, shown in [
            (b"", '""'),
            (b"x" * 65, '"' + "x" * 65 + '"'),
            (b"#ephemeral", '"#ephemeral"'),
            (b"../../etc", '"../../etc"'),
            (b"a/b", '"a/b"'),
            (b"a\0b", r'"a\x00b"'),
            (b"\xff\n"[:1], r'"\xff"'),
            ("é\u200b".encode(), r'"é\u200b"'),
        ]
        for line, error in [
            (b"SUB " + name + b" c\n", f"E_BAD_TOPIC SUB topic name {shown} is not valid"),
            (b"SUB bad " + name + b"\n", f"E_BAD_CHANNEL SUB channel name {shown} is not valid"),
            (b"PUB " + name + b"\n", f"E_BAD_TOPIC PUB topic name {shown} is not valid"),
            (
                b"MPUB " + name + b"\n",
                f"E_BAD_TOPIC E_BAD_TOPIC MPUB topic name {shown} is not valid",
            ),
        ]
    ),
    # sizes over and under the limits
    *(
        (MAGIC + line + number(size), BAD_MESSAGE + f"{verb} {reason}")
        for verb, line in [("PUB", b"PUB bad\n"), ("DPUB", b"DPUB bad 5\n")]
        for size, reason in [
            (0, "invalid message body size 0"),
            (-1, "invalid message body size -1"),
            (1048577, "message too big 1048577 > 1048576"),
            (2147483647, "message too big 2147483647 > 1048576"),
        ]
    ),
    *(
        (MAGIC + line + number(size), BAD_BODY + f"{verb} {reason}")
        for verb, line in [
            ("IDENTIFY", b"IDENTIFY\n"),
            ("AUTH", b"AUTH\n"),
            ("MPUB", b"MPUB bad\n"),
        ]
        for size, reason in [
            (0, "invalid body size 0"),
            (-2147483648, "invalid body size -2147483648"),
            (5242881, "body too big 5242881 > 5242880"),
        ]
    ),
    (MAGIC + b"MPUB bad\n" + sized(number(0)), BAD_BODY + "MPUB invalid message count 0"),
    (
        MAGIC + b"MPUB bad\n" + sized(number(2147483647)),
        BAD_BODY + "MPUB invalid message count 2147483647",
    ),
    (
        MAGIC + b"MPUB bad\n" + sized(number(1) + number(1048577)),
        BAD_MESSAGE + "MPUB message too big 1048577 > 1048576",
    ),
    (
        MAGIC + b"MPUB bad\n" + sized(number(2) + sized(b"a") + number(-1)),
        BAD_MESSAGE + "MPUB invalid message(1) body size -1",
    ),
    (
        MAGIC + b"MPUB bad\n" + sized(number(2) + sized(b"a")),
        BAD_MESSAGE + "MPUB failed to read message(1) body size",
    ),
    (
        MAGIC + b"MPUB bad\n" + sized(number(1) + number(9) + b"a"),
        BAD_MESSAGE + "MPUB failed to read message body",
    ),
    # JSON
    *(
        (identify(body), NOT_JSON)
        for body in [
            b"not json",
            b"{",
            b"[]",
            b'"x"',
            b"{}{}",
            b"\xff\xfe{\0}\0",
            b'{"client_id":5}',
            b'{"sample_rate":1.0}',
            b'{"msg_timeout":1e3}',
            b'{"msg_timeout":' + b"9" * 9999 + b"}",
            b'{"a":' * 100_000,
            b"[" * 1_000_000,
            b'{"feature_negotiation":"yes"}',
        ]
    ),
    (identify(b'{"sample_rate":100}'), BAD_BODY + "IDENTIFY sample rate (100) is invalid"),
    (
        identify(b'{"heartbeat_interval":1}'),
        BAD_BODY + "IDENTIFY heartbeat interval (1) is invalid",
    ),
    (
        identify(b'{"output_buffer_size":1}'),
        BAD_BODY + "IDENTIFY output buffer size (1) is invalid",
    ),
    (
        identify(b'{"output_buffer_timeout":1}'),
        BAD_BODY + "IDENTIFY output buffer timeout (1) is invalid",
    ),
    (identify(b'{"msg_timeout":900001}'), BAD_BODY + "IDENTIFY msg timeout (900001) is invalid"),
]

CUT_SHORT: list[tuple[bytes, str | None]] = [
    (b"", None),
    (b"  V", None),
    (MAGIC, None),
    (MAGIC + b"PUB ba", None),
    (MAGIC + b"IDENTIFY\n\0\0", BAD_BODY + "IDENTIFY failed to read body size"),
    (MAGIC + b"IDENTIFY\n" + number(9) + b"{", BAD_BODY + "IDENTIFY failed to read body"),
    (MAGIC + b"AUTH\n" + number(9), BAD_BODY + "AUTH failed to read body"),
    (MAGIC + b"PUB bad\n\0", BAD_MESSAGE + "PUB failed to read message body size"),
    (MAGIC + b"PUB bad\n" + number(1048576) + b"x" * 1048575,
     BAD_MESSAGE + "PUB failed to read message body"),
    (SUB + b"DPUB bad 1\n" + number(5) + b"x", BAD_MESSAGE + "DPUB failed to read message body"),
    (MAGIC + b"MPUB bad\n\0\0\0", BAD_BODY + "MPUB failed to read body size"),
    (MAGIC + b"MPUB bad\n" + number(9) + number(1),
     BAD_MESSAGE + "MPUB failed to read message(0) body size"),
    (MAGIC + b"MPUB bad\n" + number(5242880) + number(6) + sized(b"x" * 1048576) * 4,
     BAD_MESSAGE + "MPUB failed to read message body"),
]  # fmt: skip


def expect_refusal(peer: Peer, error: str | None) -> None:
    """Good commands before the bad one are answered; then comes the error and the end."""
    frames = [frame for frame in peer.frames() if frame.data not in (b"OK", b"CLOSE_WAIT")]
    expected = [] if error is None else [Frame(ERROR, error.encode(errors="surrogateescape"))]
    assert frames == expected


@pytest.mark.parametrize(("data", "error"), COMMANDS)
def test_a_bad_command(
    daemon: Daemon, healthy: HealthyClient, data: bytes, error: str | None
) -> None:
    with Peer(daemon.tcp_address) as peer:
        peer.send(data)
        expect_refusal(peer, error)
    healthy.served_again(1)


@pytest.mark.parametrize(("data", "error"), CUT_SHORT)
def test_a_stream_that_ends_too_soon(
    daemon: Daemon, healthy: HealthyClient, data: bytes, error: str | None
) -> None:
    with Peer(daemon.tcp_address) as peer:
        peer.send(data)
        peer.end()
        expect_refusal(peer, error)
    healthy.served_again(1)


def test_answers_that_fail_leave_the_connection_open(daemon: Daemon) -> None:
    with Peer(daemon.tcp_address) as peer:
        peer.send(SUB, b"FIN ", ID, b"\nREQ ", ID, b" 0\nTOUCH ", ID, b"\nPUB bad\n", sized(b"a"))
        assert [peer.frame() for _ in range(5)] == [
            Frame(0, b"OK"),
            Frame(ERROR, b"E_FIN_FAILED FIN " + ID + b" failed ID not in flight"),
            Frame(ERROR, b"E_REQ_FAILED REQ " + ID + b" failed ID not in flight"),
            Frame(ERROR, b"E_TOUCH_FAILED TOUCH " + ID + b" failed ID not in flight"),
            Frame(0, b"OK"),
        ]


def test_more_consumers_than_a_channel_may_have(daemon: Daemon) -> None:
    peers = [Peer(daemon.tcp_address) for _ in range(4)]
    for peer in peers:
        peer.send(MAGIC, requests.sub("full", "c"))
        found = peer.frame()
        if peer is not peers[-1]:
            assert found == Frame(0, b"OK")
    refusal = b"E_SUB_FAILED SUB failed consumers for full:c exceeds limit of 3"
    assert found == Frame(ERROR, refusal)
    assert peers[-1].frame() is None
    for peer in peers:
        peer.close()
    daemon.wait_channel("full", "c", client_count=0)


def test_an_error_does_not_take_back_what_was_published_before_it(daemon: Daemon) -> None:
    with Peer(daemon.tcp_address) as peer:
        peer.send(MAGIC, requests.pub("kept", b"a"), b"FNORD\n", requests.pub("kept", b"b"))
        assert peer.frames() == [
            Frame(0, b"OK"),
            Frame(ERROR, b"E_INVALID invalid command FNORD"),
        ]
    assert daemon.topic_stats("kept")["depth"] == 1


def test_nothing_is_acted_on_behind_a_refused_subscription(daemon: Daemon) -> None:
    with Peer(daemon.tcp_address) as peer:
        peer.send(
            identify(b'{"heartbeat_interval":-1}'),
            *(requests.pub("kept2", b"a"), requests.sub("kept2", "c"), requests.rdy(1)),
            requests.pub("kept2", b"b"),
        )
        assert [frame.data for frame in peer.frames()] == [
            *(b"OK", b"OK", b"E_INVALID cannot SUB with heartbeats disabled")
        ]
    assert daemon.topic_stats("kept2")["depth"] == 1
    assert "internal error" not in daemon.log


def test_text_that_no_encoding_knows_does_not_spoil_the_stats(daemon: Daemon) -> None:
    with Peer(daemon.tcp_address) as peer:
        names = b'"client_id":"\\ud800","hostname":"\xff"'
        agent = b'"user_agent":"\\udfff\\u0000\\n<\xe2\x80\xa8"'
        peer.send(identify(b"{%b,%b}" % (names, agent)))
        peer.send(requests.sub("odd", "c"), requests.pub("odd", b"a"))
        assert [peer.frame() for _ in range(3)] == [Frame(0, b"OK")] * 3
        (client,) = daemon.channel_stats("odd", "c")["clients"]
        assert client["client_id"] == "\ufffd"
        assert client["hostname"] == "\ufffd"
        assert client["user_agent"] == "\ufffd\0\n<\u2028"
        assert daemon.request("/stats").status == 200


# -- HTTP -----------------------------------------------------------------------------------


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def http(line: str, body: bytes = b"", header: str = "") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if not header else f"{header}\r\n"
    return f"{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{length}\r\n".encode() + body


CHUNKED = "Transfer-Encoding: chunked"
REQUESTS: list[tuple[bytes, int, str]] = [
    (http("POST /pub?topic=bad"), 400, "MSG_EMPTY"),
    (http("POST /pub?topic=bad", b"x" * 1048577), 413, "MSG_TOO_BIG"),
    (http("POST /pub?topic=bad", header="Content-Length: 99999999999"), 413, "MSG_TOO_BIG"),
    (
        http("POST /pub?topic=bad", chunked(b"x" * 700_000, b"x" * 700_000), CHUNKED),
        413,
        "MSG_TOO_BIG",
    ),
    (http("POST /pub", b"x"), 400, "MISSING_ARG_TOPIC"),
    (http("POST /pub?topic=", b"x"), 400, "INVALID_TOPIC"),
    (http("POST /pub?topic=a%2Fb", b"x"), 400, "INVALID_TOPIC"),
    (http("POST /pub?topic=%ff", b"x"), 400, "INVALID_TOPIC"),
    (http("POST /pub?topic=%zz", b"x"), 400, "INVALID_REQUEST"),
    (http("POST /pub?topic=a;b", b"x"), 400, "INVALID_REQUEST"),
    (http("POST /pub?topic=bad&defer=-1", b"x"), 400, "INVALID_DEFER"),
    (http("POST /pub?topic=bad&defer=" + "9" * 5000, b"x"), 400, "INVALID_DEFER"),
    (http("POST /mpub?topic=bad", b"x" * 5242881), 413, "BODY_TOO_BIG"),
    (http("POST /mpub?topic=bad", b"a\n" + b"x" * 1048577), 413, "MSG_TOO_BIG"),
    (http("POST /mpub?topic=bad", chunked(*[b"x" * 1_000_000] * 6), CHUNKED), 413, "BODY_TOO_BIG"),
    (http("POST /mpub?topic=bad&binary=true", number(1)), 413, "BAD_MESSAGE"),
    (http("POST /mpub?topic=bad&binary=true", number(-1)), 413, "BAD_BODY"),
    (http("POST /mpub?topic=bad&binary=true", number(1) + number(-1)), 413, "BAD_MESSAGE"),
    (http("POST /mpub?topic=bad&binary=true", number(1000000) + sized(b"x")), 413, "BAD_MESSAGE"),
    (
        http(
            "POST /mpub?topic=bad&binary=true",
            chunked(number(1048575), *[sized(b"x" * 999_996)] * 6),
            CHUNKED,
        ),
        413,
        "BODY_TOO_BIG",
    ),
    (http("GET /stats?format=%"), 400, "INVALID_REQUEST"),
    (http("GET /nowhere"), 404, "NOT_FOUND"),
    (http("GET /pub?topic=bad"), 405, "METHOD_NOT_ALLOWED"),
    (http("POST /topic/create?topic=$"), 400, "INVALID_TOPIC"),
    (http("POST /topic/delete?topic=../.."), 404, "TOPIC_NOT_FOUND"),
    (http("POST /channel/create?topic=never&channel=c"), 404, "TOPIC_NOT_FOUND"),
    (http("POST /channel/create?topic=healthy&channel=$"), 400, "INVALID_ARG_CHANNEL"),
    (http("PUT /config/log_level", b"loud"), 400, "INVALID_VALUE"),
    (http("PUT /config/log_level", b"x" * 1048577), 413, "INVALID_VALUE"),
    (http("PUT /config/nsqlookupd_tcp_addresses", b"[" * 100_000), 400, "INVALID_VALUE"),
    (http("PUT /config/data_path", b"/tmp"), 400, "INVALID_OPTION"),
    # Not HTTP, or not much of it: whatever the status, it is refused and closed.
    (b"  V2SUB t c\n", 400, ""),
    (b"\0\xff\r\n\r\n", 400, ""),
    (b"GET\r\n\r\n", 400, ""),
    (b"GET /ping HTTP/9.9\r\n\r\n", 400, ""),
    (http("GET /ping", header="X: " + "x" * 100_000), 400, ""),
    (http("GET /" + "x" * 100_000), 400, ""),
    (http("POST /pub?topic=bad", b"x", "Content-Length: minus"), 400, ""),
    (http("POST /pub?topic=bad", b"x", "Content-Length: -1"), 400, ""),
    (http("POST /pub?topic=bad", b"zz\r\nx\r\n0\r\n\r\n", CHUNKED), 400, ""),
    (http("POST /pub?topic=bad", b"ffffffffffffffffff\r\nx", CHUNKED), 400, ""),
    (http("POST /pub?topic=bad", chunked(b"x"), f"Content-Length: 5\r\n{CHUNKED}"), 400, ""),
]


@pytest.mark.parametrize(("data", "status", "code"), REQUESTS)
def test_a_bad_request(
    daemon: Daemon, healthy: HealthyClient, data: bytes, status: int, code: str
) -> None:
    with Peer(daemon.http_address) as peer:
        with suppress(ConnectionError):  # it may be refused before it is through
            peer.send(data)
        answer = peer.http_answer()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    if code:
        assert body == b'{"message":"%b"}' % code.encode()
    healthy.served_again(1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"POST /pub?topic=bad HT",
        http("POST /pub?topic=bad", b"half", "Content-Length: 8"),
        http("POST /mpub?topic=bad", b"x" * 1_000_000, "Content-Length: 5000000"),
        http("POST /pub?topic=bad", b"5\r\nha", CHUNKED),
    ],
)
def test_a_request_that_ends_too_soon(daemon: Daemon, healthy: HealthyClient, data: bytes) -> None:
    before = daemon.topic_stats("bad").get("message_count", 0)
    with Peer(daemon.http_address) as peer:
        peer.send(data)
        peer.end()
        peer.http_answer()
    healthy.served_again(1)
    assert daemon.topic_stats("bad").get("message_count", 0) == before


# -- floods ---------------------------------------------------------------------------------


def test_a_flood_without_a_newline(daemon: Daemon, healthy: HealthyClient) -> None:
    before = memory_bytes(daemon)
    with Peer(daemon.tcp_address) as peer:
        peer.send(MAGIC)
        sent = peer.flood(b"x" * 65536, 64 << 20)
        assert sent < 32 << 20
        assert peer.frames() == []
    healthy.served_again()
    assert memory_bytes(daemon) - before < 8 << 20


def test_a_flood_of_zeros_instead_of_a_magic(daemon: Daemon, healthy: HealthyClient) -> None:
    with Peer(daemon.tcp_address) as peer:
        assert peer.flood(bytes(65536), 64 << 20) < 32 << 20
        assert peer.frames() in ([], [Frame(ERROR, b"E_BAD_PROTOCOL")])  # a reset may swallow it
    healthy.served_again()


def test_answers_that_are_no_ids_one_by_one_and_by_the_thousand(
    daemon: Daemon, healthy: HealthyClient
) -> None:
    """One line that fits no pattern must not make the parser look at all the others again."""
    with Peer(daemon.tcp_address) as peer:
        peer.send(SUB, (b"FIN " + ID + b"\n") * 50_000 + b"FIN 01234567 9abcdef\n")
        frames = peer.frames()
    assert frames.pop() == Frame(ERROR, b"E_INVALID invalid message ID")
    assert len(frames) == 50_001
    healthy.served_again()


def test_the_daemon_is_well_after_all_of_it(daemon: Daemon, healthy: HealthyClient) -> None:
    healthy.served_again()
    assert daemon.request("/ping").body == b"OK"
    assert "internal error" not in daemon.log
    assert "Traceback" not in daemon.log
