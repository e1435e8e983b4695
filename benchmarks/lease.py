"""How long a daemon's loop stands still while a large lease is taken, read, put back and committed.

    python -m benchmarks.lease [--messages=5000000] [--cold] [--durability=disk]

Starts a daemon that watches its own loop, gives it a backlog, and has two leases of all of it: the
first is read and released, the second is read and committed. Prints one JSON object: how many
seconds each stage took, and in milliseconds the longest round of the loop

    wall_ms   from its begin to its end
    own_ms    the same without the time in which other processes had the processor (Linux tells):
              what the daemon computed, and what it waited for
    cpu_ms    what it computed
    over_10   how many rounds took more than 10 ms of their own

In the stage "idle" the daemon has nothing to do: what stands there is the machine's doing, and in
the other stages too. With --cold the page cache forgets the files before each stage, so that the
disk is read.
"""

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nsqpy.config import Durability, NsqdConfig
from nsqpy.daemon.app import Nsqd
from nsqpy.logs import configure
from nsqpy.net.runner import run
from nsqpy.options import one_of, option, parse_flags

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[1]
_LISTENING = re.compile(r"HTTP: listening on \S+:(\d+)")
_SERVE = "serve"  # what the daemon's process is started with
_BATCH = 4000
_NOTED_NS = 200_000  # shorter rounds are not told of
_NOTED_MAX = 1_000_000
_LONG_MS = 10.0
_PATIENCE_S = 120.0
_SETTLED_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    messages: int = option(5_000_000, minimum=_BATCH, help="how many are leased at once")
    size: int = option(200, minimum=1, help="bytes of a body")
    durability: Durability = option(  # noqa: RUF009 - it makes a dataclass field
        Durability.DISK, parse=one_of(Durability), metavar="LEVEL", help="the daemon's"
    )
    cold: bool = option(False, help="have the page cache forget the files before each stage")


# --- the daemon, in a process of its own ---


class _Round(NamedTuple):
    """A round of the loop, in nanoseconds; ``ended_ns`` by the clock that all processes share."""

    ended_ns: int
    wall_ns: int
    own_ns: int
    cpu_ns: int


class _Watch:
    """A callback in every round of the loop, which therefore never sleeps: what a round takes is
    what anybody waits who comes at its beginning."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waited_ns = _waited_clock()
        self._last = self._now()
        self.rounds: list[_Round] = []

    def _now(self) -> tuple[int, int, int]:
        return time.monotonic_ns(), time.thread_time_ns(), self._waited_ns()

    def beat(self) -> None:
        self._loop.call_soon(self.beat)
        last, now = self._last, self._now()
        self._last = now
        wall_ns = now[0] - last[0]
        if wall_ns > _NOTED_NS and len(self.rounds) < _NOTED_MAX:
            own_ns = wall_ns - (now[2] - last[2])
            self.rounds.append(_Round(now[0], wall_ns, own_ns, now[1] - last[1]))


def _waited_clock() -> Callable[[], int]:
    """How long this thread has waited for a processor that others had, in nanoseconds; always 0
    where the system does not tell."""
    try:
        fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return lambda: 0
    return lambda: int(os.pread(fd, 64, 0).split()[1])


def _serve(data_path: Path, durability: str) -> int:
    """Run the daemon until SIGTERM, then print its rounds, a line each."""
    configure("info", "[nsqd] ")
    config = NsqdConfig(
        data_path=str(data_path),
        durability=Durability(durability),
        tcp_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
    )
    watches: list[_Watch] = []

    async def make() -> Nsqd:
        watch = _Watch(asyncio.get_running_loop())
        watches.append(watch)
        watch.beat()
        return Nsqd(config, socket.gethostname())

    code = run(make)
    for watch in watches:
        sys.stdout.writelines(json.dumps(one) + "\n" for one in watch.rounds)
    return code


# --- the stages ---


class _Client:
    """The calls of one job, on one connection; any refusal ends the benchmark."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)

    def call(self, method: str, target: str, body: bytes | None = None) -> bytes:
        self._connection.request(method, target, body)
        reply = self._connection.getresponse()
        data = reply.read()
        if reply.status != 200:
            raise SystemExit(f"{method} {target}: {reply.status} {data[:200]!r}")
        return data

    def publish(self, count: int, size: int) -> None:
        record = struct.pack(">I", size) + bytes(size)
        for first in range(0, count, _BATCH):
            some = min(_BATCH, count - first)
            self.call("POST", "/mpub?topic=t&binary=true", struct.pack(">I", some) + record * some)

    def create(self, lease_id: str, count: int) -> None:
        target = f"/lease/create?topic=t&channel=c&id={lease_id}&max_messages={count}"
        lease = json.loads(self.call("POST", target, b""))
        if lease["count"] != count:
            raise SystemExit(f"a lease of {lease['count']} messages instead of {count}")

    def read(self, lease_id: str) -> None:
        self._connection.request("GET", f"/lease/read?id={lease_id}")
        reply = self._connection.getresponse()
        while reply.read(1 << 20):
            pass

    def end(self, verb: str, lease_id: str, depth: int) -> None:
        """Returns when all has gone where it is to go."""
        self.call("POST", f"/lease/{verb}?id={lease_id}", b"")
        deadline_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline_s:
            stats: dict[str, Any] = json.loads(self.call("GET", "/stats?format=json&topic=t"))
            channel = stats["topics"][0]["channels"][0]
            if channel["depth"] == depth and not channel.get("leased_count"):
                return
            time.sleep(0.05)
        raise SystemExit(f"waited {_PATIENCE_S:g} s for {verb} to end")


