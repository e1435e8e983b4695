"""The nsqlookupd program: configuration to running daemon, and the order of start and stop.

It can also run inside another program's event loop::

    async with Lookupd(LookupdConfig(tcp_address="127.0.0.1:0", ...), hostname) as lookupd:
        lookupd.tcp_address, lookupd.http_address

Source: nsqlookupd/options.go.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from nsqpy.clock import Clock, SystemClock
from nsqpy.config import split_address
from nsqpy.errors import ConfigError, NSQError
from nsqpy.logs import configure
from nsqpy.net.listeners import Listener, listen_error, listen_tcp, shown_address
from nsqpy.net.runner import raise_file_limit, run
from nsqpy.options import FlagError, refuse
from nsqpy.protocol.lookup import PeerInfo, identify_reply
from nsqpy.version import NSQ_VERSION
from nsqpy_lookupd.config import NSQLOOKUPD, LookupdConfig, load
from nsqpy_lookupd.http_api import HTTPApi
from nsqpy_lookupd.metrics import Metrics
from nsqpy_lookupd.registry import Registry
from nsqpy_lookupd.session import Directory
from nsqpy_lookupd.tcp import Connections

__all__ = ["Lookupd", "main"]

log = logging.getLogger(__name__)


def main(arguments: Sequence[str], program: str = "nsqpy nsqlookupd") -> int:
    """Run the daemon; the exit status. ``program`` is how help and hints call it."""
    configure("info", "[nsqlookupd] ")
    try:
        loaded = load(arguments, Path.read_bytes, program)
    except FlagError as error:
        return refuse(error, program)
    except ConfigError as error:
        log.critical("%s", error)
        return 1
    if loaded.answer is not None:
        sys.stdout.write(loaded.answer)
        return 0
    configure(loaded.config.log_level, loaded.config.log_prefix)
    raise_file_limit()

    async def make() -> Lookupd:
        return Lookupd(loaded.config, socket.gethostname(), warnings=loaded.warnings)

    try:
        return run(make)
    except NSQError as error:
        log.critical("failed to instantiate nsqlookupd - %s", error)
        return 1


class Lookupd:
    """One nsqlookupd in this process. Made inside a running event loop.

    ``tcp_address`` and ``http_address`` are those really listened on, once it has started.
    """

    def __init__(
        self,
        config: LookupdConfig,
        hostname: str,
        *,
        warnings: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._hostname = hostname
        self._warnings = warnings
        clock = clock or SystemClock()
        registry = Registry(
            inactive_timeout_ns=config.inactive_producer_timeout_ns,
            tombstone_lifetime_ns=config.tombstone_lifetime_ns,
        )
        self._directory = Directory(registry)
        self._connections = Connections(self._directory, clock)
        metrics = Metrics(self._directory, self._connections.open.__len__)
        self._http = HTTPApi(registry, clock, metrics)
        self._listener: Listener | None = None
        self.tcp_address = ""
        self.http_address = ""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen.

        Raises:
            ListenError: nothing is left open.
        """
        log.info(NSQLOOKUPD.version_line)
        for warning in self._warnings:
            log.warning(warning)
        try:
            await self._start()
        except BaseException:
            await self._release()
            raise

    async def _start(self) -> None:
        config = self._config
        place = split_address(config.tcp_address)
        assert place is not None
        try:
            listener = self._listener = await listen_tcp(self._connections.make, *place)
        except OSError as error:
            raise listen_error(config.tcp_address, error) from error
        self.tcp_address = listener.address
        log.info("TCP: listening on %s", self.tcp_address)
        try:
            host, http_port = await self._http.listen(config.http_address)
        except OSError as error:
            raise listen_error(config.http_address, error) from error
        self.http_address = shown_address(host, http_port)
        log.info("HTTP: listening on %s", self.http_address)
        identity = PeerInfo(
            broadcast_address=config.broadcast_address or self._hostname,
            hostname=self._hostname,
            http_port=http_port,
            tcp_port=listener.port,
            version=NSQ_VERSION,
        )
        self._directory.identity = identify_reply(identity)
        self._connections.wake()

    async def wait_ended(self) -> None:
        """Never: a fault in one connection's work ends that connection only."""
        await asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        """Close everything at once; what was known is gone."""
        if self._listener is not None:
            log.info("TCP: closing %s", self.tcp_address)
        log.info("HTTP: closing %s", self.http_address)
        await self._release()

    async def _release(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._connections.close_all()
        await self._http.stop()
