"""The demo: 336,776 real flights through one daemon, three times, every count checked.

It starts ``nsqpy nsqd`` in a temporary directory on free ports, publishes the flights as JSON
over HTTP (``/mpub``), and consumes them over TCP on two channels at once: ``archive`` by
``nsqpy.Consumer``, ``metrics`` by ansq, a client that this project did not write. Then a Spark job
drains the third channel, ``lake``, and its mean delays are compared with the data set's own.
``make demo`` runs it; it leaves behind the job's Parquet and a chart, in ``OUT``, and nothing else.

    python -m examples.flights [COUNT [OUT]]

``COUNT`` takes only that many flights, for a quick look; ``OUT`` is demo-output by default.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from examples.flights_data import FLIGHTS, Delays, Tally, read_flights
from examples.flights_lake import LakeError, LakeResult, drain_lake
from nsqpy import Consumer
from nsqpy.client.message import Message
from nsqpy.version import RELEASE

__all__ = ["main"]

TOPIC = "flights"
ARCHIVE, METRICS, LAKE, PUBLISH = "archive", "metrics", "lake", "publish"
BATCH = 1_000
MAX_IN_FLIGHT = 2_500
START_SECONDS = 20.0
STALL_SECONDS = 20.0

_ROOT = Path(__file__).resolve().parents[1]
_LISTENING = re.compile(r"\b(TCP|HTTP): listening on (\S+)")


class DemoError(Exception):
    """The demo did not come out right; the text says how."""


@dataclass(slots=True)
class Result:
    """What one side of the queue handled, and how long that took."""

    tally: Tally
    seconds: float

    @property
    def rate(self) -> float:
        return self.tally.total / max(self.seconds, 1e-9)


class Board:
    """Shows how far each of the three has come: bars on a terminal, a few plain lines elsewhere."""

    def __init__(self, console: Console, total: int) -> None:
        self.counts = {PUBLISH: 0, ARCHIVE: 0, METRICS: 0}
        self._console = console
        self._total = total
        self._bars = Progress(
            TextColumn("  {task.description:<26}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._bars.add_task(text, total=total)
            for name, text in (
                (PUBLISH, "publish  HTTP /mpub"),
                (ARCHIVE, "archive  nsqpy.Consumer"),
                (METRICS, "metrics  ansq"),
            )
        }

    def __enter__(self) -> "Board":
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def update(self, name: str, count: int) -> None:
        quarter = max(1, self._total // 4)
        if not self._console.is_terminal and count // quarter > self.counts[name] // quarter:
            self._console.print(f"  {name:<8} {count:>9,} of {self._total:,}")
        self.counts[name] = count
        self._bars.update(self._tasks[name], completed=count)


@dataclass(frozen=True, slots=True)
class Daemon:
    """Where a running ``nsqpy nsqd`` listens."""

    tcp_address: str
    http_address: str


@contextlib.asynccontextmanager
async def running_daemon(data_path: Path) -> AsyncIterator[Daemon]:
    """The daemon on free ports, stopped gracefully at the end.

    Raises:
        DemoError: it did not start, or did not stop in order. One that is raised within gets
            the end of the daemon's log as a note.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nsqpy", "nsqd", f"--data-path={data_path}"),
        *("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"),
        cwd=_ROOT,
        stderr=asyncio.subprocess.PIPE,
        # Ctrl-C is ours: we stop the daemon in order.
        start_new_session=True,
    )
    log: deque[str] = deque(maxlen=20)
    addresses: dict[str, str] = {}
    listening = asyncio.Event()

    async def follow() -> None:
        assert process.stderr is not None
        async for raw in process.stderr:
            line = raw.decode(errors="replace")
            log.append(line)
            addresses.update(_LISTENING.findall(line))
            if len(addresses) == 2:
                listening.set()
        listening.set()

    following = asyncio.create_task(follow())
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(listening.wait(), START_SECONDS)
        if len(addresses) < 2:
            raise DemoError("the daemon did not start")
        yield Daemon(addresses["TCP"], addresses["HTTP"])
        process.terminate()
        code = await asyncio.wait_for(process.wait(), START_SECONDS)
        if code:
            raise DemoError(f"the daemon stopped with exit code {code}")
    except DemoError as error:
        error.add_note("the daemon's log ends:\n" + "".join(log))
        raise
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await following


async def post(
    http: aiohttp.ClientSession, path: str, params: dict[str, str], body: bytes = b""
) -> None:
    async with http.post(path, params=params, data=body) as reply:
        if reply.status != 200:
            raise DemoError(f"POST {path}: {reply.status} {await reply.text()}")


async def publish(http: aiohttp.ClientSession, flights: list[bytes], board: Board) -> float:
    """POST the flights in batches, one flight a line, and return how long that took."""
    started = time.monotonic()
    for first in range(0, len(flights), BATCH):
        body = b"\n".join(flights[first : first + BATCH])
        await post(http, "/mpub", {"topic": TOPIC}, body)
        board.update(PUBLISH, min(first + BATCH, len(flights)))
    return time.monotonic() - started


