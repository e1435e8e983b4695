"""Replies, encoded."""

import pytest

from nsqpy.net.http import EMPTY, OK, json_reply
from tests.unit.net.http.reply_head import head


def test_text_has_type_and_length() -> None:
    assert head(OK) == [
        "HTTP/1.1 200 OK",
        "Content-Length: 2",
        "Content-Type: text/plain; charset=utf-8",
        "X-Nsq-Content-Type: nsq; version=1.0",
    ]


def test_empty_has_no_type() -> None:
    assert head(EMPTY) == [
        *("HTTP/1.1 200 OK", "Content-Length: 0", "X-Nsq-Content-Type: nsq; version=1.0"),
    ]


def test_json_has_no_newline() -> None:
    assert json_reply({"a": [1]}).body == b'{"a":[1]}'


@pytest.mark.parametrize(
    ("http10", "keep_alive", "start", "connection"),
    [
        (False, True, b"HTTP/1.1 200 OK\r\n", None),
        (False, False, b"HTTP/1.1 200 OK\r\n", b"\r\nConnection: close\r\n\r\nOK"),
        (True, True, b"HTTP/1.0 200 OK\r\n", b"\r\nConnection: keep-alive\r\n\r\nOK"),
        (True, False, b"HTTP/1.0 200 OK\r\n", None),
    ],
)
def test_says_what_becomes_of_the_connection_if_the_version_does_not(
    http10: bool, keep_alive: bool, start: bytes, connection: bytes | None
) -> None:
    data = OK.encode(http10=http10, keep_alive=keep_alive)
    assert data.startswith(start)
    assert data.endswith(connection or b" GMT\r\n\r\nOK")
    assert (b"Connection" in data) == (connection is not None)


def test_a_head_has_the_length_but_no_body() -> None:
    data = OK.encode(http10=False, keep_alive=True, with_body=False)
    assert b"Content-Length: 2\r\n" in data
    assert data.endswith(b"\r\n\r\n")