def _forget_pages(data_path: Path) -> None:
    for path in data_path.rglob("*.segment"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _daemon(data_path: Path, durability: Durability, out: Path) -> Iterator[int]:
    """The port of its HTTP API; in the end its rounds are in ``out``."""
    command = [sys.executable, "-m", "benchmarks.lease", _SERVE, str(data_path), durability.value]
    log = out.with_suffix(".log")
    with (
        out.open("wb") as rounds,
        log.open("wb") as told,
        subprocess.Popen(command, cwd=_ROOT, stdout=rounds, stderr=told) as process,
    ):
        try:
            deadline_s = time.monotonic() + _PATIENCE_S
            while (found := _LISTENING.search(log.read_text())) is None:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise SystemExit(f"the daemon did not start: {log.read_text()}")
                time.sleep(0.02)
            yield int(found[1])
            process.send_signal(signal.SIGTERM)
            process.wait(_PATIENCE_S)
        finally:
            process.kill()


class _Stages:
    """What was done when, by the clock that all processes share."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._prepare = prepare
        self._times: dict[str, tuple[int, int]] = {}

    def run(self, name: str, act: Callable[[], None]) -> None:
        """What the daemon still does by itself a moment later counts too."""
        self._prepare()
        began_ns = time.monotonic_ns()
        act()
        ended_ns = time.monotonic_ns()
        time.sleep(_SETTLED_S)
        self._times[name] = began_ns, ended_ns

    def figures(self, rounds: Sequence[_Round]) -> dict[str, dict[str, float]]:
        shown: dict[str, dict[str, float]] = {}
        for name, (began_ns, ended_ns) in self._times.items():
            until_ns = ended_ns + int(_SETTLED_S * 1e9)
            during = [one for one in rounds if began_ns <= one.ended_ns <= until_ns]
            shown[name] = {
                "seconds": round((ended_ns - began_ns) / 1e9, 2),
                "wall_ms": _longest_ms(one.wall_ns for one in during),
                "own_ms": _longest_ms(one.own_ns for one in during),
                "cpu_ms": _longest_ms(one.cpu_ns for one in during),
                "over_10": sum(one.own_ns > _LONG_MS * 1e6 for one in during),
            }
        return shown


def _longest_ms(durations_ns: Iterator[int]) -> float:
    return round(max(durations_ns, default=0) / 1e6, 1)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) == 3 and arguments[0] == _SERVE:
        return _serve(Path(arguments[1]), arguments[2])
    options = parse_flags(_Options, arguments, "python -m benchmarks.lease", intro=__doc__ or "")
    with tempfile.TemporaryDirectory(prefix="nsqpy-lease-") as scratch:
        data_path, out = Path(scratch) / "data", Path(scratch) / "rounds"
        data_path.mkdir()
        stages = _Stages(lambda: _forget_pages(data_path) if options.cold else None)
        with _daemon(data_path, options.durability, out) as port:
            _do_all(_Client(port), options, stages)
        rounds = [_Round(*json.loads(line)) for line in out.read_text().splitlines()]
    figures = stages.figures(rounds)
    how = {"messages": options.messages, "durability": options.durability.value}
    sys.stdout.write(json.dumps({**how, "cold": options.cold, **figures}) + "\n")
    return 0


def _do_all(client: _Client, options: _Options, stages: _Stages) -> None:
    count = options.messages
    client.call("POST", "/topic/create?topic=t", b"")
    client.call("POST", "/channel/create?topic=t&channel=c", b"")
    client.publish(count, options.size)
    stages.run("idle", lambda: time.sleep(_SETTLED_S))
    stages.run("create", lambda: client.create("first", count))
    stages.run("read", lambda: client.read("first"))
    stages.run("release", lambda: client.end("release", "first", count))
    stages.run("create again", lambda: client.create("second", count))
    stages.run("read again", lambda: client.read("second"))
    stages.run("commit", lambda: client.end("commit", "second", 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
