"""The blocking wrappers against a scripted nsqd, from a thread that has no event loop."""

import asyncio

import pytest

from nsqpy.client import blocking
from nsqpy.errors import ConnectionClosed, LocalProtocolError
from tests.integration.fake_nsqd import FakeNsqd, message_frame
from tests.integration.test_client_consumer import after_handshake, fin, req


def publish(address: str) -> int:
    with blocking.Producer(address) as producer:
        producer.ping()
        producer.publish("t", b"one")
        producer.publish("t", b"later", defer_ms=5)
        producer.publish_many("t", [b"a", b"b"])
        with pytest.raises(LocalProtocolError):
            producer.publish("t", b"")
        published = producer.stats().messages_published
    producer.stop()
    return published


async def test_producer() -> None:
    async with FakeNsqd() as nsqd:
        assert await asyncio.to_thread(publish, nsqd.address) == 4
        await nsqd.wait_command("MPUB t")
        assert nsqd.connection.commands[-3:] == ["PUB t", "DPUB t 5", "MPUB t"]


def consume_two(address: str) -> list[bytes]:
    bodies = []
    with blocking.Consumer("t", "c", nsqd=address, max_in_flight=9) as consumer:
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 2:
                break
    return bodies


async def test_leaving_the_loop_hands_the_rest_back() -> None:
    async with FakeNsqd() as nsqd:
        nsqd.replies["RDY"] = lambda: b"".join(message_frame(n, b"%d" % n) for n in range(4))
        assert await asyncio.to_thread(consume_two, nsqd.address) == [b"0", b"1"]
        await nsqd.wait_command("CLS")
        await nsqd.wait_command(req(3, 0))
        assert {fin(0), fin(1), req(2, 0), req(3, 0)} <= set(after_handshake(nsqd))


def run_until_three(address: str) -> None:
    seen = 0

    def handler(message: blocking.Message) -> None:
        nonlocal seen
        seen += 1
        if seen == 3:
            consumer.request_stop()
        message.touch()
        if message.body == b"1":
            raise ValueError("no")

    with blocking.Consumer("t", "c", nsqd=address, max_in_flight=9) as consumer:
        consumer.run(handler)


async def test_run_requeues_what_raises() -> None:
    async with FakeNsqd() as nsqd:
        nsqd.replies["RDY"] = lambda: b"".join(message_frame(n, b"%d" % n) for n in range(3))
        await asyncio.to_thread(run_until_three, nsqd.address)
        await nsqd.wait_command(fin(2))
        assert {fin(0), req(1, 90_000), fin(2)} <= set(after_handshake(nsqd))


def take_batches(address: str) -> list[int]:
    sizes: list[int] = []
    with blocking.Consumer("t", "c", nsqd=address, max_in_flight=9) as consumer:
        for batch in consumer.batches(2):
            sizes.append(len(batch))
            if sum(sizes) == 3:
                break
    return sizes


async def test_batches() -> None:
    async with FakeNsqd() as nsqd:
        nsqd.replies["RDY"] = lambda: b"".join(message_frame(n) for n in range(3))
        assert await asyncio.to_thread(take_batches, nsqd.address) == [2, 1]
        await nsqd.wait_command(fin(2))


async def test_a_failed_start_raises_in_the_caller() -> None:
    consumer = blocking.Consumer("t", "c", nsqd="127.0.0.1:1")
    with pytest.raises(ConnectionClosed):
        await asyncio.to_thread(consumer.start)
