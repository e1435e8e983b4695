"""A cheap load for any daemon that speaks the NSQ protocol: what it costs is what the daemon costs.

Bodies are all of one size, so frames are read and FINs are written by column, without a loop over
messages: this client spends well under 0.1 us a message, and leaves the machine to the daemon.

    python -m benchmarks.load mpub [--seconds=5 ...]
                              mpub      batches, each waiting for its OK
                              pub       one message at a time, waiting for each OK
                              sub       take what is queued; stops early when it runs dry
                              both      mpub and sub at once
                              latency   from publish to handler, at a steady rate
                              http      POST /pub, keep-alive
                              idle      subscribed, and silent but for heartbeats: memory and
                                        processor time of --pid

Each prints one JSON object. With --pid the daemon's own processor time is read too, and given per
message handled: the figure that a busy machine moves least.
"""

import json
import multiprocessing
import os
import queue
import resource
import select
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path

from nsqpy.options import option, parse_flags

__all__ = ["MODES", "Load", "LoadError", "main", "run"]

_HEADER = 34  # size 4, frame type 4, timestamp 8, attempts 2, id 16
_ID_AT = 18
_FIN = b"FIN 0123456789abcdef\n"
# A buffer of the first size is cheap to have for every reply, the second takes messages in bulk.
_REPLY_BYTES, _READ_BYTES = 4096, 1 << 20
_RESPONSE, _ERROR, _MESSAGE = range(3)
_HEARTBEAT = (_RESPONSE, b"_heartbeat_")
# How long to wait for a daemon's reply, and for a worker beyond the time it was to run.
_PATIENCE_S = 30.0

Figures = Mapping[str, float]


class LoadError(Exception):
    """The daemon closed a connection, or refused something; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to do to which daemon."""

    tcp_address: str = option("127.0.0.1:4150", metavar="ADDRESS", help="where the daemon is")
    http_address: str = option("127.0.0.1:4151", metavar="ADDRESS", help="and its HTTP API")
    pid: int = option(0, help="the daemon's process, to read its processor time")
    topic: str = option("load", help="topic to publish to and consume from")
    channel: str = option("ch", help="channel to consume from")
    seconds: float = option(5.0, above=0, help="how long to go on")
    connections: int = option(2, minimum=1, help="of each kind; latency has one of each")
    size: int = option(200, minimum=8, metavar="BYTES", help="of a body")
    batch: int = option(200, minimum=1, help="messages in an MPUB")
    rdy: int = option(2500, minimum=1, help="messages in flight to each consumer")
    rate: float = option(1000.0, above=0, help="messages a second, for latency")
    output_buffer_timeout_ms: int = option(250, minimum=-1, help="asked for, for latency")
    heartbeat_interval_ms: int = option(30_000, minimum=1000, help="asked for, for idle")
    dry_seconds: float = option(1.0, above=0, help="sub stops when nothing came for so long")


# --- a connection ---


