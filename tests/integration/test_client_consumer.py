"""The consumer against a scripted nsqd: what goes over the wire, and when."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from nsqpy import Consumer
from nsqpy.client.consumer import Message
from nsqpy.client.options import client_options
from nsqpy.errors import ConnectionClosed, LocalProtocolError, ServerError
from nsqpy.protocol.frames import error_frame
from tests.integration.fake_nsqd import DEADLINE_S, FakeNsqd, message_frame, message_id

FAST = client_options(
    {"backoff_multiplier": "10ms", "max_backoff_duration": "40ms", "lookupd_poll_interval": "10ms"}
)


def fin(number: int) -> str:
    return f"FIN {message_id(number).decode()}"


def req(number: int, delay_ms: int) -> str:
    return f"REQ {message_id(number).decode()} {delay_ms}"


def after_handshake(nsqd: FakeNsqd) -> list[str]:
    return nsqd.connection.commands[3:]


def ignore(message: Message) -> None:
    """A handler for messages that do not matter."""


async def test_it_identifies_subscribes_and_sets_rdy() -> None:
    async with FakeNsqd() as nsqd, Consumer("t", "c", ignore, nsqd=nsqd.address, max_in_flight=7):
        await nsqd.wait_command("RDY 7")
        assert nsqd.connection.commands == ["IDENTIFY", "SUB t c", "RDY 7"]


async def test_a_handler_that_returns_finishes_and_fins_are_joined() -> None:
    seen: list[bytes] = []
    handler = lambda message: seen.append(message.body)  # noqa: E731
    async with (
        FakeNsqd() as nsqd,
        Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=7) as consumer,
    ):
        nsqd.connection.send(b"".join(message_frame(n, b"%d" % n) for n in range(3)))
        await nsqd.wait_command(fin(2))
        assert seen == [b"0", b"1", b"2"]
        assert after_handshake(nsqd) == [fin(0), fin(1), fin(2)]
        stats = consumer.stats()
        assert (stats.messages_received, stats.messages_finished) == (3, 3)
        assert (stats.messages_in_flight, stats.connections) == (0, 1)


async def test_messages_carry_their_fields() -> None:
    async with (
        FakeNsqd() as nsqd,
        Consumer("t", "c", nsqd=nsqd.address) as consumer,
    ):
        nsqd.connection.send(message_frame(5, b"x", attempts=3))
        async for message in consumer:
            assert (message.id, message.body, message.attempts) == (message_id(5), b"x", 3)
            assert message.timestamp_ns == 1_800_000_000_000_000_000
            assert message.nsqd_address == nsqd.address
            break


async def test_a_handler_that_raises_requeues_behind_rdy_0_and_probes_as_captured() -> None:
    failures = 2

    async def handler(message: Message) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise ValueError("no")

    async with (
        FakeNsqd() as nsqd,
        Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=10, options=FAST),
    ):
        for number, answer in enumerate((req(0, 90_000), req(1, 90_000), fin(2), fin(3))):
            nsqd.connection.send(message_frame(number))
            await nsqd.wait_command(answer)
            await nsqd.wait_count("RDY 1", min(number + 1, 3))
        assert after_handshake(nsqd) == [
            *("RDY 0", req(0, 90_000), "RDY 1"),
            *("RDY 0", req(1, 90_000), "RDY 1"),
            *("RDY 0", fin(2), "RDY 1"),
            *("RDY 10", fin(3)),
        ]


@pytest.mark.parametrize("backoff", [True, False])
async def test_explicit_answers_and_the_first_one_wins(backoff: bool) -> None:
    def handler(message: Message) -> None:
        message.touch()
        message.touch()
        message.requeue(1234, backoff=backoff)
        message.finish()
        message.requeue()
        message.touch()

    async with FakeNsqd() as nsqd, Consumer("t", "c", handler, nsqd=nsqd.address):
        nsqd.connection.send(message_frame(0))
        await nsqd.wait_command(req(0, 1234))
        touch = f"TOUCH {message_id(0).decode()}"
        rdy_0 = ["RDY 0"] if backoff else []
        assert after_handshake(nsqd) == [touch, touch, *rdy_0, req(0, 1234)]


async def test_without_automatic_response_the_answer_comes_later() -> None:
    kept: list[Message] = []

    def handler(message: Message) -> None:
        message.disable_auto_response()
        kept.append(message)

    async with (
        FakeNsqd() as nsqd,
        Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=2) as consumer,
    ):
        nsqd.connection.send(message_frame(0) + message_frame(1))
        nsqd.connection.heartbeat()
        await nsqd.wait_command("NOP")
        assert after_handshake(nsqd) == ["NOP"]
        assert consumer.is_starved
        for message in kept:
            message.finish()
        await nsqd.wait_command(fin(1))
        assert not consumer.is_starved


async def test_too_many_attempts_call_failed_message_and_finish() -> None:
    handled: list[int] = []
    failed: list[int] = []
    async with (
        FakeNsqd() as nsqd,
        Consumer(
            "t",
            "c",
            lambda message: handled.append(message.attempts),
            nsqd=nsqd.address,
            max_in_flight=5,
            failed_message=lambda message: failed.append(message.attempts),
        ),
    ):
        nsqd.connection.send(message_frame(0, attempts=5) + message_frame(1, attempts=6))
        await nsqd.wait_command(fin(0))
        await nsqd.wait_command(fin(1))
        assert (handled, failed) == ([5], [6])


async def test_max_attempts_0_never_gives_up() -> None:
    async with (
        FakeNsqd() as nsqd,
        Consumer("t", "c", nsqd=nsqd.address, max_attempts=0) as consumer,
    ):
        nsqd.connection.send(message_frame(0, attempts=1000))
        async for message in consumer:
            assert message.attempts == 1000
            break


async def test_heartbeats_are_answered_while_all_handlers_are_busy() -> None:
    release = asyncio.Event()

    async def handler(message: Message) -> None:
        await release.wait()

    async with FakeNsqd() as nsqd, Consumer("t", "c", handler, nsqd=nsqd.address, concurrency=1):
        nsqd.connection.send(message_frame(0))
        nsqd.connection.heartbeat()
        await nsqd.wait_command("NOP")
        release.set()
        await nsqd.wait_command(fin(0))


async def test_concurrency_bounds_coroutine_handlers() -> None:
    running = most = 0
    release = asyncio.Event()

    async def handler(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            release.set()
        await release.wait()
        await asyncio.sleep(0)
        running -= 1

    async with (
        FakeNsqd() as nsqd,
        Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=50, concurrency=2),
    ):
        nsqd.connection.send(b"".join(message_frame(n) for n in range(20)))
        await nsqd.wait(lambda: sum("FIN" in one for one in nsqd.connection.commands) == 20)
        assert most == 2


async def async_batch(messages: list[Message]) -> None:
    await asyncio.sleep(0)
    plain_batch(messages)


def plain_batch(messages: list[Message]) -> None:
    if any(message.body == b"bad" for message in messages):
        raise ValueError("no")


@pytest.mark.parametrize("handler", [plain_batch, async_batch])
async def test_batches_are_answered_as_one(
    handler: Callable[[list[Message]], None] | Callable[[list[Message]], Awaitable[None]],
) -> None:
    async with (
        FakeNsqd() as nsqd,
        Consumer("t", "c", batch_handler=handler, nsqd=nsqd.address, max_in_flight=9, options=FAST),
    ):
        nsqd.connection.send(message_frame(0) + message_frame(1))
        await nsqd.wait_command(fin(1))
        assert after_handshake(nsqd) == [fin(0), fin(1)]
        nsqd.connection.send(message_frame(2) + message_frame(3, b"bad"))
        await nsqd.wait_command(req(2, 90_000))
        await nsqd.wait_command(req(3, 90_000))


async def test_a_plain_handler_that_returns_an_awaitable_has_done_nothing() -> None:
    async def work(message: Message) -> None:
        raise AssertionError("never awaited")

    async with (
        FakeNsqd() as nsqd,
        Consumer("t", "c", lambda message: work(message), nsqd=nsqd.address),
    ):
        nsqd.connection.send(message_frame(0))
        await nsqd.wait_command(req(0, 90_000))


# Iteration


async def test_asking_for_the_next_finishes_and_leaving_hands_the_rest_back() -> None:
    async with FakeNsqd() as nsqd:
        async with Consumer("t", "c", nsqd=nsqd.address, max_in_flight=9) as consumer:
            nsqd.connection.send(b"".join(message_frame(n, b"%d" % n) for n in range(4)))
            async for message in consumer:
                if message.body == b"1":
                    break
        await nsqd.wait_command(fin(1))
        answers = set(after_handshake(nsqd)) - {"CLS"}
        assert answers == {fin(0), fin(1), req(2, 0), req(3, 0)}


async def test_an_exception_in_the_loop_requeues_what_it_held() -> None:
    async with FakeNsqd() as nsqd:
        consumer = Consumer("t", "c", nsqd=nsqd.address)

        async def consume() -> None:
            async with consumer:
                nsqd.connection.send(message_frame(0))
                async for _ in consumer:
                    raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await consume()
        await nsqd.wait_command(req(0, 90_000))


async def test_iteration_over_batches() -> None:
    async with (
        FakeNsqd() as nsqd,
        Consumer("t", "c", nsqd=nsqd.address, max_in_flight=9) as consumer,
    ):
        nsqd.connection.send(b"".join(message_frame(n) for n in range(5)))
        sizes = []
        async for batch in consumer.batches(max_messages=2):
            sizes.append(len(batch))
            if sum(sizes) == 5:
                break
        assert sizes == [2, 2, 1]


async def test_stop_in_the_loop_ends_it() -> None:
    async with FakeNsqd() as nsqd:
        async with Consumer("t", "c", nsqd=nsqd.address) as consumer:
            nsqd.connection.send(message_frame(0))
            async with asyncio.timeout(DEADLINE_S):
                async for _ in consumer:
                    await consumer.stop()
        assert after_handshake(nsqd)[-2:] in (["CLS", fin(0)], [fin(0), "CLS"])


# Several nsqd


async def test_rdy_is_shared_over_several_nsqd() -> None:
    async with FakeNsqd() as one, FakeNsqd() as two:
        addresses = [one.address, two.address]
        async with Consumer("t", "c", ignore, nsqd=addresses, max_in_flight=10) as consumer:
            await one.wait_command("RDY 5")
            await two.wait_command("RDY 5")
            consumer.set_max_in_flight(20)
            await one.wait_command("RDY 10")
            consumer.pause()
            consumer.pause()
            await one.wait_command("RDY 0")
            await two.wait_command("RDY 0")
            assert consumer.max_in_flight == 0
            consumer.unpause()
            await two.wait(lambda: two.connection.commands.count("RDY 10") == 2)
            assert consumer.max_in_flight == 20


async def test_nsqd_are_added_and_removed_at_run_time() -> None:
    async with (
        FakeNsqd() as one,
        FakeNsqd() as two,
        Consumer("t", "c", ignore, nsqd=one.address, max_in_flight=4) as consumer,
    ):
        await consumer.connect(two.address)
        await two.wait_command("RDY 2")
        consumer.disconnect(one.address)
        await one.connection.wait_closed()
        assert "CLS" not in one.connection.commands
        assert len(one.connections) == 1


async def test_a_lost_connection_is_made_again() -> None:
    async with (
        FakeNsqd() as nsqd,
        Consumer("t", "c", ignore, nsqd=nsqd.address, options=FAST, max_in_flight=3),
    ):
        first = nsqd.connection
        first.close()
        await nsqd.wait(lambda: len(nsqd.connections) == 2)
        await nsqd.wait_command("RDY 3", nsqd.connection)
        nsqd.connection.send(message_frame(0))
        await nsqd.wait_command(fin(0))


# Start and stop


async def test_a_failed_first_connect_is_told_and_leaves_nothing_open() -> None:
    async with FakeNsqd() as nsqd:
        consumer = Consumer("t", "c", ignore, nsqd=[nsqd.address, "127.0.0.1:1"])
        with pytest.raises(ConnectionClosed, match=r"127\.0\.0\.1:1: "):
            await consumer.start()
        await nsqd.connection.wait_closed()


async def test_a_refused_sub_is_told() -> None:
    async with FakeNsqd() as nsqd:
        nsqd.refuse("SUB", b"E_SUB_FAILED SUB failed exiting")
        with pytest.raises(ServerError, match="E_SUB_FAILED SUB failed exiting"):
            await Consumer("t", "c", ignore, nsqd=nsqd.address).start()


async def test_stop_answers_what_is_in_flight_before_it_closes() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def handler(message: Message) -> None:
        started.set()
        await release.wait()

    async with FakeNsqd() as nsqd:
        consumer = Consumer("t", "c", handler, nsqd=nsqd.address, max_in_flight=2)
        await consumer.start()
        nsqd.connection.send(message_frame(0))
        await started.wait()
        stop = asyncio.create_task(consumer.stop())
        await nsqd.wait_command("CLS")
        nsqd.connection.heartbeat()
        await nsqd.wait_command("NOP")
        assert not stop.done()
        release.set()
        await stop
        await nsqd.wait_command(fin(0))
        assert consumer.stats().connections == 0
        await consumer.stop()


async def test_a_handler_may_request_the_stop() -> None:
    async with FakeNsqd() as nsqd:

        def handler(message: Message) -> None:
            consumer.request_stop()

        consumer = Consumer("t", "c", handler, nsqd=nsqd.address)
        await consumer.start()
        nsqd.connection.send(message_frame(0))
        async with asyncio.timeout(DEADLINE_S):
            await consumer.wait_stopped()
        assert after_handshake(nsqd) == ["CLS", fin(0)]


async def test_a_stop_that_takes_too_long_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqpy.client.consumer._STOP_TIMEOUT_S", 0.05)

    async def handler(message: Message) -> None:
        await asyncio.Event().wait()

    async with FakeNsqd() as nsqd:
        consumer = Consumer("t", "c", handler, nsqd=nsqd.address)
        await consumer.start()
        nsqd.connection.send(message_frame(0))
        nsqd.connection.heartbeat()
        await nsqd.wait_command("NOP")
        async with asyncio.timeout(DEADLINE_S):
            await consumer.stop()
        await nsqd.wait_command(req(0, 90_000))


async def test_a_non_fatal_error_changes_nothing() -> None:
    async with FakeNsqd() as nsqd, Consumer("t", "c", ignore, nsqd=nsqd.address):
        nsqd.connection.send(error_frame(b"E_FIN_FAILED FIN x failed ID not in flight"))
        nsqd.connection.send(message_frame(0))
        await nsqd.wait_command(fin(0))


async def test_misuse_is_told() -> None:
    with pytest.raises(LocalProtocolError, match='channel name "bad " is not valid'):
        Consumer("t", "bad ", ignore, nsqd="h:1")
    with pytest.raises(LocalProtocolError, match="at least one nsqd"):
        Consumer("t", "c", ignore, nsqd=[])
    with pytest.raises(LocalProtocolError, match="not both"):
        Consumer("t", "c", ignore, batch_handler=plain_batch, nsqd="h:1")
    consumer = Consumer("t", "c", ignore, nsqd="h:1")
    for misuse in (consumer.pause, consumer.unpause, consumer.batches):
        with pytest.raises(LocalProtocolError, match="not"):
            misuse()
