"""Commands: fed whole, byte by byte and with trailing data; every refusal, to the character."""

import pytest

from nsqpy.errors import ErrorCode
from nsqpy.message import MessageID
from nsqpy.protocol.commands import (
    ALLOWED_STATES,
    LINE_MAX_BYTES,
    MAGIC,
    Auth,
    Close,
    Command,
    CommandParser,
    Finish,
    Identify,
    Malformed,
    Nop,
    Publish,
    Ready,
    Requeue,
    State,
    Subscribe,
    Touch,
)
from tests.unit.protocol.feeding import in_pieces, joined, mpub, number, sized

MSG_MAX = 1000
BODY_MAX = 5000
DEFER_MAX_MS = 3_600_000
ID = MessageID(b"0123456789abcdef")
OTHER_ID = MessageID(b"fedcba9876543210")
INT64_MAX = (1 << 63) - 1

INITIAL, SUBSCRIBED, CLOSING = State.INITIAL, State.SUBSCRIBED, State.CLOSING


def parser(state: State = INITIAL) -> CommandParser:
    made = CommandParser(max_msg_size=MSG_MAX, max_body_size=BODY_MAX, max_defer_ms=DEFER_MAX_MS)
    made.feed(MAGIC)
    if state is not INITIAL:
        made.feed(b"SUB t c\n")
    if state is CLOSING:
        made.feed(b"CLS\n")
    assert made.state is state
    return made


GOOD: list[tuple[State, bytes, Command]] = [
    (INITIAL, b"IDENTIFY\n" + sized(b"{}"), Identify(b"{}")),
    (INITIAL, b"IDENTIFY extra words\n" + sized(b"\n\r\n"), Identify(b"\n\r\n")),
    (INITIAL, b"IDENTIFY\r\n" + sized(b"x" * BODY_MAX), Identify(b"x" * BODY_MAX)),
    (INITIAL, b"AUTH\n" + sized(b"secret"), Auth(b"secret")),
    (INITIAL, b"SUB t c\n", Subscribe("t", "c")),
    (
        INITIAL,
        b"SUB a.b_c-d#ephemeral 9#ephemeral more\r\n",
        Subscribe("a.b_c-d#ephemeral", "9#ephemeral"),
    ),
    (INITIAL, b"SUB " + b"t" * 64 + b" " + b"c" * 64 + b"\n", Subscribe("t" * 64, "c" * 64)),
    (INITIAL, b"PUB t\n" + sized(b"hello"), Publish("PUB", "t", [b"hello"], 1, 0)),
    (INITIAL, b"PUB t \n" + sized(b"\n"), Publish("PUB", "t", [b"\n"], 1, 0)),
    (SUBSCRIBED, b"PUB t\r\n" + sized(b"x" * MSG_MAX), Publish("PUB", "t", [b"x" * MSG_MAX], 1, 0)),
    (CLOSING, b"PUB t\n" + sized(b"FIN"), Publish("PUB", "t", [b"FIN"], 1, 0)),
    (INITIAL, b"DPUB t 1500\n" + sized(b"a"), Publish("DPUB", "t", [b"a"], 1, 1500)),
    (INITIAL, b"DPUB t 003600000 x\n" + sized(b"a"), Publish("DPUB", "t", [b"a"], 1, DEFER_MAX_MS)),
    (INITIAL, b"DPUB t \n" + sized(b"a"), Publish("DPUB", "t", [b"a"], 1, 0)),
    (INITIAL, b"MPUB t\n" + mpub(b"a"), Publish("MPUB", "t", [b"a"], 1, 0)),
    (
        SUBSCRIBED,
        b"MPUB t extra\n" + mpub(b"a", b"bc", b"\n" * MSG_MAX),
        Publish("MPUB", "t", [b"a", b"bc", b"\n" * MSG_MAX], 1, 0),
    ),
    (SUBSCRIBED, b"RDY\n", Ready(1)),
    (SUBSCRIBED, b"RDY \n", Ready(0)),
    (SUBSCRIBED, b"RDY 0\n", Ready(0)),
    (SUBSCRIBED, b"RDY 0002500 x\r\n", Ready(2500)),
    (SUBSCRIBED, b"RDY 18446744073709551615\n", Ready(INT64_MAX)),
    (SUBSCRIBED, b"RDY 18446744073709551617\n", Ready(INT64_MAX)),
    (SUBSCRIBED, b"RDY 9223372036854775808\n", Ready(INT64_MAX)),
    (SUBSCRIBED, b"RDY " + b"0" * 16000 + b"7\n", Ready(7)),
    (SUBSCRIBED, b"RDY " + b"9" * 16000 + b"\n", Ready(INT64_MAX)),
    (SUBSCRIBED, b"FIN " + ID + b"\n", Finish([ID])),
    (SUBSCRIBED, b"FIN " + ID + b"\r\n", Finish([ID])),
    (SUBSCRIBED, b"FIN " + ID + b" extra\n", Finish([ID])),
    (SUBSCRIBED, b"FIN \xff\x00\r3456789abcdef\n", Finish([MessageID(b"\xff\x00\r3456789abcdef")])),
    (CLOSING, b"FIN " + ID + b"\n", Finish([ID])),
    (SUBSCRIBED, b"REQ " + ID + b" 0\n", Requeue(ID, 0)),
    (SUBSCRIBED, b"REQ " + ID + b" \n", Requeue(ID, 0)),
    (CLOSING, b"REQ " + ID + b" 99999999999 x\r\n", Requeue(ID, 99999999999)),
    (SUBSCRIBED, b"REQ " + ID + b" 99999999999999999999\n", Requeue(ID, INT64_MAX)),
    (SUBSCRIBED, b"TOUCH " + ID + b"\n", Touch(ID)),
    (CLOSING, b"TOUCH " + ID + b" extra\r\n", Touch(ID)),
    (SUBSCRIBED, b"CLS\n", Close()),
    (SUBSCRIBED, b"CLS now\r\n", Close()),
    (INITIAL, b"NOP\n", Nop()),
    (SUBSCRIBED, b"NOP\r\n", Nop()),
    (CLOSING, b"NOP or not\n", Nop()),
]

