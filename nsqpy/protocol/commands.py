"""Server side of the V2 protocol: bytes in, commands out.

``CommandParser.feed`` is called once for each read from a socket and yields as few commands as it
can: a run of FINs is one command with many ids, pipelined PUBs to one topic are one publish, an
MPUB is one batch. A peer's fault is the last command, ``Malformed``, so that what came before it
still counts.

The parser knows the connection's state, because a command in a wrong state is refused before its
parameters or body are read. Source: docs/protocol.md; nsqd/protocol_v2.go.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, cast

from nsqpy.columns import column
from nsqpy.errors import ErrorCode, ProtocolError
from nsqpy.message import ID_BYTES, MessageID
from nsqpy.names import decode_name
from nsqpy.protocol.mpub import check_mpub_start, split_mpub
from nsqpy.protocol.quoting import go_quote, text

__all__ = [
    "ALLOWED_STATES",
    "LINE_MAX_BYTES",
    "MAGIC",
    "Auth",
    "Close",
    "Command",
    "CommandParser",
    "Finish",
    "Identify",
    "Malformed",
    "Nop",
    "Publish",
    "Ready",
    "Requeue",
    "State",
    "Subscribe",
    "Touch",
]

MAGIC = b"  V2"
LINE_MAX_BYTES = 16384  # with the newline; nsqd's bufio.Reader size


class State(IntEnum):
    """A connection's state, as ``/stats`` shows it. Source: States in docs/protocol.md."""

    INITIAL = 0
    SUBSCRIBED = 3
    CLOSING = 4


class Identify(NamedTuple):
    body: bytes


class Auth(NamedTuple):
    secret: bytes


class Subscribe(NamedTuple):
    topic: str
    channel: str


class Publish(NamedTuple):
    """One MPUB or DPUB, or a run of PUBs to one topic; ``replies`` is how many OKs it is owed."""

    verb: str
    topic: str
    bodies: list[bytes]
    replies: int
    delay_ms: int


# Straight to tuple: one is made for each PUB, and the named constructor is Python.
_new_publish = tuple.__new__


class Ready(NamedTuple):
    ready_count: int


class Finish(NamedTuple):
    ids: list[MessageID]


class Requeue(NamedTuple):
    id: MessageID
    delay_ms: int


class Touch(NamedTuple):
    id: MessageID


class Close(NamedTuple):
    pass


class Nop(NamedTuple):
    pass


class Malformed(NamedTuple):
    """What the peer did wrong. Always fatal; ``code`` None means: close without an error frame."""

    code: ErrorCode | None
    reason: str


Command = (
    Identify
    | Auth
    | Subscribe
    | Publish
    | Ready
    | Finish
    | Requeue
    | Touch
    | Close
    | Nop
    | Malformed
)

# What is absent is allowed in every state.
ALLOWED_STATES: dict[str, frozenset[State]] = {
    "IDENTIFY": frozenset({State.INITIAL}),
    "AUTH": frozenset({State.INITIAL}),
    "SUB": frozenset({State.INITIAL}),
    "RDY": frozenset({State.SUBSCRIBED, State.CLOSING}),
    "FIN": frozenset({State.SUBSCRIBED, State.CLOSING}),
    "REQ": frozenset({State.SUBSCRIBED, State.CLOSING}),
    "TOUCH": frozenset({State.SUBSCRIBED, State.CLOSING}),
    "CLS": frozenset({State.SUBSCRIBED}),
}

_FIN_LINE_BYTES = 21  # "FIN " + id + newline
# Looked at in one go. Bounded, because a line that ends the run at once has cost a look at all.
_FIN_RUN_MAX = 512
_NUMBER_MAX = (1 << 63) - 1
_INCOMPLETE = -1


