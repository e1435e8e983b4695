"""A disk that takes no more, under a running daemon: what it must answer, and that it recovers.

The story, for a full disk and for a directory without the right to write: publish until refused;
measure how fast every way to publish is refused, and with which words; ``/ping`` says why; a
consumer drains one channel; the cause goes away, and health comes back by itself; then a kill,
and everything acknowledged is there.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from nsqpy.protocol import requests
from tests.chaos.consumers import consume
from tests.chaos.ledger import ChannelBook, Ledger, Lives, body_of, make_key
from tests.chaos.mounts import FullDisk, Refusal, WriteProtection, small_file_system
from tests.chaos.options import ChaosOptions
from tests.chaos.target import START_SECONDS, ChaosError, Target
from tests.chaos.wire import Answer, HTTPConnection, TCPConnection, http_post

__all__ = ["RefusalReport", "fill_disk", "take_write_away"]

REFUSED_WITHIN_MS = 10.0
_TOPIC, _DRAINED, _KEPT = "refused", "drained", "kept"
_FIRST = 200
_PUBLISHES_MAX = 4000
_ROUNDS = 40
_WAIT_SECONDS = 10.0
# Down to a body that fits into what a larger one left free.
_SIZES_BYTES = (8192, 512, 64)
_PROBE_BYTES = 4096


@dataclass
class RefusalReport:
    """``faults`` is empty when everything was as it must be."""

    what: str
    acknowledged: int = 0
    refusals: int = 0
    refused_p99_ms: float = 0.0
    refused_max_ms: float = 0.0
    ping: str = ""
    healthy_after_s: float = 0.0
    lost: int = 0
    duplicates: int = 0
    faults: list[str] = field(default_factory=list)
    log_tail: str = ""

    @property
    def passed(self) -> bool:
        return not self.faults

    @property
    def line(self) -> str:
        return (
            f"chaos: {self.what}: {self.acknowledged:,} acknowledged, {self.lost:,} lost, "
            f"{self.duplicates:,} duplicates; {self.refusals:,} refusals, p99 "
            f"{self.refused_p99_ms:.1f} ms, max {self.refused_max_ms:.1f} ms; /ping: {self.ping}; "
            f"healthy {self.healthy_after_s:.2f} s after the cause was gone"
        )

    def as_dict(self) -> dict[str, object]:
        shown = {name: value for name, value in vars(self).items() if name != "log_tail"}
        return {**shown, "passed": self.passed}


async def fill_disk(options: ChaosOptions, work: Path) -> RefusalReport:
    """Raises NotPermittedError where no file system may be mounted."""
    data_path = _made(work / "data")
    with small_file_system(data_path):
        return await _Story(options, work, data_path, FullDisk(data_path), "disk full").run()


async def take_write_away(options: ChaosOptions, work: Path) -> RefusalReport:
    """Raises NotPermittedError where modes do not bind the daemon."""
    data_path = _made(work / "data")
    return await _Story(options, work, data_path, WriteProtection(data_path), "read-only").run()


def _made(path: Path) -> Path:
    path.mkdir(mode=0o700)
    return path


class _Story:
    def __init__(
        self, options: ChaosOptions, work: Path, data_path: Path, refusal: Refusal, what: str
    ) -> None:
        self._ledger = Ledger(Lives())
        command = [*refusal.prefix, *options.command()]
        self._target = Target(command, data_path, work / "log", self._ledger.lives)
        self._refusal = refusal
        self._report = RefusalReport(what)
        self._written = 0
        self._calm = asyncio.Event()
        self._calm.set()
        self._drained: ChannelBook
        self._kept: ChannelBook

    async def run(self) -> RefusalReport:
        report = self._report
        try:
            self._target.start()
            await self._create()
            for _ in range(_FIRST):
                self._expect(await self._publish(512), "a publish with space left")
            await self._with_refusal()
            await self._after_refusal()
            await self._refused_and_idle()
            await self._metadata_refused()
            if self._refusal.allows_start:
                await self._start_refused()
            await self._after_kill()
        except (ChaosError, OSError, EOFError) as error:
            report.faults.append(repr(error))
        finally:
            self._target.close()
        report.acknowledged = self._ledger.messages
        report.lost = self._ledger.owed
        report.duplicates = self._drained.duplicates + self._kept.duplicates
        report.log_tail = self._target.log_tail
        if report.lost:
            report.faults.append(f"{report.lost} lost")
        return report

    async def _create(self) -> None:
        await self._wait(self._is_healthy, START_SECONDS, "the daemon to start")
        await self._post(f"/topic/create?topic={_TOPIC}")
        for channel in (_DRAINED, _KEPT):
            await self._post(f"/channel/create?topic={_TOPIC}&channel={channel}")
        self._drained = self._ledger.add_channel(_TOPIC, _DRAINED)
        self._kept = self._ledger.add_channel(_TOPIC, _KEPT)

    async def _with_refusal(self) -> None:
        self._refusal.begin()
        try:
            for size in _SIZES_BYTES:
                await self._publish_until_refused(size)
            await self._measure()
            ping = await self._ping()
            self._report.ping = ping.text.partition("\n")[2]
            self._expect_that(not ping.ok and "NOK - " in ping.text, f"/ping says {ping.text!r}")
            await self._drain(self._drained, "the consumers to drain while writes are refused")
            if await self._is_healthy():  # what was consumed made room, and not only for journals
                self._expect(await self._publish(_PROBE_BYTES), "a publish while /ping says OK")
        finally:
            self._refusal.end()

    async def _after_refusal(self) -> None:
        began = time.monotonic()
        # Nothing is published meanwhile: who asks /ping before sending must be told.
        await self._wait(self._is_healthy, _WAIT_SECONDS, "health to come back by itself")
        self._report.healthy_after_s = round(time.monotonic() - began, 3)
        self._expect(await self._publish(_PROBE_BYTES), "a publish when the cause is gone")
        self._expect_that(await self._is_healthy(), "no health after a publish was stored")

    async def _refused_and_idle(self) -> None:
        """Health comes back also where nothing is consumed, hence nothing waits to be written."""
        self._refusal.begin()
        try:
            for size in _SIZES_BYTES:
                await self._publish_until_refused(size)
            self._expect_that(not await self._is_healthy(), "healthy while writes are refused")
        finally:
            self._refusal.end()
        await self._wait(self._is_healthy, _WAIT_SECONDS, "health to come back to an idle daemon")

    async def _metadata_refused(self) -> None:
        """Nothing but what exists is to be written, and nobody publishes afterwards."""
        self._refusal.begin()
        try:
            answer = await self._http(
                lambda connection: connection.post(f"/topic/pause?topic={_TOPIC}")
            )
            self._expect_that(not answer.ok, "a pause that cannot be kept was said to be")
            await self._wait(self._is_unhealthy, _WAIT_SECONDS, "/ping to say that metadata fails")
        finally:
            self._refusal.end()
        await self._wait(self._is_healthy, _WAIT_SECONDS, "health to come back with metadata")
        await self._post(f"/topic/unpause?topic={_TOPIC}")

    async def _start_refused(self) -> None:
        """A daemon that ends on a full disk must start on it: consuming is what frees space."""
        self._refusal.begin()
        try:
            self._target.kill()
            self._target.start()
            await self._wait(self._answers, START_SECONDS, "a start while writes are refused")
            self._expect_that(not await self._is_healthy(), "healthy after such a start")
            await self._drain(self._drained, "the consumers to drain after such a start")
        finally:
            self._refusal.end()
        await self._wait(self._is_healthy, _WAIT_SECONDS, "health to come back after a start")

    async def _after_kill(self) -> None:
        self._target.kill()
        self._target.start()
        await self._wait(self._is_healthy, START_SECONDS, "the daemon to start again")
        await self._drain(self._kept, "everything acknowledged to come after the kill")
        await self._drain(self._drained, "the rest of the other channel")

    async def _publish_until_refused(self, size: int) -> None:
        for _ in range(_PUBLISHES_MAX):
            if not (await self._publish(size)).ok:
                return
        raise ChaosError(f"{_PUBLISHES_MAX} publishes of {size} bytes, and none was refused")

    async def _publish(self, size: int) -> Answer:
        """One PUB on a connection of its own: the refusal closes it."""
        self._written += 1
        key = make_key(0, self._written, 0, size)
        connection = await TCPConnection.open(self._target.tcp_port)
        try:
            answer = await connection.call(requests.pub(_TOPIC, body_of(key)))
        finally:
            connection.close()
        if answer.ok:
            self._ledger.acknowledge(self._ledger.creditors(_TOPIC), [key], "PUB")
        return answer

    async def _measure(self) -> None:
        took_ms: list[float] = []
        for _ in range(_ROUNDS):
            for expected, request in self._tcp_probes().items():
                tcp = await TCPConnection.open(self._target.tcp_port)
                answer = await _timed(tcp, request, took_ms)
                self._expect_that(answer.text.startswith(expected), f"{expected}: {answer.text}")
            for request in self._http_probes():
                http = await HTTPConnection.open(self._target.http_port)
                answer = await _timed(http, request, took_ms)
                self._expect_that(" 503 " in answer.text, f"503 expected: {answer.text}")
        took_ms.sort()
        report = self._report
        report.refusals = len(took_ms)
        report.refused_p99_ms = round(took_ms[int(len(took_ms) * 0.99) - 1], 2)
        report.refused_max_ms = round(took_ms[-1], 2)
        slow = f"refused in {report.refused_p99_ms} ms at the 99th percentile"
        self._expect_that(report.refused_p99_ms <= REFUSED_WITHIN_MS, slow)

    def _tcp_probes(self) -> dict[str, bytes]:
        """Requests by the answer that each must get."""
        return {
            "E_PUB_FAILED": requests.pub(_TOPIC, self._probe()),
            "E_MPUB_FAILED": requests.mpub(_TOPIC, [self._probe(), self._probe()]),
            "E_DPUB_FAILED": requests.dpub(_TOPIC, 1000, self._probe()),
        }

    def _http_probes(self) -> tuple[bytes, ...]:
        return (
            http_post(f"/pub?topic={_TOPIC}", self._probe()),
            http_post(f"/pub?topic={_TOPIC}&defer=1000", self._probe()),
            http_post(f"/mpub?topic={_TOPIC}", self._probe()),
        )

    def _probe(self) -> bytes:
        self._written += 1
        return body_of(make_key(0, self._written, 0, _PROBE_BYTES))

    async def _drain(self, book: ChannelBook, what: str) -> None:
        """Consume until nothing is owed."""
        consumer = asyncio.get_running_loop().create_task(
            consume(self._target, book, random.Random(0), self._calm)
        )

        async def nothing_owed() -> bool:
            if consumer.done():
                consumer.result()
            return not book.owed

        try:
            await self._wait(nothing_owed, _WAIT_SECONDS, what)
        finally:
            consumer.cancel()
            await asyncio.gather(consumer, return_exceptions=True)

    async def _is_healthy(self) -> bool:
        try:
            return (await self._ping()).ok
        except (OSError, EOFError):
            return False

    async def _is_unhealthy(self) -> bool:
        return not await self._is_healthy()

    async def _answers(self) -> bool:
        try:
            await self._ping()
        except (OSError, EOFError):
            return False
        return True

    async def _ping(self) -> Answer:
        return await self._http(lambda connection: connection.get("/ping"))

    async def _post(self, path: str) -> None:
        self._expect(await self._http(lambda connection: connection.post(path)), path)

    async def _http(self, ask: Callable[[HTTPConnection], Awaitable[Answer]]) -> Answer:
        connection = await HTTPConnection.open(self._target.http_port)
        try:
            return await ask(connection)
        finally:
            connection.close()

    async def _wait(
        self, condition: Callable[[], Awaitable[bool]], seconds: float, what: str
    ) -> None:
        end = time.monotonic() + seconds
        while not await condition():
            self._target.check()
            if time.monotonic() > end:
                raise ChaosError(f"waited {seconds:g} s for {what}")
            await asyncio.sleep(0.01)

    def _expect(self, answer: Answer, what: str) -> None:
        if not answer.ok:
            raise ChaosError(f"{what}: {answer.text}")

    def _expect_that(self, true: bool, fault: str) -> None:
        if not true and fault not in self._report.faults:
            self._report.faults.append(fault)


async def _timed(
    connection: TCPConnection | HTTPConnection, request: bytes, took_ms: list[float]
) -> Answer:
    """Call, note how long the answer took, and close."""
    began = time.perf_counter()
    try:
        return await connection.call(request)
    finally:
        took_ms.append((time.perf_counter() - began) * 1000)
        connection.close()