NAMES = [
    (b"", '""'),
    (b"x" * 65, '"' + "x" * 65 + '"'),
    (b"#ephemeral", '"#ephemeral"'),
    (b"t#", '"t#"'),
    (b"t#ephemeral2", '"t#ephemeral2"'),
    (b"t$", '"t$"'),
    (b"a/b", '"a/b"'),
    (b"../x", '"../x"'),
    (b"..:c", '"..:c"'),
    (b'q"\\', r'"q\"\\"'),
    (b"\x00\x7f\t", r'"\x00\x7f\t"'),
    (b"\xff\xc3\xa9", r'"\xffé"'),
]
NUMBERS = [b"-1", b"+1", b"1.5", b"1e3", b"0x10", b"ten", b"1_000", b"\xd9\xa1", b"\t1", b"1\x00"]


def raw(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


INVALID, BAD_TOPIC, BAD_BODY = ErrorCode.INVALID, ErrorCode.BAD_TOPIC, ErrorCode.BAD_BODY
BAD_MESSAGE = ErrorCode.BAD_MESSAGE

BAD: list[tuple[State, bytes, ErrorCode | None, str]] = [
    # the line
    (INITIAL, b"\n", INVALID, "invalid command "),
    (INITIAL, b"\r\n", INVALID, "invalid command "),
    (INITIAL, b" NOP\n", INVALID, "invalid command "),
    (INITIAL, b"nop\n", INVALID, "invalid command nop"),
    (INITIAL, b"NOP\r\r\n", INVALID, "invalid command NOP\r"),
    (INITIAL, b"NOP\0\n", INVALID, "invalid command NOP\0"),
    (SUBSCRIBED, b"Fnord x y\n", INVALID, "invalid command Fnord"),
    (SUBSCRIBED, b"FINISH " + ID + b"\n", INVALID, "invalid command FINISH"),
    (INITIAL, b"\xff\xfe x\n", INVALID, "invalid command \udcff\udcfe"),
    (INITIAL, b"GET / HTTP/1.1\r\n", INVALID, "invalid command GET"),
    (INITIAL, b"x" * LINE_MAX_BYTES, None, "command line too long"),
    (INITIAL, b"PUB " + b"x" * (LINE_MAX_BYTES - 4), None, "command line too long"),
    (SUBSCRIBED, b"F" * LINE_MAX_BYTES + b"\n", None, "command line too long"),
    # IDENTIFY and AUTH
    *(
        (INITIAL, verb + b"\n" + number(size), BAD_BODY, f"{raw(verb)} {reason}")
        for verb in (b"IDENTIFY", b"AUTH")
        for size, reason in [
            (0, "invalid body size 0"),
            (-1, "invalid body size -1"),
            (-(1 << 31), "invalid body size -2147483648"),
            (BODY_MAX + 1, "body too big 5001 > 5000"),
            ((1 << 31) - 1, "body too big 2147483647 > 5000"),
        ]
    ),
    (INITIAL, b"AUTH x\n" + sized(b"s"), INVALID, "AUTH invalid number of parameters"),
    (INITIAL, b"AUTH \n" + sized(b"s"), INVALID, "AUTH invalid number of parameters"),
    # SUB
    (INITIAL, b"SUB\n", INVALID, "SUB insufficient number of parameters"),
    (INITIAL, b"SUB t\n", INVALID, "SUB insufficient number of parameters"),
    (INITIAL, b"SUB  t c\n", BAD_TOPIC, 'SUB topic name "" is not valid'),
    (INITIAL, b"SUB $ $\n", BAD_TOPIC, 'SUB topic name "$" is not valid'),
    *(
        (
            INITIAL,
            b"SUB t " + name + b"\n",
            ErrorCode.BAD_CHANNEL,
            f"SUB channel name {quoted} is not valid",
        )
        for name, quoted in NAMES
    ),
    # PUB, DPUB, MPUB
    *(
        (INITIAL, verb + b"\n", INVALID, f"{raw(verb)} insufficient number of parameters")
        for verb in (b"PUB", b"DPUB", b"MPUB")
    ),
    (INITIAL, b"DPUB t\n", INVALID, "DPUB insufficient number of parameters"),
    *(
        (INITIAL, line + b"\n", BAD_TOPIC, f"{prefix} topic name {quoted} is not valid")
        for name, quoted in NAMES
        for line, prefix in [
            (b"PUB " + name, "PUB"),
            (b"DPUB " + name + b" 5", "DPUB"),
            (b"MPUB " + name, "E_BAD_TOPIC MPUB"),
            (b"SUB " + name + b" c", "SUB"),
        ]
    ),
    *(
        (INITIAL, line + b"\n" + number(size), BAD_MESSAGE, f"{verb} {reason}")
        for line, verb in [(b"PUB t", "PUB"), (b"DPUB t 0", "DPUB")]
        for size, reason in [
            (0, "invalid message body size 0"),
            (-1, "invalid message body size -1"),
            (MSG_MAX + 1, "message too big 1001 > 1000"),
            (0x47455420, "message too big 1195725856 > 1000"),
        ]
    ),
    *(
        (INITIAL, b"DPUB t " + word + b"\n", INVALID, f"DPUB could not parse timeout {raw(word)}")
        for word in NUMBERS
    ),
    (INITIAL, b"DPUB t 3600001\n", INVALID, "DPUB timeout 3600001 out of range 0-3600000"),
    (
        INITIAL,
        b"DPUB t 99999999999999999999\n",
        INVALID,
        f"DPUB timeout {INT64_MAX} out of range 0-3600000",
    ),
    *(
        (INITIAL, b"MPUB t\n" + number(total) + rest, code, f"MPUB {reason}")
        for total, rest, code, reason in [
            (0, b"", BAD_BODY, "invalid body size 0"),
            (-7, b"", BAD_BODY, "invalid body size -7"),
            (5001, b"", BAD_BODY, "body too big 5001 > 5000"),
            (1, b"\0", BAD_BODY, "failed to read message count"),
            (3, b"\0\0\0", BAD_BODY, "failed to read message count"),
            (4, number(0), BAD_BODY, "invalid message count 0"),
            (100, number(-1), BAD_BODY, "invalid message count -1"),
            (100, number(1000), BAD_BODY, "invalid message count 1000"),
            (100, number(1) + number(0), BAD_MESSAGE, "invalid message(0) body size 0"),
            (100, number(1) + number(-2), BAD_MESSAGE, "invalid message(0) body size -2"),
            (4000, number(1) + number(1001), BAD_MESSAGE, "message too big 1001 > 1000"),
            (4, number(1), BAD_MESSAGE, "failed to read message(0) body size"),
            (6, number(1) + b"\0\0", BAD_MESSAGE, "failed to read message(0) body size"),
            (9, number(1) + number(2) + b"a", BAD_MESSAGE, "failed to read message body"),
            (9, number(2) + sized(b"a"), BAD_MESSAGE, "failed to read message(1) body size"),
            (
                13,
                number(2) + sized(b"a") + number(0),
                BAD_MESSAGE,
                "invalid message(1) body size 0",
            ),
            (
                13,
                number(2) + sized(b"a") + number(1001),
                BAD_MESSAGE,
                "message too big 1001 > 1000",
            ),
            (
                10,
                number(1) + sized(b"a") + b"x",
                BAD_BODY,
                "invalid body size 10, its messages take 9",
            ),
        ]
    ),
    # RDY, FIN, REQ, TOUCH
    *(
        (SUBSCRIBED, b"RDY " + word + b"\n", INVALID, f"RDY could not parse count {raw(word)}")
        for word in NUMBERS
    ),
    *(
        (state, line + b"\n", INVALID, f"{raw(line)} insufficient number of params")
        for state in (SUBSCRIBED, CLOSING)
        for line in (b"FIN", b"REQ", b"TOUCH")
    ),
    (SUBSCRIBED, b"REQ " + ID + b"\n", INVALID, "REQ insufficient number of params"),
    *(
        (SUBSCRIBED, verb + b" " + message_id + b" 0\n", INVALID, "invalid message ID")
        for verb in (b"FIN", b"REQ", b"TOUCH")
        for message_id in (b"", b"x", ID[:15], ID + b"0", b" " + ID, ID[:8] + b" " + ID[9:])
    ),
    (SUBSCRIBED, b"FIN " + ID[:15] + b"\r\n", INVALID, "invalid message ID"),
    (SUBSCRIBED, b"FIN 01234567 9abcdef\n", INVALID, "invalid message ID"),
    *(
        (
            SUBSCRIBED,
            b"REQ " + ID + b" " + word + b"\n",
            INVALID,
            f"REQ could not parse timeout {raw(word)}",
        )
        for word in NUMBERS
    ),
]

CUT: list[tuple[State, bytes, str]] = [
    (INITIAL, b"IDENTIFY\n", "E_BAD_BODY IDENTIFY failed to read body size"),
    (INITIAL, b"IDENTIFY\n\0\0\0", "E_BAD_BODY IDENTIFY failed to read body size"),
    (INITIAL, b"IDENTIFY\n" + number(2), "E_BAD_BODY IDENTIFY failed to read body"),
    (INITIAL, b"IDENTIFY\n" + number(2) + b"{", "E_BAD_BODY IDENTIFY failed to read body"),
    (INITIAL, b"AUTH\n\0", "E_BAD_BODY AUTH failed to read body size"),
    (INITIAL, b"AUTH\n" + number(2) + b"x", "E_BAD_BODY AUTH failed to read body"),
    (INITIAL, b"PUB t\n", "E_BAD_MESSAGE PUB failed to read message body size"),
    (SUBSCRIBED, b"PUB t\n\0\0\0", "E_BAD_MESSAGE PUB failed to read message body size"),
    (CLOSING, b"PUB t\n" + number(5) + b"hell", "E_BAD_MESSAGE PUB failed to read message body"),
    (INITIAL, b"DPUB t 1\n\0", "E_BAD_MESSAGE DPUB failed to read message body size"),
    (INITIAL, b"DPUB t 1\n" + number(1), "E_BAD_MESSAGE DPUB failed to read message body"),
    (INITIAL, b"MPUB t\n\0\0", "E_BAD_BODY MPUB failed to read body size"),
    (INITIAL, b"MPUB t\n" + number(9), "E_BAD_BODY MPUB failed to read message count"),
    (
        INITIAL,
        b"MPUB t\n" + number(9) + number(1) + b"\0",
        "E_BAD_MESSAGE MPUB failed to read message(0) body size",
    ),
    (
        INITIAL,
        b"MPUB t\n" + number(9) + number(1) + number(1),
        "E_BAD_MESSAGE MPUB failed to read message body",
    ),
    (
        INITIAL,
        b"MPUB t\n" + number(6) + number(1) + b"\0",
        "E_BAD_MESSAGE MPUB failed to read message body",
    ),
]


@pytest.mark.parametrize(("state", "data", "command"), GOOD)
class TestGoodCommand:
    def test_whole(self, state: State, data: bytes, command: Command) -> None:
        assert parser(state).feed(data) == [command]

    def test_byte_by_byte(self, state: State, data: bytes, command: Command) -> None:
        assert in_pieces(parser(state), data) == [command]

    def test_with_trailing_data(self, state: State, data: bytes, command: Command) -> None:
        made = parser(state)
        assert made.feed(data + b"NOP\nNO") == [command, Nop()]
        assert made.held_bytes == 2
        assert made.feed(b"P\n") == [Nop()]
        assert made.held_bytes == 0


@pytest.mark.parametrize(("state", "data", "code", "reason"), BAD)
class TestBadCommand:
    def test_whole(self, state: State, data: bytes, code: ErrorCode | None, reason: str) -> None:
        assert parser(state).feed(data) == [Malformed(code, reason)]

    def test_byte_by_byte(
        self, state: State, data: bytes, code: ErrorCode | None, reason: str
    ) -> None:
        assert in_pieces(parser(state), data) == [Malformed(code, reason)]

    def test_what_came_before_counts_and_what_follows_does_not(
        self, state: State, data: bytes, code: ErrorCode | None, reason: str
    ) -> None:
        made = parser(state)
        fed = b"NOP\n" + data + b"NOP\n"
        assert made.feed(fed) == [Nop(), Malformed(code, reason)]
        assert made.closed
        assert made.held_bytes == 0
        assert made.feed(b"NOP\n") == []
        assert made.eof() == []


@pytest.mark.parametrize(("state", "data", "text"), CUT)
@pytest.mark.parametrize("step", [1, 1000])
def test_a_body_cut_short_by_the_end_of_the_stream(
    state: State, data: bytes, text: str, step: int
) -> None:
    made = parser(state)
    assert in_pieces(made, data, step) == []
    code, _, reason = text.partition(" ")
    assert made.eof() == [Malformed(ErrorCode(code), reason)]
    assert made.eof() == []


@pytest.mark.parametrize("data", [b"", b" ", b"  V2", b"  V2NOP\n", b"  V2NO", b"  V2PUB t\r"])
def test_the_end_of_the_stream_is_nobodys_fault_outside_a_body(data: bytes) -> None:
    made = CommandParser(max_msg_size=MSG_MAX, max_body_size=BODY_MAX, max_defer_ms=DEFER_MAX_MS)
    made.feed(data)
    assert made.eof() == []


def test_a_body_that_was_waited_for_and_came_leaves_nothing_to_expect() -> None:
    made = parser()
    assert made.feed(b"PUB t\n" + number(2) + b"a") == []
    assert made.feed(b"bNO") == [Publish("PUB", "t", [b"ab"], 1, 0)]
    assert made.eof() == []


def fresh() -> CommandParser:
    return CommandParser(max_msg_size=MSG_MAX, max_body_size=BODY_MAX, max_defer_ms=DEFER_MAX_MS)


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 100])
def test_the_magic_starts_a_connection(step: int) -> None:
    made = fresh()
    assert not made.started
    assert in_pieces(made, MAGIC + b"NOP\n", step) == [Nop()]
    assert made.started