class CommandParser:
    """Feed bytes, take commands. Holds at most one unfinished command.

    What it holds is bounded by ``max_body_size`` plus one read: sizes are checked as soon as
    their four bytes are there, before any of the body is waited for.
    """

    __slots__ = (
        "_expects",
        "_held",
        "_line_parsers",
        "_max_body_size",
        "_max_defer_ms",
        "_max_msg_size",
        "_missing",
        "_started",
        "auth_first",
        "closed",
        "state",
    )

    def __init__(self, *, max_msg_size: int, max_body_size: int, max_defer_ms: int) -> None:
        self._max_msg_size = max_msg_size
        self._max_body_size = max_body_size
        self._max_defer_ms = max_defer_ms
        self._held: list[bytes] = []
        self._missing = 0
        self._expects = ""
        self._started = False
        self._line_parsers = _LINE_PARSERS
        self.state = State.INITIAL
        self.auth_first = False  # refuse an MPUB before its body, until there was an AUTH
        self.closed = False

    @property
    def started(self) -> bool:
        """Whether the magic has been read."""
        return self._started

    @property
    def held_bytes(self) -> int:
        """Bytes of a command that has not arrived whole."""
        return sum(map(len, self._held))

    def require_tls(self) -> None:
        """Let nothing through but IDENTIFY, until there is TLS."""
        self._line_parsers = _CLEAR_LINE_PARSERS

    def restart(self, *, tls: bool) -> None:
        """Begin anew after the magic, over new layers: what came over the old ones is dropped.

        ``tls`` says whether that is one of them.
        """
        self._held = []
        self._missing = 0
        self._expects = ""
        if tls:
            self._line_parsers = _LINE_PARSERS
        self.state = State.INITIAL
        self.closed = False

    def feed(self, data: bytes) -> list[Command]:
        """Parse everything that ``data`` completes. After a Malformed, bytes are ignored."""
        if self.closed:
            return []
        if self._held:
            self._held.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._held)
            self._held = []
        self._missing = 0
        commands: list[Command] = []
        at = 0
        if not self._started:
            if len(data) < len(MAGIC):
                return self._hold(data, 0, len(MAGIC) - len(data), commands)
            if not data.startswith(MAGIC):
                return self._refuse(commands, ErrorCode.BAD_PROTOCOL, "")
            self._started = True
            at = len(MAGIC)
        return self._parse(data, at, commands)

    def eof(self) -> list[Command]:
        """The peer will send no more: a body cut short is its fault, a cut line is nothing."""
        if self.closed or not self._expects:
            return []
        code, _, reason = self._expects.partition(" ")
        return self._refuse([], ErrorCode(code), reason)

    def _parse(self, data: bytes, at: int, commands: list[Command]) -> list[Command]:
        end = len(data)
        self._expects = ""
        while at < end:
            if data[at] == 70 and self.state:  # a run of FINs, in a state that allows it
                count = _finish_run(data, at, end)
                if count:
                    ids = column(data, at + 4, stride=_FIN_LINE_BYTES, width=ID_BYTES, count=count)
                    _add_finished(commands, cast("list[MessageID]", ids))
                    at += count * _FIN_LINE_BYTES
                    continue
            newline = data.find(b"\n", at, at + LINE_MAX_BYTES)
            if newline < 0:
                if end - at >= LINE_MAX_BYTES:
                    return self._refuse(commands, None, "command line too long")
                return self._hold(data, at, 1, commands)
            line = data[at : newline - 1 if data[newline - 1] == 13 and newline > at else newline]
            words = line.split(b" ")
            parse = self._line_parsers.get(words[0])
            if parse is None:
                if self._line_parsers is _CLEAR_LINE_PARSERS:
                    reason = f"cannot {text(words[0])} in current state (TLS required)"
                else:
                    reason = f"invalid command {text(words[0])}"
                return self._refuse(commands, ErrorCode.INVALID, reason)
            next_at = parse(self, words, data, newline + 1, commands)
            if next_at == _INCOMPLETE:
                if self.closed:
                    return commands
                return self._hold(data, at, self._missing, commands)
            at = next_at
        return commands

    def _hold(self, data: bytes, at: int, missing: int, commands: list[Command]) -> list[Command]:
        self._held = [data[at:] if at else data]
        self._missing = missing
        return commands

    def _refuse(
        self, commands: list[Command], code: ErrorCode | None, reason: str
    ) -> list[Command]:
        self.closed = True
        self._held = []
        commands.append(Malformed(code, reason))
        return commands

    def _fault(self, commands: list[Command], code: ErrorCode, reason: str) -> int:
        self._refuse(commands, code, reason)
        return _INCOMPLETE

    def _await(self, have: int, need: int, expects: str) -> int:
        """Note that ``need - have`` more bytes are wanted, and the error if they never come."""
        self._missing = need - have
        self._expects = expects
        return _INCOMPLETE

    def _wrong_state(self, verb: str, commands: list[Command]) -> bool:
        if self.state in ALLOWED_STATES[verb]:
            return False
        self._refuse(commands, ErrorCode.INVALID, f"cannot {verb} in current state")
        return True

    # One method a command. Each gets the words of its line and where its body starts, appends
    # what it made of them and returns where the next command starts, or _INCOMPLETE.

    def _identify(self, words: list[bytes], data: bytes, at: int, commands: list[Command]) -> int:
        if self._wrong_state("IDENTIFY", commands):
            return _INCOMPLETE
        stop = self._sized_body("IDENTIFY", data, at, commands)
        if stop != _INCOMPLETE:
            commands.append(Identify(data[at + 4 : stop]))
        return stop

    def _auth(self, words: list[bytes], data: bytes, at: int, commands: list[Command]) -> int:
        if self._wrong_state("AUTH", commands):
            return _INCOMPLETE
        if len(words) != 1:
            return self._fault(commands, ErrorCode.INVALID, "AUTH invalid number of parameters")
        stop = self._sized_body("AUTH", data, at, commands)
        if stop != _INCOMPLETE:
            # An AUTH that fails closes the connection, as a SUB that does.
            self.auth_first = False
            commands.append(Auth(data[at + 4 : stop]))
        return stop

    def _sized_body(self, verb: str, data: bytes, at: int, commands: list[Command]) -> int:
        have = len(data) - at
        if have < 4:
            return self._await(have, 4, f"E_BAD_BODY {verb} failed to read body size")
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if size <= 0:
            return self._fault(commands, ErrorCode.BAD_BODY, f"{verb} invalid body size {size}")
        if size > self._max_body_size:
            reason = f"{verb} body too big {size} > {self._max_body_size}"
            return self._fault(commands, ErrorCode.BAD_BODY, reason)
        if have < 4 + size:
            return self._await(have, 4 + size, f"E_BAD_BODY {verb} failed to read body")
        return at + 4 + size

    def _subscribe(self, words: list[bytes], data: bytes, at: int, commands: list[Command]) -> int:
        if self._wrong_state("SUB", commands):
            return _INCOMPLETE
        topic = self._topic("SUB", words, 3, commands)
        if topic is None:
            return _INCOMPLETE
        channel = decode_name(words[2])
        if channel is None:
            reason = f"SUB channel name {go_quote(words[2])} is not valid"
            return self._fault(commands, ErrorCode.BAD_CHANNEL, reason)
        # A SUB that fails closes the connection, so what follows it may count on its success.
        self.state = State.SUBSCRIBED
        commands.append(Subscribe(topic, channel))
        return at

    def _publish(self, words: list[bytes], data: bytes, at: int, commands: list[Command]) -> int:
        topic = self._topic("PUB", words, 2, commands)
        if topic is None:
            return _INCOMPLETE
        size = int.from_bytes(data[at : at + 4])  # a negative one looks far too large
        stop = at + 4 + size
        if not 0 < size <= self._max_msg_size or stop > len(data):
            # Not whole, or not allowed; the few lines above are the path of every good PUB.
            return self._message_body("PUB", data, at, commands)
        body = data[at + 4 : stop]
        last = commands[-1] if commands else None
        if type(last) is Publish and last.verb == "PUB" and last.topic == topic:
            last.bodies.append(body)
            commands[-1] = Publish("PUB", topic, last.bodies, last.replies + 1, 0)
        else:
            commands.append(_new_publish(Publish, ("PUB", topic, [body], 1, 0)))
        return stop

    def _deferred_publish(
        self, words: list[bytes], data: bytes, at: int, commands: list[Command]
    ) -> int:
        topic = self._topic("DPUB", words, 3, commands)
        if topic is None:
            return _INCOMPLETE
        delay_ms = _number(words[2])
        if delay_ms is None:
            reason = f"DPUB could not parse timeout {text(words[2])}"
            return self._fault(commands, ErrorCode.INVALID, reason)
        if delay_ms > self._max_defer_ms:
            reason = f"DPUB timeout {delay_ms} out of range 0-{self._max_defer_ms}"
            return self._fault(commands, ErrorCode.INVALID, reason)
        stop = self._message_body("DPUB", data, at, commands)
        if stop != _INCOMPLETE:
            commands.append(Publish("DPUB", topic, [data[at + 4 : stop]], 1, delay_ms))
        return stop

    def _topic(
        self, verb: str, words: list[bytes], fields: int, commands: list[Command]
    ) -> str | None:
        """The topic in a line of at least ``fields`` words; None if it was refused."""
        if len(words) < fields:
            reason = f"{verb} insufficient number of parameters"
            self._refuse(commands, ErrorCode.INVALID, reason)
            return None
        topic = decode_name(words[1])
        if topic is None:
            reason = f"{verb} topic name {go_quote(words[1])} is not valid"
            if verb == "MPUB":  # the original doubles the code here, and clients match on it
                reason = f"{ErrorCode.BAD_TOPIC} {reason}"
            self._refuse(commands, ErrorCode.BAD_TOPIC, reason)
        return topic

    def _message_body(self, verb: str, data: bytes, at: int, commands: list[Command]) -> int:
        have = len(data) - at
        if have < 4:
            expects = f"E_BAD_MESSAGE {verb} failed to read message body size"
            return self._await(have, 4, expects)
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if 0 < size <= self._max_msg_size:
            if have < 4 + size:
                expects = f"E_BAD_MESSAGE {verb} failed to read message body"
                return self._await(have, 4 + size, expects)
            return at + 4 + size
        if size <= 0:
            reason = f"{verb} invalid message body size {size}"
        else:
            reason = f"{verb} message too big {size} > {self._max_msg_size}"
        return self._fault(commands, ErrorCode.BAD_MESSAGE, reason)

    def _multi_publish(
        self, words: list[bytes], data: bytes, at: int, commands: list[Command]
    ) -> int:
        topic = self._topic("MPUB", words, 2, commands)
        if topic is None:
            return _INCOMPLETE
        if self.auth_first:
            return self._fault(commands, ErrorCode.AUTH_FIRST, "AUTH required before MPUB")
        have = len(data) - at
        if have < 4:
            return self._await(have, 4, "E_BAD_BODY MPUB failed to read body size")
        total = int.from_bytes(data[at : at + 4], "big", signed=True)
        if total <= 0:
            return self._fault(commands, ErrorCode.BAD_BODY, f"MPUB invalid body size {total}")
        if total > self._max_body_size:
            reason = f"MPUB body too big {total} > {self._max_body_size}"
            return self._fault(commands, ErrorCode.BAD_BODY, reason)
        stop = at + 4 + total
        try:
            if have < 4 + total:
                return self._await_mpub(data[at + 4 : at + 12], total, have)
            payload = data[at + 4 : stop]
            bodies = split_mpub(payload, self._max_msg_size, self._max_body_size)
        except ProtocolError as error:
            return self._fault(commands, error.code, error.reason)
        commands.append(Publish("MPUB", topic, bodies, 1, 0))
        return stop

    def _await_mpub(self, start: bytes, total: int, have: int) -> int:
        """Refuse a hopeless MPUB by its count and first size before waiting for the rest."""
        if total >= 4 and have < 8:
            return self._await(have, 8, "E_BAD_BODY MPUB failed to read message count")
        check_mpub_start(start, self._max_msg_size, self._max_body_size)
        if total >= 8 and have < 12:
            expects = "E_BAD_MESSAGE MPUB failed to read message(0) body size"
            return self._await(have, 12, expects)
        return self._await(have, 4 + total, "E_BAD_MESSAGE MPUB failed to read message body")

    def _ready(self, words: list[bytes], data: bytes, at: int, commands: list[Command]) -> int:
        if self._wrong_state("RDY", commands):
            return _INCOMPLETE
        if self.state is State.CLOSING:
            return at  # ignored, even if malformed
        count = _number(words[1]) if len(words) > 1 else 1
        if count is None:
            reason = f"RDY could not parse count {text(words[1])}"
            return self._fault(commands, ErrorCode.INVALID, reason)
        commands.append(Ready(count))
        return at

    def _finish(self, words: list[bytes], data: bytes, at: int, commands: list[Command]) -> int:
        message_id = self._message_id("FIN", 2, words, commands)
        if message_id is None:
            return _INCOMPLETE
        _add_finished(commands, [message_id])
        return at

    def _requeue(self, words: list[bytes], data: bytes, at: int, commands: list[Command]) -> int:
        message_id = self._message_id("REQ", 3, words, commands)
        if message_id is None:
            return _INCOMPLETE
        delay_ms = _number(words[2])
        if delay_ms is None:
            reason = f"REQ could not parse timeout {text(words[2])}"
            return self._fault(commands, ErrorCode.INVALID, reason)
        commands.append(Requeue(message_id, delay_ms))
        return at

    def _touch(self, words: list[bytes], data: bytes, at: int, commands: list[Command]) -> int:
        message_id = self._message_id("TOUCH", 2, words, commands)
        if message_id is None:
            return _INCOMPLETE
        commands.append(Touch(message_id))
        return at

    def _message_id(
        self, verb: str, fields: int, words: list[bytes], commands: list[Command]
    ) -> MessageID | None:
        if self._wrong_state(verb, commands):
            return None
        if len(words) < fields:
            self._refuse(commands, ErrorCode.INVALID, f"{verb} insufficient number of params")
            return None
        if len(words[1]) != ID_BYTES:
            self._refuse(commands, ErrorCode.INVALID, "invalid message ID")
            return None
        return MessageID(words[1])

    def _close(self, words: list[bytes], data: bytes, at: int, commands: list[Command]) -> int:
        if self._wrong_state("CLS", commands):
            return _INCOMPLETE
        self.state = State.CLOSING
        commands.append(Close())
        return at

    def _nop(self, words: list[bytes], data: bytes, at: int, commands: list[Command]) -> int:
        commands.append(Nop())
        return at


