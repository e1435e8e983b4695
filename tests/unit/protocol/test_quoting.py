"""How bytes from the wire look in an error text."""

import pytest

from nsqpy.protocol.quoting import go_quote, text


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        (b"", '""'),
        (b"plain.Name_9-", '"plain.Name_9-"'),
        (b"with space", '"with space"'),
        (b'"\\', r'"\"\\"'),
        (b"'`", '"\'`"'),
        (b"\a\b\f\n\r\t\v", r'"\a\b\f\n\r\t\v"'),
        (b"\0\x01\x1b\x1f\x7f", r'"\x00\x01\x1b\x1f\x7f"'),
        (b"\x80\xff", r'"\x80\xff"'),
        ("é€😀".encode(), '"é€😀"'),
        ("\u00a0\u0085\u200b\u2028\ufeff".encode(), r'"\u00a0\u0085\u200b\u2028\ufeff"'),
        ("\U000e0001\U0010ffff".encode(), r'"\U000e0001\U0010ffff"'),
        ("\ufffd".encode(), '"\ufffd"'),
        (b"\xe2\x82x", r'"\xe2\x82x"'),  # cut off
        (b"\xc0\xaf", r'"\xc0\xaf"'),  # overlong
        (b"\xed\xa0\x80", r'"\xed\xa0\x80"'),  # a surrogate
    ],
)
def test_go_quote(raw: bytes, quoted: str) -> None:
    assert go_quote(raw) == quoted


@pytest.mark.parametrize("raw", [b"", b"abc", "é😀".encode(), bytes(range(256)), b"\xed\xa0\x80"])
def test_text_turns_back_into_the_same_bytes(raw: bytes) -> None:
    assert text(raw).encode("utf-8", "surrogateescape") == raw
