r"""Conversations with the daemon, as text.

A file holds transcripts; each starts with a line ``= title``. Then, line by line::

    @ max_rdy_count=10      settings, before anything else
    > SUB t c\n             what the client sends; lines in a row are one piece
    < R OK                  a response frame that it gets
    < E E_INVALID ...       an error frame
    < M $a 1 hello          a message frame: id, attempts and body
    < x 00 00 00 06 ...     exactly these bytes, in hexadecimal
    < closed                the connection ends here
    eof                     the client will send no more
    + 60000                 milliseconds go by
    ! pause_channel t c     what an operator does over HTTP
    ? t/c depth=1           what ``/stats`` says of a channel, or of a topic
    2> ... and 2< ...       the same for a second client, a third and so on

In what is sent and in bodies, ``\n \r \t \\ \xNN`` are bytes, ``{5}`` is an int32, ``{x*100}`` is
a character repeated, ``[[...]]`` is an int32 size and what it counts, ``$a`` is the id of a message
that came before. An id is bound where it is first received; from then on it has to be the same,
and so has the timestamp that came with it.

All that is received between two things a client does has to be listed: replies and errors in their
order, messages in theirs. How the two mix is left open, as it is in the protocol.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "Act",
    "Advance",
    "Check",
    "EndOfStream",
    "Expect",
    "Send",
    "Step",
    "Transcript",
    "encode",
    "read_transcripts",
]


@dataclass(frozen=True)
class Send:
    """``template`` is encoded when the ids in it are known."""

    client: int
    template: str


@dataclass(frozen=True)
class Expect:
    client: int
    lines: list[str]


@dataclass(frozen=True)
class EndOfStream:
    client: int


@dataclass(frozen=True)
class Advance:
    milliseconds: int


@dataclass(frozen=True)
class Act:
    method: str
    arguments: list[str]


@dataclass(frozen=True)
class Check:
    topic: str
    channel: str
    expected: dict[str, int]


Step = Send | Expect | EndOfStream | Advance | Act | Check


@dataclass(frozen=True)
class Transcript:
    title: str
    where: str
    settings: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}
_PIECE = re.compile(
    r"\\(?P<escape>[nrt\\])|\\x(?P<hex>[0-9a-f]{2})|\{(?P<int32>-?\d+)\}"
    r"|\{(?P<repeated>.)\*(?P<times>\d+)\}|\$(?P<id>[a-z])|(?P<open>\[\[)|(?P<close>\]\])|."
)
_TALK = re.compile(r"(\d*)([<>]) (.*)")


def encode(template: str, ids: dict[str, bytes]) -> bytes:
    """The bytes that ``template`` stands for."""
    levels = [bytearray()]
    for found in _PIECE.finditer(template):
        piece = found.groupdict()
        if piece["open"]:
            levels.append(bytearray())
            continue
        if piece["close"]:
            inner = levels.pop()
            levels[-1] += len(inner).to_bytes(4, "big") + inner
        else:
            levels[-1] += _piece(piece, found[0], ids)
    (data,) = levels
    return bytes(data)


def _piece(piece: dict[str, str | None], whole: str, ids: dict[str, bytes]) -> bytes:
    match piece:
        case {"escape": str(name)}:
            return _ESCAPES[name]
        case {"hex": str(digits)}:
            return bytes.fromhex(digits)
        case {"int32": str(digits)}:
            return int(digits).to_bytes(4, "big", signed=True)
        case {"repeated": str(character), "times": str(digits)}:
            return character.encode() * int(digits)
        case {"id": str(name)}:
            return ids[name]
        case _:
            return whole.encode()


def read_transcripts(directory: Path) -> list[Transcript]:
    return [
        transcript
        for path in sorted(directory.glob("*.txt"))
        for transcript in _read(path.name, path.read_text())
    ]


def _read(name: str, text: str) -> Iterator[Transcript]:
    transcript: Transcript | None = None
    for line_number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("= "):
            if transcript is not None:
                yield transcript
            transcript = Transcript(line[2:], f"{name}:{line_number}")
        elif line and not line.startswith("#"):
            assert transcript is not None, f"{name} starts without a title"
            _add(transcript, line, f"{name}:{line_number}")
    if transcript is not None:
        yield transcript


def _add(transcript: Transcript, line: str, where: str) -> None:
    kind, _, rest = line.partition(" ")
    steps = transcript.steps
    talk = _TALK.fullmatch(line)
    if talk:
        client, direction, content = int(talk[1] or 1), talk[2], talk[3]
        last = steps[-1] if steps else None
        if direction == "<":
            if not isinstance(last, Expect) or last.client != client:
                last = Expect(client, [])
                steps.append(last)
            last.lines.append(content)
        elif isinstance(last, Send) and last.client == client:
            steps[-1] = Send(client, last.template + content)
        else:
            steps.append(Send(client, content))
    elif kind == "@":
        for setting in rest.split():
            name, _, value = setting.partition("=")
            transcript.settings[name] = value
    elif kind == "+":
        steps.append(Advance(int(rest)))
    elif kind == "!":
        method, *arguments = rest.split()
        steps.append(Act(method, arguments))
    elif kind == "?":
        subject, *expected = rest.split()
        topic, _, channel = subject.partition("/")
        values = {key: int(value) for key, value in (item.split("=") for item in expected)}
        steps.append(Check(topic, channel, values))
    elif kind.endswith("eof"):
        steps.append(EndOfStream(int(kind[:-3] or 1)))
    else:
        raise AssertionError(f"{where}: what is {line!r}?")
