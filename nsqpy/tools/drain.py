"""``nsqpy drain``: what waits in a channel, as files, by a Spark job here or on a cluster."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from nsqpy import logs
from nsqpy.errors import ConfigError, NSQError
from nsqpy.options import duration_ns, format_duration, one_of, option, parse_flags, refuse
from nsqpy.version import RELEASE

__all__ = ["main"]

_INTRO = """
{program}: write what waits in a channel to files, and acknowledge it

examples:
  {program} --topic=orders --channel=lake --nsqd-http-address=127.0.0.1:4151 --to=/lake/orders
  {program} --topic=orders --channel=lake --lookupd-http-address=l1:4161 --to=/lake/orders \\
      --id=orders-2026-11-21 --max-messages=5000000
  {program} --topic=orders --channel=lake --nsqd-http-address=127.0.0.1:4151 --to=/tmp/orders \\
      --format=json

It is a Spark job: it needs Java, and 'pip install nsqpy[spark]'. The messages are leased, written,
and acknowledged once all of them are written; when it fails they go back into the queue. With --id
they are kept for a run of the same id, which writes the same rows to the same place: PATH/drain=ID.
A run of an id that is done does nothing, with status 0.

JSON has a message in each line: its body as text in 'body', or in 'body_base64' if it is no UTF-8.
"""


class _Format(StrEnum):
    PARQUET = "parquet"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    topic: str = option("", required=True, help="topic of the channel")
    channel: str = option("", required=True, help="channel to take from; made if it is not there")
    to: str = option("", required=True, metavar="PATH", help="directory to add files to")
    format: _Format = option(_Format.PARQUET, parse=one_of(_Format), help="parquet, or json: lines")  # noqa: RUF009
    nsqd_http_address: tuple[str, ...] = option(
        (), metavar="ADDRESS", help="host:port of an nsqd's HTTP API (repeatable)"
    )
    lookupd_http_address: tuple[str, ...] = option(
        (), metavar="ADDRESS", help="host:port of an nsqlookupd's HTTP API (repeatable)"
    )
    max_messages: int = option(0, minimum=0, help="take no more than this many; 0 = all there is")
    lease_ttl_ns: int = option(
        "1h", parse=duration_ns, above=0, help="how long messages stay leased if this job dies"
    )
    id: str = option("", help="name of this run, for a scheduler that repeats it")
    master: str = option("local[*]", metavar="URL", help="Spark master")


def main(arguments: Sequence[str], program: str) -> int:
    options = parse_flags(_Options, arguments, program, intro=_INTRO, version=f"nsqpy {RELEASE}")
    try:
        from nsqpy.spark.drain import AlreadyDrained, Drain
        from nsqpy.spark.job import FileFormat, drain_to_files, session
    except ImportError as error:
        sys.stderr.write(f"{program}: {error.name} is missing: pip install 'nsqpy[spark]'\n")
        return 1
    logs.configure("warn", "")
    try:
        job = Drain(
            session(options.master, program),
            topic=options.topic,
            channel=options.channel,
            lookupd=options.lookupd_http_address,
            nsqd=options.nsqd_http_address,
            max_messages=options.max_messages or None,
            ttl=format_duration(options.lease_ttl_ns),
            id=options.id or None,
        )
        count = drain_to_files(job, options.to, FileFormat(options.format.value))
    except ConfigError as error:
        return refuse(error, program)
    except AlreadyDrained as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 0
    except NSQError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return 1
    noun = "message" if count == 1 else "messages"
    sys.stderr.write(f"{program}: drained {count} {noun} of {options.topic} to {options.to}\n")
    return 0
