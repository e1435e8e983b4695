"""``nsqpy salvage``: what can still be read of files of messages, ours or the original's."""

import base64
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from nsqpy.client.blocking import Producer
from nsqpy.client.options import client_options
from nsqpy.clock import SECOND
from nsqpy.daemon.offline import BadStretch, Batch, Found, message_files, salvage_file
from nsqpy.errors import ConfigError, NSQError
from nsqpy.message import ID_BYTES
from nsqpy.names import is_valid_name
from nsqpy.options import FlagError, option, parse_flags, positional, refuse
from nsqpy.tools.wording import counted
from nsqpy.version import RELEASE

__all__ = ["Record", "main", "records_of"]

_INTRO = """
{program}: print or republish every intact message of a file, whatever happened to it

examples:
  {program} 00000000000000000001.segment
  {program} --bodies orders.diskqueue.000003.dat.bad > orders.txt
  {program} --json /var/lib/nsqpy/queues/orders.topic | jq .body
  {program} --unacknowledged --republish=127.0.0.1:4150 --topic=orders old/queues/orders.topic

It reads segments of nsqpy (.segment, and .bad beside it) and data files of nsqd
(*.diskqueue.*.dat, .dat.bad); of a directory, all that are below it. The files are only read.
Messages go to stdout, one a line: time published, id, deliveries so far, size, body.
Damaged stretches go to stderr, with file, bytes and reason.
Status 0: all was read. 1: something is damaged or cannot be read; what is intact is out all the
same, but for a failed --republish, which says how far it came. 2: wrong flags.
"""

_BATCH_MAX_BYTES = 1024 * 1024
_BATCH_MAX_MESSAGES = 1000
_PREVIEW_BYTES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    json: bool = option(False, help="print each message as a JSON object")
    bodies: bool = option(False, help="print bodies alone, each with a newline behind it")
    republish: str = option("", metavar="ADDRESS", help="publish to the nsqd at host:port instead")
    topic: str = option("", help="topic to republish to")
    unacknowledged: bool = option(
        False, help="leave out what the journal beside a segment says is done with"
    )
    unverified: bool = option(
        False, help="also what looks whole in damaged blocks, without a checksum to prove it"
    )
    max_msg_size: int = option(
        1024 * 1024,
        minimum=1,
        metavar="BYTES",
        help="largest body to believe in, in files of nsqd: they have no checksums",
    )
    paths: tuple[str, ...] = positional("PATH", help="files or directories to read")


class Record(NamedTuple):
    """One message; ``attempts`` is how often it has been delivered, ``deliver_at_ns`` 0 for now."""

    path: str
    offset: int
    id: str
    timestamp_ns: int
    attempts: int
    deliver_at_ns: int
    verified: bool
    body: bytes


_TIMESTAMP = slice(8, 16)
_ATTEMPTS = slice(16, 18)
_ID_AT = 18


def records_of(path: str, found: Found) -> Iterator[Record]:
    """The messages of a batch, one by one."""
    batch: Batch = found.batch
    for index, offset in enumerate(found.offsets):
        frame = batch.frames(index, index + 1)
        yield Record(
            path,
            offset,
            frame[_ID_AT : _ID_AT + ID_BYTES].decode("ascii", "backslashreplace"),
            int.from_bytes(frame[_TIMESTAMP], "big", signed=True),
            (int.from_bytes(frame[_ATTEMPTS], "big") - 1) % 65536,  # stored: the next delivery's
            batch.deliver_at_ns,
            found.verified,
            frame[_ID_AT + ID_BYTES :],
        )


def main(arguments: Sequence[str], program: str) -> int:
    options = parse_flags(_Options, arguments, program, intro=_INTRO, version=f"nsqpy {RELEASE}")
    try:
        _check(options)
        out = _republisher(options, program) if options.republish else _printer(options)
    except ConfigError as error:
        return refuse(error, program)
    tally = _Tally(program)
    try:
        with out as put:
            _salvage_all(options, tally, put)
    except BrokenPipeError:
        # Whoever read the output has seen enough; what is buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except (NSQError, OSError) as error:
        tally.fail(str(error))
    tally.finish("republished" if options.republish else "read")
    return 1 if tally.failed else 0


def _check(options: _Options) -> None:
    if not options.paths:
        raise FlagError("PATH", "", "give at least one file or directory")
    for path in options.paths:
        if path.startswith("-") and not Path(path).exists():
            raise FlagError("PATH", path, f"flags come before the paths: {path}")
    if options.json + options.bodies + bool(options.republish) > 1:
        raise FlagError("--json", "", "--json, --bodies and --republish exclude each other")
    if bool(options.republish) != bool(options.topic):
        raise FlagError("--topic", options.topic, "--republish and --topic go together")
    if options.topic and not is_valid_name(options.topic):
        reason = f'--topic "{options.topic}" is not a valid topic name'
        raise ConfigError("--topic", options.topic, reason)


