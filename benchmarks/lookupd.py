"""nsqlookupd under a cluster's worth of topics: how long an answer takes, and how much memory.

    python -m benchmarks.lookupd [--topics=10000] [--nodes=200] [--copies=2]

Starts the daemon, and simulated nodes that all announce their topics at once, each topic on a few
of them with one channel. ``/lookup`` is asked for all the while, one request after the other, and
prints as one JSON object: times in milliseconds, memory in MiB.

    flood     while the nodes announce everything
    quiet     when all is there
    beside    while another client asks for /nodes again and again
    leaving   while all nodes disconnect
"""

import asyncio
import contextlib
import json
import os
import random
import re
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, cast

from benchmarks.load import process_figures
from nsqpy.options import option, parse_flags
from nsqpy.protocol.frames import BadFrame
from nsqpy.protocol.lookup import MAGIC, PeerInfo, ReplyParser, identify, register

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[1]
_LISTENING = re.compile(r"\b(TCP|HTTP): listening on (\S+)")
_PATIENCE_S = 60.0


class LoadError(Exception):
    """No figures: the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    topics: int = option(10_000, minimum=1, help="how many topics there are")
    nodes: int = option(200, minimum=1, help="how many daemons announce them")
    copies: int = option(2, minimum=1, help="how many daemons have each topic")
    lookups: int = option(3000, minimum=1, help="how often to look one up in each phase")

    def topics_of(self, node: int) -> list[str]:
        return [
            f"topic_{number:05d}"
            for number in range(self.topics)
            for copy in range(self.copies)
            if (number + copy * 7) % self.nodes == node
        ]


@dataclass(slots=True)
class _Address:
    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Self:
        host, _, port = text.rpartition(":")
        return cls(host, int(port))


class _HTTPClient:
    """One kept-alive connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: _Address) -> Self:
        return cls(*await asyncio.open_connection(address.host, address.port, limit=1 << 24))

    async def get(self, target: str) -> bytes:
        self._writer.write(f"GET {target} HTTP/1.1\r\nHost: bench\r\n\r\n".encode())
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        if length is None:
            raise LoadError(f"no length in {head!r}")
        return await self._reader.readexactly(int(length[1]))

    async def timed_ms(self, target: str) -> float:
        started = time.perf_counter()
        await self.get(target)
        return (time.perf_counter() - started) * 1000


class _Node:
    """A simulated nsqd: announces everything in one write and counts the replies."""

    def __init__(self, number: int, topics: Sequence[str]) -> None:
        info = PeerInfo(
            hostname=f"host{number}",
            broadcast_address=f"node{number}.example",
            tcp_port=4150,
            http_port=4151,
            version="1.3.0",
        )
        self._said = b"".join([MAGIC, identify(info), *(register(name, "ch") for name in topics)])
        self._owed = 1 + len(topics)
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def connect(self, address: _Address) -> None:
        self._reader, self._writer = await asyncio.open_connection(address.host, address.port)

    async def announce(self) -> None:
        self._writer.write(self._said)
        parser = ReplyParser()
        while self._owed:
            data = await self._reader.read(1 << 16)
            if not data:
                raise LoadError("a node was disconnected")
            for reply in parser.feed(data):
                if isinstance(reply, BadFrame) or reply.startswith(b"E_"):
                    raise LoadError(f"a node was refused: {reply!r}")
                self._owed -= 1

    def hand_over(self) -> int:
        """The descriptor of its connection, which this event loop looks at no more."""
        cast("asyncio.Transport", self._writer.transport).pause_reading()
        return os.dup(self._writer.get_extra_info("socket").fileno())


