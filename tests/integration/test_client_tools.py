"""``nsqpy pub`` and ``nsqpy tail`` as processes, against a scripted nsqd."""

import asyncio
import signal
import sys
from dataclasses import dataclass

import pytest

from tests.integration.fake_nsqd import FakeNsqd, message_frame
from tests.integration.test_client_consumer import after_handshake, fin, req

DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Ended:
    status: int
    stdout: bytes
    stderr: str


async def start(*arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "nsqpy", *arguments)
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)


async def end(process: asyncio.subprocess.Process, stdin: bytes = b"") -> Ended:
    async with asyncio.timeout(DEADLINE_S):
        stdout, stderr = await process.communicate(stdin)
    assert process.returncode is not None
    return Ended(process.returncode, stdout, stderr.decode())


async def run(*arguments: str, stdin: bytes = b"") -> Ended:
    return await end(await start(*arguments), stdin)


async def test_pub_sends_arguments_as_messages() -> None:
    async with FakeNsqd() as nsqd:
        ended = await run("pub", "--topic=t", f"--nsqd-tcp-address={nsqd.address}", "one", "two")
        assert (ended.status, ended.stdout) == (0, b"")
        assert ended.stderr == "nsqpy pub: published 2 messages to t\n"
        assert nsqd.connection.bodies[1:] == [b"\0\0\0\x02\0\0\0\x03one\0\0\0\x03two"]


async def test_pub_sends_stdin_deferred() -> None:
    async with FakeNsqd() as nsqd:
        address = f"--nsqd-tcp-address={nsqd.address}"
        ended = await run("pub", "--topic=t", "--defer=1.5s", address, stdin=b"one\n\ntwo")
        assert ended.status == 0
        assert nsqd.connection.commands[1:] == ["DPUB t 1500"] * 2
        assert nsqd.connection.bodies[1:] == [b"one", b"two"]


async def test_pub_tells_what_nsqd_refused() -> None:
    async with FakeNsqd() as nsqd:
        nsqd.refuse("PUB", b"E_PUB_FAILED PUB failed exiting")
        ended = await run("pub", "--topic=t", f"--nsqd-tcp-address={nsqd.address}", "one")
        assert ended.status == 1
        assert "nsqpy pub: E_PUB_FAILED PUB failed exiting\n" in ended.stderr
        assert "published 0 messages" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("pub", "--topic=bad$", "x"), 1, '--topic "bad$" is not a valid topic name'),
        (("pub", "--topic=t", ""), 1, "message 1 is empty"),
        (("pub", "--topic=t", "--producer-opt=nope,1", "x"), 2, "unknown client option nope"),
        (("pub", "--topic=t", "x"), 1, "Connection refused"),
        (("tail", "--topic=t"), 1, "127.0.0.1:1: Connection refused"),
        (("tail", "--topic=t", "--channel=bad$"), 1, '--channel "bad$" is not a valid name'),
        (("tail", "--topic=t.*"), 1, '--topic: topic pattern "t.*" needs the address of a lookupd'),
        (("tail", "--topic=t", "--lookupd-http-address=x"), 1, '"x": missing port'),
    ],
)
async def test_refusals(arguments: tuple[str, ...], status: int, text: str) -> None:
    tool, *rest = arguments
    ended = await run(tool, "--nsqd-tcp-address=127.0.0.1:1", *rest)
    assert (ended.status, ended.stdout) == (status, b"")
    assert text in ended.stderr


async def test_tail_ends_at_its_limit_and_finishes_what_it_printed() -> None:
    async with FakeNsqd() as nsqd:
        nsqd.replies["RDY"] = lambda: b"".join(message_frame(n, b"m%d" % n) for n in range(3))
        address = f"--nsqd-tcp-address={nsqd.address}"
        ended = await run("tail", "--topic=t", "--channel=c", "-n=2", "--print-topic", address)
        assert (ended.status, ended.stdout) == (0, b"t | m0\nt | m1\n")
        assert "RDY 2" in nsqd.connection.commands
        assert {fin(0), fin(1), req(2, 0)} <= set(after_handshake(nsqd))


async def test_tail_watches_on_a_channel_of_its_own_until_a_signal() -> None:
    async with FakeNsqd() as nsqd:
        process = await start("tail", "--topic=t", f"--nsqd-tcp-address={nsqd.address}")
        await nsqd.wait_command("RDY 200")
        sub = nsqd.connection.commands[1]
        assert sub.startswith("SUB t tail")
        assert sub.endswith("#ephemeral")
        nsqd.connection.send(message_frame(0, b"hello"))
        assert process.stdout is not None
        assert await process.stdout.readline() == b"hello\n"
        process.send_signal(signal.SIGINT)
        ended = await end(process)
        assert (ended.status, ended.stdout) == (0, b"")
        assert fin(0) in nsqd.connection.commands
        assert "CLS" in nsqd.connection.commands
