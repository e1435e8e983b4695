"""Drives ansq, the asyncio client. See ``conversation`` for the words.

ansq 0.3.0 has a Reader too, but one that cannot take more than one message at a time
(``set_max_in_flight`` is not implemented), so its connection is used directly, and that knows
nothing of nsqlookupd.
"""

import asyncio
import sys

import ansq
from ansq.tcp.connection import NSQConnection
from ansq.tcp.types import NSQMessage, TCPConnection
from ansq.typedefs import TCPResponse

from tests.interop.drivers.conversation import Options, order_for, say, say_message


async def connect(options: Options) -> NSQConnection:
    async def heartbeat(_connection: TCPConnection) -> None:
        say("heartbeat")

    features = ansq.ConnectionFeatures(
        heartbeat_interval=options.heartbeat_interval_ms, msg_timeout=options.msg_timeout_ms
    )
    return await ansq.open_connection(
        options.host,
        options.port,
        connection_options=ansq.ConnectionOptions(
            features=features, on_heartbeat=heartbeat, auto_reconnect=False
        ),
    )


async def publish(options: Options) -> None:
    connection = await connect(options)

    def report(command: str, reply: TCPResponse) -> None:
        assert reply is not None
        say("published", command=command, reply=bytes(reply.body).decode("latin-1"))

    for body in options.single:
        report("pub", await connection.pub(options.topic, body.encode("latin-1")))
    if options.batch:
        bodies = [body.encode("latin-1") for body in options.batch]
        report("mpub", await connection.mpub(options.topic, *bodies))
    for body in options.deferred:
        raw = body.encode("latin-1")
        report("dpub", await connection.dpub(options.topic, raw, options.defer_ms))
    await connection.close()


async def consume(options: Options) -> None:
    connection = await connect(options)
    await connection.subscribe(options.topic, options.channel, options.max_in_flight)
    parked: list[NSQMessage] = []
    touching: set[asyncio.Task[None]] = set()

    async def touch(message: NSQMessage, count: int, every_ms: int) -> None:
        for _ in range(count):
            await message.touch()
            await asyncio.sleep(every_ms / 1000)
        await message.fin()

    async def release() -> None:
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            while parked:
                await parked.pop(0).fin()
        await connection.close()

    releasing = asyncio.create_task(release())
    async for message in connection.messages():
        say_message(message.body, message.attempts)
        order = order_for(message.body, message.attempts)
        if order.verb == "finish":
            await message.fin()
        elif order.verb == "requeue":
            await message.req(order.numbers[0])
        elif order.verb == "touch":
            touching.add(asyncio.create_task(touch(message, *order.numbers)))
        elif order.verb == "park":
            parked.append(message)
    await releasing


if __name__ == "__main__":
    OPTIONS = Options.from_arguments()
    asyncio.run(publish(OPTIONS) if OPTIONS.mode == "publish" else consume(OPTIONS))
