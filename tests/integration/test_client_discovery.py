"""Finding nsqd through lookupd: consumers, patterns, producers, against scripted servers."""

import asyncio
import socket
from collections.abc import Callable

import pytest
from aiohttp import web

from nsqpy import Consumer, Producer
from nsqpy.client import blocking
from nsqpy.client.consumer import Message
from nsqpy.client.options import client_options
from nsqpy.errors import ConfigError, ConnectionClosed, LocalProtocolError, ServerError
from tests.integration.fake_lookupd import FakeLookupd
from tests.integration.fake_nsqd import DEADLINE_S, FakeNsqd, message_frame
from tests.integration.test_client_consumer import fin, ignore
from tests.integration.test_client_tools import end, run, start
from tests.ports import free_port

FAST = client_options(
    {"lookupd_poll_interval": "10ms", "lookupd_poll_jitter": 0, "discovery_timeout": "200ms"}
)


async def wait(condition: Callable[[], bool]) -> None:
    """Wait for what no server can see."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.005)


# Consumers


async def test_a_consumer_finds_its_nodes_and_shares_rdy_over_them() -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as one, FakeNsqd() as two, FakeNsqd() as three:
        lookupd.register(one, "t", "other")
        lookupd.register(two, "t")
        lookupd.register(three, "other")
        seen: list[tuple[str, str]] = []

        def handler(message: Message) -> None:
            seen.append((message.topic, message.nsqd_address))

        async with Consumer("t", "c", handler, lookupd=lookupd.address, max_in_flight=10):
            for nsqd in (one, two):
                await nsqd.wait_command("RDY 5")
                assert nsqd.connection.commands[1] == "SUB t c"
            one.connection.send(message_frame(0))
            await one.wait_command(fin(0))
        assert seen == [("t", one.address)]
        assert three.connections == []
        assert lookupd.asked == ["/lookup?topic=t"]


async def test_a_consumer_starts_while_nobody_answers_and_finds_what_comes() -> None:
    lookupd = FakeLookupd()
    lookupd.port = free_port()
    async with (
        FakeNsqd() as nsqd,
        Consumer("t", "c", ignore, lookupd=[lookupd.address], options=FAST) as consumer,
    ):
        assert consumer.stats().connections == 0
        async with lookupd:
            await lookupd.wait_asked("/lookup?topic=t", 3)
            lookupd.register(nsqd, "t")
            await nsqd.wait_command("RDY 1")


async def test_a_new_node_gets_its_share_and_the_share_of_one_that_left_goes_round() -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as one, FakeNsqd() as two:
        lookupd.register(one, "t")
        async with Consumer(
            "t", "c", ignore, lookupd=lookupd.address, options=FAST, max_in_flight=10
        ) as consumer:
            await one.wait_command("RDY 10")
            lookupd.register(two, "t")
            await two.wait_command("RDY 5")
            await one.wait_command("RDY 5")
            lookupd.forget(two)
            await lookupd.wait_asked("/lookup?topic=t", 3)
            assert consumer.stats().connections == 2  # it lives, so it is kept
            two.connection.close()
            await one.wait_count("RDY 10", 2)
            await lookupd.wait_asked("/lookup?topic=t", 3)
            assert len(two.connections) == 1


async def test_a_node_that_is_listed_is_tried_until_it_is_back() -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as nsqd:
        lookupd.register(nsqd, "t")
        async with Consumer("t", "c", ignore, lookupd=lookupd.address, options=FAST):
            await nsqd.wait_command("RDY 1")
            await nsqd.stop()
            await lookupd.wait_asked("/lookup?topic=t", 5)
            lost = len(nsqd.connections)
            await nsqd.start()
            await nsqd.wait(lambda: len(nsqd.connections) > lost)
            await nsqd.wait_command("RDY 1", nsqd.connection)


@pytest.mark.slow
async def test_a_lost_connection_hurries_the_next_question() -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as nsqd:
        lookupd.register(nsqd, "t")
        async with Consumer("t", "c", ignore, lookupd=lookupd.address) as consumer:
            await nsqd.wait_command("RDY 1")
            nsqd.connection.close()
            await wait(lambda: consumer.stats().connections == 0)
            await nsqd.wait(lambda: len(nsqd.connections) == 2)  # within a second, not a minute


async def test_given_nodes_and_found_ones_are_used_together() -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as given, FakeNsqd() as found:
        lookupd.register(found, "t")
        lookupd.register(given, "t")
        async with Consumer(
            "t", "c", ignore, nsqd=given.address, lookupd=lookupd.address, options=FAST
        ):
            await found.wait_command("SUB t c")
            await lookupd.wait_asked("/lookup?topic=t", 3)
            assert len(given.connections) == 1
    consumer = Consumer("t", "c", ignore, nsqd="127.0.0.1:1", lookupd="127.0.0.1:1")
    with pytest.raises(ConnectionClosed, match=r"127\.0\.0\.1:1: "):
        await consumer.start()


async def test_a_pattern_follows_topics_as_they_appear() -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as one, FakeNsqd() as two:
        lookupd.register(one, "orders.eu", "orders", "returns.eu")
        seen: list[tuple[str, bytes]] = []

        def handler(message: Message) -> None:
            seen.append((message.topic, message.body))

        async with Consumer(
            "orders.*", "c", handler, lookupd=lookupd.address, options=FAST, max_in_flight=8
        ) as consumer:
            await one.wait_command("RDY 8")
            lookupd.register(two, "orders.us", "orders.eu", "orders.us.paid")
            await two.wait(lambda: len(two.connections) == 2)
            await one.wait_command("RDY 2")
            await wait(lambda: consumer.stats().connections == 3)
            subs = {connection.commands[1]: connection for connection in two.connections}
            assert subs.keys() == {"SUB orders.eu c", "SUB orders.us c"}
            assert [connection.commands[1] for connection in one.connections] == ["SUB orders.eu c"]
            subs["SUB orders.us c"].send(message_frame(0, b"new"))
            await two.wait_command(fin(0))
            assert seen == [("orders.us", b"new")]


async def test_several_topics_and_patterns_over_given_and_found_nodes() -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as given, FakeNsqd() as found:
        lookupd.register(found, "a.b.c", "d", "e")
        topics = ["a.>", "*.b.*", "d"]
        async with Consumer(
            topics, "c", ignore, nsqd=given.address, lookupd=lookupd.address, options=FAST
        ) as consumer:
            assert consumer.topic == "a.>,*.b.*,d"
            await wait(lambda: consumer.stats().connections == 4)
            for nsqd in (given, found):
                subs = {connection.commands[1] for connection in nsqd.connections}
                assert subs == {"SUB a.b.c c", "SUB d c"}


async def test_one_lookupd_that_fails_or_hangs_does_not_stop_the_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    hanging = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    dead = f"127.0.0.1:{free_port()}"
    async with FakeLookupd(old=True) as lookupd, FakeNsqd() as nsqd:
        lookupd.register(nsqd, "t")
        addresses = [hanging, dead, lookupd.address, lookupd.address]
        async with Consumer("t", "c", ignore, lookupd=addresses, options=FAST):
            await nsqd.wait_command("RDY 1")
            await lookupd.wait_asked("/lookup?topic=t", 2)
            assert len(nsqd.connections) == 1
        assert f"LOOKUPD({dead}): Connection refused" in caplog.messages
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda: web.Response(status=500, text="oops"), "answered with 500 and no JSON object"),
        (lambda: web.Response(text="[" * 100_000), "answered with 200 and no JSON object"),
        (lambda: web.json_response(["x"]), "answered with 200 and no JSON object"),
        (lambda: web.json_response({"message": "NOPE"}, status=404), "answered with 404 NOPE"),
        (
            lambda: web.json_response({"status_code": 500, "status_txt": "BAD", "data": 3}),
            "answered with 500 BAD",
        ),
        (lambda: web.Response(body=b" " * 34_000_000), "longer than 33554432 bytes"),
        (
            lambda: web.json_response({"producers": [3, {}, {"broadcast_address": "/etc"}]}),
            "a node without a usable address",
        ),
    ],
)
async def test_bad_answers_are_logged_and_asked_again(
    answer: Callable[[], web.Response], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as nsqd:
        lookupd.answer = answer
        async with Consumer("t", "c", ignore, lookupd=lookupd.address, options=FAST):
            await lookupd.wait_asked("/lookup?topic=t")
            await wait(lambda: any(text in message for message in caplog.messages))
            lookupd.answer = None
            lookupd.register(nsqd, "t")
            await nsqd.wait_command("RDY 1")


async def test_silence_of_a_lookupd_is_timed(caplog: pytest.LogCaptureFixture) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Consumer("t", "c", ignore, lookupd=address, lookupd_poll_timeout="20ms"):
        await wait(lambda: f"LOOKUPD({address}): no answer within 0.02s" in caplog.messages)
    server.close()
    await server.wait_closed()


async def test_what_a_directory_says_of_nodes_is_not_trusted() -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as nsqd:
        for number, (host, port) in enumerate(
            [("", 1), ("a b", 1), ("/tmp", 1), ("h", 0), ("h", 70_000), ("h", "1"), (3, 1)]
        ):
            lookupd.tell(str(number), ("t",), {"broadcast_address": host, "tcp_port": port})
        lookupd.tell("x", ("t",), {"broadcast_address": "x" * 300, "tcp_port": 1})
        lookupd.tell("ill\nSUB", ("a\nb.c",), {"broadcast_address": "h", "tcp_port": 1})
        lookupd.register(nsqd, "t", "u.v")
        async with Consumer(["t", "*.*"], "c", ignore, lookupd=lookupd.address, options=FAST):
            await nsqd.wait_command("SUB t c")
            await nsqd.wait_command("SUB u.v c")
            assert not any("%0A" in target for target in lookupd.asked)


async def test_ipv6_addresses_are_put_into_brackets() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        probe = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 loopback")
    probe.close()
    async with FakeLookupd() as lookupd:
        accepted = asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.set()
            writer.close()

        server = await asyncio.start_server(accept, "::1", 0)
        port = server.sockets[0].getsockname()[1]
        lookupd.tell("six", ("t",), {"broadcast_address": "::1", "tcp_port": port})
        async with Consumer("t", "c", ignore, lookupd=lookupd.address):
            async with asyncio.timeout(DEADLINE_S):
                await accepted.wait()
        server.close()
        await server.wait_closed()


async def test_after_stop_nobody_is_asked_and_nothing_connected() -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as nsqd:
        lookupd.register(nsqd, "t")
        consumer = Consumer("t", "c", ignore, lookupd=lookupd.address, options=FAST)
        await consumer.start()
        await nsqd.wait_command("RDY 1")
        await consumer.stop()
        asked = len(lookupd.asked)
        async with Consumer("t", "other", ignore, lookupd=lookupd.address) as other:
            await wait(lambda: other.stats().connections == 1)
        assert len(lookupd.asked) == asked + 1


async def test_misuse_is_told() -> None:
    with pytest.raises(LocalProtocolError, match="needs the address of a lookupd"):
        Consumer("orders.*", "c", ignore, nsqd="h:1")
    with pytest.raises(LocalProtocolError, match='">" must be the last token'):
        Consumer(">.x", "c", ignore, lookupd="h:1")
    with pytest.raises(LocalProtocolError, match="at least one topic"):
        Consumer([], "c", ignore, lookupd="h:1")
    for address, text in (("h", "missing port"), ("https://h:1", "https"), ("h:x", "Port")):
        with pytest.raises(ConfigError, match=text):
            Consumer("t", "c", ignore, lookupd=address)
        with pytest.raises(ConfigError, match=text):
            Producer(lookupd=address)
    with pytest.raises(LocalProtocolError, match="tries 0 is below 1"):
        Producer("h:1", tries=0)


# Producers


async def test_a_producer_finds_nodes_and_spreads_over_them_as_they_come_and_go() -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as one, FakeNsqd() as two:
        lookupd.register(one, "t")
        async with Producer(lookupd=lookupd.address, options=FAST) as producer:
            await producer.publish("t", b"first")
            lookupd.register(two)
            await wait(lambda: producer.stats().connections == 2)
            for number in range(10):
                await producer.publish("t", b"%d" % number)
            assert two.connection.commands.count("PUB t") == 5
            one.silence("PUB")
            calls = [asyncio.create_task(producer.publish("t", b"x")) for _ in range(2)]
            await one.wait(lambda: one.connection.commands.count("PUB t") == 7)
            lookupd.forget(one)
            await wait(lambda: producer.stats().connections == 1)
            assert producer.stats().calls_outstanding == 1
            await producer.publish("t", b"y")
            one.connection.send(one_ok())
            await asyncio.gather(*calls)
            await one.connection.wait_closed()
            assert producer.stats().calls_retried == 0


def one_ok() -> bytes:
    return b"\0\0\0\x06\0\0\0\0OK"


async def test_calls_without_an_answer_are_made_again_on_another_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeNsqd() as one, FakeNsqd() as two:
        async with Producer(one.address, two.address) as producer:
            await producer.ping()
            await wait(lambda: producer.stats().connections == 2)
            one.silence("PUB")
            calls = [asyncio.create_task(producer.publish("t", b"%d" % n)) for n in range(20)]
            await one.wait(lambda: one.connection.commands.count("PUB t") == 10)
            one.connection.close()
            await asyncio.gather(*calls)
            assert len(set(two.connection.bodies[1:])) == 20
            stats = producer.stats()
            assert (stats.messages_published, stats.calls_failed, stats.calls_retried) == (
                *(20, 0, 10),
            )
        told = [message for message in caplog.messages if "made again" in message]
        assert len(told) == 1
        assert told[0] == (f"{one.address}: closed by nsqd: 10 calls made again on another nsqd")


async def test_tries_1_leaves_a_lost_call_to_the_caller() -> None:
    async with (
        FakeNsqd() as one,
        FakeNsqd() as two,
        Producer(one.address, two.address, tries=1) as producer,
    ):
        await producer.ping()
        await wait(lambda: producer.stats().connections == 2)
        one.silence("PUB")
        calls = [asyncio.create_task(producer.publish("t", b"%d" % n)) for n in range(2)]
        await one.wait_command("PUB t")
        one.connection.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(result, ConnectionClosed) for result in results) == 1


@pytest.mark.parametrize("command", ["PUB", "MPUB", "DPUB"])
async def test_a_node_that_cannot_store_is_passed_over(command: str) -> None:
    error = f"E_{command}_FAILED {command} failed exiting".encode()
    async with FakeNsqd() as full, FakeNsqd() as good:
        full.refuse(command, error)
        async with Producer(full.address, good.address) as producer:

            async def publish() -> None:
                if command == "MPUB":
                    await producer.publish_many("t", [b"x"])
                else:
                    await producer.publish("t", b"x", defer_ms=5 if command == "DPUB" else 0)

            for _ in range(4):
                await publish()
            good.refuse(command, error)
            with pytest.raises(ServerError, match=f"E_{command}_FAILED"):
                await publish()
            stats = producer.stats()
            assert (stats.messages_published, stats.calls_failed) == (4, 1)


async def test_what_the_caller_did_wrong_is_not_tried_again() -> None:
    async with FakeNsqd() as one, FakeNsqd() as two:
        for nsqd in (one, two):
            nsqd.refuse("PUB", b"E_BAD_MESSAGE PUB message too big 9 > 8")
        async with Producer(one.address, two.address) as producer:
            with pytest.raises(ServerError, match="E_BAD_MESSAGE"):
                await producer.publish("t", b"x")
            assert producer.stats().calls_retried == 0


async def test_tries_are_bounded() -> None:
    nodes = [FakeNsqd() for _ in range(4)]
    for nsqd in nodes:
        await nsqd.start()
        nsqd.refuse("PUB", b"E_PUB_FAILED PUB failed exiting")
    async with Producer(*(nsqd.address for nsqd in nodes)) as producer:
        await producer.ping()
        await wait(lambda: producer.stats().connections == 4)
        with pytest.raises(ServerError, match="E_PUB_FAILED"):
            await producer.publish("t", b"x")
    assert sum(nsqd.connection.commands.count("PUB t") for nsqd in nodes) == 3
    for nsqd in nodes:
        await nsqd.stop()


@pytest.mark.parametrize(
    ("host", "hostname"),
    [("127.1", "this-host"), ("localhost", "x"), ("127.0.0.1", "x")],
)
async def test_the_nodes_of_this_host_come_first(host: str, hostname: str) -> None:
    # "127.1" is this host too, but does not look like it.
    async with FakeLookupd() as lookupd, FakeNsqd() as here, FakeNsqd() as there:
        lookupd.register(there, host="127.1")
        lookupd.register(here, host=host, hostname=hostname)
        async with Producer(
            lookupd=lookupd.address, prefer_local=True, hostname="this-host", options=FAST
        ) as producer:
            for _ in range(4):
                await producer.publish("t", b"x")
            assert here.connection.commands.count("PUB t") == 4
            assert there.connections == []
            await here.stop()
            await wait(lambda: producer.stats().connections == 0)
            await producer.publish("t", b"x")
            assert there.connection.commands.count("PUB t") == 1
            await here.start()
            connected = len(here.connections)
            await here.wait(lambda: len(here.connections) > connected)
            await wait(lambda: producer.stats().connections == 2)
            await producer.publish("t", b"x")
            assert here.connection.commands[-1] == "PUB t"


async def test_no_node_is_waited_for_and_then_told() -> None:
    dead = f"127.0.0.1:{free_port()}"
    async with FakeLookupd() as lookupd, FakeNsqd() as nsqd:
        async with Producer(lookupd=[dead, lookupd.address], options=FAST) as producer:
            with pytest.raises(ConnectionClosed) as raised:
                await producer.publish("t", b"x")
            assert str(raised.value) == (
                f"no nsqd found within 0.2s by lookupd {dead} (Connection refused), "
                f"{lookupd.address}"
            )
        patient = client_options({"discovery_timeout": "5s"}, FAST)
        async with Producer(lookupd=lookupd.address, options=patient) as producer:
            call = asyncio.create_task(producer.publish("t", b"x"))
            await lookupd.wait_asked("/nodes", 2)
            lookupd.register(nsqd)
            await call
            lookupd.forget(nsqd)  # an empty directory, as after its restart, changes nothing
            await lookupd.wait_asked("/nodes", 3)
            await producer.publish("t", b"x")
            assert len(nsqd.connections) == 1


async def test_listed_nodes_that_do_not_answer_are_told() -> None:
    async with FakeLookupd() as lookupd:
        nsqd = FakeNsqd()
        nsqd.port = free_port()
        lookupd.register(nsqd)
        async with Producer(lookupd=lookupd.address, options=FAST) as producer:
            with pytest.raises(ConnectionClosed, match=f"no open connections: {nsqd.address}"):
                await producer.publish("t", b"x")


async def test_a_producer_is_stopped_while_it_waits() -> None:
    async with FakeLookupd() as lookupd:
        producer = Producer(lookupd=lookupd.address)
        call = asyncio.create_task(producer.publish("t", b"x"))
        await lookupd.wait_asked("/nodes")
        await producer.stop()
        with pytest.raises(LocalProtocolError, match="the producer was stopped"):
            await call


# Blocking wrappers and tools


def publish_and_consume(lookupd: str) -> list[tuple[str, bytes]]:
    with blocking.Producer(lookupd=lookupd, prefer_local=True, tries=2) as producer:
        producer.publish("a.b", b"x")
    with blocking.Consumer("a.*", "c", lookupd=lookupd) as consumer:
        for message in consumer:
            return [(message.topic, message.body)]
    return []


async def test_blocking() -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as nsqd:
        lookupd.register(nsqd, "a.b")
        nsqd.replies["RDY"] = lambda: message_frame(0, b"x")
        got = await asyncio.to_thread(publish_and_consume, lookupd.address)
        assert got == [("a.b", b"x")]
        assert nsqd.connections[0].commands[-1] == "PUB a.b"


@pytest.mark.slow
async def test_pub_and_tail() -> None:
    async with FakeLookupd() as lookupd, FakeNsqd() as nsqd:
        lookupd.register(nsqd, "a.b", "a.c")
        flag = f"--lookupd-http-address={lookupd.address}"
        published = await run("pub", "--topic=t", flag, "one")
        assert (published.status, published.stderr) == (0, "nsqpy pub: published 1 message to t\n")
        process = await start("tail", "--topic=a.*", "--channel=c", "-n=2", flag)
        await nsqd.wait(lambda: sum("RDY 1" in one.commands for one in nsqd.connections) == 2)
        for connection in nsqd.connections[-2:]:
            connection.send(message_frame(0, b"x"))
        followed = await end(process)
        assert followed.status == 0
        assert sorted(followed.stdout.splitlines()) == [b"a.b | x", b"a.c | x"]
        process = await start("tail", "--topic=nowhere", flag)
        await lookupd.wait_asked("/lookup?topic=nowhere")
        process.terminate()
        assert (await end(process)).status == 0


async def test_tools_want_some_address() -> None:
    for tool in ("pub", "tail"):
        ended = await run(tool, "--topic=t")
        assert ended.status == 1
        assert "--nsqd-tcp-address or --lookupd-http-address is required" in ended.stderr
