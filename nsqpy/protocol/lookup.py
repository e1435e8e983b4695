"""The V1 protocol between nsqd and nsqlookupd, both directions: bytes in, commands or replies out.

What a daemon sends: the magic, then lines of words with single spaces between them, IDENTIFY with
a body behind its line. What comes back has a size and no type, integers big-endian::

    command   IDENTIFY\\n | int32 size | JSON           others: the line alone
    reply     | int32 size | data |                    OK, JSON, or E_<CODE> <reason>

``LookupParser`` is the server's half: as in ``nsqpy.protocol.commands`` a peer's fault is the last
command, ``Malformed``, and it knows the connection's state, because a command in a wrong state is
refused before its parameters or body are read. Every error ends the connection. The encoders and
``ReplyParser`` are the client's half.

Source: docs/nsqlookupd.md; nsqlookupd/lookup_protocol_v1.go.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import NamedTuple

from nsqpy.errors import ErrorCode, ProtocolError
from nsqpy.gojson import integer_field, parse_object, text_field
from nsqpy.names import decode_name
from nsqpy.protocol.commands import LINE_MAX_BYTES, Malformed
from nsqpy.protocol.frames import BadFrame
from nsqpy.protocol.quoting import text

__all__ = [
    "ALLOWED_STATES",
    "BODY_MAX_BYTES",
    "MAGIC",
    "OK_FRAME",
    "PING",
    "REPLY_MAX_BYTES",
    "Identify",
    "LookupCommand",
    "LookupParser",
    "PeerInfo",
    "Ping",
    "Register",
    "ReplyParser",
    "State",
    "Unregister",
    "decode_peer_info",
    "identify",
    "identify_reply",
    "register",
    "reply_frame",
    "unregister",
]

MAGIC = b"  V1"
# The original has no bound; what it asks for there, it asks the system for at once.
BODY_MAX_BYTES = 4 * 1024 * 1024
REPLY_MAX_BYTES = 64 * 1024

_SIZE = struct.Struct(">i")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """What a daemon says of itself: nsqd when it identifies, nsqlookupd in its reply.

    Unchecked text and numbers. The order is that of the keys in ``/lookup``.
    """

    hostname: str = ""
    broadcast_address: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    topology_zone: str = ""
    topology_region: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing without which nobody could connect."""
        return bool(self.broadcast_address and self.tcp_port and self.http_port and self.version)


def decode_peer_info(body: bytes) -> PeerInfo:
    """Decode the JSON of an IDENTIFY or of its reply; what is absent is empty.

    Unknown keys are ignored, keys match in any case, ``null`` says nothing.

    Raises:
        ProtocolError: E_BAD_BODY: no JSON object, or a field of a wrong type.
    """
    try:
        given = parse_object(body)
        text_field(given, "remote_address")  # only its type counts: the socket knows the address
        return PeerInfo(
            hostname=text_field(given, "hostname"),
            broadcast_address=text_field(given, "broadcast_address"),
            tcp_port=integer_field(given, "tcp_port"),
            http_port=integer_field(given, "http_port"),
            version=text_field(given, "version"),
            topology_zone=text_field(given, "topology_zone"),
            topology_region=text_field(given, "topology_region"),
        )
    except (ValueError, TypeError, RecursionError) as error:
        reason = "IDENTIFY failed to decode JSON body"
        raise ProtocolError(ErrorCode.BAD_BODY, reason) from error


# --- the server's half ---


class State(Enum):
    """Of a connection, as the server sees it."""

    NEW = "new"
    IDENTIFIED = "identified"


# What is absent is allowed in every state.
ALLOWED_STATES: dict[str, State] = {
    "IDENTIFY": State.NEW,
    "REGISTER": State.IDENTIFIED,
    "UNREGISTER": State.IDENTIFIED,
}
_WRONG_STATE = {State.NEW: "client must IDENTIFY", State.IDENTIFIED: "cannot IDENTIFY again"}


class Identify(NamedTuple):
    info: PeerInfo


class Register(NamedTuple):
    """``channel`` is empty where only the topic is meant."""

    topic: str
    channel: str


