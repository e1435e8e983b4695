"""The nsqd program: configuration to running daemon, and the order of start and stop.

Start: flags, configuration, lock on the data directory, queues from disk, then the listeners, then
nsqlookupd is told. Stop: a drain if one is wanted, nsqlookupd, listeners, connections, then every
queue is written down. Source: apps/nsqd/main.go.
"""

import asyncio
import logging
import random
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nsqpy.clock import SystemClock
from nsqpy.config import NsqdConfig, split_address
from nsqpy.core.broker import Broker
from nsqpy.daemon.auth import Gatekeeper, make_gatekeeper
from nsqpy.daemon.certificates import Certificates
from nsqpy.daemon.drain import Drain
from nsqpy.daemon.heartbeats import Heartbeats
from nsqpy.daemon.http_api import HTTPApi
from nsqpy.daemon.lookup import Lookups
from nsqpy.daemon.metrics import LoopLag, Metrics
from nsqpy.daemon.offline import take_over
from nsqpy.daemon.statsd import Reporter
from nsqpy.daemon.tasks import Turn
from nsqpy.daemon.tcp import Connections
from nsqpy.errors import ConfigError, NSQError
from nsqpy.logs import configure
from nsqpy.net.listeners import Listener, listen_error, listen_tcp, listen_unix
from nsqpy.net.runner import raise_file_limit, run
from nsqpy.options import FlagError, refuse
from nsqpy.startup import NSQD, exposure_warnings, load, startup_failure
from nsqpy.storage.files import DirLock, OSFiles

__all__ = ["Nsqd", "StartError", "main"]

log = logging.getLogger(__name__)


