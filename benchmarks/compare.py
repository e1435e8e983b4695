"""The daemon against the yardstick, by turns, on this machine: what ``make bench`` runs.

A rate by itself means little on a machine that others use. So both are given the same loads, one
after the other, and what counts is the ratio within a round; several rounds give a median.

    python -m benchmarks.compare [--rounds=3] [--seconds=2] [--durability=disk] [--json]
    python -m benchmarks.compare --durability=disk --against=memory

Yardstick: ``benchmarks/yardstick.py``. Loads: ``benchmarks/load.py``.
"""

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.load import Figures
from nsqpy.config import Durability
from nsqpy.options import one_of, option, parse_flags

__all__ = ["DAEMON", "WORKS", "YARDSTICK", "BenchmarkError", "Target", "Work", "main"]

_ROOT = Path(__file__).resolve().parents[1]
_LISTENING = re.compile(r"\b(TCP|HTTP): listening on (\S+)")
_START_SECONDS = 20.0
_LOG_LINES = 40
_TABLE_WIDTH = 96
_TOPIC = "bench"
YARDSTICK, DAEMON = "yardstick", "nsqpy"


class BenchmarkError(Exception):
    """No figures: the text says why, and shows the log of what failed."""


@dataclass(frozen=True, slots=True)
class Work:
    """One load, and which of its figures is the rate; none for latency."""

    name: str
    mode: str
    rate: str
    connections: int = 2
    yardstick_can: bool = True


# Everything that is published is drained before the next work, but for mpub: sub takes that.
WORKS = (
    Work("mpub", "mpub", "published_per_s"),
    Work("sub", "sub", "received_per_s"),
    Work("pub, 2 connections", "pub", "published_per_s"),
    Work("pub, 16 connections", "pub", "published_per_s", connections=16),
    Work("both", "both", "received_per_s"),
    Work("latency", "latency", ""),
    Work("http, 8 connections", "http", "published_per_s", 8, yardstick_can=False),
)
_MODES = ", ".join(dict.fromkeys(work.mode for work in WORKS))


def _parse_mode(raw: str) -> str:
    if raw not in _MODES.split(", "):
        raise ValueError(f"must be one of {_MODES}")
    return raw


def _parse_against(raw: str) -> str:
    if raw not in (YARDSTICK, *Durability):
        raise ValueError(f"must be {YARDSTICK} or one of {', '.join(Durability)}")
    return raw


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    rounds: int = option(3, minimum=1, help="how many times each does everything")
    seconds: float = option(2.0, above=0, help="how long each load lasts")
    durability: Durability = option(  # noqa: RUF009 - it makes a dataclass field
        Durability.DISK, parse=one_of(Durability), metavar="LEVEL", help="the daemon's"
    )
    against: str = option(
        "yardstick",
        parse=_parse_against,
        metavar="LEVEL",
        help="what it is compared with: the yardstick, or the daemon at another durability",
    )
    flag: tuple[str, ...] = option(
        (), metavar="FLAG", help="one more for every daemon (repeatable): --flag=--mem-queue-size=0"
    )
    work: tuple[str, ...] = option(
        (), parse=_parse_mode, metavar="MODE", help=f"only this (repeatable): {_MODES}"
    )
    json: bool = option(False, help="print the figures of every round instead of tables")

    def servers(self) -> tuple[str, str]:
        """The one compared with, and the daemon."""
        return self.against, DAEMON if self.against == YARDSTICK else self.durability.value

    def works(self) -> list[Work]:
        """What to do; mpub and sub go together."""
        chosen = {*self.work}
        if chosen & {"mpub", "sub"}:
            chosen |= {"mpub", "sub"}
        return [work for work in WORKS if not chosen or work.mode in chosen]


_CPU = "cpu_us_per_message"
_LATENCIES = ("p50_us", "p99_us")

# Figures by work and by who did it, for one round.
Round = Mapping[str, Mapping[str, Figures]]