class Unregister(NamedTuple):
    """``channel`` is empty where only the topic is meant."""

    topic: str
    channel: str


class Ping(NamedTuple):
    pass


LookupCommand = Identify | Register | Unregister | Ping | Malformed


class LookupParser:
    """Feed bytes, take commands. Holds at most one unfinished command.

    What it holds is bounded by ``BODY_MAX_BYTES`` plus one read: the size is checked as soon as
    its four bytes are there.
    """

    __slots__ = ("_expects", "_held", "_missing", "_started", "closed", "state")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._missing = 0
        self._expects = ""
        self._started = False
        self.state = State.NEW
        self.closed = False

    def feed(self, data: bytes) -> list[LookupCommand]:
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
        self._expects = ""
        commands: list[LookupCommand] = []
        try:
            self._parse(data, commands)
        except ProtocolError as error:
            self.closed = True
            commands.append(Malformed(error.code, error.reason))
        return commands

    def eof(self) -> list[LookupCommand]:
        """The peer will send no more: a body cut short is its fault, a cut line is nothing."""
        if self.closed or not self._expects:
            return []
        self.closed = True
        return [Malformed(ErrorCode.BAD_BODY, self._expects)]

    def _parse(self, data: bytes, commands: list[LookupCommand]) -> None:
        at, end = 0, len(data)
        if not self._started:
            if end < len(MAGIC):
                return self._hold(data, 0, len(MAGIC) - end)
            if not data.startswith(MAGIC):
                raise ProtocolError(ErrorCode.BAD_PROTOCOL, "")
            self._started = True
            at = len(MAGIC)
        while at < end:
            newline = data.find(b"\n", at, at + LINE_MAX_BYTES)
            if newline < 0:
                if end - at >= LINE_MAX_BYTES:
                    raise ProtocolError(ErrorCode.INVALID, "command line too long")
                return self._hold(data, at, 1)
            words = data[at:newline].strip().split(b" ")
            parse = _LINE_PARSERS.get(words[0])
            if parse is None:
                raise ProtocolError(ErrorCode.INVALID, f"invalid command {text(words[0])}")
            next_at = parse(self, words, data, newline + 1, commands)
            if next_at < 0:
                return self._hold(data, at, self._missing)
            at = next_at
        return None

    def _hold(self, data: bytes, at: int, missing: int) -> None:
        self._held = [data[at:] if at else data]
        self._missing = missing

    def _check_state(self, verb: str) -> None:
        if self.state is not ALLOWED_STATES[verb]:
            raise ProtocolError(ErrorCode.INVALID, _WRONG_STATE[self.state])

    # One method a command. Each gets the words of its line and where its body starts, appends
    # what it made of them and returns where the next command starts, or -1 for "not yet".

    def _identify(
        self, words: list[bytes], data: bytes, at: int, commands: list[LookupCommand]
    ) -> int:
        self._check_state("IDENTIFY")
        have = len(data) - at
        if have < _SIZE.size:
            return self._await(_SIZE.size - have, "IDENTIFY failed to read body size")
        (size,) = _SIZE.unpack_from(data, at)
        # The original dies of a negative size, and believes any other.
        if size < 0:
            raise ProtocolError(ErrorCode.BAD_BODY, f"IDENTIFY invalid body size {size}")
        if size > BODY_MAX_BYTES:
            reason = f"IDENTIFY body too big {size} > {BODY_MAX_BYTES}"
            raise ProtocolError(ErrorCode.BAD_BODY, reason)
        stop = at + _SIZE.size + int(size)
        if stop > len(data):
            return self._await(stop - len(data), "IDENTIFY failed to read body")
        info = decode_peer_info(data[at + _SIZE.size : stop])
        if not info.is_complete:
            raise ProtocolError(ErrorCode.BAD_BODY, "IDENTIFY missing fields")
        self.state = State.IDENTIFIED
        commands.append(Identify(info))
        return stop

    def _await(self, missing: int, expects: str) -> int:
        """Note that more bytes are wanted, and the error if they never come."""
        self._missing = missing
        self._expects = expects
        return -1

    def _register(
        self, words: list[bytes], data: bytes, at: int, commands: list[LookupCommand]
    ) -> int:
        self._check_state("REGISTER")
        commands.append(Register(*_topic_and_channel("REGISTER", words)))
        return at

    def _unregister(
        self, words: list[bytes], data: bytes, at: int, commands: list[LookupCommand]
    ) -> int:
        self._check_state("UNREGISTER")
        commands.append(Unregister(*_topic_and_channel("UNREGISTER", words)))
        return at

    def _ping(self, words: list[bytes], data: bytes, at: int, commands: list[LookupCommand]) -> int:
        commands.append(_PING)
        return at