class _Connection:
    """A V2 connection that has identified itself, and what it has received."""

    def __init__(self, load: Load, **identify: object) -> None:
        self.socket = _connect(load.tcp_address)
        self._buffer = b""
        body = json.dumps({"client_id": "load", "hostname": "load", **identify}).encode()
        self.send(b"  V2IDENTIFY\n" + struct.pack(">I", len(body)) + body)
        self.read_frame()

    def send(self, data: bytes | bytearray) -> None:
        self.socket.sendall(data)

    def subscribe(self, load: Load, rdy: int) -> None:
        names = (load.topic.encode(), load.channel.encode())
        self.send(b"SUB %s %s\n" % names)
        self.read_frame()
        self.send(b"RDY %d\n" % rdy)

    def receive(self, at_most: int = _REPLY_BYTES) -> None:
        """Wait for bytes. Raises LoadError at the end of the stream, TimeoutError when told to."""
        data = self.socket.recv(at_most)
        if not data:
            raise LoadError("closed by the daemon")
        self._buffer = self._buffer + data if self._buffer else data

    def read_frame(self) -> tuple[int, bytes]:
        while (frame := self.take_frame()) is None:
            self.receive()
        return frame

    def take_frame(self) -> tuple[int, bytes] | None:
        """Type and data of a frame that is here; heartbeats are passed over."""
        while (frame := self._cut_frame()) is not None:
            if frame != _HEARTBEAT:
                return frame
        return None

    def _cut_frame(self) -> tuple[int, bytes] | None:
        """The next frame that is here; a heartbeat has been answered."""
        if len(self._buffer) < 8:
            return None
        size, kind = struct.unpack_from(">II", self._buffer)
        if len(self._buffer) < size + 4:
            return None
        frame = kind, self._buffer[8 : size + 4]
        self._buffer = self._buffer[size + 4 :]
        if frame == _HEARTBEAT:
            self.send(b"NOP\n")
        elif kind == _ERROR:
            raise LoadError(f"the daemon says {frame[1].decode(errors='replace')}")
        return frame

    def answer_heartbeats(self) -> int:
        """Take the frames that come next, none of which is a message; how many were heartbeats."""
        self.receive()
        count = 0
        while (frame := self._cut_frame()) is not None:
            count += frame == _HEARTBEAT
        return count

    def finish_all(self, body_size: int) -> int:
        """FIN every message that is here, each with a body of that size; their number."""
        stride = _HEADER + body_size
        head = struct.pack(">II", stride - 4, _MESSAGE)
        total = 0
        while True:
            count = self._run_length(head, stride)
            if count:
                self._finish_run(count, stride)
                total += count
            elif self._buffer[:8] == head or self._cut_frame() is None:
                return total

    def _run_length(self, head: bytes, stride: int) -> int:
        """How many whole messages are here before any other frame."""
        buffer = self._buffer
        count = len(buffer) // stride
        end = count * stride
        if all(buffer[at:end:stride] == head[at : at + 1] * count for at in range(8)):
            return count
        at = 0
        while buffer[at : at + 8] == head:
            at += stride
        return at // stride

    def _finish_run(self, count: int, stride: int) -> None:
        buffer, end = self._buffer, count * stride
        fins = bytearray(_FIN * count)
        for at in range(16):
            fins[4 + at :: len(_FIN)] = buffer[_ID_AT + at : end : stride]
        self._buffer = buffer[end:]
        self.send(fins)


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
    sock.settimeout(None)  # or each call would begin with a poll
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


