"""Drives pynsq, the official Python client. See ``conversation`` for the words.

pynsq 0.9.1 was written for older loops: it takes whatever ``IOLoop.current()`` is when a Reader
is made, so both are made inside a running asyncio loop, which Tornado 5 and later share.
"""

import asyncio
import sys
from typing import Any

import nsq
import tornado.ioloop

from tests.interop.drivers.conversation import Options, order_for, say, say_message


def layers(options: Options) -> dict[str, Any]:
    """What a Reader or Writer is told of TLS and compression."""
    told: dict[str, Any] = {options.compression: True} if options.compression else {}
    if options.tls_ca_file:
        told |= {"tls_v1": True, "tls_options": {"ca_certs": options.tls_ca_file}}
    return told


async def publish(options: Options) -> None:
    writer = nsq.Writer(
        [options.tcp_address],
        heartbeat_interval=options.heartbeat_interval_ms // 1000,
        auth_secret=options.auth_secret or None,
        **layers(options),
    )
    while not writer.conns:  # noqa: ASYNC110 - the Writer has no event for "connected"
        await asyncio.sleep(0.01)
    loop = asyncio.get_running_loop()

    async def reply_to(command: str, *arguments: object) -> None:
        replied: asyncio.Future[bytes] = loop.create_future()
        getattr(writer, command)(
            options.topic, *arguments, callback=lambda _conn, data: replied.set_result(data)
        )
        data = await replied
        say("published", command=command, reply=str(data, "latin-1"))

    for body in options.single:
        await reply_to("pub", body.encode("latin-1"))
    if options.batch:
        await reply_to("mpub", [body.encode("latin-1") for body in options.batch])
    for body in options.deferred:
        await reply_to("dpub", options.defer_ms, body.encode("latin-1"))


async def consume(options: Options) -> None:
    io_loop = tornado.ioloop.IOLoop.current()
    parked: list[nsq.Message] = []

    def touch(message: nsq.Message, count: int, every_ms: int) -> None:
        if count == 0:
            message.finish()
            return
        message.touch()
        io_loop.call_later(every_ms / 1000, touch, message, count - 1, every_ms)

    def handle(message: nsq.Message) -> None:
        message.enable_async()
        say_message(message.body, message.attempts)
        order = order_for(message.body, message.attempts)
        if order.verb == "finish":
            message.finish()
        elif order.verb == "requeue":
            message.requeue(time_ms=order.numbers[0], backoff=False)
        elif order.verb == "touch":
            touch(message, *order.numbers)
        elif order.verb == "park":
            parked.append(message)

    reader = nsq.Reader(
        topic=options.topic,
        channel=options.channel,
        message_handler=handle,
        nsqd_tcp_addresses=[options.tcp_address] if options.tcp_address else [],
        lookupd_http_addresses=[f"http://{one}" for one in options.lookupd_http_addresses],
        lookupd_poll_interval=1,
        max_in_flight=options.max_in_flight,
        heartbeat_interval=options.heartbeat_interval_ms // 1000,
        msg_timeout=options.msg_timeout_ms / 1000,
        auth_secret=options.auth_secret or None,
        **layers(options),
    )
    reader.heartbeat = lambda _conn: say("heartbeat")

    ended = asyncio.Event()

    def read_input() -> None:
        if not sys.stdin.readline():
            ended.set()
        while parked:
            parked.pop(0).finish()

    asyncio.get_running_loop().add_reader(sys.stdin, read_input)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(sys.stdin)


if __name__ == "__main__":
    OPTIONS = Options.from_arguments()
    asyncio.run(publish(OPTIONS) if OPTIONS.mode == "publish" else consume(OPTIONS))