@dataclass(slots=True)
class _Tally:
    """What came of it, and what to say about that."""

    program: str
    messages: int = 0
    files: int = 0
    damaged: int = 0
    failed: bool = False

    def fail(self, text: str) -> None:
        self.failed = True
        sys.stderr.write(f"{self.program}: {text}\n")

    def damage(self, path: Path, bad: BadStretch) -> None:
        self.damaged += 1
        self.fail(f"{path}: bytes {bad.offset} to {bad.stop} are damaged: {bad.reason}")

    def finish(self, done: str) -> None:
        found = f"{counted(self.messages, 'message')} of {counted(self.files, 'file')}"
        damage = f", {counted(self.damaged, 'damaged stretch')}" if self.damaged else ""
        sys.stderr.write(f"{self.program}: {done} {found}{damage}\n")


_Put = Callable[[list[Record]], None]


def _salvage_all(options: _Options, tally: _Tally, put: _Put) -> None:
    paths = []
    for given in options.paths:
        path = Path(given)
        if path.name.endswith((".journal", ".meta.dat", ".json", "nsqd.dat")):
            sys.stderr.write(f"{tally.program}: {path} holds no messages: passed over\n")
        else:
            paths += message_files(path)
    with _progress(paths) as advance:
        for path in paths:
            tally.files += 1
            try:
                items = salvage_file(
                    path,
                    body_max_bytes=options.max_msg_size,
                    unacknowledged=options.unacknowledged,
                    unverified=options.unverified,
                )
                _salvage(path, items, tally, put, advance)
            except _Unreadable as error:
                tally.fail(f"{path}: {error}")


class _Unreadable(Exception):
    """A file cannot be read; unlike an output that fails, this does not end the run."""


def _salvage(
    path: Path,
    items: Iterator[Found | BadStretch],
    tally: _Tally,
    put: _Put,
    advance: Callable[[Path, int], None],
) -> None:
    while True:
        try:
            item = next(items, None)
        except OSError as error:
            raise _Unreadable(error.strerror or str(error)) from error
        if item is None:
            break
        if isinstance(item, BadStretch):
            tally.damage(path, item)
            continue
        records = list(records_of(str(path), item))
        put(records)
        tally.messages += len(records)
        advance(path, records[-1].offset)


# --- where messages go ---


@contextlib.contextmanager
def _printer(options: _Options) -> Iterator[_Put]:
    shape = _as_json if options.json else _as_body if options.bodies else _as_line
    out = sys.stdout.buffer

    def put(records: list[Record]) -> None:
        out.write(b"".join(map(shape, records)))

    yield put
    out.flush()


def _as_body(record: Record) -> bytes:
    return record.body + b"\n"


def _as_json(record: Record) -> bytes:
    document: dict[str, object] = record._asdict()
    del document["body"]
    try:
        document["body"] = record.body.decode()
    except UnicodeDecodeError:
        document["body_base64"] = base64.b64encode(record.body).decode()
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _as_line(record: Record) -> bytes:
    seconds, rest_ns = divmod(record.timestamp_ns, SECOND)
    try:
        published = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"
    except (OverflowError, ValueError, OSError):
        published = f"{record.timestamp_ns} ns"
    text = record.body[:_PREVIEW_BYTES].decode(errors="replace")
    preview = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    more = "..." if len(record.body) > _PREVIEW_BYTES else ""
    fields = (published, record.id, str(record.attempts), str(len(record.body)))
    return f"{'  '.join(fields)}  {preview}{more}\n".encode()


@contextlib.contextmanager
def _publishing(producer: Producer, topic: str) -> Iterator[_Put]:
    waiting: list[bytes] = []

    def publish() -> None:
        if waiting:
            producer.publish_many(topic, waiting)
            waiting.clear()

    def put(records: list[Record]) -> None:
        size = sum(map(len, waiting))
        for record in records:
            if waiting and (
                len(waiting) == _BATCH_MAX_MESSAGES or size + len(record.body) > _BATCH_MAX_BYTES
            ):
                publish()
                size = 0
            waiting.append(record.body)
            size += len(record.body)
        # Each call ends with an OK, so that the number told in the end is that of OKs.
        publish()

    with producer:
        yield put


def _republisher(options: _Options, program: str) -> contextlib.AbstractContextManager[_Put]:
    effective = client_options({"user_agent": f"{program.replace(' ', '-')}/{RELEASE}"})
    return _publishing(Producer(options.republish, options=effective), options.topic)


@contextlib.contextmanager
def _progress(paths: Sequence[Path]) -> Iterator[Callable[[Path, int], None]]:
    """A bar on stderr, if that is a terminal and stdout is not."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda path, offset: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        sizes = {path: path.stat().st_size for path in paths if path.exists()}
        task = bar.add_task("salvaging", total=sum(sizes.values()))
        reached = dict.fromkeys(paths, 0)

        def advance(path: Path, offset: int) -> None:
            reached[path] = offset
            bar.update(task, completed=sum(reached.values()))

        yield advance
