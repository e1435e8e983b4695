"""Replies whose body is read from files while it is sent, whole or the range that was asked for."""

import re
from collections.abc import Callable, Sequence

from aiohttp import web

from nsqpy.net.http.replies import HTTPError, Reply
from nsqpy.net.sendfile import FilePart, close_parts, open_parts, send_parts

__all__ = ["FileReply", "parse_range"]


class FileReply(Reply):
    """Its body is ``length`` bytes of ``parts`` back to back, from ``offset`` on, or what a range
    of the request leaves of them; ``on_sent(offset, length)`` is called when they are sent. For
    one use.

    Raises:
        HTTPError: 416 with the length, for a range that is beyond it.
        OSError: a file cannot be opened.
    """

    __slots__ = ("_length", "_offset", "_on_sent", "_opened")

    def __init__(
        self,
        parts: Sequence[FilePart],
        requested: str | None,
        on_sent: Callable[[int, int], None],
    ) -> None:
        size = sum(part.length for part in parts)
        found = parse_range(requested, size) if requested is not None else None
        headers = [("Content-Type", "application/octet-stream"), ("Accept-Ranges", "bytes")]
        start, stop = (0, size) if found is None else found
        status = 200
        if found is not None:
            status = 206
            headers.append(("Content-Range", f"bytes {start}-{stop - 1}/{size}"))
        super().__init__(status, headers=headers, length=stop - start)
        self._offset, self._length = start, stop - start
        self._on_sent = on_sent
        self._opened = open_parts(_cut_parts(parts, start, stop))

    async def send(self, raw: web.BaseRequest) -> None:
        """Send the body behind the head, which is on its way. To be called in any case.

        Raises:
            ConnectionError: the peer went away, or takes nothing.
        """
        transport = raw.transport
        try:
            if transport is None:
                raise ConnectionResetError("connection lost")
            await send_parts(transport, self._opened, raw.writer.drain)
        except ConnectionAbortedError:
            if transport is not None:
                transport.abort()  # what still waits to be taken will not be
            raise
        finally:
            close_parts(self._opened)
        self._on_sent(self._offset, self._length)


_RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """First and stop of the one range of bytes that a ``Range`` header asks for; None if it makes
    no sense or has several, which is as if there was none. Source: RFC 9110, 14.2.

    Raises:
        HTTPError: 416 with the size, if there are no such bytes.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(size - int(last), 0), size
    else:
        start, stop = int(first), size if not last else min(int(last) + 1, size)
        if last and int(last) < start:
            return None
    if start >= stop:
        headers = [("Content-Range", f"bytes */{size}")]
        raise HTTPError(416, "RANGE_NOT_SATISFIABLE", headers=headers)
    return start, stop


def _cut_parts(parts: Sequence[FilePart], start: int, stop: int) -> list[FilePart]:
    found: list[FilePart] = []
    at = 0
    for path, offset, length in parts:
        first, last = max(start - at, 0), min(stop - at, length)
        if first < last:
            found.append(FilePart(path, offset + first, last - first))
        at += length
    return found