class Target:
    """A server under load: a child process whose log is kept."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes]
        self._addresses: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._command],
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stderr=log,
                # Ctrl-C is ours: we stop it.
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_listening(self, *listeners: str) -> None:
        """Raises BenchmarkError when it ends first, or takes too long."""
        deadline = time.monotonic() + _START_SECONDS
        while not self._addresses.keys() >= set(listeners):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(self._told("does not listen"))
            time.sleep(0.02)
            self._addresses = dict(_LISTENING.findall(self._log.read_text(errors="replace")))

    def load(self, work: Work, seconds: float, *flags: str) -> Figures:
        """One load, in a process of its own.

        Raises:
            BenchmarkError: the load failed, or this server ended.
        """
        command = [sys.executable, "-m", "benchmarks.load", work.mode]
        command += [f"--{who.lower()}-address={at}" for who, at in self._addresses.items()]
        command += [f"--pid={self.pid}", f"--topic={_TOPIC}", f"--seconds={seconds:g}"]
        command += [f"--connections={work.connections}", *flags]
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        if self._process.poll() is not None:
            raise BenchmarkError(self._told(f"ended with {self._process.returncode}"))
        if done.returncode:
            raise BenchmarkError(self._told(f"failed at {work.name}: {done.stderr.strip()}"))
        figures: dict[str, float] = json.loads(done.stdout)
        return figures

    def _told(self, what: str) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join([f"{self.name} {what}", f"--- log of {self.name}", *lines])


# --- measuring ---


def _measure(options: _Options, say: Callable[[str], None]) -> list[Round]:
    with tempfile.TemporaryDirectory(prefix="nsqpy-bench-") as scratch, ExitStack() as stack:
        targets = []
        for name in options.servers():
            place = Path(scratch) / name
            place.mkdir()
            command = ["benchmarks.yardstick"]
            if name != YARDSTICK:
                level = options.durability.value if name == DAEMON else name
                command = _daemon_command(place, level, options.flag)
            target = Target(name, command, Path(scratch) / f"{name}.log")
            listeners = ["TCP"] if name == YARDSTICK else ["TCP", "HTTP"]
            stack.enter_context(target).wait_listening(*listeners)
            _drain(target, 0.2)  # makes the channel
            targets.append(target)
        rounds: list[Round] = []
        for number in range(options.rounds):
            # Who goes first changes, so that neither always profits from what went before.
            order = targets if number % 2 == 0 else targets[::-1]
            works = {}
            for work in options.works():
                say(f"round {number + 1} of {options.rounds}: {work.name}")
                works[work.name] = {
                    target.name: _do(target, work, options.seconds)
                    for target in order
                    if work.yardstick_can or target.name != YARDSTICK
                }
            rounds.append(works)
        return rounds


def _daemon_command(place: Path, level: str, flags: Sequence[str]) -> list[str]:
    return [
        *("nsqpy", "nsqd", "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"),
        *(f"--data-path={place}", f"--durability={level}", *flags),
    ]


def _do(target: Target, work: Work, seconds: float) -> Figures:
    figures = target.load(work, seconds)
    if work.mode not in ("mpub", "latency"):
        _drain(target, 120.0)
    return figures


def _drain(target: Target, at_most_s: float) -> None:
    work = Work("draining", "sub", "")
    target.load(work, at_most_s, "--dry-seconds=0.1")


# --- showing ---


def _medians(
    rounds: Sequence[Round], servers: tuple[str, str], work: Work, figure: str
) -> dict[str, float]:
    """Of each server, and of the ratios in each round; what was not measured is left out."""
    seen = [one[work.name] for one in rounds]
    found = {
        name: median(one[name][figure] for one in seen)
        for name in servers
        if all(figure in one.get(name, ()) for one in seen)
    }
    base, daemon = servers
    if len(found) == 2 and all(one[base][figure] for one in seen):
        ratios = sorted(one[daemon][figure] / one[base][figure] for one in seen)
        found |= {"ratio": median(ratios), "lowest": ratios[0], "highest": ratios[-1]}
    return found


def _rows(
    rounds: Sequence[Round], options: _Options
) -> Iterator[tuple[str, str, str, dict[str, float]]]:
    """Work, what is measured, how it is written, medians."""
    servers = options.servers()
    for work in options.works():
        if work.rate:
            yield work.name, "messages/s", ",.0f", _medians(rounds, servers, work, work.rate)
            yield work.name, "CPU us each", ".2f", _medians(rounds, servers, work, _CPU)
        else:
            for figure in _LATENCIES:
                shown = figure.replace("_us", ", us")
                yield work.name, shown, ",.0f", _medians(rounds, servers, work, figure)


def _table(rounds: Sequence[Round], options: _Options) -> Table:
    table = Table(
        title=f"medians of {len(rounds)} rounds of {options.seconds:g} s, 200 bytes a message, "
        f"--durability={options.durability.value}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("work", no_wrap=True)
    table.add_column("figure")
    for heading in (*options.servers(), "ratio", "from - to"):
        table.add_column(heading, justify="right")
    last = ""
    for work, figure, form, medians in _rows(rounds, options):
        cells = [format(medians[key], form) if key in medians else "-" for key in options.servers()]
        if "ratio" in medians:
            cells.append(f"{medians['ratio']:.2f}")
            cells.append(f"{medians['lowest']:.2f} - {medians['highest']:.2f}")
        table.add_row(work if work != last else "", figure, *cells)
        last = work
    return table


def _as_json(rounds: Sequence[Round], options: _Options, others: float) -> str:
    medians: dict[str, dict[str, dict[str, float]]] = {}
    for work, figure, _, found in _rows(rounds, options):
        medians.setdefault(work, {})[figure] = found
    return json.dumps(
        {
            "seconds": options.seconds,
            "durability": options.durability.value,
            "against": options.against,
            "processors": os.cpu_count(),
            "used_by_others": round(others, 3),
            "medians": medians,
            "rounds": rounds,
        },
        indent=1,
    )


class _Bystanders:
    """How busy the machine was with something else since this was made."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._others_before_s = self._others_s()

    def share(self) -> float:
        """Of all processors, 0 to 1. To be asked when our own children have ended."""
        seconds = (time.monotonic() - self._started) * (os.cpu_count() or 1)
        return max(0.0, (self._others_s() - self._others_before_s) / seconds)

    @staticmethod
    def _others_s() -> float:
        user, nice, system = Path("/proc/stat").read_text().split()[1:4]
        busy_s = (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")
        whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        used = [resource.getrusage(who) for who in whose]
        return busy_s - sum(usage.ru_utime + usage.ru_stime for usage in used)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; the exit status."""
    options = parse_flags(_Options, arguments, "compare", intro=__doc__ or "")
    notes = Console(stderr=True)
    bystanders = _Bystanders()
    try:
        with notes.status("starting") as status:
            rounds = _measure(options, status.update)
    except BenchmarkError as error:
        notes.print(str(error), markup=False, highlight=False)
        return 1
    others = bystanders.share()
    if options.json:
        sys.stdout.write(_as_json(rounds, options, others) + "\n")
        return 0
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)  # into a file too, where it would be 80
    console.print(_table(rounds, options))
    console.print(
        f"{os.cpu_count()} processors, shared with the load; something else used {others:.0%} "
        "of them.\nRead the ratios, not the rates.",
        highlight=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