async def archive(address: str, count: int, board: Board) -> Result:
    """Consume the channel with this project's own client, in batches."""
    tally = Tally()
    started = 0.0
    complete = asyncio.Event()

    def handle(messages: list[Message]) -> None:
        nonlocal started
        started = started or time.monotonic()
        tally.add_json(message.body for message in messages)
        board.update(ARCHIVE, tally.total)
        if tally.total >= count:
            complete.set()

    async with Consumer(
        TOPIC, ARCHIVE, batch_handler=handle, nsqd=address, max_in_flight=MAX_IN_FLIGHT
    ):
        await complete.wait()
        return Result(tally, time.monotonic() - started)


async def metrics(address: str, count: int, board: Board) -> Result:
    """Consume the channel with somebody else's client, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.flights_metrics"),
        *(address, TOPIC, METRICS, str(count)),
        cwd=_ROOT,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            said = json.loads(line)
            board.update(METRICS, said["count"])
            if "tally" in said:
                await process.wait()
                return Result(Tally.from_fields(said["tally"]), said["seconds"])
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    raise DemoError(f"the other client ended with {process.returncode} before it was done")


async def watch(board: Board) -> None:
    """Fail once nothing has moved for a while; better than a demo that hangs."""
    seen: dict[str, int] = {}
    while seen != board.counts:
        seen = dict(board.counts)
        await asyncio.sleep(STALL_SECONDS)
    raise DemoError(f"nothing has moved for {STALL_SECONDS:g} s; counts so far: {seen}")


async def transfer(
    daemon: Daemon, http: aiohttp.ClientSession, flights: list[bytes], board: Board
) -> tuple[float, dict[str, Result]]:
    """Publish and consume at the same time. The first part to fail ends the others."""
    count = len(flights)
    # The channels are made first, so that both are owed every message.
    await post(http, "/topic/create", {"topic": TOPIC})
    for channel in (ARCHIVE, METRICS, LAKE):
        await post(http, "/channel/create", {"topic": TOPIC, "channel": channel})
    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch(board))
            archiving = group.create_task(archive(daemon.tcp_address, count, board))
            measuring = group.create_task(metrics(daemon.tcp_address, count, board))
            publishing = group.create_task(publish(http, flights, board))
            await asyncio.wait({archiving, measuring, publishing})
            watching.cancel()
    except ExceptionGroup as failures:
        reasons = [str(error) or type(error).__name__ for error in failures.exceptions]
        raise DemoError("\n".join(reasons)) from failures
    return publishing.result(), {ARCHIVE: archiving.result(), METRICS: measuring.result()}


async def check_stats(http: aiohttp.ClientSession, count: int, *, lake_depth: int) -> list[str]:
    """What ``/stats`` says that it should not: all messages delivered once, none left.

    The channel for Spark has ``lake_depth``, and nothing on leases.
    """
    params = {"format": "json", "topic": TOPIC, "include_clients": "false"}
    async with http.get("/stats", params=params) as reply:
        (topic,) = (await reply.json(content_type=None))["topics"]
    expected = {
        "message_count": count,
        "depth": 0,
        "in_flight_count": 0,
        "deferred_count": 0,
        "requeue_count": 0,
        "timeout_count": 0,
    }
    wrong = []
    for channel in topic["channels"]:
        name = channel["channel_name"]
        right = expected | ({"depth": lake_depth} if name == LAKE else {})
        if channel.get("leased_count"):
            wrong.append(f"/stats, channel {name}: {channel['leased_count']:,} on leases")
        wrong += [
            f"/stats, channel {name}: {key} is {channel[key]:,}, not {value:,}"
            for key, value in right.items()
            if channel[key] != value
        ]
    return wrong


async def wait_clean_stats(
    http: aiohttp.ClientSession, count: int, *, lake_depth: int
) -> list[str]:
    """``check_stats``, giving the last FINs a moment to arrive."""
    deadline = time.monotonic() + 5
    wrong = await check_stats(http, count, lake_depth=lake_depth)
    while wrong and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
        wrong = await check_stats(http, count, lake_depth=lake_depth)
    return wrong


async def demo(console: Console, count: int, out: Path) -> None:
    """Run it all, with the first ``count`` flights; leave the lake's tables and chart in ``out``.

    Raises:
        DemoError: something failed, or a count is wrong.
    """
    console.rule("[bold]nsqpy: every flight that left New York in 2013, three times", align="left")
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise DemoError("the last act is a Spark job, which needs Java 17 or later: there is none")
    console.print("reading the data set ...")
    started = time.monotonic()
    flights, expected, delays = read_flights(count)
    size_mb = sum(map(len, flights)) / 1e6
    console.print(
        f"  {len(flights):,} flights, {size_mb:.0f} MB of JSON, "
        f"in {time.monotonic() - started:.1f} s"
    )
    if expected.total != count:
        raise DemoError(f"the data set has {expected.total:,} flights, not {count:,}")

    with tempfile.TemporaryDirectory(prefix="nsqpy-demo-") as data_path:
        async with running_daemon(Path(data_path)) as daemon:
            console.print(
                f"started nsqpy {RELEASE}: TCP {daemon.tcp_address}, HTTP {daemon.http_address}, "
                f"data in {data_path}",
                soft_wrap=True,
            )
            async with aiohttp.ClientSession(f"http://{daemon.http_address}") as http:
                with Board(console, len(flights)) as board:
                    seconds, results = await transfer(daemon, http, flights, board)
                wrong = await wait_clean_stats(http, len(flights), lake_depth=len(flights))
                lake = await run_lake(console, daemon, delays, out)
                wrong += await wait_clean_stats(http, len(flights), lake_depth=0)
            stopping = time.monotonic()
        console.print(
            f"stopped the daemon in {time.monotonic() - stopping:.1f} s, removed its data"
        )
    wrong += [
        f"channel {channel}, {line}"
        for channel, result in results.items()
        for line in result.tally.differences(expected)
    ]
    wrong += lake.differences
    if lake.messages != count:
        wrong.append(f"channel {LAKE}: {lake.messages:,} messages, not {count:,}")
    if wrong:
        raise DemoError("the counts are wrong:\n  " + "\n  ".join(wrong))
    show(console, Result(expected, seconds), size_mb, results, lake)


async def run_lake(console: Console, daemon: Daemon, delays: Delays, out: Path) -> LakeResult:
    """The last act: the third channel as a Spark job."""
    console.print("draining the third channel with Spark (starting one takes some seconds) ...")
    try:
        return await drain_lake(daemon.http_address, TOPIC, LAKE, delays, out)
    except LakeError as error:
        raise DemoError(str(error)) from error


def show(
    console: Console,
    published: Result,
    size_mb: float,
    results: dict[str, Result],
    lake: LakeResult,
) -> None:
    """What was done, how fast, and what to try next."""
    table = Table(
        title="every count is right",
        title_justify="left",
        title_style="bold green",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("", no_wrap=True)
    for heading in ("messages", "carriers", "origins", "miles", "per second"):
        table.add_column(heading, justify="right", no_wrap=True)
    ansq = f"ansq {importlib.metadata.version('ansq')}"
    for name, result in (
        (f"{PUBLISH}  HTTP /mpub", published),
        (f"{ARCHIVE}  nsqpy.Consumer", results[ARCHIVE]),
        (f"{METRICS}  {ansq}", results[METRICS]),
    ):
        tally = result.tally
        table.add_row(
            *(name, f"{tally.total:,}", str(len(tally.by_carrier)), str(len(tally.by_origin))),
            *(f"{tally.miles:,}", f"{result.rate:,.0f}"),
        )
    console.print(table)
    console.print(
        f"published {size_mb / published.seconds:.0f} MB/s; "
        "all three ran at once, beside the daemon, on this machine\n"
    )
    console.print(
        f"lake     Spark {importlib.metadata.version('pyspark')}: {lake.messages:,} messages on a "
        f"lease, written and aggregated in {lake.seconds:.1f} s; mean delays of "
        f"{lake.carriers} carriers as in the data set; the channel in /stats: depth 0, leased 0"
    )
    for path in lake.left_behind:
        console.print(f"  {path}", soft_wrap=True, highlight=False)
    console.print()
    console.print("[bold]to try next", highlight=False)
    command = Path(sys.executable).parent / "nsqpy"
    shown = command.relative_to(_ROOT) if command.is_relative_to(_ROOT) else command
    for line in (
        f"{shown} up &",
        "curl -d 'hello world' 'http://127.0.0.1:4151/pub?topic=greetings'",
        f"{shown} tail --topic=greetings --nsqd-tcp-address=127.0.0.1:4150",
        "curl 'http://127.0.0.1:4151/stats'",
        "less README.md",
    ):
        console.print(f"  {line}", soft_wrap=True, highlight=False)


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 if every count is right, 1 if not, 2 for a wrong argument, 130 after Ctrl-C."""
    console = Console()
    count = arguments[0] if arguments else str(FLIGHTS)
    out = Path(arguments[1]) if len(arguments) > 1 else _ROOT / "demo-output"
    if len(arguments) > 2 or not count.isdecimal() or not 1 <= int(count) <= FLIGHTS:
        console.print(
            f"usage: python -m examples.flights [COUNT [OUT]], 1 to {FLIGHTS}", markup=False
        )
        return 2
    try:
        asyncio.run(demo(console, int(count), out))
    except DemoError as error:
        text = "\n".join([f"FAILED: {error}", *getattr(error, "__notes__", [])])
        console.print(text, style="bold red", markup=False, highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted; the daemon is stopped and its data removed")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
