"""A cluster of processes: two nsqlookupd, three nsqd, and clients that know only the former.

Everything may be killed, and everything converges: nsqd is back in a directory within seconds of
either's restart, well below the 15 s that the original may take.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from nsqpy.client.consumer import Consumer, Message
from nsqpy.client.producer import Producer
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon, wait_until
from tests.e2e.test_lookupd import LookupDaemon

pytestmark = pytest.mark.slow

# What the original may take until it notices that an nsqlookupd is back.
CONVERGED_S = 15.0


class Lookupd(LookupDaemon):
    """Comes back on the ports that it had."""

    def command(self) -> list[str]:
        again = []
        if self.tcp_address:
            again = [f"--tcp-address={self.tcp_address}", f"--http-address={self.http_address}"]
        return [*super().command(), "--broadcast-address=127.0.0.1", *again]


def directory(lookupd: Daemon) -> dict[str, set[str]]:
    """Every topic that somebody has, and the TCP addresses of who has it."""
    found: dict[str, set[str]] = {}
    for node in lookupd.request("/nodes").json["producers"]:
        for topic in node["topics"]:
            address = f"{node['broadcast_address']}:{node['tcp_port']}"
            found.setdefault(topic, set()).add(address)
    return found


def wait_directory(lookupd: Daemon, expected: dict[str, set[str]]) -> None:
    lookupd.wait(
        lambda: directory(lookupd) == expected, f"{expected} in the directory", CONVERGED_S
    )


async def reached(condition: Callable[[], object], what: str) -> None:
    """Wait for what is asked of processes, while the clients in this one go on."""
    await asyncio.to_thread(wait_until, condition, what, CONVERGED_S)


@pytest.fixture
def lookupds(tmp_path: Path) -> Iterator[list[Daemon]]:
    with Lookupd(tmp_path) as first, Lookupd(tmp_path) as second:
        yield [first, second]


@pytest.fixture
def nsqds(lookupds: list[Daemon], start_nsqd: StartDaemon) -> list[Daemon]:
    flags = [f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in lookupds]
    return [start_nsqd(*flags, "--broadcast-address=auto") for _ in range(3)]


class Flow:
    """Publishes without a pause and counts what comes, by the directory alone."""

    def __init__(self, lookupds: list[Daemon]) -> None:
        addresses = [lookupd.http_address for lookupd in lookupds]
        self.published: list[bytes] = []
        self.received: Counter[bytes] = Counter()
        self.producer = Producer(lookupd=addresses, lookupd_poll_interval="200ms")
        self.consumer = Consumer(
            "flow.*",
            "archive",
            self._count,
            lookupd=addresses,
            lookupd_poll_interval="200ms",
            max_in_flight=50,
        )
        self._publishing: asyncio.Task[None] | None = None

    def _count(self, message: Message) -> None:
        self.received[message.body] += 1

    async def _publish(self) -> None:
        while True:
            body = b"%d" % len(self.published)
            await self.producer.publish(f"flow.{len(self.published) % 2}", body)
            self.published.append(body)
            await asyncio.sleep(0.002)

    async def more(self, count: int = 100) -> None:
        """Wait until that many more were published; whatever failed shows here."""
        goal = len(self.published) + count
        assert self._publishing is not None
        async with asyncio.timeout(CONVERGED_S):
            while len(self.published) < goal:
                assert not self._publishing.done() or self._publishing.result()
                await asyncio.sleep(0.01)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.consumer, self.producer:
            self._publishing = asyncio.create_task(self._publish())
            yield
            self._publishing.cancel()
            await asyncio.gather(self._publishing, return_exceptions=True)
            async with asyncio.timeout(CONVERGED_S):
                while missing := set(self.published) - self.received.keys():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert not missing


async def test_everything_may_be_killed(lookupds: list[Daemon], nsqds: list[Daemon]) -> None:
    first, second = lookupds
    flow = Flow(lookupds)
    for nsqd in nsqds:  # producers use who is listed, and a node without topics is
        assert nsqd.request("/topic/create?topic=flow.0", b"").status == 200
    everybody = {nsqd.tcp_address for nsqd in nsqds}
    for lookupd in lookupds:
        await asyncio.to_thread(wait_directory, lookupd, {"flow.0": everybody})
    async with flow.running():
        await flow.more()
        await reached(
            lambda: all(
                nsqd.channel_stats(f"flow.{index}", "archive").get("client_count")
                for nsqd in nsqds
                for index in range(2)
            ),
            "the consumer at all nodes, for both topics",
        )

        first.kill()
        await flow.more()
        first.start()
        everywhere = {"flow.0": everybody, "flow.1": everybody}
        await asyncio.to_thread(wait_directory, first, everywhere)

        nsqds[2].kill()
        await flow.more()
        left = {nsqd.tcp_address for nsqd in nsqds[:2]}
        for lookupd in lookupds:
            expected = {"flow.0": left, "flow.1": left}
            await asyncio.to_thread(wait_directory, lookupd, expected)
        await asyncio.to_thread(nsqds[2].start)  # on other ports
        everybody = {nsqd.tcp_address for nsqd in nsqds}
        for lookupd in lookupds:
            expected = {"flow.0": everybody, "flow.1": everybody}
            await asyncio.to_thread(wait_directory, lookupd, expected)
        await flow.more()

        second.kill()
        assert await asyncio.to_thread(nsqds[1].terminate) == 0
        await flow.more()
        await asyncio.to_thread(second.start)
        await asyncio.to_thread(nsqds[1].start)
        everybody = {nsqd.tcp_address for nsqd in nsqds}
        for lookupd in lookupds:
            expected = {"flow.0": everybody, "flow.1": everybody}
            await asyncio.to_thread(wait_directory, lookupd, expected)
        await flow.more()
    # Once each, but for what was on its way when something was killed.
    assert sum(flow.received.values()) - len(flow.received) <= 200


def test_an_nsqlookupd_that_hangs_and_comes_back(
    lookupds: list[Daemon], start_nsqd: StartDaemon
) -> None:
    stopped, other = lookupds
    nsqd = start_nsqd(
        *(f"--lookupd-tcp-address={lookupd.tcp_address}" for lookupd in lookupds),
        *("--broadcast-address=auto", "--http-client-request-timeout=300ms"),
    )
    nsqd.publish("old", b"1")
    nsqd.publish("kept", b"1")
    here = {nsqd.tcp_address}
    for lookupd in lookupds:
        wait_directory(lookupd, {"old": here, "kept": here})
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        nsqd.publish("new", b"1")
        assert nsqd.request("/topic/delete?topic=old", b"").status == 200
        wait_directory(other, {"new": here, "kept": here})
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    wait_directory(stopped, {"new": here, "kept": here})


# --- a partition ---

NETWORK = f"10.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)


class FarLookupd(Daemon):
    """nsqlookupd on a network of its own, with one cable to here."""

    def __init__(self, data_path: Path, namespace: str) -> None:
        super().__init__(data_path)
        self._namespace = namespace

    def command(self) -> list[str]:
        return [
            *("ip", "netns", "exec", self._namespace, sys.executable),
            *("-m", "nsqpy", "nsqlookupd", f"--broadcast-address={NETWORK}.2"),
            *(f"--tcp-address={NETWORK}.2:4160", f"--http-address={NETWORK}.2:4161"),
        ]


@pytest.fixture
def far_lookupd(tmp_path: Path) -> Iterator[FarLookupd]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("a network namespace needs root and the ip command")
    namespace = f"nsqpy{os.getpid()}"
    near, far = f"nn{os.getpid()}", f"nf{os.getpid()}"
    try:
        ip("netns", "add", namespace)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace to be had: {error.stderr.decode().strip()}")
    try:
        try:
            ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", namespace)
            ip("addr", "add", f"{NETWORK}.1/24", "dev", near)
            ip("link", "set", near, "up")
            ip("-n", namespace, "addr", "add", f"{NETWORK}.2/24", "dev", far)
            ip("-n", namespace, "link", "set", far, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network to be had: {error.stderr.decode().strip()}")
        with FarLookupd(tmp_path, namespace) as lookupd:
            yield lookupd
    finally:
        ip("netns", "del", namespace)


def test_a_partition(far_lookupd: FarLookupd, start_nsqd: StartDaemon) -> None:
    namespace, far = f"nsqpy{os.getpid()}", f"nf{os.getpid()}"
    nsqd = start_nsqd(
        f"--lookupd-tcp-address={far_lookupd.tcp_address}",
        *("--tcp-address=0.0.0.0:0", "--broadcast-address=auto"),
        "--http-client-connect-timeout=300ms",
    )
    # The address of the route, though the daemon listens on all.
    here = {f"{NETWORK}.1:{nsqd.tcp_address.rpartition(':')[2]}"}
    nsqd.publish("old", b"1")
    nsqd.publish("kept", b"1")
    wait_directory(far_lookupd, {"old": here, "kept": here})

    ip("-n", namespace, "link", "set", far, "down")
    nsqd.publish("new", b"1")
    assert nsqd.request("/channel/create?topic=new&channel=c", b"").status == 200
    assert nsqd.request("/topic/delete?topic=old", b"").status == 200
    nsqd.wait(lambda: "no answer within 1s" in nsqd.log, "nsqd to notice the partition")
    nsqd.wait_channel("new", "c", depth=1)  # it is not held any more

    ip("-n", namespace, "link", "set", far, "up")
    wait_directory(far_lookupd, {"new": here, "kept": here})