_LineParser = Callable[[CommandParser, list[bytes], bytes, int, list[Command]], int]

_LINE_PARSERS: dict[bytes, _LineParser] = {
    b"IDENTIFY": CommandParser._identify,
    b"AUTH": CommandParser._auth,
    b"SUB": CommandParser._subscribe,
    b"PUB": CommandParser._publish,
    b"DPUB": CommandParser._deferred_publish,
    b"MPUB": CommandParser._multi_publish,
    b"RDY": CommandParser._ready,
    b"FIN": CommandParser._finish,
    b"REQ": CommandParser._requeue,
    b"TOUCH": CommandParser._touch,
    b"CLS": CommandParser._close,
    b"NOP": CommandParser._nop,
}
# Before TLS, where that is required.
_CLEAR_LINE_PARSERS: dict[bytes, _LineParser] = {b"IDENTIFY": CommandParser._identify}


def _number(raw: bytes) -> int | None:
    """An unsigned decimal field; empty is 0, as in the original. None if it is no number.

    Beyond int64 it is only "too large": the original wraps around there.
    """
    if not raw:
        return 0
    if not raw.isdigit():
        return None
    digits = raw.lstrip(b"0")
    return _NUMBER_MAX if len(digits) > 19 else min(int(digits or b"0"), _NUMBER_MAX)


