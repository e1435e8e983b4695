"""Drain: no new messages, out of the directory, consumers finish, the process ends with 0."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsqpy.client.consumer import Consumer, Message
from nsqpy.client.producer import Producer
from nsqpy.errors import ServerError
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon, Reply
from tests.e2e.test_lookupd import LookupDaemon

pytestmark = pytest.mark.slow

DEADLINE_S = 20


@contextmanager
def in_directory(
    tmp_path: Path, start_nsqd: StartDaemon, *flags: str
) -> Iterator[tuple[Daemon, Daemon]]:
    """An nsqd and the nsqlookupd that knows it."""
    with LookupDaemon(tmp_path, "--broadcast-address=127.0.0.1") as lookupd:
        address = f"--lookupd-tcp-address={lookupd.tcp_address}"
        yield start_nsqd(address, "--broadcast-address=auto", *flags), lookupd


def is_listed(lookupd: Daemon, topic: str) -> bool:
    reply = lookupd.request(f"/lookup?topic={topic}")
    return reply.status == 200 and bool(reply.json["producers"])


async def reached(condition: Callable[[], object]) -> None:
    """Wait for what is asked of a process, while the clients in this one go on."""
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.02)


def refused(reply: Reply) -> tuple[int, bytes]:
    return reply.status, reply.body


class Slow:
    """A consumer that finishes nothing until it is let, and then one message after the other."""

    def __init__(self, nsqd: Daemon, topic: str, *, max_in_flight: int = 1) -> None:
        self.bodies: list[bytes] = []
        self.may_finish = asyncio.Event()
        self.consumer = Consumer(
            topic, "c", self._handle, nsqd=nsqd.tcp_address, max_in_flight=max_in_flight
        )

    async def _handle(self, message: Message) -> None:
        self.bodies.append(message.body)
        await self.may_finish.wait()


async def test_consumers_empty_their_channels_after_sigterm(
    tmp_path: Path, start_nsqd: StartDaemon
) -> None:
    with in_directory(tmp_path, start_nsqd, "--drain-timeout=20s") as (nsqd, lookupd):
        slow = Slow(nsqd, "t")
        async with slow.consumer, Producer(nsqd.tcp_address, tries=1) as producer:
            bodies = [b"%d" % index for index in range(30)]
            await producer.publish_many("t", bodies)
            await reached(lambda: is_listed(lookupd, "t"))
            await reached(lambda: slow.bodies)
            nsqd.send_signal(signal.SIGTERM)
            await reached(lambda: nsqd.request("/ping").text == "NOK - draining")
            assert nsqd.request("/ping").status == 500
            await reached(lambda: not is_listed(lookupd, "t"))
            with pytest.raises(ServerError, match="E_PUB_FAILED PUB failed draining: "):
                await producer.publish("t", b"late")
            for path in ("/pub?topic=t", "/pub?topic=new&defer=5", "/mpub?topic=new"):
                expected = (503, b'{"message":"DRAINING"}')
                assert refused(nsqd.request(path, b"late")) == expected
            status = nsqd.request("/drain").json
            assert status.pop("deadline") > 1_700_000_000
            assert status == {
                "draining": True,
                "depth": 29,
                "in_flight": 1,
                "deferred": 0,
                "leased": 0,
            }
            slow.may_finish.set()
            assert await asyncio.to_thread(nsqd.wait_ended) == 0
        assert sorted(slow.bodies) == sorted(bodies)
        assert "DRAIN: ended after " in nsqd.log
        assert ", 0 messages are left" in nsqd.log
        assert nsqd.log.splitlines()[-1].endswith("NSQ: bye")


async def test_what_is_left_is_said_and_kept(start_nsqd: StartDaemon) -> None:
    nsqd = start_nsqd("--drain-timeout=400ms")
    slow = Slow(nsqd, "t")
    async with slow.consumer:
        nsqd.publish("t", b"1", b"2")
        nsqd.publish("t", b"later", defer_ms=3_600_000)
        nsqd.publish("alone", b"3")
        await reached(lambda: slow.bodies)
        assert await asyncio.to_thread(nsqd.terminate) == 0
        slow.may_finish.set()
    assert "DRAIN: t:c leaves depth 1, in flight 1, deferred 1, leased 0\n" in nsqd.log
    assert "DRAIN: TOPIC(alone) leaves depth 1, in flight 0, deferred 0, leased 0\n" in nsqd.log
    assert ", 4 messages are left for the next start\n" in nsqd.log
    nsqd.start()
    assert nsqd.request("/ping").text == "OK"
    nsqd.wait_channel("t", "c", depth=2, deferred_count=1)


async def test_a_second_signal_ends_it_at_once(start_nsqd: StartDaemon) -> None:
    nsqd = start_nsqd("--drain-timeout=1h")
    slow = Slow(nsqd, "t")
    async with slow.consumer:
        nsqd.publish("t", b"1", b"2")
        await reached(lambda: slow.bodies)
        nsqd.send_signal(signal.SIGTERM)
        await reached(lambda: nsqd.request("/drain").json["draining"])
        nsqd.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(nsqd.wait_ended) == 0
        slow.may_finish.set()
    nsqd.start()
    nsqd.wait_channel("t", "c", depth=2)


async def test_over_http_it_ends_the_process_too(start_nsqd: StartDaemon) -> None:
    nsqd = start_nsqd()
    assert nsqd.request("/drain").json == {
        "draining": False, "depth": 0, "in_flight": 0, "deferred": 0, "leased": 0, "deadline": 0
    }  # fmt: skip
    assert nsqd.request("/drain?timeout=soon", b"").status == 400
    slow = Slow(nsqd, "t")
    async with slow.consumer:
        nsqd.publish("t", b"1", b"2")
        await reached(lambda: slow.bodies)
        first = nsqd.request("/drain?timeout=20s", b"").json
        assert (first["draining"], first["depth"], first["in_flight"]) == (True, 1, 1)
        # Once more: it is the same drain, with another end if one is given.
        assert nsqd.request("/drain", b"").json["deadline"] == first["deadline"]
        assert nsqd.request("/drain?timeout=1h", b"").json["deadline"] > first["deadline"]
        waiting = asyncio.create_task(
            asyncio.to_thread(nsqd.request, "/drain?wait=true", b"", seconds=DEADLINE_S)
        )
        slow.may_finish.set()
        last = (await waiting).json
        assert (last["draining"], last["depth"], last["in_flight"]) == (True, 0, 0)
        assert await asyncio.to_thread(nsqd.wait_ended) == 0
    assert slow.bodies == [b"1", b"2"]


def test_without_a_timeout_sigterm_does_not_wait(start_nsqd: StartDaemon) -> None:
    nsqd = start_nsqd()
    nsqd.publish("t", b"1")
    assert nsqd.terminate() == 0
    assert "DRAIN" not in nsqd.log


async def test_without_the_flag_a_signal_ends_what_http_began(start_nsqd: StartDaemon) -> None:
    nsqd = start_nsqd()
    slow = Slow(nsqd, "t")
    async with slow.consumer:
        nsqd.publish("t", b"1", b"2")
        await reached(lambda: slow.bodies)
        assert nsqd.request("/drain?timeout=1h", b"").json["draining"]
        assert await asyncio.to_thread(nsqd.terminate) == 0
        slow.may_finish.set()
    assert "DRAIN: told not to wait any longer\n" in nsqd.log
    assert ", 2 messages are left" in nsqd.log


async def test_with_the_flag_the_first_signal_lets_it_go_on(start_nsqd: StartDaemon) -> None:
    nsqd = start_nsqd("--drain-timeout=1h")
    slow = Slow(nsqd, "t")
    async with slow.consumer:
        nsqd.publish("t", b"1", b"2")
        await reached(lambda: slow.bodies)
        deadline = nsqd.request("/drain?timeout=20s", b"").json["deadline"]
        nsqd.send_signal(signal.SIGTERM)
        assert nsqd.request("/drain").json["deadline"] == deadline
        slow.may_finish.set()
        assert await asyncio.to_thread(nsqd.wait_ended) == 0
    assert slow.bodies == [b"1", b"2"]


async def test_producers_go_elsewhere(tmp_path: Path, start_nsqd: StartDaemon) -> None:
    with in_directory(tmp_path, start_nsqd) as (nsqd, lookupd):
        other = start_nsqd(
            f"--lookupd-tcp-address={lookupd.tcp_address}", "--broadcast-address=auto"
        )
        for daemon in (nsqd, other):
            assert daemon.request("/topic/create?topic=t", b"").status == 200
            assert daemon.request("/channel/create?topic=t&channel=c", b"").status == 200
        await reached(lambda: len(lookupd.request("/lookup?topic=t").json["producers"]) == 2)
        slow = Slow(nsqd, "t")
        async with slow.consumer:
            async with Producer(nsqd.tcp_address, lookupd=lookupd.http_address) as producer:
                await producer.publish("t", b"first")
                nsqd.publish("t", b"held")
                await reached(lambda: slow.bodies)
                nsqd.request("/drain?timeout=1h", b"")
                for index in range(20):
                    await producer.publish("t", b"%d" % index)
            await reached(lambda: other.channel_stats("t", "c")["message_count"] >= 20)
            slow.may_finish.set()
            assert await asyncio.to_thread(nsqd.wait_ended) == 0
