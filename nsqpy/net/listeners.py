"""Listening on a TCP address or a Unix socket's path: one way for all that a daemon serves."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsqpy.config import split_address
from nsqpy.errors import NSQError
from nsqpy.net.tls import HANDSHAKE_TIMEOUT_S

__all__ = ["ListenError", "Listener", "listen_error", "listen_tcp", "listen_unix", "shown_address"]

_MakeProtocol = Callable[[], asyncio.BaseProtocol]


class ListenError(NSQError):
    """Why a listener cannot be opened, in the original's words."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"listen ({self.address}) failed - {self.reason}"


class Listener:
    """One open listener. ``host`` and ``port`` are those really listened on.

    Of a Unix socket ``host`` is the path, and ``port`` -1.
    """

    def __init__(
        self, server: asyncio.Server, host: str, port: int, file: Path | None = None
    ) -> None:
        self._servers = [server]
        self._file = file
        self.host = host
        self.port = port

    @property
    def address(self) -> str:
        """As an operator reads it: ``host:port``, or the path."""
        return self.host if self.port < 0 else shown_address(self.host, self.port)

    async def renew_tls(self, make: _MakeProtocol, context: ssl.SSLContext) -> None:
        """Use ``context`` for the connections to come; those that are open stay as they are.

        The sockets go over to new servers, so that nobody is turned away meanwhile. ``make`` is
        that of ``listen_tcp``.

        Raises:
            OSError: connections are accepted as before.
        """
        renewed: list[asyncio.Server] = []
        try:
            for listening in [one for server in self._servers for one in server.sockets]:
                taken = socket.socket(fileno=os.dup(listening.fileno()))
                renewed.append(await _serve(make, context, sock=taken))
        except OSError:
            for server in renewed:
                server.close()
            raise
        old, self._servers = self._servers, renewed
        for server in old:
            server.close()

    def close(self) -> None:
        """Stop accepting, and remove a socket's file. Connections stay open."""
        for server in self._servers:
            server.close()
        if self._file is not None:
            self._file.unlink(missing_ok=True)
            self._file = None


async def listen_tcp(
    make: _MakeProtocol, host: str, port: int, tls: ssl.SSLContext | None = None
) -> Listener:
    """Accept connections, with keep-alive on; ``make`` makes the protocol of each.

    An empty host means every interface, port 0 any free port. With ``tls`` connections are
    encrypted from the first byte on.

    Raises:
        OSError: the address cannot be had.
    """
    server = await _serve(make, tls, host=host or None, port=port)
    for listening in server.sockets:
        # What is accepted inherits this: a peer that vanished is noticed, though nothing is sent.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    bound_host, bound_port = server.sockets[0].getsockname()[:2]
    return Listener(server, bound_host, bound_port)


async def _serve(
    make: _MakeProtocol,
    tls: ssl.SSLContext | None,
    *,
    host: str | None = None,
    port: int | None = None,
    sock: socket.socket | None = None,
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    # Given as such to uvloop, which tells an absent argument from None.
    place: dict[str, Any] = {"host": host, "port": port} if sock is None else {"sock": sock}
    if tls is not None:
        place |= {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S}
    return await loop.create_server(make, backlog=socket.SOMAXCONN, **place)


async def listen_unix(make: _MakeProtocol, path: Path) -> Listener:
    """Accept connections on a Unix socket, whose file goes when the listener is closed.

    Raises:
        OSError: the path cannot be had. A file that is there already is left alone, though
            nobody may be listening to it.

    Source: internal/util, TypeOfAddr.
    """
    # Given a path, the event loop would remove that file: somebody else's socket perhaps.
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(os.fspath(path))
        server = await asyncio.get_running_loop().create_unix_server(
            make, sock=listening, backlog=socket.SOMAXCONN
        )
    except OSError:
        listening.close()
        raise
    return Listener(server, str(path), -1, path)


def shown_address(host: str, port: int) -> str:
    """``host:port``, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen_error(address: str, error: OSError) -> ListenError:
    """What to say when ``address``, as it was configured, cannot be had."""
    place = split_address(address)
    if place is not None and isinstance(error, socket.gaierror):
        why = f"listen tcp: lookup {place[0]}: {(error.strerror or str(error)).lower()}"
    else:
        # Not strerror: event loops put an address of their own form before the reason.
        reason = os.strerror(error.errno) if error.errno else str(error)
        why = f"listen {'tcp' if place else 'unix'} {address}: bind: {reason.lower()}"
    return ListenError(address, why)
