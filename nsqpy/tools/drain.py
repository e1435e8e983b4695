"""``nsqpy drain``: what waits in a channel, as files, by a Spark job here or on a cluster."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

from nsqpy import logs
from nsqpy.client.node_tls import NodeTLS
from nsqpy.client.nodes import NodeAddress
from nsqpy.client.options import settings_from_flags
from nsqpy.errors import ConfigError, NSQError
from nsqpy.names import is_valid_name
from nsqpy.options import (
    FlagError,
    duration_ns,
    format_duration,
    one_of,
    option,
    parse_flags,
    refuse,
)
from nsqpy.tools.wording import counted
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
  {program} --topic=orders --channel=lake --nsqd-http-address=https://n1:4152 --to=/lake/orders \\
      --consumer-opt=tls_root_ca_file,ca.pem --consumer-opt=auth_secret,TOKEN --create-channel=false

It is a Spark job: it needs Java, and 'pip install nsqpy[spark]'. The messages are leased, written,
and acknowledged once all of them are written; when it fails they go back into the queue. With --id
they are kept for a run of the same id, which writes the same rows to the same place: PATH/drain=ID.
A run of an id that is done does nothing, with status 0.

Of the client options of the other tools it takes auth_secret, tls_root_ca_file, tls_cert, tls_key
and tls_insecure_skip_verify. Any of those with tls has every nsqd spoken with over HTTPS, and an
nsqd with --tls-required=true found through nsqlookupd. A token with the role consume will do, but
makes no channel.

JSON has a message in each line: its body as text in 'body', or in 'body_base64' if it is no UTF-8.
"""


class _Format(StrEnum):
    PARQUET = "parquet"
    JSON = "json"


def _address(raw: str) -> str:
    try:
        return str(NodeAddress.parse(raw))
    except ConfigError as error:
        raise ValueError(error.reason) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    topic: str = option("", required=True, help="topic of the channel")
    channel: str = option("", required=True, help="channel to take from")
    to: str = option("", required=True, metavar="PATH", help="directory to add files to")
    format: _Format = option(_Format.PARQUET, parse=one_of(_Format), help="parquet, or json: lines")  # noqa: RUF009
    nsqd_http_address: tuple[str, ...] = option(
        (), parse=_address, metavar="ADDRESS", help="host:port of an nsqd's HTTP API (repeatable)"
    )
    lookupd_http_address: tuple[str, ...] = option(
        (),
        parse=_address,
        metavar="ADDRESS",
        help="host:port of an nsqlookupd's HTTP API (repeatable)",
    )
    max_messages: int = option(0, minimum=0, help="take no more than this many; 0 = all there is")
    lease_ttl_ns: int = option(
        "1h", parse=duration_ns, above=0, help="how long messages stay leased if this job dies"
    )
    id: str = option("", help="name of this run, for a scheduler that repeats it")
    node_timeout_ns: int = option(
        "60s", parse=duration_ns, above=0, help="how long a daemon that does not answer is asked"
    )
    create_channel: bool = option(True, help="make the channel where it is not there")
    consumer_opt: tuple[str, ...] = option(
        (), metavar="NAME,VALUE", help="a client option, such as auth_secret,TOKEN (repeatable)"
    )
    master: str = option("local[*]", metavar="URL", help="Spark master")


_TAKEN = "auth_secret, tls_root_ca_file, tls_cert, tls_key, tls_insecure_skip_verify"


class _Access(TypedDict, total=False):
    auth_secret: str
    tls_ca_file: str
    tls_cert_file: str
    tls_key_file: str
    tls_insecure_skip_verify: bool


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
        _check(options)
        access = _access(options.consumer_opt)
        job = Drain(
            session(options.master, program),
            topic=options.topic,
            channel=options.channel,
            lookupd=options.lookupd_http_address,
            nsqd=options.nsqd_http_address,
            max_messages=options.max_messages or None,
            ttl=format_duration(options.lease_ttl_ns),
            id=options.id or None,
            node_timeout=format_duration(options.node_timeout_ns),
            create_channel=options.create_channel,
            **access,
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
    what = counted(count, "message")
    sys.stderr.write(f"{program}: drained {what} of {options.topic} to {options.to}\n")
    return 0


def _check(options: _Options) -> None:
    """What Spark need not be started for. Raises ConfigError."""
    if bool(options.nsqd_http_address) == bool(options.lookupd_http_address):
        reason = "--nsqd-http-address or --lookupd-http-address is required, and not both"
        raise ConfigError("--nsqd-http-address", "", reason)
    for flag, name in (("--topic", options.topic), ("--channel", options.channel)):
        if not is_valid_name(name):
            raise ConfigError(flag, name, f'{flag} "{name}" is not a valid name')


def _access(given: Sequence[str]) -> _Access:
    """As ``drain`` calls them. Raises FlagError, which shows no value: it may be the token."""
    access: _Access = {}
    for name, value in settings_from_flags(given).items():
        match name.replace("-", "_"):
            case "auth_secret":
                access["auth_secret"] = str(value)
            case "tls_root_ca_file":
                access["tls_ca_file"] = str(value)
            case "tls_cert":
                access["tls_cert_file"] = str(value)
            case "tls_key":
                access["tls_key_file"] = str(value)
            case "tls_insecure_skip_verify" if value in ("true", "false"):
                access["tls_insecure_skip_verify"] = value == "true"
            case other:
                reason = f"--consumer-opt: {other} is not for this tool, or its value is none"
                raise FlagError("--consumer-opt", other, f"{reason}; it takes {_TAKEN}")
    try:
        NodeTLS.read(
            access.get("tls_ca_file", ""),
            access.get("tls_cert_file", ""),
            access.get("tls_key_file", ""),
            verify=not access.get("tls_insecure_skip_verify"),
        )
    except ConfigError as error:
        raise FlagError("--consumer-opt", error.value, f"--consumer-opt: {error.reason}") from error
    return access
