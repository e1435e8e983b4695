"""Stretches of files straight from the page cache to a socket.

``loop.sendfile`` is not in every loop (uvloop has none), so the socket is watched here, through
a descriptor of its own: loops do not let anybody watch one that a transport uses. Over TLS there
is nothing to pass by: the bytes go through the transport.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nsqpy.net.limits import first_reserved_descriptor

if TYPE_CHECKING:
    import socket

__all__ = ["FilePart", "OpenPart", "close_parts", "open_parts", "send_parts"]

_CHUNK_BYTES = 512 * 1024  # the loop does something else after this much
_STALLED_S = 60.0  # a peer that takes nothing for so long has gone


class FilePart(NamedTuple):
    """``length`` bytes of the file ``path``, from ``offset`` on."""

    path: str
    offset: int
    length: int


class OpenPart(NamedTuple):
    fd: int
    offset: int
    length: int


def open_parts(parts: Sequence[FilePart]) -> list[OpenPart]:
    """Open every file, so that what is promised can be sent whatever happens to the names.

    Raises:
        OSError: one cannot be opened, or is shorter than its part, or too many files are open;
            none of these is.
    """
    max_descriptor = first_reserved_descriptor()
    opened: list[OpenPart] = []
    try:
        for path, offset, length in parts:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            opened.append(OpenPart(fd, offset, length))
            if fd >= max_descriptor:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
            if os.fstat(fd).st_size < offset + length:
                raise OSError(f"{Path(path).name} is cut off")
    except OSError:
        close_parts(opened)
        raise
    return opened


def close_parts(parts: Sequence[OpenPart]) -> None:
    for part in parts:
        os.close(part.fd)


async def send_parts(
    transport: asyncio.Transport,
    parts: Sequence[OpenPart],
    drain: Callable[[], Awaitable[None]],
) -> None:
    """Send the parts behind what the transport has been given already. ``drain`` waits until
    there is less in its buffer than its limits allow.

    Raises:
        ConnectionError: the peer went away, or takes nothing.
        OSError: a file cannot be read.
    """
    if transport.get_extra_info("sslcontext") is not None:
        for part in parts:
            await _write(transport, part, drain)
        return
    transport.set_write_buffer_limits(0)
    try:
        await _drained(drain)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is None or transport.is_closing():
            raise ConnectionResetError("connection lost")
        watched = os.dup(sock.fileno())
        try:
            for part in parts:
                await _send(watched, part)
        finally:
            os.close(watched)
    finally:
        transport.set_write_buffer_limits()


async def _drained(drain: Callable[[], Awaitable[None]]) -> None:
    try:
        async with asyncio.timeout(_STALLED_S):
            await drain()
    except TimeoutError:
        raise ConnectionAbortedError("the peer takes nothing") from None


async def _write(
    transport: asyncio.Transport, part: OpenPart, drain: Callable[[], Awaitable[None]]
) -> None:
    offset, stop = part.offset, part.offset + part.length
    while offset < stop:
        data = os.pread(part.fd, min(stop - offset, _CHUNK_BYTES), offset)
        if not data:
            raise ConnectionAbortedError("file ends too soon")
        offset += len(data)
        transport.write(data)
        await _drained(drain)
        await asyncio.sleep(0)
        if transport.is_closing():  # to wait for a peer that left in order is no error
            raise ConnectionResetError("connection lost")


async def _send(watched: int, part: OpenPart) -> None:
    offset, stop = part.offset, part.offset + part.length
    while offset < stop:
        try:
            sent = os.sendfile(watched, part.fd, offset, min(stop - offset, _CHUNK_BYTES))
        except BlockingIOError:
            await _wait_writable(watched)
            continue
        if not sent:
            raise ConnectionAbortedError("file ends too soon")
        offset += sent
        await asyncio.sleep(0)


async def _wait_writable(watched: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(watched, note)
    try:
        async with asyncio.timeout(_STALLED_S):
            await ready
    except TimeoutError:
        raise ConnectionAbortedError("the peer takes nothing") from None
    finally:
        loop.remove_writer(watched)