@pytest.mark.parametrize("data", [b"  V1", b"V2  ", b"GET / HTTP/1.1\r\n\r\n", b"NOP\n", b"\0" * 9])
@pytest.mark.parametrize("step", [1, 100])
def test_any_other_magic_is_refused(data: bytes, step: int) -> None:
    made = fresh()
    assert in_pieces(made, data, step) == [Malformed(ErrorCode.BAD_PROTOCOL, "")]
    assert not made.started


VERBS = {
    "IDENTIFY": b"IDENTIFY\n" + sized(b"{}"),
    "AUTH": b"AUTH\n" + sized(b"s"),
    "SUB": b"SUB t c\n",
    "RDY": b"RDY 5\n",
    "FIN": b"FIN " + ID + b"\n",
    "REQ": b"REQ " + ID + b" 0\n",
    "TOUCH": b"TOUCH " + ID + b"\n",
    "CLS": b"CLS\n",
}


def test_the_table_of_states_names_every_command_that_is_not_allowed_everywhere() -> None:
    assert ALLOWED_STATES.keys() == VERBS.keys()


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("step", [1, 100])
def test_a_command_in_a_wrong_state(state: State, verb: str, step: int) -> None:
    commands = in_pieces(parser(state), VERBS[verb], step)
    refusal = Malformed(ErrorCode.INVALID, f"cannot {verb} in current state")
    if state in ALLOWED_STATES[verb]:
        assert refusal not in commands
    else:
        assert commands == [refusal]


