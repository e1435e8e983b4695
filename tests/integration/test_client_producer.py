"""The producer against a scripted nsqd."""

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from nsqpy import Producer
from nsqpy.client.options import client_options
from nsqpy.errors import ConfigError, ConnectionClosed, LocalProtocolError, ServerError
from nsqpy.protocol.frames import OK_FRAME
from tests.integration.fake_nsqd import FakeNsqd
from tests.ports import free_port


async def test_publishes_one_many_and_deferred() -> None:
    async with FakeNsqd() as nsqd, Producer(nsqd.address, client_id="me") as producer:
        await producer.publish("t", b"one")
        await producer.publish("t", b"later", defer_ms=1500)
        await producer.publish_many("t", [b"a", b"b"])
        await producer.publish_many("t", [])
        assert nsqd.connection.commands == ["IDENTIFY", "PUB t", "DPUB t 1500", "MPUB t"]
        identify, *bodies = nsqd.connection.bodies
        assert json.loads(identify)["client_id"] == "me"
        assert bodies == [b"one", b"later", b"\0\0\0\x02\0\0\0\x01a\0\0\0\x01b"]
        stats = producer.stats()
        assert (stats.messages_published, stats.calls_failed, stats.connections) == (4, 0, 1)


async def test_it_connects_at_the_first_call() -> None:
    async with FakeNsqd() as nsqd, Producer(nsqd.address) as producer:
        assert nsqd.connections == []
        await producer.ping()
        await nsqd.wait_command("NOP")


async def test_replies_complete_calls_in_order() -> None:
    async with FakeNsqd() as nsqd, Producer(nsqd.address) as producer:
        await producer.ping()
        nsqd.silence("PUB")
        calls = [asyncio.create_task(producer.publish("t", body)) for body in (b"1", b"2", b"3")]
        await nsqd.wait(lambda: len(nsqd.connection.bodies) == 4)
        nsqd.connection.heartbeat()
        nsqd.connection.send(OK_FRAME)
        await calls[0]
        await nsqd.wait_command("NOP")
        assert not calls[1].done()
        nsqd.connection.send(OK_FRAME * 2)
        await asyncio.gather(*calls)


async def test_an_error_is_of_the_call_and_a_cancelled_call_keeps_its_place() -> None:
    async with FakeNsqd() as nsqd, Producer(nsqd.address) as producer:
        await producer.ping()
        nsqd.silence("PUB")
        first = asyncio.create_task(producer.publish("t", b"1"))
        await nsqd.wait_command("PUB t")
        first.cancel()
        nsqd.refuse("MPUB", b"E_MPUB_FAILED MPUB failed exiting")
        second = asyncio.create_task(producer.publish_many("t", [b"2"]))
        nsqd.connection.send(OK_FRAME)
        with pytest.raises(ServerError) as raised:
            await second
        assert str(raised.value) == "E_MPUB_FAILED MPUB failed exiting"
        assert raised.value.code == "E_MPUB_FAILED"
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_outstanding_calls_are_bounded() -> None:
    async with FakeNsqd() as nsqd, Producer(nsqd.address, outstanding_max=2) as producer:
        await producer.ping()
        nsqd.silence("PUB")
        calls = [asyncio.create_task(producer.publish("t", b"%d" % n)) for n in range(5)]
        await nsqd.wait(lambda: nsqd.connection.commands.count("PUB t") == 2)
        assert producer.stats().calls_outstanding == 2
        nsqd.connection.send(OK_FRAME)
        await nsqd.wait(lambda: nsqd.connection.commands.count("PUB t") == 3)
        nsqd.connection.send(OK_FRAME * 2)
        await nsqd.wait(lambda: nsqd.connection.commands.count("PUB t") == 5)
        nsqd.connection.send(OK_FRAME * 2)
        await asyncio.gather(*calls)
        assert nsqd.connection.bodies[1:] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_lost_connection_fails_what_is_outstanding_and_the_next_call_connects() -> None:
    async with FakeNsqd() as nsqd, Producer(nsqd.address) as producer:
        await producer.ping()
        nsqd.silence("PUB")
        call = asyncio.create_task(producer.publish("t", b"1"))
        await nsqd.wait_command("PUB t")
        nsqd.connection.close()
        with pytest.raises(ConnectionClosed, match="closed by nsqd"):
            await call
        del nsqd.replies["PUB"]
        await producer.publish("t", b"2")
        assert len(nsqd.connections) == 2


async def test_it_reconnects_in_the_background() -> None:
    async with FakeNsqd() as nsqd:
        producer = Producer(nsqd.address, lookupd_poll_interval="10ms")
        await producer.ping()
        nsqd.connection.close()
        await nsqd.wait(lambda: len(nsqd.connections) == 2)
        await producer.stop()


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "a\0b", "\ud800"])
async def test_a_host_that_no_resolver_takes_is_nobody(host: str) -> None:
    async with Producer(f"{host}:4150", tries=1) as producer:
        with pytest.raises(ConnectionClosed, match=host.replace(".", r"\.")):
            await producer.publish("t", b"1")


