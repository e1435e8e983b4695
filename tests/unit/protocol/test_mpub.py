"""The body of an MPUB, and everything that can be wrong with it."""

import pytest

from nsqpy.errors import ProtocolError
from nsqpy.protocol.mpub import check_mpub_start, split_mpub

MSG_MAX = 10
BODY_MAX = 104  # so that a count of 20 is the highest


def number(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def payload(*bodies: bytes, count: int | None = None) -> bytes:
    records = b"".join(number(len(body)) + body for body in bodies)
    return number(len(bodies) if count is None else count) + records


@pytest.mark.parametrize(
    "bodies",
    [
        [b"a"],
        [b"x" * MSG_MAX],
        [b"a", b"b", b"c"],
        [b"a", b"bb", b"c"],
        [b"aa", b"b"],
        [b"a"] * 20,
        # Sizes inside bodies do not mislead the look at evenly sized messages.
        [b"\0\0\0\1", b"\0\0\0\1"],
        [b"\0\0\0\3abc", b"x", b"\0\0\0\1"],
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_bodies_come_back(bodies: list[bytes], exact: bool) -> None:
    assert split_mpub(payload(*bodies), MSG_MAX, BODY_MAX, exact=exact) == bodies


BAD = [
    (b"", "E_BAD_BODY MPUB failed to read message count"),
    (b"\0\0\0", "E_BAD_BODY MPUB failed to read message count"),
    (payload(count=0), "E_BAD_BODY MPUB invalid message count 0"),
    (payload(count=-1), "E_BAD_BODY MPUB invalid message count -1"),
    (payload(b"a", count=21), "E_BAD_BODY MPUB invalid message count 21"),
    (payload(b""), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
    (payload(b"a", b""), "E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
    (
        payload(b"a", b"b", count=3) + number(-5),
        "E_BAD_MESSAGE MPUB invalid message(2) body size -5",
    ),
    (payload(b"x" * 11), "E_BAD_MESSAGE MPUB message too big 11 > 10"),
    (payload(b"x" * 11, b"x" * 11), "E_BAD_MESSAGE MPUB message too big 11 > 10"),
    (payload(b"a", b"x" * 11), "E_BAD_MESSAGE MPUB message too big 11 > 10"),
    (payload(count=1), "E_BAD_MESSAGE MPUB failed to read message(0) body size"),
    (payload(b"a", count=2), "E_BAD_MESSAGE MPUB failed to read message(1) body size"),
    (
        payload(b"a", b"b", count=3) + b"\0\0",
        "E_BAD_MESSAGE MPUB failed to read message(2) body size",
    ),
    (payload(b"a", b"bb")[:-1], "E_BAD_MESSAGE MPUB failed to read message body"),
]


@pytest.mark.parametrize(("data", "text"), BAD)
@pytest.mark.parametrize("exact", [True, False])
def test_what_is_wrong_is_named(data: bytes, text: str, exact: bool) -> None:
    with pytest.raises(ProtocolError) as caught:
        split_mpub(data, MSG_MAX, BODY_MAX, exact=exact)
    assert str(caught.value) == text
    assert caught.value.fatal


@pytest.mark.parametrize("bodies", [[b"a", b"b"], [b"a", b"bb"]])
def test_bytes_left_over_are_an_error_over_tcp_and_ignored_over_http(bodies: list[bytes]) -> None:
    data = payload(*bodies) + b"more"
    assert split_mpub(data, MSG_MAX, BODY_MAX, exact=False) == bodies
    with pytest.raises(ProtocolError) as caught:
        split_mpub(data, MSG_MAX, BODY_MAX)
    reason = f"invalid body size {len(data)}, its messages take {len(data) - 4}"
    assert str(caught.value) == f"E_BAD_BODY MPUB {reason}"


@pytest.mark.parametrize("length", [4, 5, 7, 8, 12])
def test_the_start_of_a_good_one_gives_its_count(length: int) -> None:
    assert check_mpub_start(payload(b"abcdef", b"b")[:length], MSG_MAX, BODY_MAX) == 2


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (number(0), "E_BAD_BODY MPUB invalid message count 0"),
        (number(21), "E_BAD_BODY MPUB invalid message count 21"),
        (number(1) + number(0), "E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (number(1) + number(11), "E_BAD_MESSAGE MPUB message too big 11 > 10"),
    ],
)
def test_a_hopeless_start_is_refused(start: bytes, text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        check_mpub_start(start, MSG_MAX, BODY_MAX)
    assert str(caught.value) == text