@pytest.mark.parametrize(
    "line", [b"SUB\n", b"FIN\n", b"REQ x\n", b"TOUCH\n", b"RDY x\n", b"AUTH 1\n", b"CLS\n"]
)
def test_the_state_is_looked_at_before_the_parameters(line: bytes) -> None:
    state = CLOSING if line[:3] in (b"SUB", b"AUT", b"CLS") else INITIAL
    (refusal,) = parser(state).feed(line)
    verb = line.split()[0].decode()
    assert refusal == Malformed(ErrorCode.INVALID, f"cannot {verb} in current state")


def test_the_state_is_looked_at_before_the_body_is_waited_for() -> None:
    (refusal,) = parser(SUBSCRIBED).feed(b"IDENTIFY\n")
    assert refusal == Malformed(ErrorCode.INVALID, "cannot IDENTIFY in current state")


@pytest.mark.parametrize("line", [b"RDY 1\n", b"RDY\n", b"RDY x y\n", b"RDY -1\n"])
def test_rdy_is_ignored_while_closing_whatever_it_says(line: bytes) -> None:
    assert parser(CLOSING).feed(line + b"NOP\n") == [Nop()]


@pytest.mark.parametrize("step", [1, 7, 100])
def test_sub_rdy_and_cls_in_one_stream(step: int) -> None:
    made = fresh()
    data = MAGIC + b"IDENTIFY\n" + sized(b"{}") + b"SUB t c\nRDY 9\nCLS\nRDY 2\nFIN " + ID + b"\n"
    assert in_pieces(made, data, step) == [
        Identify(b"{}"),
        Subscribe("t", "c"),
        Ready(9),
        Close(),
        Finish([ID]),
    ]
    assert made.state is CLOSING