def _add_finished(commands: list[Command], ids: list[MessageID]) -> None:
    last = commands[-1] if commands else None
    if type(last) is Finish:
        last.ids.extend(ids)
    else:
        commands.append(Finish(ids))


def _finish_run(data: bytes, at: int, end: int) -> int:
    """How many plain ``FIN <id>`` lines follow each other from ``at``, ``_FIN_RUN_MAX`` at most.

    Looks at five columns of the lines instead of at each line. A line that does not fit the
    pattern exactly (an id with a space or a newline in it, or one that ends in the ``\\r`` that
    belongs to the line's end) is left to the parser of single lines.
    """
    count = min((end - at) // _FIN_LINE_BYTES, _FIN_RUN_MAX)
    stop = at + count * _FIN_LINE_BYTES
    for place, expected in ((0, b"F"), (1, b"I"), (2, b"N"), (3, b" "), (20, b"\n")):
        found = data[at + place : stop : _FIN_LINE_BYTES]
        matching = len(found) - len(found.lstrip(expected))
        if matching < count:
            count = matching
            stop = at + count * _FIN_LINE_BYTES
    while count and not (
        data.count(b"\n", at, stop) == data.count(b" ", at, stop) == count
        and b"\r" not in data[at + _FIN_LINE_BYTES - 2 : stop : _FIN_LINE_BYTES]
    ):
        count //= 2
        stop = at + count * _FIN_LINE_BYTES
    return count
