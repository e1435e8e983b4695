import struct

import pytest

from nsqpy.clock import SECOND
from nsqpy.daemon.http_bodies import defer_ns, drain_timeout_ns, split_lines, split_records
from nsqpy.net.http import HTTPError


def refusal(error: pytest.ExceptionInfo[HTTPError]) -> tuple[int, str]:
    return error.value.status, error.value.code


def records(*bodies: bytes) -> bytes:
    return struct.pack(">i", len(bodies)) + b"".join(
        struct.pack(">i", len(body)) + body for body in bodies
    )


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (b"", []),
        (b"\n\n\n", []),
        (b"a", [b"a"]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"\na\n\n\nb", [b"a", b"b"]),
        (b"a\r\nb\0", [b"a\r", b"b\0"]),
        (b"12345", [b"12345"]),
    ],
)
def test_a_line_is_a_message(body: bytes, messages: list[bytes]) -> None:
    assert split_lines(body, 5) == messages


def test_one_long_line_refuses_all() -> None:
    with pytest.raises(HTTPError) as error:
        split_lines(b"a\n123456\nb", 5)
    assert refusal(error) == (413, "MSG_TOO_BIG")


@pytest.mark.parametrize("trailing", [b"", b"ignored"])
def test_records_are_messages_and_what_follows_them_is_ignored(trailing: bytes) -> None:
    assert split_records(records(b"ab", b"\n") + trailing, 5, 100) == [b"ab", b"\n"]
    assert split_records(records(b"ab", b"cd") + trailing, 5, 100) == [b"ab", b"cd"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "BAD_BODY"),
        (b"\0\0\0", "BAD_BODY"),
        (b"\0\0\0\0", "BAD_BODY"),
        (b"\xff\xff\xff\xff", "BAD_BODY"),
        (b"\x7f\xff\xff\xff", "BAD_BODY"),
        (b"\0\0\0\1", "BAD_MESSAGE"),
        (b"\0\0\0\1\0\0\0\5abcd", "BAD_MESSAGE"),
        (b"\0\0\0\1\0\0\0\0", "BAD_MESSAGE"),
        (b"\0\0\0\1\xff\xff\xff\xff", "BAD_MESSAGE"),
        (records(b"123456"), "BAD_MESSAGE"),
        (records(b"1", b""), "BAD_MESSAGE"),
    ],
)
def test_records_that_make_no_sense_are_refused(body: bytes, code: str) -> None:
    with pytest.raises(HTTPError) as error:
        split_records(body, 5, 100)
    assert refusal(error) == (413, code)


@pytest.mark.parametrize(("raw", "delay_ns"), [("0", 0), ("+5", 5_000_000), ("007", 7_000_000)])
def test_defer_is_milliseconds(raw: str, delay_ns: int) -> None:
    assert defer_ns(raw, 10_000_000) == delay_ns


@pytest.mark.parametrize(
    "raw", ["", "1.5", "-1", "11", " 1", "1\n", "1_0", "0x1", "٣", "9" * 5000, "1s"]
)
def test_any_other_defer_is_refused(raw: str) -> None:
    with pytest.raises(HTTPError) as error:
        defer_ns(raw, 10_000_000)
    assert refusal(error) == (400, "INVALID_DEFER")


@pytest.mark.parametrize(("raw", "timeout_s"), [("0", 0), ("30s", 30), ("24h", 86400)])
def test_the_time_for_a_drain(raw: str, timeout_s: int) -> None:
    assert drain_timeout_ns(raw) == timeout_s * SECOND


@pytest.mark.parametrize("raw", ["", "30", "-1s", "24h1ns", "soon", "9" * 5000 + "s"])
def test_what_is_no_time_for_a_drain(raw: str) -> None:
    with pytest.raises(HTTPError) as error:
        drain_timeout_ns(raw)
    assert refusal(error) == (400, "INVALID_TIMEOUT")