def test_identify_may_come_again_before_sub() -> None:
    again = b"IDENTIFY\n" + sized(b"{}")
    assert parser().feed(again + again) == [Identify(b"{}"), Identify(b"{}")]


class TestRuns:
    """Pipelined PUBs and FINs come out as few commands."""

    def test_publishes_to_one_topic_are_one(self) -> None:
        data = b"".join(b"PUB t\n" + sized(body) for body in (b"a", b"bb", b"c"))
        assert parser().feed(data) == [Publish("PUB", "t", [b"a", b"bb", b"c"], 3, 0)]

    def test_order_between_publishes_is_kept(self) -> None:
        data = (
            *(b"PUB t\n" + sized(b"1"), b"PUB u\n" + sized(b"2"), b"PUB t\n" + sized(b"3")),
            *(b"DPUB t 0\n" + sized(b"4"), b"MPUB t\n" + mpub(b"5"), b"PUB t\n" + sized(b"6")),
            *(b"NOP\n", b"PUB t\n" + sized(b"7")),
        )
        assert parser().feed(b"".join(data)) == [
            Publish("PUB", "t", [b"1"], 1, 0),
            Publish("PUB", "u", [b"2"], 1, 0),
            Publish("PUB", "t", [b"3"], 1, 0),
            Publish("DPUB", "t", [b"4"], 1, 0),
            Publish("MPUB", "t", [b"5"], 1, 0),
            Publish("PUB", "t", [b"6"], 1, 0),
            Nop(),
            Publish("PUB", "t", [b"7"], 1, 0),
        ]

    @pytest.mark.parametrize("count", [1, 2, 511, 512, 513, 3000])
    def test_finishes_are_one(self, count: int) -> None:
        ids = [MessageID(b"%016x" % index) for index in range(count)]
        data = b"".join(b"FIN " + message_id + b"\n" for message_id in ids)
        assert parser(SUBSCRIBED).feed(data) == [Finish(ids)]
        assert joined(in_pieces(parser(SUBSCRIBED), data, 1000)) == [Finish(ids)]

    @pytest.mark.parametrize(
        "odd",
        [
            b"FIN " + OTHER_ID + b"\r\n",
            b"FIN " + OTHER_ID + b" x\n",
            b"FIN \r\r\r\r\r\r\r\r\r\r\r\r\r\r\r.\n",
        ],
    )
    @pytest.mark.parametrize("place", [0, 1, 6, 10])
    def test_an_unusual_line_in_a_run_changes_nothing_else(self, odd: bytes, place: int) -> None:
        plain = [b"FIN " + ID + b"\n"] * 10
        odd_id = MessageID(odd[4:20])
        expected = [ID] * place + [odd_id] + [ID] * (10 - place)
        data = b"".join(plain[:place]) + odd + b"".join(plain[place:])
        assert joined(parser(SUBSCRIBED).feed(data)) == [Finish(expected)]
        assert joined(in_pieces(parser(SUBSCRIBED), data)) == [Finish(expected)]

    @pytest.mark.parametrize(
        "bad", [b"FIN 01234567 9abcdef\n", b"FIN 0123456789abcde\r\n", b"FIN 01234567\n9abcdef\n"]
    )
    @pytest.mark.parametrize("place", [0, 1, 6, 10])
    def test_a_bad_line_in_a_run_ends_it_there(self, bad: bytes, place: int) -> None:
        plain = [b"FIN " + ID + b"\n"] * 10
        data = b"".join(plain[:place]) + bad + b"".join(plain[place:])
        for commands in (
            joined(parser(SUBSCRIBED).feed(data)),
            joined(in_pieces(parser(SUBSCRIBED), data)),
        ):
            assert commands.pop() == Malformed(ErrorCode.INVALID, "invalid message ID")
            assert commands == ([Finish([ID] * place)] if place else [])

    def test_an_unfinished_finish_waits(self) -> None:
        made = parser(SUBSCRIBED)
        line = b"FIN " + ID + b"\n"
        assert made.feed(line + line[:-1]) == [Finish([ID])]
        assert made.feed(b"\n") == [Finish([ID])]


