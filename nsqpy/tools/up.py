"""``nsqpy up``: nsqlookupd and nsqd in one process, for a laptop."""

import socket
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from nsqpy import logs
from nsqpy.config import NsqdConfig, default_node_id, split_address
from nsqpy.daemon.app import Nsqd
from nsqpy.errors import ConfigError, NSQError
from nsqpy.net.listeners import shown_address
from nsqpy.net.runner import run
from nsqpy.options import option, parse_flags, refuse
from nsqpy.version import RELEASE
from nsqpy_lookupd.app import Lookupd
from nsqpy_lookupd.config import LookupdConfig

__all__ = ["main"]

_INTRO = """
{program}: nsqlookupd and nsqd in one process, to try things out on one machine

examples:
  {program}
  {program} --data-path=queues
  {program} --nsqd-tcp-address=127.0.0.1:5150 --nsqd-http-address=127.0.0.1:5151

then, in another terminal:
  nsqpy tail --topic='orders.*' --lookupd-http-address=127.0.0.1:4161
  nsqpy pub --topic=orders.new --lookupd-http-address=127.0.0.1:4161 'hello'
  curl 'http://127.0.0.1:4151/stats'

What is published is on disk before it is acknowledged, and still there after the next start with
the same data path. Ctrl-C stops both, in order. For anything else there are 'nsqpy nsqd' and
'nsqpy nsqlookupd', with all their settings.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    data_path: str = option(
        "nsqpy-data", metavar="DIRECTORY", help="where messages are kept; made if it is not there"
    )
    nsqd_tcp_address: str = option(
        "127.0.0.1:4150", metavar="ADDRESS", help="where publishers and consumers connect"
    )
    nsqd_http_address: str = option(
        "127.0.0.1:4151", metavar="ADDRESS", help="where nsqd's HTTP API listens"
    )
    lookupd_tcp_address: str = option(
        "127.0.0.1:4160", metavar="ADDRESS", help="where nsqd announces itself; others may too"
    )
    lookupd_http_address: str = option(
        "127.0.0.1:4161", metavar="ADDRESS", help="where consumers find their topics"
    )
    broadcast_address: str = option(
        "127.0.0.1",
        metavar="HOST",
        help="by which name the two are reached; change it with addresses that let others in",
    )
    log_level: str = option(
        "warn",
        parse=logs.parse_level,
        metavar="LEVEL",
        help="what of their log is shown: debug, info, warn, error or fatal",
    )


def main(arguments: Sequence[str], program: str) -> int:
    options = parse_flags(_Options, arguments, program, intro=_INTRO, version=f"nsqpy {RELEASE}")
    try:
        _check(options)
    except ConfigError as error:
        return refuse(error, program)
    logs.configure(options.log_level, "[nsqpy up] ")

    async def make() -> _Both:
        return _Both(options, socket.gethostname())

    try:
        Path(options.data_path).mkdir(parents=True, exist_ok=True)
        return run(make)
    except NSQError as error:
        sys.stderr.write(f"{program}: {error}\n")
    except OSError as error:
        why = error.strerror or str(error)
        sys.stderr.write(f"{program}: cannot make {options.data_path}: {why.lower()}\n")
    return 1


def _check(options: _Options) -> None:
    for flag, address in (
        ("--nsqd-tcp-address", options.nsqd_tcp_address),
        ("--nsqd-http-address", options.nsqd_http_address),
        ("--lookupd-tcp-address", options.lookupd_tcp_address),
        ("--lookupd-http-address", options.lookupd_http_address),
    ):
        try:
            place = split_address(address)
        except ValueError as error:
            raise ConfigError(flag, address, f'{flag} "{address}" {error}') from None
        if place is None:
            raise ConfigError(flag, address, f'{flag} "{address}" must be host:port')


class _Both:
    """The two as one service: nsqlookupd starts first and stops last."""

    def __init__(self, options: _Options, hostname: str) -> None:
        self._options = options
        self._hostname = hostname
        self._nsqd: Nsqd
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Raises NSQError; nothing is left running then."""
        options = self._options
        async with AsyncExitStack() as starting:
            lookupd = await starting.enter_async_context(
                Lookupd(
                    LookupdConfig(
                        tcp_address=options.lookupd_tcp_address,
                        http_address=options.lookupd_http_address,
                        broadcast_address=options.broadcast_address,
                    ),
                    self._hostname,
                )
            )
            config = NsqdConfig(
                tcp_address=options.nsqd_tcp_address,
                http_address=options.nsqd_http_address,
                broadcast_address=options.broadcast_address,
                data_path=options.data_path,
                nsqlookupd_tcp_addresses=(_local(lookupd.tcp_address),),
                log_level=options.log_level,
                node_id=default_node_id(self._hostname),
            )
            self._nsqd = Nsqd(config, self._hostname)
            await self._nsqd.start()
            starting.push_async_callback(self._nsqd.stop)
            self._running = starting.pop_all()
        self._say(self._nsqd, lookupd)

    def _say(self, nsqd: Nsqd, lookupd: Lookupd) -> None:
        rows = (
            ("nsqd TCP", nsqd.tcp_address, "publish and consume"),
            ("nsqd HTTP", nsqd.http_address, "/pub, /stats, /ping"),
            ("nsqlookupd TCP", lookupd.tcp_address, "other nsqd announce themselves"),
            ("nsqlookupd HTTP", lookupd.http_address, "consumers find topics"),
            ("data", str(Path(self._options.data_path).resolve()), ""),
        )
        sys.stdout.writelines(
            f"{name:<16} {value:<22} {use}".rstrip() + "\n" for name, value, use in rows
        )
        sys.stdout.write("Ctrl-C stops it; 'nsqpy up --help' has commands to try\n")
        sys.stdout.flush()

    async def wait_ended(self) -> None:
        await self._nsqd.wait_ended()

    async def stop(self) -> None:
        """Raises StorageError: something could not be stored."""
        await self._running.aclose()


def _local(address: str) -> str:
    """The way to a listener of this machine's: one on every interface is on the loopback too."""
    place = split_address(address)
    assert place is not None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(place[0], place[0])
    return shown_address(host, place[1])
