"""Clients and a broker without a network between them: bytes in, bytes out, time by hand."""

from pathlib import Path
from random import Random

from nsqpy.clock import MILLISECOND, ManualClock
from nsqpy.config import NsqdConfig
from nsqpy.core.broker import Broker
from nsqpy.core.session import Session
from nsqpy.protocol.commands import CommandParser
from nsqpy.protocol.identify import Features
from nsqpy.storage.files import OSFiles
from tests.golden.transcript import (
    Act,
    Advance,
    Check,
    EndOfStream,
    Expect,
    Send,
    Step,
    Transcript,
    encode,
)

__all__ = ["Conversation"]


class Client:
    """One connection: the parser and the session as the daemon puts them together."""

    def __init__(self, broker: Broker, clock: ManualClock) -> None:
        config = broker.config
        self._clock = clock
        self._parser = CommandParser(
            max_msg_size=config.max_msg_size,
            max_body_size=config.max_body_size,
            max_defer_ms=config.max_defer_timeout_ns // MILLISECOND,
        )
        features = Features(
            client_id="127.0.0.1",
            hostname="127.0.0.1",
            output_buffer_timeout_ns=config.output_buffer_timeout_ns,
            msg_timeout_ns=config.msg_timeout_ns,
        )
        self.session = Session(broker, features, "127.0.0.1:1", clock.now())
        broker.sessions[self.session] = None
        self.received = b""
        self.closed = False

    def send(self, data: bytes) -> None:
        self.session.receive(self._parser.feed(data), self._clock.now())

    def end(self) -> None:
        self.session.receive(self._parser.eof(), self._clock.now())
        self.session.end()

    def collect(self) -> None:
        out, self.session.out = self.session.out, []
        self.received += b"".join(out)