_PING = Ping()
_LineParser = Callable[[LookupParser, list[bytes], bytes, int, list[LookupCommand]], int]

_LINE_PARSERS: dict[bytes, _LineParser] = {
    b"IDENTIFY": LookupParser._identify,
    b"REGISTER": LookupParser._register,
    b"UNREGISTER": LookupParser._unregister,
    b"PING": LookupParser._ping,
}


def _topic_and_channel(verb: str, words: list[bytes]) -> tuple[str, str]:
    """Of several words the first two count; an empty second one is no channel."""
    if len(words) < 2:
        raise ProtocolError(ErrorCode.INVALID, f"{verb} insufficient number of params")
    topic = decode_name(words[1])
    if topic is None:
        reason = f"{verb} topic name '{text(words[1])}' is not valid"
        raise ProtocolError(ErrorCode.BAD_TOPIC, reason)
    if len(words) < 3 or not words[2]:
        return topic, ""
    channel = decode_name(words[2])
    if channel is None:
        reason = f"{verb} channel name '{text(words[2])}' is not valid"
        raise ProtocolError(ErrorCode.BAD_CHANNEL, reason)
    return topic, channel


def reply_frame(data: bytes) -> bytes:
    return _SIZE.pack(len(data)) + data


OK_FRAME = reply_frame(b"OK")


def identify_reply(info: PeerInfo) -> bytes:
    """What nsqlookupd says of itself: keys in alphabetical order, no topology."""
    fields = asdict(info)
    keys = ("broadcast_address", "hostname", "http_port", "tcp_port", "version")
    return _json({key: fields[key] for key in keys})


# --- the client's half: names are checked by the caller ---

PING = b"PING\n"


def identify(info: PeerInfo) -> bytes:
    body = _json(asdict(info))
    return b"IDENTIFY\n" + _SIZE.pack(len(body)) + body


def register(topic: str, channel: str = "") -> bytes:
    return _line("REGISTER", topic, channel)


def unregister(topic: str, channel: str = "") -> bytes:
    return _line("UNREGISTER", topic, channel)


def _line(verb: str, topic: str, channel: str) -> bytes:
    return (f"{verb} {topic} {channel}\n" if channel else f"{verb} {topic}\n").encode()


def _json(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


class ReplyParser:
    """Cuts what nsqlookupd sends into replies, however the bytes are split.

    A reply is ``b"OK"``, JSON, or an error that begins with ``E_``. Holds one reply at most, of
    ``REPLY_MAX_BYTES``.
    """

    __slots__ = ("_failed", "_held")

    def __init__(self) -> None:
        self._held = b""
        self._failed = False

    def feed(self, data: bytes) -> list[bytes | BadFrame]:
        """Take what was read; return the replies that are now complete.

        A size that cannot be is the last one, ``BadFrame``; afterwards bytes are ignored.
        """
        if self._failed:
            return []
        data = self._held + data
        replies: list[bytes | BadFrame] = []
        at, end = 0, len(data)
        while end - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(data, at)
            if not 0 <= size <= REPLY_MAX_BYTES:
                self._failed = True
                self._held = b""
                replies.append(BadFrame(f"reply size {size} is not within 0-{REPLY_MAX_BYTES}"))
                return replies
            stop = at + _SIZE.size + int(size)
            if stop > end:
                break
            replies.append(data[at + _SIZE.size : stop])
            at = stop
        self._held = data[at:]
        return replies