@contextlib.asynccontextmanager
async def _daemon() -> AsyncIterator[tuple[int, _Address, _Address]]:
    """A daemon on free ports, its log in a file: its process, TCP and HTTP address."""
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nsqpy", "nsqlookupd"),
            *("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0"),
            cwd=_ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=log,
        )
        try:
            found: dict[str, str] = {}
            deadline = time.monotonic() + _PATIENCE_S
            while found.keys() < {"TCP", "HTTP"}:
                if process.returncode is not None or time.monotonic() > deadline:
                    raise LoadError("nsqlookupd does not listen")
                await asyncio.sleep(0.02)
                text = os.pread(log.fileno(), 1 << 16, 0).decode()
                found = dict(_LISTENING.findall(text))
            yield process.pid, _Address.of(found["TCP"]), _Address.of(found["HTTP"])
        finally:
            process.kill()
            await process.wait()


class _Prober:
    """Looks topics up, one after the other, and notes how long each took."""

    def __init__(self, options: _Options, http: _HTTPClient) -> None:
        self._options = options
        self._http = http
        self._random = random.Random(1)

    async def _one(self) -> float:
        number = self._random.randrange(self._options.topics)
        return await self._http.timed_ms(f"/lookup?topic=topic_{number:05d}")

    async def times(self) -> dict[str, float]:
        return _summary([await self._one() for _ in range(self._options.lookups)])

    async def during(self, work: Awaitable[None]) -> dict[str, float]:
        """Look up until the work is done; how long that was is ``seconds``."""
        started = time.perf_counter()
        task = asyncio.ensure_future(work)
        taken = [await self._one()]
        while not task.done():
            taken.append(await self._one())
        await task
        return {**_summary(taken), "seconds": round(time.perf_counter() - started, 3)}


def _summary(taken: list[float]) -> dict[str, float]:
    taken.sort()
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    found = {name: taken[min(int(len(taken) * of), len(taken) - 1)] for name, of in shares.items()}
    return {"count": len(taken), **{name: round(ms, 3) for name, ms in found.items()}}


async def _measure(options: _Options) -> dict[str, object]:
    async with _daemon() as (pid, tcp, http), asyncio.timeout(_PATIENCE_S):
        prober = _Prober(options, await _HTTPClient.open(http))
        other = await _HTTPClient.open(http)
        report: dict[str, object] = {"empty_mib": _memory_mib(pid)}
        nodes = [_Node(number, options.topics_of(number)) for number in range(options.nodes)]

        async def announce() -> None:
            await asyncio.gather(*(node.connect(tcp) for node in nodes))
            await asyncio.gather(*(node.announce() for node in nodes))

        async def leave() -> None:
            await asyncio.to_thread(_shut, descriptors)
            while True:
                if await other.get("/nodes") == b'{"producers":[]}':
                    return
                await asyncio.sleep(0.01)

        report["flood"] = await prober.during(announce())
        report["full_mib"] = _memory_mib(pid)
        report["quiet"] = await prober.times()
        for path in ("/nodes", "/topics", "/debug", "/metrics"):
            report[path] = _summary([await other.timed_ms(path) for _ in range(20)])

        async def ask_for_nodes() -> None:
            for _ in range(20):
                await other.get("/nodes")

        report["beside"] = await prober.during(ask_for_nodes())
        # Their end is none of this event loop's business, or it would be its time that is measured.
        descriptors = [node.hand_over() for node in nodes]
        report["leaving"] = await prober.during(leave())
        report["after_mib"] = _memory_mib(pid)
        return report


def _shut(descriptors: Sequence[int]) -> None:
    """End connections, all at once."""
    for descriptor in descriptors:
        with socket.socket(fileno=descriptor) as taken:
            taken.shutdown(socket.SHUT_RDWR)


def _memory_mib(pid: int) -> float:
    return round(process_figures(pid)[0] / 1024, 1)


def main(arguments: Sequence[str]) -> int:
    """Measure and print; the exit status."""
    options = parse_flags(_Options, arguments, "lookupd", intro=__doc__ or "")
    try:
        report = asyncio.run(_measure(options))
    except (LoadError, TimeoutError, OSError) as error:
        sys.stderr.write(f"lookupd: {error or 'took too long'}\n")
        return 1
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
