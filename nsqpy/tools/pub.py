"""``nsqpy pub``: publish what is on the command line, or what stdin brings, record by record."""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nsqpy.client.blocking import Producer
from nsqpy.client.options import client_options, settings_from_flags
from nsqpy.clock import MILLISECOND
from nsqpy.errors import ConfigError, NSQError
from nsqpy.names import is_valid_name
from nsqpy.options import FlagError, duration_ns, option, parse_flags, positional, refuse
from nsqpy.tools.wording import counted
from nsqpy.version import RELEASE

__all__ = ["main", "records"]

_INTRO = """
{program}: publish messages, from the command line or from stdin

examples:
  {program} --topic=orders --nsqd-tcp-address=127.0.0.1:4150 'first' 'second'
  {program} --topic=orders --nsqd-tcp-address=127.0.0.1:4150 < orders.jsonl
  tail -f access.log | {program} --topic=log --nsqd-tcp-address=127.0.0.1:4150
  {program} --topic=orders --nsqd-tcp-address=127.0.0.1:4150 --defer=10m 'in ten minutes'
  {program} --topic=orders --lookupd-http-address=127.0.0.1:4161 'to any nsqd there is'
  find . -print0 | {program} --topic=files --delimiter='\\0' --nsqd-tcp-address=127.0.0.1:4150

From stdin every line is a message; empty ones are skipped. What one read brings is published
at once, so a slow pipe is not held up. With several nsqd, each batch goes to one of them; if that
one fails, to another, and then it may have been stored twice.
It ends with status 0 when nsqd has said OK to everything, and says how many that were.
"""

_READ_BYTES = 256 * 1024
# Well below the 5 MiB that nsqd takes at once by default.
_BATCH_MAX_BYTES = 1024 * 1024
_BATCH_MAX_MESSAGES = 1000
_RECORD_MAX_BYTES = 64 * 1024 * 1024
_ESCAPES = {"\\n": b"\n", "\\t": b"\t", "\\r": b"\r", "\\0": b"\0"}


def _delimiter(raw: str) -> bytes:
    delimiter = _ESCAPES.get(raw) or os.fsencode(raw)
    if len(delimiter) != 1:
        raise ValueError("must be one byte, or one of \\n \\t \\r \\0")
    return delimiter


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    topic: str = option("", required=True, help="topic to publish to")
    nsqd_tcp_address: tuple[str, ...] = option(
        (), metavar="ADDRESS", help="host:port of an nsqd (repeatable)"
    )
    lookupd_http_address: tuple[str, ...] = option(
        (), metavar="ADDRESS", help="host:port of an nsqlookupd (repeatable)"
    )
    defer_ns: int = option(
        "0s", parse=duration_ns, minimum=0, help="deliver each message only after this long"
    )
    delimiter: bytes = option(
        b"\n",
        parse=_delimiter,
        show=lambda value: repr(value)[2:-1],
        metavar="BYTE",
        help="what ends a message on stdin",
    )
    rate: int = option(0, minimum=0, help="messages per second; 0 = as fast as nsqd takes them")
    producer_opt: tuple[str, ...] = option(
        (), metavar="NAME,VALUE", help="a client option, such as dial_timeout,5s (repeatable)"
    )
    messages: tuple[str, ...] = positional("MESSAGE", help="messages; without any, stdin is read")


def main(arguments: Sequence[str], program: str) -> int:
    options = parse_flags(_Options, arguments, program, intro=_INTRO, version=f"nsqpy {RELEASE}")
    try:
        producer = _producer(options, program)
        given = [_argument(number, text) for number, text in enumerate(options.messages, 1)]
    except ConfigError as error:
        return refuse(error, program)
    published = 0
    status = 0
    try:
        with producer:
            for batch in _paced(_batches([given] if given else _stdin(options)), options.rate):
                _publish(producer, options, batch)
                published += len(batch)
    except (NSQError, OSError) as error:
        sys.stderr.write(f"{program}: {error}\n")
        status = 1
    except KeyboardInterrupt:
        status = 130
    what = counted(published, "message")
    sys.stderr.write(f"{program}: published {what} to {options.topic}\n")
    return status