class TestBounds:
    """What a peer can make the parser hold."""

    def test_the_longest_line_is_a_line(self) -> None:
        line = b"NOP " + b"x" * (LINE_MAX_BYTES - 5) + b"\n"
        assert len(line) == LINE_MAX_BYTES
        assert parser().feed(line) == [Nop()]
        (refusal,) = parser().feed(b"NOP x" + line[4:])
        assert refusal == Malformed(None, "command line too long")

    def test_a_line_without_end_is_held_up_to_its_limit(self) -> None:
        made = parser()
        assert in_pieces(made, b"x" * (LINE_MAX_BYTES - 1), 100) == []
        assert made.held_bytes == LINE_MAX_BYTES - 1
        assert made.feed(b"x") == [Malformed(None, "command line too long")]
        assert made.held_bytes == 0

    @pytest.mark.parametrize(
        "head", [b"PUB t\n", b"DPUB t 1\n", b"IDENTIFY\n", b"AUTH\n", b"MPUB t\n"]
    )
    def test_a_size_over_the_limit_is_refused_before_any_of_the_body(self, head: bytes) -> None:
        (refusal,) = parser().feed(head + number((1 << 31) - 1))
        assert isinstance(refusal, Malformed)

    def test_an_mpub_is_held_as_it_came_until_it_is_whole(self) -> None:
        made = parser()
        data = b"MPUB t\n" + mpub(*[b"x" * MSG_MAX] * 4)
        assert in_pieces(made, data[:-1], 100) == []
        assert made.held_bytes == len(data) - 1
        assert made.feed(data[-1:]) == [Publish("MPUB", "t", [b"x" * MSG_MAX] * 4, 1, 0)]
        assert made.held_bytes == 0