# --- what a worker does ---


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one worker did: a name, how many messages, when it ended; and other figures."""

    name: str
    count: int
    ended: float
    figures: Figures = field(default_factory=dict)


# Called when connected: returns the time to stop at, once all workers are.
_Begin = Callable[[], float]
_Part = Callable[[Load, _Begin], _Outcome]


def _publish_batches(load: Load, begin: _Begin) -> _Outcome:
    payload = struct.pack(">I", load.batch) + _sized_body(load) * load.batch
    command = b"MPUB %s\n" % load.topic.encode() + struct.pack(">I", len(payload)) + payload
    return _publish(load, begin, command, load.batch)


def _publish_each(load: Load, begin: _Begin) -> _Outcome:
    return _publish(load, begin, b"PUB %s\n" % load.topic.encode() + _sized_body(load), 1)


def _sized_body(load: Load) -> bytes:
    return struct.pack(">I", load.size) + os.urandom(load.size)


def _publish(load: Load, begin: _Begin, command: bytes, count: int) -> _Outcome:
    """Send ``command``, which publishes ``count``, again and again, waiting for each OK."""
    connection = _Connection(load)
    sent = 0
    deadline = begin()
    while time.monotonic() < deadline:
        connection.send(command)
        connection.read_frame()
        sent += count
    return _Outcome("published", sent, time.monotonic())


def _consume(load: Load, begin: _Begin, *, stop_when_dry: bool = False) -> _Outcome:
    connection = _Connection(load)
    deadline = begin()
    received, last = 0, time.monotonic()
    connection.subscribe(load, load.rdy)
    connection.socket.settimeout(min(load.dry_seconds / 2, 0.5))
    while time.monotonic() < deadline:
        try:
            connection.receive(_READ_BYTES)
        except TimeoutError:
            if stop_when_dry and time.monotonic() - last > load.dry_seconds:
                break
            continue
        count = connection.finish_all(load.size)
        if count:
            received += count
            last = time.monotonic()
    return _Outcome("received", received, last)


def _drain(load: Load, begin: _Begin) -> _Outcome:
    return _consume(load, begin, stop_when_dry=True)


def _latency(load: Load, begin: _Begin) -> _Outcome:
    """One thread for both ends, so that no hand-over between threads is measured."""
    consumer = _Connection(load, output_buffer_timeout=load.output_buffer_timeout_ms)
    consumer.subscribe(load, load.rdy)
    producer = _Connection(load)
    head = b"PUB %s\n" % load.topic.encode() + struct.pack(">I", load.size)
    pad = bytes(load.size - 8)
    samples: list[int] = []
    pending = sent = 0
    deadline = begin()
    start = time.monotonic()
    while (now := time.monotonic()) < deadline or (
        len(samples) < sent and now < deadline + _PATIENCE_S
    ):
        pause = start + sent / load.rate - now if now < deadline else 1.0
        if pause <= 0 and not pending:
            producer.send(head + struct.pack(">q", time.monotonic_ns()) + pad)
            pending, sent = 1, sent + 1
        wait = 1.0 if pending else max(pause, 0)
        readable = select.select([producer.socket, consumer.socket], (), (), wait)[0]
        if consumer.socket in readable:
            _note_arrivals(consumer, samples)
        if producer.socket in readable:
            producer.receive()
            pending -= producer.take_frame() is not None
    if len(samples) < sent:
        raise LoadError(f"{sent - len(samples)} of {sent} messages never came")
    return _Outcome("received", len(samples), time.monotonic(), _quantiles(samples))


def _note_arrivals(consumer: _Connection, samples: list[int]) -> None:
    consumer.receive()
    now_ns = time.monotonic_ns()
    while (frame := consumer.take_frame()) is not None:
        if frame[0] == _MESSAGE:
            consumer.send(b"FIN " + frame[1][10:26] + b"\n")
            (sent_ns,) = struct.unpack_from(">q", frame[1], 26)
            samples.append(now_ns - sent_ns)


def _quantiles(samples_ns: list[int]) -> Figures:
    samples_ns.sort()
    last = len(samples_ns) - 1
    at = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999, "max_us": 1.0}
    return {name: samples_ns[int(last * share)] // 1000 for name, share in at.items()}


def _post(load: Load, begin: _Begin) -> _Outcome:
    sock = _connect(load.http_address)
    body = os.urandom(load.size)
    head = "POST /pub?topic={} HTTP/1.1\r\nHost: load\r\nContent-Length: {}\r\n\r\n"
    request = head.format(load.topic, load.size).encode() + body
    sent = 0
    deadline = begin()
    while time.monotonic() < deadline:
        sock.sendall(request)
        reply = sock.recv(65536)
        if b" 200 " not in reply.split(b"\r\n", 1)[0]:
            raise LoadError(f"the daemon says {reply.decode(errors='replace')}")
        sent += 1
    return _Outcome("published", sent, time.monotonic())


_PARTS: Mapping[str, Sequence[_Part]] = {
    "mpub": [_publish_batches],
    "pub": [_publish_each],
    "sub": [_drain],
    "both": [_publish_batches, _consume],
    "latency": [_latency],
    "http": [_post],
}
MODES = (*_PARTS, "idle")


# --- running workers ---


def run(mode: str, load: Load) -> Figures:
    """Do it, and say how it went.

    Raises:
        LoadError: a worker failed, or said nothing.
    """
    if mode == "idle":
        return _idle(load)
    connections = 1 if mode == "latency" else load.connections
    parts = [part for part in _PARTS[mode] for _ in range(connections)]
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(parts) + 1)
    outcomes: multiprocessing.Queue[_Outcome | str] = context.Queue()
    for part in parts:
        context.Process(target=_work, args=(part, load, barrier, outcomes), daemon=True).start()
    cpu_before_s = process_figures(load.pid)[1] if load.pid else 0.0
    try:
        barrier.wait(_PATIENCE_S)
    except threading.BrokenBarrierError:
        raise LoadError(_first_error(outcomes)) from None
    started = time.monotonic()
    done = _collect(outcomes, len(parts), load.seconds + _PATIENCE_S)
    cpu_s = process_figures(load.pid)[1] - cpu_before_s if load.pid else None
    return _summary(done, started, cpu_s)


def _work(
    part: _Part, load: Load, barrier: Barrier, outcomes: "multiprocessing.Queue[_Outcome | str]"
) -> None:
    def begin() -> float:
        barrier.wait(_PATIENCE_S)
        return time.monotonic() + load.seconds

    try:
        outcomes.put(part(load, begin))
    except threading.BrokenBarrierError:
        outcomes.put("not all workers could begin")
    except (LoadError, OSError) as error:
        outcomes.put(str(error))
        barrier.abort()


def _first_error(outcomes: "multiprocessing.Queue[_Outcome | str]") -> str:
    try:
        return str(outcomes.get(timeout=1))
    except queue.Empty:
        return "the workers could not begin"


def _collect(
    outcomes: "multiprocessing.Queue[_Outcome | str]", count: int, timeout_s: float
) -> list[_Outcome]:
    done = []
    for _ in range(count):
        try:
            outcome = outcomes.get(timeout=timeout_s)
        except queue.Empty:
            raise LoadError("a worker says nothing any more") from None
        if isinstance(outcome, str):
            raise LoadError(outcome)
        done.append(outcome)
    return done


def _summary(done: Sequence[_Outcome], started: float, cpu_s: float | None) -> Figures:
    seconds = max(outcome.ended for outcome in done) - started
    totals: dict[str, int] = {}
    figures: dict[str, float] = {"seconds": round(seconds, 2)}
    for outcome in done:
        totals[outcome.name] = totals.get(outcome.name, 0) + outcome.count
        figures |= outcome.figures
    figures |= totals
    figures |= {f"{name}_per_s": round(count / seconds) for name, count in totals.items()}
    handled = max(totals.values())
    if cpu_s is not None and handled:
        figures["cpu_us_per_message"] = round(1e6 * cpu_s / handled, 2)
    return figures


def process_figures(pid: int) -> tuple[int, float]:
    """Resident memory in kB, and processor time in seconds, of a process."""
    process = Path("/proc") / str(pid)
    status = (process / "status").read_text()
    rss_kb = next(int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line)
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return rss_kb, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _idle(load: Load) -> Figures:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before_kb, _ = process_figures(load.pid)
    started = time.monotonic()
    connections = []
    for _ in range(load.connections):
        connection = _Connection(load, heartbeat_interval=load.heartbeat_interval_ms)
        connection.subscribe(load, 1)
        connections.append(connection)
    opening_s = time.monotonic() - started
    open_kb, cpu_before_s = process_figures(load.pid)
    heartbeats = _answer_heartbeats(connections, load.seconds)
    _, cpu_after_s = process_figures(load.pid)
    return {
        "connections": len(connections),
        "opened_per_s": round(len(connections) / opening_s),
        "kB_per_connection": round((open_kb - before_kb) / len(connections), 2),
        "heartbeats": heartbeats,
        "idle_cpu_percent": round(100 * (cpu_after_s - cpu_before_s) / load.seconds, 1),
    }


def _answer_heartbeats(connections: Sequence[_Connection], seconds: float) -> int:
    """Stay for so long; how many there were."""
    count = 0
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while (left_s := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                count += key.data.answer_heartbeats()
    return count


def main(arguments: Sequence[str]) -> int:
    """Run one load and print its figures; the exit status."""
    mode, flags = (arguments[0], arguments[1:]) if arguments else ("", ())
    if mode not in MODES:
        parse_flags(Load, arguments, "load", intro=__doc__ or "")
        sys.stderr.write(f"load: say first what to do, one of {', '.join(MODES)}\n")
        return 2
    load = parse_flags(Load, flags, f"load {mode}", intro=__doc__ or "")
    if mode == "idle" and not load.pid:
        sys.stderr.write("load: idle needs --pid\n")
        return 2
    try:
        figures = run(mode, load)
    except (LoadError, OSError) as error:
        sys.stderr.write(f"load: {error}\n")
        return 1
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
