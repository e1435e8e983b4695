"""statsd: the figures of ``/stats``, sent to a daemon over UDP every now and then.

The statsd package makes the lines; what goes into which datagram, and when, follows the original:
whole lines, each with its newline, in datagrams that are spread evenly over the interval.
Source: nsqd/statsd.go, internal/statsd, internal/writers.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from statsd.client.base import StatsClientBase

from nsqpy.clock import SECOND, Clock
from nsqpy.config import split_address
from nsqpy.core.snapshot import topics_snapshot
from nsqpy.names import is_ephemeral

if TYPE_CHECKING:
    from nsqpy.config import NsqdConfig
    from nsqpy.core.broker import Broker
    from nsqpy.core.stats import ChannelStats, LatencyStats, MemoryStats, TopicStats

__all__ = ["Reporter", "StatsdReport", "expanded_prefix", "packets"]

log = logging.getLogger(__name__)

# Below this the original's arithmetic crashes.
_INTERVAL_MIN_S = 1.0
_TOPICS_AT_ONCE = 20
_MEMORY_GAUGES = (
    *("heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes"),
    *("gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes"),
)


def expanded_prefix(prefix: str, host: str, port: int) -> str:
    """``statsd-prefix`` with this node's address in it; ends in a dot unless it is empty."""
    address = f"{host}:{port}".replace(".", "_").replace(":", "_")
    expanded = prefix.replace("%s", address)
    return f"{expanded}." if expanded and not expanded.endswith(".") else expanded


def packets(lines: list[bytes], max_bytes: int) -> Iterator[bytes]:
    """Whole lines, as many in each packet as fit; one that is longer goes alone."""
    packet = b""
    for line in lines:
        if packet and len(packet) + len(line) > max_bytes:
            yield packet
            packet = b""
        packet += line
    if packet:
        yield packet


class StatsdReport(StatsClientBase):  # type: ignore[misc]
    """The lines of one report. ``last`` holds the counters of the report before, and then those
    of this one."""

    def __init__(self, prefix: str, last: Mapping[str, int]) -> None:
        self._prefix = prefix.removesuffix(".")
        self._last = last
        self.counters: dict[str, int] = {}
        self.lines: list[bytes] = []

    def _after(self, data: str) -> None:
        self.lines.append(data.encode() + b"\n")

    def count(self, name: str, value: int) -> None:
        """A counter, given as its sum since the start and sent as what came since the last."""
        self.counters[name] = value
        self.incr(name, value - self._last.get(name, 0))

    def topic(self, topic: "TopicStats", *, exclude_ephemeral: bool) -> None:
        name = f"topic.{topic.topic_name}"
        self.count(f"{name}.message_count", topic.message_count)
        self.count(f"{name}.message_bytes", topic.message_bytes)
        self.gauge(f"{name}.depth", topic.depth)
        self.gauge(f"{name}.backend_depth", topic.backend_depth)
        self._latency(name, topic.e2e_processing_latency)
        for channel in topic.channels:
            if not (exclude_ephemeral and is_ephemeral(channel.channel_name)):
                self._channel(f"{name}.channel.{channel.channel_name}", channel)

    def _channel(self, name: str, channel: "ChannelStats") -> None:
        self.count(f"{name}.message_count", channel.message_count)
        for gauge in ("depth", "backend_depth", "in_flight_count", "deferred_count"):
            self.gauge(f"{name}.{gauge}", getattr(channel, gauge))
        self.count(f"{name}.requeue_count", channel.requeue_count)
        self.count(f"{name}.timeout_count", channel.timeout_count)
        self.gauge(f"{name}.clients", channel.client_count)
        self._latency(name, channel.e2e_processing_latency)

    def _latency(self, name: str, latency: "LatencyStats") -> None:
        for found in latency.percentiles or ():
            quantile = int(found.quantile * 100 + 0.5)
            self.gauge(f"{name}.e2e_processing_latency_{quantile}", int(found.value))

    def memory(self, memory: "MemoryStats") -> None:
        for name in _MEMORY_GAUGES:
            self.gauge(f"mem.{name}", getattr(memory, name))
        self.count("mem.gc_runs", memory.gc_total_runs)


class Reporter:
    """Sends a report every interval, until it is stopped. ``memory`` is asked for each, and
    ``host``, the name by which this node is known."""

    def __init__(
        self,
        broker: "Broker",
        clock: Clock,
        memory: Callable[[], "MemoryStats"],
        host: Callable[[], str],
        *,
        interval_min_s: float = _INTERVAL_MIN_S,
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._memory = memory
        self._host = host
        self._failure = ""  # the last one, while it lasts
        self._last: dict[str, int] = {}
        self._interval_s = max(broker.config.statsd_interval_ns / SECOND, interval_min_s)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """What is left of a report goes out without delay."""
        self._stopping.set()
        if self._task is not None:
            await self._task
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._interval_s
        while not await self._stopped_within(due_s - loop.time()):
            try:
                await self._report()
            except Exception as error:
                # Figures are lost, no message is.
                self._note_failure(str(error) or repr(error))
            else:
                self._failure = ""
            due_s = max(due_s + self._interval_s, loop.time())

    def _note_failure(self, why: str) -> None:
        """Said once while it lasts: the next report fails for the same reason."""
        if why != self._failure:
            self._failure = why
            log.error("STATSD: sending to %s failed - %s", self._broker.config.statsd_address, why)

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(max(seconds, 0)):
                return await self._stopping.wait()
        except TimeoutError:
            return False

    async def _report(self) -> None:
        config = self._broker.config
        lines = await self._lines(config)
        datagrams = list(packets(lines, config.statsd_udp_packet_size))
        pause_s = max(self._interval_s - 1, 0) / max(len(datagrams), 1)
        place = split_address(config.statsd_address)
        assert place is not None  # the configuration refuses a socket's path
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(*place, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as sender:
            sender.setblocking(False)
            for datagram in datagrams:
                sender.sendto(datagram, address)
                await self._stopped_within(pause_s)

    async def _lines(self, config: "NsqdConfig") -> list[bytes]:
        """One report, of so many topics between two waits."""
        prefix = expanded_prefix(config.statsd_prefix, self._host(), config.broadcast_http_port)
        report = StatsdReport(prefix, self._last)
        exclude = config.statsd_exclude_ephemeral
        quantiles = config.e2e_processing_latency_percentiles
        topics = [
            topic
            for name, topic in sorted(self._broker.topics.items())
            if not (exclude and is_ephemeral(name))
        ]
        for start in range(0, len(topics), _TOPICS_AT_ONCE):
            now_ns = self._clock.now().wall_ns
            chunk = topics[start : start + _TOPICS_AT_ONCE]
            for stats in topics_snapshot(chunk, False, now_ns, quantiles):
                report.topic(stats, exclude_ephemeral=exclude)
            await asyncio.sleep(0)
        if config.statsd_mem_stats:
            report.memory(self._memory())
        self._last = report.counters
        return report.lines
