"""statsd packets, captured on a UDP socket."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from nsqpy.clock import SECOND, SystemClock
from nsqpy.config import NsqdConfig
from nsqpy.core.broker import Broker
from nsqpy.core.stats import MemoryStats
from nsqpy.daemon.statsd import Reporter, expanded_prefix, packets
from nsqpy.storage.files import OSFiles

PREFIX = "nsq.10_0_0_1_24151."


class Capture(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.packets: asyncio.Queue[bytes] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: object) -> None:
        self.packets.put_nowait(data)

    async def report(self, last_name: str) -> tuple[list[str], list[bytes]]:
        """Lines and packets up to the one that ends with ``last_name``."""
        found: list[bytes] = []
        async with asyncio.timeout(10):
            while not found or not re.search(rb"%s:\S+\n\Z" % last_name.encode(), found[-1]):
                found.append(await self.packets.get())
        return b"".join(found).decode().splitlines(), found


@pytest.fixture
async def capture() -> AsyncIterator[tuple[Capture, str]]:
    loop = asyncio.get_running_loop()
    transport, capture = await loop.create_datagram_endpoint(
        Capture, ("127.0.0.1", 0), family=socket.AF_INET
    )
    host, port = transport.get_extra_info("sockname")
    yield capture, f"{host}:{port}"
    transport.close()


class Daemon:
    def __init__(self, data_path: Path, address: str, **settings: object) -> None:
        config = NsqdConfig(
            data_path=str(data_path),
            node_id=1,
            statsd_address=address,
            statsd_interval_ns=SECOND // 20,
            broadcast_http_port=24151,
        )
        self.clock = SystemClock()
        self.broker = Broker(
            replace(config, **settings),  # type: ignore[arg-type]
            OSFiles(),
            Random(0),
            wake=lambda: None,
            start=self.clock.now(),
        )
        memory = MemoryStats(heap_objects=7, gc_total_runs=3)
        self.reporter = Reporter(
            self.broker, self.clock, lambda: memory, lambda: "10.0.0.1", interval_min_s=0.05
        )

    def publish(self, topic: str, *bodies: bytes) -> None:
        self.broker.publish(topic, list(bodies))
        self.broker.turn(self.clock.now())

    async def stop(self) -> None:
        await self.reporter.stop()
        self.broker.close()


async def test_every_line_of_the_original_in_its_order(
    capture: tuple[Capture, str], tmp_path: Path
) -> None:
    captured, address = capture
    daemon = Daemon(tmp_path, address)
    daemon.publish("u", b"abc", b"de")
    daemon.publish("t#ephemeral", b"x")
    daemon.broker.create_channel("u", "c")
    daemon.broker.create_channel("u", "b#ephemeral")
    daemon.broker.turn(daemon.clock.now())
    daemon.reporter.start()
    lines, sent = await captured.report("mem.gc_runs")
    channel = "message_count:2|c depth:2|g backend_depth:0|g in_flight_count:0|g deferred_count:0|g"
    channel = f"{channel} requeue_count:0|c timeout_count:0|c clients:0|g"
    memory = "heap_objects:7 heap_idle_bytes:0 heap_in_use_bytes:0 heap_released_bytes:0"
    memory = f"{memory} gc_pause_usec_100:0 gc_pause_usec_99:0 gc_pause_usec_95:0 next_gc_bytes:0"
    assert [line.removeprefix(PREFIX) for line in lines] == [
        "topic.t#ephemeral.message_count:1|c",
        "topic.t#ephemeral.message_bytes:1|c",
        "topic.t#ephemeral.depth:1|g",
        "topic.t#ephemeral.backend_depth:0|g",
        "topic.u.message_count:2|c",
        "topic.u.message_bytes:5|c",
        "topic.u.depth:0|g",
        "topic.u.backend_depth:0|g",
        *(f"topic.u.channel.b#ephemeral.{one}" for one in channel.split()),
        *(f"topic.u.channel.c.{one}" for one in channel.split()),
        *(f"mem.{one}|g" for one in memory.split()),
        "mem.gc_runs:3|c",
    ]
    assert all(line.startswith(PREFIX) for line in lines)
    assert all(packet.endswith(b"\n") and len(packet) <= 508 for packet in sent)
    assert len(sent) > 1
    # Counters are what came since; gauges stay.
    daemon.publish("u", b"f")
    async with asyncio.timeout(10):
        while f"{PREFIX}topic.u.message_count:1|c" not in lines:
            lines, _ = await captured.report("mem.gc_runs")
    assert f"{PREFIX}mem.heap_objects:7|g" in lines
    assert f"{PREFIX}mem.gc_runs:0|c" in lines
    await daemon.stop()


async def test_what_is_left_out_and_what_is_added(
    capture: tuple[Capture, str], tmp_path: Path
) -> None:
    captured, address = capture
    daemon = Daemon(
        tmp_path,
        address,
        statsd_prefix="",
        statsd_mem_stats=False,
        statsd_exclude_ephemeral=True,
        e2e_processing_latency_percentiles=(0.999, 0.5),
    )
    daemon.publish("a#ephemeral", b"x")
    daemon.publish("t", b"x")
    daemon.broker.create_channel("t", "c#ephemeral")
    daemon.broker.create_channel("t", "d")
    daemon.reporter.start()
    lines, _ = await captured.report("e2e_processing_latency_50")
    assert not any("ephemeral" in line for line in lines)
    assert not any("mem." in line for line in lines)
    assert lines[0] == "topic.t.message_count:1|c"
    assert lines[4:6] == [
        "topic.t.e2e_processing_latency_100:0|g",
        "topic.t.e2e_processing_latency_50:0|g",
    ]
    assert lines[-1] == "topic.t.channel.d.e2e_processing_latency_50:0|g"
    await daemon.stop()


async def test_datagrams_are_spread_and_the_rest_goes_at_the_end(
    capture: tuple[Capture, str], tmp_path: Path
) -> None:
    captured, address = capture
    daemon = Daemon(tmp_path, address, statsd_udp_packet_size=1)
    daemon.reporter._interval_s = 0.05
    daemon.publish("t", b"x")
    daemon.reporter.start()
    first, _ = await captured.report("message_count")
    daemon.reporter._interval_s = 3600
    assert first == [f"{PREFIX}topic.t.message_count:1|c"]
    await daemon.stop()
    lines, sent = await captured.report("mem.gc_runs")
    assert len(lines) == len(sent)


async def test_nobody_listens_and_nothing_ends(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "127.0.0.1:1")
    daemon.publish("t", b"x")
    daemon.reporter.start()
    async with asyncio.timeout(10):
        while not daemon.reporter._last:  # noqa: ASYNC110 - nobody tells that one is done
            await asyncio.sleep(0.01)
    assert daemon.reporter._task is not None
    assert not daemon.reporter._task.done()
    await daemon.stop()


async def test_a_failure_is_said_once_while_it_lasts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = Daemon(tmp_path, "255.255.255.255:8125")  # a broadcast, which is not allowed
    reports = 0

    def host() -> str:
        nonlocal reports
        reports += 1
        return "10.0.0.1"

    daemon.reporter._host = host
    daemon.reporter.start()
    async with asyncio.timeout(10):
        while reports < 4:  # noqa: ASYNC110 - nobody tells that one is done
            await asyncio.sleep(0.01)
    await daemon.stop()
    (line,) = [record.message for record in caplog.records if "STATSD" in record.message]
    assert line.startswith("STATSD: sending to 255.255.255.255:8125 failed - ")


@pytest.mark.parametrize(
    ("prefix", "expanded"),
    [
        ("nsq.%s", "nsq.10_0_0_1_24151."),
        ("%s.%s.", "10_0_0_1_24151.10_0_0_1_24151."),
        ("plain", "plain."),
        ("", ""),
    ],
)
def test_prefix(prefix: str, expanded: str) -> None:
    assert expanded_prefix(prefix, "10.0.0.1", 24151) == expanded


def test_packing() -> None:
    lines = [b"aa\n", b"bb\n", b"cccccccc\n", b"d\n"]
    assert list(packets(lines, 6)) == [b"aa\nbb\n", b"cccccccc\n", b"d\n"]
    assert list(packets(lines, 1000)) == [b"".join(lines)]
    assert list(packets([], 6)) == []