class TestBeforeTLS:
    def test_only_identify_goes_through(self) -> None:
        made = fresh()
        made.require_tls()
        assert made.feed(b"  V2IDENTIFY\n" + sized(b"{}")) == [Identify(b"{}")]

    @pytest.mark.parametrize("word", ["NOP", "PUB", "SUB", "AUTH", "RDY", "nonsense", ""])
    def test_whatever_else_there_is_does_not(self, word: str) -> None:
        made = fresh()
        made.require_tls()
        reason = f"cannot {word} in current state (TLS required)"
        assert made.feed(f"  V2{word}\n".encode()) == [Malformed(ErrorCode.INVALID, reason)]

    def test_a_compression_alone_is_no_tls(self) -> None:
        made = fresh()
        made.require_tls()
        made.feed(b"  V2")
        made.restart(tls=False)
        assert isinstance(made.feed(b"NOP\n")[0], Malformed)

    def test_with_tls_all_of_them_do(self) -> None:
        made = fresh()
        made.require_tls()
        made.feed(b"  V2")
        made.restart(tls=True)
        assert made.feed(b"NOP\n") == [Nop()]


class TestRestart:
    @pytest.mark.parametrize(
        "early", [b"", b"SUB t c\n", b"PUB t\n\0\0\0\x05ab", b"nonsense\n", b"half a line"]
    )
    def test_what_came_too_early_is_forgotten(self, early: bytes) -> None:
        made = fresh()
        made.feed(b"  V2IDENTIFY\n" + sized(b"{}") + early)
        made.restart(tls=True)
        assert (made.state, made.held_bytes) == (State.INITIAL, 0)
        assert made.feed(b"SUB t c\n") == [Subscribe("t", "c")]
        assert made.eof() == []
