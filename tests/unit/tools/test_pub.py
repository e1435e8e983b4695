"""How stdin is cut into messages."""

import pytest

from nsqpy.tools.pub import records


def flat(reads: list[bytes], delimiter: bytes = b"\n") -> list[bytes]:
    return [record for group in records(reads, delimiter) for record in group]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"x", [b"x"]),
        (b"one\ntwo\nthree", [b"one", b"two", b"three"]),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"\n\none\n\n", [b"one"]),
        (b"one\r\n", [b"one\r"]),
    ],
)
def test_lines(data: bytes, expected: list[bytes]) -> None:
    assert flat([data]) == expected
    assert flat([data[at : at + 1] for at in range(len(data))]) == expected


def test_another_delimiter() -> None:
    assert flat([b"a\0b\nc\0"], b"\0") == [b"a", b"b\nc"]


def test_what_a_read_completes_is_given_at_once() -> None:
    def reads() -> list[bytes]:
        return [b"one\ntw", b"o\nthree\nfo", b"ur"]

    assert list(records(reads(), b"\n")) == [[b"one"], [b"two", b"three"], [b"four"]]


def test_a_record_without_end_is_refused() -> None:
    with pytest.raises(OSError, match="no delimiter within"):
        flat([b"x" * (1 << 20)] * 65)