class StartError(NSQError):
    """Why the daemon cannot start, in the original's words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


def main(arguments: Sequence[str], program: str = "nsqpy nsqd") -> int:
    """Run the daemon; the exit status. ``program`` is how help and hints call it."""
    hostname = socket.gethostname()
    configure("info", "[nsqd] ")
    try:
        loaded = load(arguments, Path.read_bytes, hostname, program)
    except FlagError as error:
        return refuse(error, program)
    except ConfigError as error:
        text, status = startup_failure(error)
        log.critical(text)
        return status
    if loaded.answer is not None:
        sys.stdout.write(loaded.answer)
        return 0
    config = loaded.config
    if not config.broadcast_address:
        config = replace(config, broadcast_address=hostname)
    configure(config.log_level, config.log_prefix, log_format=config.log_format)
    raise_file_limit()

    async def make() -> Nsqd:
        return Nsqd(config, hostname, loaded.warnings)

    try:
        return run(make)
    except NSQError as error:
        log.critical("failed to instantiate nsqd - %s", error)
        return 1


class Nsqd:
    """One daemon in this process. Made inside a running event loop.

    ``tcp_address`` and ``http_address`` are those really listened on, once it has started;
    ``http_address`` is empty when HTTP is off.
    """

    def __init__(self, config: NsqdConfig, hostname: str, warnings: Sequence[str] = ()) -> None:
        self._config = config
        self._hostname = hostname
        self._warnings = warnings
        self._clock = SystemClock()
        self._heartbeats = Heartbeats()
        self._lock: DirLock | None = None
        self._listener: Listener | None = None
        self._http: HTTPApi | None = None
        self._lookups: Lookups | None = None
        self._drain: Drain | None = None
        self.tcp_address = ""
        self._gatekeeper: Gatekeeper | None = None
        self._loop_lag: LoopLag | None = None
        self._reporter: Reporter | None = None
        self.http_address = self._https_address = ""
        self._certificates = Certificates(config) if config.has_tls else None
        self._turn: Turn
        self._broker: Broker
        self._connections: Connections

    async def start(self) -> None:
        """Take up the queues and listen.

        Raises:
            ListenError, StartError, StorageError: nothing is left open.
        """
        try:
            await self._start()
        except BaseException:
            await self._release()
            raise

    async def _start(self) -> None:
        config = self._config
        self._lock = _lock(config.data_path or ".")
        loop = asyncio.get_running_loop()
        tls_context = self._tls_context()
        try:
            self._gatekeeper = make_gatekeeper(config, self._clock)
        except ConfigError as error:
            raise StartError(str(error)) from error
        # Behind what refuses the start with one line.
        log.info(NSQD.version_line)
        log.info("ID: %d", config.node_id)
        for warning in (*self._warnings, *exposure_warnings(config)):
            log.warning(warning)
        self._turn = Turn(loop, self._clock)
        now = self._clock.now()
        self._broker = Broker(
            config,
            OSFiles(sync_names=config.durability == "fsync"),
            random.Random(),
            wake=self._turn.wake,
            start=now,
        )
        self._broker.authenticator = self._gatekeeper
        self._connections = Connections(self._broker, self._clock, self._heartbeats)
        self._connections.tls_context = tls_context
        take_over(
            config.data_path or ".",
            body_max_bytes=config.max_msg_size,
            segment_max_bytes=config.max_bytes_per_file,
            wall_ns=now.wall_ns,
        )
        self._broker.load(now)
        self._lookups = Lookups(self._broker, self._hostname)
        self._drain = Drain(self._broker, self._clock, self._lookups.leave)
        self._turn.start(self._broker, self._connections, self._heartbeats)
        listener = await self._listen_tcp()
        self._http = HTTPApi(
            self._broker,
            self._clock,
            hostname=self._hostname,
            tcp_port=listener.port,
            lookups=self._lookups,
            drain=self._drain,
            gatekeeper=self._gatekeeper,
            metrics=self._make_metrics(),
        )
        if config.https_address and tls_context is not None:
            await self._listen_https(self._http, tls_context)
        if config.http_address:
            await self._listen_http(self._http)
        self._broker.config = self._with_real_ports(listener.port)
        self._lookups.start()
        if config.statsd_address:
            lookups = self._lookups
            self._reporter = Reporter(
                self._broker,
                self._clock,
                self._http.read_memory,
                lambda: lookups.announced_address,
            )
            self._reporter.start()

    def _tls_context(self) -> ssl.SSLContext | None:
        if self._certificates is None:
            return None
        try:
            return self._certificates.read()
        except ConfigError as error:
            raise StartError(f"failed to build TLS config - {error}") from error

    def reload(self) -> None:
        """Read certificates and tokens again, without closing the connections of those who may
        stay."""
        if self._certificates is not None and self._http is not None:
            self._certificates.reload(self._connections, self._http)
        if self._gatekeeper is not None and self._config.auth_token_file:
            self._gatekeeper.reload(Path(self._config.auth_token_file), self._broker.sessions)

    def _make_metrics(self) -> Metrics:
        metrics = Metrics(self._broker)
        self._turn.on_synced = metrics.fsync_seconds.observe
        self._loop_lag = LoopLag(metrics.loop_lag_seconds)
        self._loop_lag.start()
        metrics.tcp = self._connections
        return metrics

    async def _listen_tcp(self) -> Listener:
        address = self._config.tcp_address
        place = split_address(address)
        make = self._connections.make
        try:
            if place is None:
                self._listener = await listen_unix(make, Path(address))
            else:
                self._listener = await listen_tcp(make, *place)
        except OSError as error:
            raise listen_error(address, error) from error
        self.tcp_address = self._listener.address
        log.info("TCP: listening on %s", self.tcp_address)
        return self._listener

    async def _listen_http(self, http: HTTPApi) -> None:
        address = self._config.http_address
        try:
            self.http_address = await http.listen(address)
        except OSError as error:
            raise listen_error(address, error) from error
        log.info("HTTP: listening on %s", self.http_address)

    async def _listen_https(self, http: HTTPApi, tls: ssl.SSLContext) -> None:
        address = self._config.https_address
        place = split_address(address)
        assert place is not None  # the configuration refuses a socket's path
        try:
            self._https_address = await http.listen_https(*place, tls)
        except OSError as error:
            raise listen_error(address, error) from error
        log.info("HTTPS: listening on %s", self._https_address)

    def _with_real_ports(self, tcp_port: int) -> NsqdConfig:
        """The settings with the ports that others are told: a Unix socket has none to tell."""
        config = self._broker.config
        place = split_address(self.http_address) if self.http_address else None
        http_port = 0 if place is None else place[1]
        return replace(
            config,
            broadcast_tcp_port=config.broadcast_tcp_port or max(tcp_port, 0),
            broadcast_http_port=config.broadcast_http_port or http_port,
        )

    async def wait_ended(self) -> None:
        """Return when it has been drained; raise what made it unable to go on."""
        assert self._drain is not None
        drained = asyncio.ensure_future(self._drain.ended.wait())
        ends: list[asyncio.Future[Any]] = [self._turn.failure, drained]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            drained.cancel()
        if self._turn.failure.done():
            self._turn.failure.result()

    async def stop(self) -> None:
        """Lose nothing: what waits is stored, what is owed comes again after the next start.

        With ``--drain-timeout`` consumers are first given that time, or until another signal.

        Raises:
            StorageError: something could not be stored.
        """
        assert self._lookups is not None
        try:
            await self._drain_first()
            await self._lookups.stop()
            await self._stop_listening()
            await self._turn.stop()
            self._broker.close()
        finally:
            await self._release()
        log.info("NSQ: bye")

    async def _drain_first(self) -> None:
        drain = self._drain
        assert drain is not None
        timeout_ns = self._broker.config.drain_timeout_ns
        if timeout_ns and not self._turn.failure.done():
            if not drain.begun:
                drain.begin(timeout_ns)
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, drain.hasten)
            with suppress(Exception):  # a turn that fails meanwhile is logged
                await self.wait_ended()
        await drain.stop()

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            log.info("TCP: closing %s", self._listener.address)
            self._listener.close()
            self._listener = None
        self._broker.exiting = True
        self._connections.close_all()
        if self._http is not None:
            for name, address in (("HTTP", self.http_address), ("HTTPS", self._https_address)):
                if address:
                    log.info("%s: closing %s", name, address)
            if self._certificates is not None:
                await self._certificates.stop()
            await self._http.stop()
            self._http = None

    async def _release(self) -> None:
        if self._lookups is not None:
            await self._lookups.stop()
        if self._loop_lag is not None:
            self._loop_lag.stop()
        if self._reporter is not None:
            await self._reporter.stop()
        if self._gatekeeper is not None:
            await self._gatekeeper.stop()
        if self._listener is not None:
            self._listener.close()
        if self._http is not None:
            await self._http.stop()
        if self._lock is not None:
            self._lock.release()


def _lock(path: str) -> DirLock:
    try:
        return DirLock(path)
    except BlockingIOError as error:
        reason = (
            f"cannot flock directory {path} - resource temporarily unavailable "
            "(possibly in use by another instance of nsqd)"
        )
        raise StartError(f"failed to lock data-path: {reason}") from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise StartError(f"failed to lock data-path: open {path}: {why}") from error
