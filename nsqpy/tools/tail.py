"""``nsqpy tail``: print the messages of topics as they come."""

import asyncio
import contextlib
import os
import queue
import random
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from nsqpy import logs
from nsqpy.client.consumer import Consumer, Message
from nsqpy.client.options import ClientOptions, client_options, settings_from_flags
from nsqpy.errors import ConfigError, LocalProtocolError, NSQError
from nsqpy.names import is_valid_name
from nsqpy.options import FlagError, option, parse_flags, refuse
from nsqpy.patterns import is_pattern
from nsqpy.version import NSQ_VERSION, RELEASE

__all__ = ["main"]

_INTRO = """
{program}: print the messages of topics as they come, one a line

examples:
  {program} --topic=orders --nsqd-tcp-address=127.0.0.1:4150
  {program} --topic=orders --nsqd-tcp-address=127.0.0.1:4150 -n 10 | jq .total
  {program} --topic=orders --topic=returns --print-topic --nsqd-tcp-address=127.0.0.1:4150
  {program} --topic='orders.*' --lookupd-http-address=127.0.0.1:4161
  {program} --topic=orders --channel=archive --nsqd-tcp-address=127.0.0.1:4150 >> archive.log

A topic may be a pattern, over the topics that nsqlookupd knows, now or later: * stands for one
token between dots, > at the end for one or more. Each message is then printed with its topic.
Without --channel it watches: it gets a copy of what is published from now on, on a channel
that vanishes with it. With --channel it takes messages of that channel away from its other
consumers. What was printed is finished; what was not goes back to the channel.
Ctrl-C ends it, with status 0.
"""

# How long a signal leaves the printing that is under way, when nobody reads the output.
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    topic: tuple[str, ...] = option((), required=True, help="topic or pattern (repeatable)")
    channel: str = option("", help="channel to take from; empty: one of its own, ephemeral")
    limit: int = option(
        0, flag="n", minimum=0, metavar="COUNT", help="stop after this many of a topic; 0 = never"
    )
    print_topic: bool = option(False, help="print 'topic | ' before each message; patterns do")
    max_in_flight: int = option(200, minimum=1, help="messages in flight, for each topic")
    nsqd_tcp_address: tuple[str, ...] = option(
        (), metavar="ADDRESS", help="host:port of an nsqd (repeatable)"
    )
    lookupd_http_address: tuple[str, ...] = option(
        (), metavar="ADDRESS", help="host:port of an nsqlookupd (repeatable)"
    )
    consumer_opt: tuple[str, ...] = option(
        (), metavar="NAME,VALUE", help="a client option, such as max_attempts,0 (repeatable)"
    )


def main(arguments: Sequence[str], program: str) -> int:
    version = f"{program} v{NSQ_VERSION}" if program == "nsq_tail" else f"nsqpy {RELEASE}"
    options = parse_flags(_Options, arguments, program, intro=_INTRO, version=version)
    try:
        effective = _client_options(options, program)
        consumers = _consumers(options, effective)
    except ConfigError as error:
        return refuse(error, program)
    logs.configure("warn", "")
    try:
        asyncio.run(_tail(consumers, options))
    except (NSQError, OSError) as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 1
    return 0


def _client_options(options: _Options, program: str) -> ClientOptions:
    if not options.nsqd_tcp_address and not options.lookupd_http_address:
        reason = "--nsqd-tcp-address or --lookupd-http-address is required"
        raise ConfigError("--nsqd-tcp-address", "", reason)
    limit = options.limit or options.max_in_flight
    try:
        return client_options(
            settings_from_flags(options.consumer_opt)
            | {
                "max_in_flight": min(options.max_in_flight, limit),
                "user_agent": f"{program.replace(' ', '-')}/{RELEASE}",
            }
        )
    except ConfigError as error:
        raise FlagError("--consumer-opt", error.value, f"--consumer-opt: {error}") from error


def _consumers(options: _Options, effective: ClientOptions) -> list[Consumer]:
    channel = options.channel or f"tail{random.randrange(1_000_000):06d}#ephemeral"
    names = [("--topic", topic) for topic in options.topic if not is_pattern(topic)]
    for flag, name in (*names, ("--channel", channel)):
        if not is_valid_name(name):
            raise ConfigError(flag, name, f'{flag} "{name}" is not a valid name')
    try:
        return [
            Consumer(
                topic,
                channel,
                nsqd=options.nsqd_tcp_address,
                lookupd=options.lookupd_http_address,
                options=effective,
            )
            for topic in dict.fromkeys(options.topic)
        ]
    except LocalProtocolError as error:
        raise ConfigError("--topic", options.topic, f"--topic: {error}") from error


class _Output:
    """Writes to stdout in a thread, so that a reader who pauses does not stop heartbeats."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        # A daemon: a write that never returns must not keep the process alive.
        threading.Thread(target=self._run, name="stdout", daemon=True).start()

    async def write(self, data: bytes) -> None:
        """Raises OSError when nobody can read it any more."""
        written: asyncio.Future[None] = self._loop.create_future()
        self._waiting.put((data, written))
        await written

    def _run(self) -> None:
        while True:
            data, written = self._waiting.get()
            error = None
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(1, view) :]
            except OSError as failure:
                error = failure
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
                self._loop.call_soon_threadsafe(_settle, written, error)


def _settle(written: asyncio.Future[None], error: OSError | None) -> None:
    if written.done():
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(OSError(f"cannot write: {error.strerror}"))


async def _tail(consumers: Sequence[Consumer], options: _Options) -> None:
    """Until a topic has reached its limit, a signal comes, or something fails."""
    loop = asyncio.get_running_loop()
    signalled = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled.set)
    output = _Output()
    stop = asyncio.create_task(signalled.wait())
    tasks = [asyncio.create_task(_follow(consumer, output, options)) for consumer in consumers]
    try:
        done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        for consumer in consumers:
            consumer.request_stop()
        await asyncio.wait(tasks, timeout=_GRACE_S)
    finally:
        for unfinished in (stop, *tasks):
            unfinished.cancel()
        results = await asyncio.gather(stop, *tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _follow(consumer: Consumer, output: _Output, options: _Options) -> None:
    left = options.limit or None
    with_topic = options.print_topic or is_pattern(consumer.topic)
    async with consumer:
        sys.stderr.write(f"following topic {consumer.topic} on channel {consumer.channel}\n")
        async for batch in consumer.batches():
            shown = batch[:left]
            _hand_back(batch[len(shown) :])
            await output.write(b"".join([_line(message, with_topic) for message in shown]))
            if left is not None:
                left -= len(shown)
                if left == 0:
                    break


def _line(message: Message, with_topic: bool) -> bytes:
    prefix = f"{message.topic} | ".encode() if with_topic else b""
    return prefix + message.body + b"\n"


def _hand_back(messages: Sequence[Message]) -> None:
    for message in messages:
        message.requeue(0, backoff=False)