def _producer(options: _Options, program: str) -> Producer:
    if not is_valid_name(options.topic):
        reason = f'--topic "{options.topic}" is not a valid topic name'
        raise ConfigError("--topic", options.topic, reason)
    if not options.nsqd_tcp_address and not options.lookupd_http_address:
        reason = "--nsqd-tcp-address or --lookupd-http-address is required"
        raise ConfigError("--nsqd-tcp-address", "", reason)
    try:
        effective = client_options(
            settings_from_flags(options.producer_opt)
            | {"user_agent": f"{program.replace(' ', '-')}/{RELEASE}"}
        )
    except ConfigError as error:
        raise FlagError("--producer-opt", error.value, f"--producer-opt: {error}") from error
    return Producer(
        *options.nsqd_tcp_address, lookupd=options.lookupd_http_address, options=effective
    )


def _argument(number: int, text: str) -> bytes:
    if not text:
        raise ConfigError("MESSAGE", text, f"message {number} is empty; nsqd takes none such")
    return os.fsencode(text)


def _publish(producer: Producer, options: _Options, batch: Sequence[bytes]) -> None:
    if options.defer_ns:
        # The protocol has no deferred form of MPUB.
        for body in batch:
            producer.publish(options.topic, body, defer_ms=options.defer_ns // MILLISECOND)
    elif len(batch) == 1:
        producer.publish(options.topic, batch[0])
    else:
        producer.publish_many(options.topic, batch)


def _stdin(options: _Options) -> Iterator[list[bytes]]:
    return records(iter(lambda: os.read(0, _READ_BYTES), b""), options.delimiter)


def records(reads: Iterable[bytes], delimiter: bytes) -> Iterator[list[bytes]]:
    """The records that each read completes, without their delimiter and without empty ones.

    A last one without delimiter counts too; the original loses its final byte.

    Raises:
        OSError: a record is longer than any message may be.
    """
    begun: list[bytes] = []
    begun_bytes = 0
    for data in reads:
        head, found, rest = data.partition(delimiter)
        begun.append(head)
        begun_bytes += len(head)
        if begun_bytes > _RECORD_MAX_BYTES:
            raise OSError(f"no delimiter within {_RECORD_MAX_BYTES} bytes of input")
        if found:
            *whole, last = rest.split(delimiter)
            yield [record for record in (b"".join(begun), *whole) if record]
            begun, begun_bytes = [last], len(last)
    yield [record for record in (b"".join(begun),) if record]


def _batches(groups: Iterable[Sequence[bytes]]) -> Iterator[list[bytes]]:
    """Groups cut into what one MPUB carries."""
    for group in groups:
        batch: list[bytes] = []
        batch_bytes = 0
        for body in group:
            full = len(batch) == _BATCH_MAX_MESSAGES or batch_bytes + len(body) > _BATCH_MAX_BYTES
            if batch and full:
                yield batch
                batch, batch_bytes = [], 0
            batch.append(body)
            batch_bytes += len(body)
        if batch:
            yield batch


def _paced(batches: Iterable[list[bytes]], rate: int) -> Iterator[list[bytes]]:
    """The same messages, no more than ``rate`` a second, in pieces of at most 50 ms."""
    if not rate:
        yield from batches
        return
    piece = max(1, rate // 20)
    next_s = time.monotonic()
    for batch in batches:
        for at in range(0, len(batch), piece):
            part = batch[at : at + piece]
            time.sleep(max(0.0, next_s - time.monotonic()))
            # Time spent waiting for input is not made up for by a burst.
            next_s = max(next_s, time.monotonic() - 1.0) + len(part) / rate
            yield part