async def test_a_reply_to_nothing_closes_the_connection() -> None:
    async with FakeNsqd() as nsqd, Producer(nsqd.address) as producer:
        await producer.ping()
        nsqd.connection.send(OK_FRAME)
        await nsqd.connection.wait_closed()


async def test_a_pool_uses_every_open_nsqd_and_does_without_the_others() -> None:
    dead = f"127.0.0.1:{free_port()}"
    async with (
        FakeNsqd() as one,
        FakeNsqd() as two,
        Producer(one.address, dead, two.address) as producer,
    ):
        await producer.ping()
        await one.wait_command("IDENTIFY")
        await two.wait_command("IDENTIFY")
        for number in range(20):
            await producer.publish("t", b"%d" % number)
        shares = [nsqd.connection.commands.count("PUB t") for nsqd in (one, two)]
        assert sum(shares) == 20
        assert min(shares) >= 5
        two.connection.close()
        await two.stop()
        for number in range(4):
            try:
                await producer.publish("t", b"%d" % number)
            except ConnectionClosed:
                continue  # the loss was not seen yet
        assert one.connection.commands.count("PUB t") > shares[0]


async def test_nobody_there() -> None:
    dead = f"127.0.0.1:{free_port()}"
    async with Producer(dead) as producer:
        with pytest.raises(ConnectionClosed, match=f"no open connections: {dead}: "):
            await producer.publish("t", b"1")
        assert producer.stats().calls_failed == 1


async def test_stop_fails_outstanding_calls_and_refuses_later_ones() -> None:
    async with FakeNsqd() as nsqd:
        producer = Producer(nsqd.address)
        await producer.ping()
        nsqd.silence("PUB")
        call = asyncio.create_task(producer.publish("t", b"1"))
        await nsqd.wait_command("PUB t")
        await producer.stop()
        await producer.stop()
        with pytest.raises(ConnectionClosed, match="stopped"):
            await call
        with pytest.raises(LocalProtocolError, match="stopped"):
            await producer.publish("t", b"2")


async def test_what_nsqd_would_refuse_by_closing_is_refused_here() -> None:
    async with FakeNsqd() as nsqd, Producer(nsqd.address) as producer:
        for topic, body in (("bad$", b"x"), ("t\nFIN x", b"x"), ("", b"x"), ("t", b"")):
            with pytest.raises(LocalProtocolError):
                await producer.publish(topic, body)
            with pytest.raises(LocalProtocolError):
                await producer.publish_many(topic, [b"x", body])
        with pytest.raises(LocalProtocolError):
            await producer.publish("t", b"x", defer_ms=-1)
        assert nsqd.connections == []
    with pytest.raises(LocalProtocolError):
        Producer()
    with pytest.raises(ConfigError, match="is not host:port"):
        Producer("localhost")


@pytest.mark.parametrize(
    ("features", "text"),
    [({"auth_required": True}, "auth required"), ({"max_rdy_count": "x"}, "bad reply to IDENTIFY")],
)
async def test_an_nsqd_that_asks_too_much(features: dict[str, object], text: str) -> None:
    async with FakeNsqd(**features) as nsqd, Producer(nsqd.address) as producer:
        with pytest.raises(ConnectionClosed, match=text):
            await producer.ping()


async def test_an_http_port_is_recognised() -> None:
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with Producer(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as producer:
        with pytest.raises(ConnectionClosed, match="this is an HTTP port"):
            await producer.ping()
        await ended.wait()
    server.close()
    await server.wait_closed()


async def test_silence_for_the_read_timeout_closes() -> None:
    options = client_options({"heartbeat_interval": "100ms", "read_timeout": "100ms"})
    async with FakeNsqd() as nsqd, Producer(nsqd.address, options=options) as producer:
        nsqd.silence("PUB")
        with pytest.raises(ConnectionClosed, match=r"nothing read for 0\.1s"):
            await producer.publish("t", b"1")


async def test_an_nsqd_that_does_not_read_is_given_up() -> None:
    async def read_little(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(OK_FRAME)
        await ended.wait()
        writer.close()

    ended = asyncio.Event()
    server = await asyncio.start_server(read_little, "127.0.0.1", 0, limit=1024)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Producer(address, write_timeout="100ms") as producer:
        call = asyncio.create_task(producer.publish("t", b"x" * 50_000_000))
        with pytest.raises(ConnectionClosed, match=r"nothing written for 0\.1s"):
            await call
    ended.set()
    server.close()
    await server.wait_closed()


async def test_a_unix_socket_is_an_address_too(tmp_path: Path) -> None:
    path = str(tmp_path / "nsqd.sock")
    async with FakeNsqd(path) as nsqd, Producer(nsqd.address) as producer:
        await producer.publish("t", b"x")
        assert nsqd.connection.commands == ["IDENTIFY", "PUB t"]