class Conversation:
    """Plays a transcript. ``piece_bytes`` 0 sends pieces whole; ``trailing`` puts more behind."""

    def __init__(
        self, transcript: Transcript, data_path: Path, *, piece_bytes: int, trailing: bool
    ) -> None:
        settings = {key: _setting(value) for key, value in transcript.settings.items()}
        config = NsqdConfig(data_path=str(data_path), node_id=617, **settings)  # type: ignore[arg-type]
        self._steps = transcript.steps
        self._piece_bytes = piece_bytes
        self._trailing = trailing
        self._clock = ManualClock()
        self._broker = Broker(
            config, OSFiles(), Random(1), wake=lambda: None, start=self._clock.now()
        )
        self._broker.load(self._clock.now())
        self._clients: dict[int, Client] = {}
        self._ids: dict[str, bytes] = {}
        self._timestamps: dict[bytes, int] = {}
        self._owed: dict[int, bytes] = {}  # the rest of a command begun as trailing data

    def play(self) -> None:
        for index, step in enumerate(self._steps):
            self._take(step, self._steps[index + 1 :])
        self._check_unlisted("at the end")
        self._broker.close()

    def _take(self, step: Step, later: list[Step]) -> None:
        if not isinstance(step, Expect):
            self._check_unlisted(f"before {step}")
        match step:
            case Send(number, template):
                self._send(number, encode(template, self._ids), later)
            case Expect(number, lines):
                self._expect(self._client(number), lines)
            case EndOfStream(number):
                self._client(number).end()
                self._turn()
            case Advance(milliseconds):
                self._clock.advance(milliseconds * MILLISECOND)
                self._turn()
            case Act(method, arguments):
                self._act(method, arguments)
                self._turn()
            case Check(topic, channel, expected):
                self._check(topic, channel, expected)

    def _act(self, method: str, arguments: list[str]) -> None:
        """As a call over HTTP does."""
        act = getattr(self._broker, method)
        if method == "empty_channel":
            act(*arguments, self._clock.now())
        else:
            act(*arguments)

    def _check_unlisted(self, when: str) -> None:
        for client in self._clients.values():
            assert client.received == b"", f"received, but not listed, {when}"
            assert client.session.finished is client.closed, when

    def _client(self, number: int) -> Client:
        if number not in self._clients:
            self._clients[number] = Client(self._broker, self._clock)
        return self._clients[number]

    def _send(self, number: int, data: bytes, later: list[Step]) -> None:
        client = self._client(number)
        if self._trailing:
            data = self._owed.pop(number, b"") + data
            if not _ends_next(number, later):
                data += b"NOP\nNO"
                self._owed[number] = b"P\n"
        step = self._piece_bytes or len(data)
        for at in range(0, len(data), step):
            client.send(data[at : at + step])
            if self._piece_bytes:
                self._turn()
        self._turn()

    def _turn(self) -> None:
        self._broker.turn(self._clock.now())
        for client in self._clients.values():
            client.collect()

    # -- what is received -------------------------------------------------------------------

    def _expect(self, client: Client, lines: list[str]) -> None:
        received, client.received = client.received, b""
        if lines[-1] == "closed":
            lines = lines[:-1]
            client.closed = True
        assert client.session.finished is client.closed, received
        if any(line.startswith("x ") for line in lines):
            assert received == bytes.fromhex("".join(line.removeprefix("x ") for line in lines))
            return
        replies, messages = _split(received)
        wanted = [line for line in lines if not line.startswith("M ")]
        wanted_messages = [line for line in lines if line.startswith("M ")]
        assert replies == [line[:2].encode() + encode(line[2:], self._ids) for line in wanted]
        assert len(messages) == len(wanted_messages), messages
        for line, message in zip(wanted_messages, messages, strict=True):
            self._match(line, message)

    def _match(self, line: str, message: tuple[int, int, bytes, bytes]) -> None:
        timestamp_ns, attempts, message_id, body = message
        name, wanted_attempts, wanted_body = (line + " ").split(" ", 3)[1:]
        assert len(message_id) == 16
        assert message_id.strip(b"0123456789abcdef") == b""
        if name[1:] not in self._ids:
            assert message_id not in self._ids.values(), f"{line}: was received before"
            self._ids[name[1:]] = message_id
            self._timestamps[message_id] = timestamp_ns
        assert (name, message_id) == (name, self._ids[name[1:]])
        assert (name, timestamp_ns) == (name, self._timestamps[message_id])
        assert (name, attempts) == (name, int(wanted_attempts))
        assert body == encode(wanted_body.strip(), {})

    def _check(self, topic: str, channel: str, expected: dict[str, int]) -> None:
        topics = self._broker.stats(topic, channel).topics
        assert topics, f"there is no {topic}/{channel}"
        found = topics[0]
        subject = found.channels[0] if channel else found
        assert {key: getattr(subject, key) for key in expected} == expected


def _setting(value: str) -> object:
    return int(value) if value.isdigit() else value


def _ends_next(number: int, later: list[Step]) -> bool:
    """Whether the next thing that this client does is to end its stream."""
    for step in later:
        if isinstance(step, Send | EndOfStream) and step.client == number:
            return isinstance(step, EndOfStream)
    return False


def _split(received: bytes) -> tuple[list[bytes], list[tuple[int, int, bytes, bytes]]]:
    """Replies and errors with ``R `` or ``E `` before them, and messages."""
    replies: list[bytes] = []
    messages: list[tuple[int, int, bytes, bytes]] = []
    at = 0
    while at < len(received):
        size, kind = (int.from_bytes(received[at + i : at + i + 4], "big") for i in (0, 4))
        data = received[at + 8 : at + 4 + size]
        assert len(data) == size - 4
        if kind == 2:
            timestamp_ns, attempts = int.from_bytes(data[:8], "big"), int.from_bytes(data[8:10])
            messages.append((timestamp_ns, attempts, data[10:26], data[26:]))
        else:
            replies.append((b"R ", b"E ")[kind] + data)
        at += 4 + size
    return replies, messages
