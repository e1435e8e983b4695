"""The least that can be called a queue: PUB, MPUB, SUB, RDY and FIN over memory.

No disk, timeouts, heartbeats, limits or statistics. It is a yardstick, not a design: it shows what
plain CPython on uvloop does on this machine at this minute, so that a daemon's figures can be read
as a ratio. What it does is not to be improved, or older ratios lose their meaning.

    python -m benchmarks.yardstick [--tcp-address=127.0.0.1:0]
"""

import asyncio
import gc
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import uvloop

from nsqpy.options import option, parse_flags

__all__ = ["main"]

_SIZE = struct.Struct(">I")
_FRAME = struct.Struct(">IIqH")  # size, frame type, timestamp, attempts; id and body follow
_OK = struct.pack(">II", 6, 0) + b"OK"
_MESSAGE_TIMEOUT_S = 60
_FIN = ord("F")
_FIN_SIZE = len(b"FIN 0123456789abcdef\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    tcp_address: str = option("127.0.0.1:0", metavar="ADDRESS", help="where to listen")


class _Channel:
    def __init__(self) -> None:
        self.queue: deque[tuple[bytes, bytes]] = deque()
        self.in_flight: dict[bytes, tuple[float, _Client, bytes]] = {}
        self.clients: list[_Client] = []


class _Queue:
    """Every topic, and the last id given."""

    def __init__(self) -> None:
        self.topics: dict[bytes, dict[bytes, _Channel]] = {}
        self.next_id = 0

    def channels(self, topic: bytes) -> dict[bytes, _Channel]:
        return self.topics.setdefault(topic, {})

    def publish(self, topic: bytes, bodies: Sequence[bytes]) -> None:
        now_ns = time.time_ns()
        next_id = self.next_id
        messages = []
        for body in bodies:
            next_id += 1
            identity = b"%016x" % next_id
            head = _FRAME.pack(30 + len(body), 2, now_ns, 1)
            messages.append((identity, head + identity + body))
        self.next_id = next_id
        for channel in self.channels(topic).values():
            channel.queue.extend(messages)
            for client in channel.clients:
                client.wake()


class _Client(asyncio.Protocol):
    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        self._buffer = b""
        self._greeted = self._waking = self._paused = False
        self._ready = self._flying = 0
        self._channel = _Channel()  # until SUB names one that others can see
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do what asyncio.Transport says without being one.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._paused = True
        if self in self._channel.clients:
            self._channel.clients.remove(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.wake()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at, end = (0, len(buffer)) if self._greeted else (4, len(buffer))
        self._greeted = True
        finished = 0
        in_flight = self._channel.in_flight
        while at < end:
            if buffer[at] == _FIN:
                if end - at < _FIN_SIZE:
                    break
                in_flight.pop(buffer[at + 4 : at + 20], None)
                at += _FIN_SIZE
                finished += 1
                continue
            taken = self._command(buffer, at, end)
            if not taken:
                break
            in_flight = self._channel.in_flight
            at += taken
        self._buffer = buffer[at:] if at < end else b""
        if finished:
            self._flying -= finished
            self.wake()

    def _command(self, buffer: bytes, at: int, end: int) -> int:
        """Do the command at ``at``; how many bytes it took, 0 when it is not whole."""
        line_end = buffer.find(b"\n", at)
        if line_end < 0:
            return 0
        name, *words = buffer[at:line_end].split(b" ")
        start = line_end + 1
        if name in (b"PUB", b"MPUB", b"IDENTIFY"):
            if end - start < 4:
                return 0
            (size,) = _SIZE.unpack_from(buffer, start)
            start += 4
            if end - start < size:
                return 0
            if name == b"PUB":
                self._queue.publish(words[0], (buffer[start : start + size],))
            elif name == b"MPUB":
                self._queue.publish(words[0], _split(buffer, start + 4, start + size))
            self._transport.write(_OK)
            start += size
        elif name == b"SUB":
            channels = self._queue.channels(words[0])
            self._channel = channels.setdefault(words[1], self._channel)
            self._channel.clients.append(self)
            self._transport.write(_OK)
        elif name == b"RDY":
            self._ready = int(words[0])
            self.wake()
        return start - at

    def wake(self) -> None:
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._waking = False
        if self._paused:
            return
        queue, in_flight = self._channel.queue, self._channel.in_flight
        count = min(self._ready - self._flying, len(queue))
        if count <= 0:
            return
        deadline, frames = time.monotonic() + _MESSAGE_TIMEOUT_S, []
        for _ in range(count):
            identity, frame = queue.popleft()
            in_flight[identity] = (deadline, self, frame)
            frames.append(frame)
        self._flying += count
        self._transport.write(b"".join(frames))


def _split(buffer: bytes, at: int, end: int) -> list[bytes]:
    """The bodies of an MPUB, each behind its size."""
    bodies = []
    while at < end:
        (size,) = _SIZE.unpack_from(buffer, at)
        at += 4 + size
        bodies.append(buffer[at - size : at])
    return bodies


async def _serve(address: str) -> None:
    host, _, port = address.rpartition(":")
    queue = _Queue()
    server = await asyncio.get_running_loop().create_server(
        lambda: _Client(queue), host, int(port), backlog=1024
    )
    bound_host, bound_port = server.sockets[0].getsockname()[:2]
    sys.stderr.write(f"TCP: listening on {bound_host}:{bound_port}\n")
    sys.stderr.flush()
    await server.serve_forever()


def main(arguments: Sequence[str]) -> int:
    """Serve until killed."""
    options = parse_flags(_Options, arguments, "yardstick", intro=__doc__ or "")
    gc.freeze()
    gc.disable()
    uvloop.run(_serve(options.tcp_address))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
