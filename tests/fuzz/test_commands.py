"""The command parser against any bytes: only what is documented comes out, however they are cut."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqpy.errors import ErrorCode
from nsqpy.message import ID_BYTES
from nsqpy.names import is_valid_name
from nsqpy.protocol.commands import (
    LINE_MAX_BYTES,
    MAGIC,
    Command,
    CommandParser,
    Finish,
    Malformed,
    Publish,
    Ready,
    Requeue,
    Subscribe,
    Touch,
)
from nsqpy.protocol.mpub import split_mpub
from tests.fuzz.cutting import cut_up, cuts, in_bytes
from tests.unit.protocol.feeding import joined, mpub, number, sized

MSG_MAX = 300
BODY_MAX = 600
DEFER_MAX_MS = 1000

fuzzing = settings(max_examples=150, derandomize=True, deadline=None, database=None)

pytestmark = pytest.mark.slow

words = st.sampled_from(
    [
        *(b"", b"t", b"c#ephemeral", b"x" * 64, b"x" * 65, b"$", b"\xff"),
        *(b"0", b"7", b"1000", b"1001", b"-1", b"9" * 25),
        *(b"0123456789abcdef", b"fedcba987654321\r", b"01234567\x0089abcde"),
    ]
)
verbs = st.sampled_from(
    [
        *(b"IDENTIFY", b"AUTH", b"SUB", b"PUB", b"DPUB", b"MPUB", b"RDY", b"FIN", b"REQ"),
        *(b"TOUCH", b"CLS", b"NOP", b"nop", b"FINX"),
    ]
)
ends = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"", b"\n\n"])
sizes = st.sampled_from([-1, 0, 1, 4, 8, 13, MSG_MAX, MSG_MAX + 1, BODY_MAX, BODY_MAX + 1])
bodies = st.binary(min_size=1, max_size=20)
message_ids = st.one_of(
    st.just(b"0123456789abcdef"),
    st.binary(min_size=16, max_size=16),
    st.text("0f \r\n", min_size=16, max_size=16).map(str.encode),
)

lines = st.builds(
    lambda verb, fields, end: b" ".join([verb, *fields]) + end,
    verbs,
    st.lists(words, max_size=3),
    ends,
)
good = st.one_of(
    st.just(b"NOP\n"),
    st.builds(lambda body: b"PUB t\n" + sized(body), bodies),
    st.builds(lambda body: b"PUB u\r\n" + sized(body), bodies),
    st.builds(lambda body: b"DPUB t 5\n" + sized(body), bodies),
    st.builds(lambda many: b"MPUB t\n" + mpub(*many), st.lists(bodies, min_size=1, max_size=5)),
    st.builds(lambda body: b"IDENTIFY\n" + sized(body), bodies),
)
answers = st.one_of(
    st.builds(lambda message_id: b"FIN " + message_id + b"\n", message_ids),
    st.builds(lambda count: b"FIN 0123456789abcdef\n" * count, st.integers(1, 40)),
    st.builds(lambda message_id: b"TOUCH " + message_id + b"\n", message_ids),
    st.builds(lambda message_id: b"REQ " + message_id + b" 5\n", message_ids),
    st.sampled_from([b"RDY 5\n", b"CLS\n", b"FIN 0123456789abcdef\r\n"]),
)
bad = st.one_of(
    lines,
    st.builds(lambda line, size, body: line + number(size) + body, lines, sizes, bodies),
    st.binary(max_size=40),
    st.builds(
        lambda byte, count: bytes([byte]) * count, st.integers(0, 255), st.integers(1, 20000)
    ),
)
streams = st.builds(
    lambda before, sub, after, last: b"".join([*before, sub, *after, last]),
    st.lists(good, max_size=4),
    st.sampled_from([b"", b"SUB t c\n"]),
    st.lists(st.one_of(answers, good), max_size=12),
    st.one_of(bad, good, st.just(b"")),
)


@dataclass
class Outcome:
    commands: list[Command]
    at_end: list[Command]


def parser() -> CommandParser:
    return CommandParser(max_msg_size=MSG_MAX, max_body_size=BODY_MAX, max_defer_ms=DEFER_MAX_MS)


def outcome(pieces: list[bytes]) -> Outcome:
    made = parser()
    commands: list[Command] = []
    for piece in pieces:
        commands += made.feed(piece)
        # A command that is not whole, and no more of the last piece than that.
        assert made.held_bytes <= LINE_MAX_BYTES + 8 + max(MSG_MAX, BODY_MAX)
        assert made.closed == (bool(commands) and isinstance(commands[-1], Malformed))
    at_end = made.eof()
    assert made.eof() == []
    return Outcome(joined(commands), at_end)


def check_documented(command: Command) -> None:
    match command:
        case Malformed(code, reason):
            assert code is None or isinstance(code, ErrorCode)
            assert f"{code} {reason}".encode("utf-8", "surrogateescape")
        case Publish(verb, topic, found, replies, delay_ms):
            assert is_valid_name(topic)
            assert found
            assert all(0 < len(body) <= MSG_MAX for body in found)
            assert replies == (len(found) if verb == "PUB" else 1)
            assert 0 <= delay_ms <= (DEFER_MAX_MS if verb == "DPUB" else 0)
        case Subscribe(topic, channel):
            assert is_valid_name(topic)
            assert is_valid_name(channel)
        case Finish(found):
            assert found
            assert all(len(message_id) == ID_BYTES for message_id in found)
        case Requeue(message_id, delay_ms):
            assert len(message_id) == ID_BYTES
            assert 0 <= delay_ms < 1 << 63
        case Touch(message_id):
            assert len(message_id) == ID_BYTES
        case Ready(ready_count):
            assert 0 <= ready_count < 1 << 63
        case _:
            pass


def check(data: bytes, places: list[int]) -> None:
    whole = outcome([data])
    for command in [*whole.commands, *whole.at_end]:
        check_documented(command)
    assert not any(isinstance(command, Malformed) for command in whole.commands[:-1])
    assert outcome(cut_up(data, places)) == whole
    if len(data) < 2000:
        assert outcome(in_bytes(data)) == whole


@fuzzing
@given(st.binary(max_size=200), cuts)
def test_any_bytes(data: bytes, places: list[int]) -> None:
    check(data, places)
    check(MAGIC + data, places)


@settings(fuzzing, max_examples=600)
@given(streams, cuts)
def test_commands_good_and_bad(data: bytes, places: list[int]) -> None:
    check(MAGIC + data, places)


@fuzzing
@given(streams, st.integers(0, 5000), st.integers(0, 255), cuts)
def test_one_byte_changed(data: bytes, place: int, byte: int, places: list[int]) -> None:
    if data:
        place %= len(data)
        data = data[:place] + bytes([byte]) + data[place + 1 :]
    check(MAGIC + data, places)


@fuzzing
@given(st.lists(bodies, min_size=1, max_size=150), st.integers(1, 20))
def test_what_goes_into_an_mpub_comes_out(many: list[bytes], size: int) -> None:
    even = [body.ljust(size, b"\0")[:size] for body in many]
    for found in (many, even):
        assert split_mpub(mpub(*found)[4:], MSG_MAX, 1 << 20) == found
