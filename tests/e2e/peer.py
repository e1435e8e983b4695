"""Clients made of a socket, for doing what no client library would do."""

import re
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from nsqpy.protocol import requests
from tests.e2e.daemon import DEADLINE_SECONDS, Daemon, wait_until

__all__ = [
    "MAGIC",
    "Frame",
    "Healthy",
    "HealthyClient",
    "Peer",
    "memory_bytes",
    "settled_memory_bytes",
]

MAGIC = requests.MAGIC
ERROR, MESSAGE = 1, 2


class Frame(NamedTuple):
    type: int
    data: bytes


class Closable(Protocol):
    def close(self) -> None: ...


class Peer:
    """One TCP connection. ``receive_buffer`` is small for a client that is not going to read."""

    def __init__(self, address: str, receive_buffer: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(DEADLINE_SECONDS)
        self.socket.connect((host, int(port)))
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def end(self) -> None:
        """Nothing more will be sent."""
        self.socket.shutdown(socket.SHUT_WR)

    def frame(self) -> Frame | None:
        """The next frame but heartbeats; None at the end of the stream."""
        while (found := self._next()) is not None:
            if found.data != b"_heartbeat_":
                return found
        return None

    def frames(self) -> list[Frame]:
        """All there is until the daemon closes the connection."""
        found = []
        while (frame := self.frame()) is not None:
            found.append(frame)
        return found

    def http_answer(self) -> bytes:
        """One HTTP answer, head and body, or what there is of it when the connection ends."""
        while True:
            head, end, body = self._received.partition(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            if (end and length and len(body) >= int(length[1])) or not self._read():
                return self._received

    def is_closed(self) -> bool:
        """Without waiting. What the daemon sent before is thrown away, unread as it was."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 20):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        finally:
            self.socket.settimeout(DEADLINE_SECONDS)
        return True

    def flood(self, data: bytes, limit_bytes: int, seconds: float = DEADLINE_SECONDS) -> int:
        """Send ``data`` over and over, reading nothing, until it is not taken for half a second,
        the connection ends or ``limit_bytes`` are through; returns how much was."""
        self.socket.settimeout(0.5)
        sent = 0
        deadline = time.monotonic() + seconds
        try:
            while sent < limit_bytes and time.monotonic() < deadline:
                sent += self.socket.send(data)
        except (ConnectionError, TimeoutError):
            pass
        self.socket.settimeout(DEADLINE_SECONDS)
        return sent

    def _next(self) -> Frame | None:
        while True:
            size = int.from_bytes(self._received[:4], "big")
            if len(self._received) >= 4 + max(size, 4):
                data = self._received[4 : 4 + size]
                self._received = self._received[4 + size :]
                return Frame(int.from_bytes(data[:4], "big"), data[4:])
            if not self._read():
                assert not self._received, f"cut off in the middle of a frame: {self._received!r}"
                return None

    def _read(self) -> bool:
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:
            return False  # closed with something of ours unread
        self._received += data
        return bool(data)


class Healthy:
    """Does ``round`` all the while, beside whatever is done to the server, and notes how long
    each took. ``peer`` is its connection."""

    def __init__(self, peer: Closable) -> None:
        self._connection = peer
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0
        self.longest_seconds = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()
        if self._failure is not None:
            raise self._failure

    def served_again(self, times: int = 3) -> None:
        """Wait until it has been served a few times more."""
        goal = self.rounds + times
        wait_until(lambda: self.rounds >= goal or self._failure, "a healthy client to be served")

    def round(self) -> None:
        """One exchange; raises what was not as it should be."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.01):
                started = time.monotonic()
                self.round()
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - started)
                self.rounds += 1
        except BaseException as error:  # raised again where the client is left
            self._failure = error


class HealthyClient(Healthy):
    """A publisher and consumer."""

    def __init__(self, daemon: Daemon) -> None:
        self._peer = Peer(daemon.tcp_address)
        super().__init__(self._peer)
        self._peer.send(MAGIC, requests.sub("healthy", "c"), requests.rdy(1))
        assert self._peer.frame() == Frame(0, b"OK")

    def round(self) -> None:
        """Publish, receive, finish."""
        body = b"%d" % self.rounds
        self._peer.send(requests.pub("healthy", body))
        found = {self._peer.frame(), self._peer.frame()} - {Frame(0, b"OK")}
        (message,) = found
        assert message is not None
        assert (message.type, message.data[26:]) == (MESSAGE, body)
        self._peer.send(requests.fin(message.data[10:26]))


def memory_bytes(daemon: Daemon) -> int:
    """What of the daemon is in memory."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    (kilobytes,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return int(kilobytes) * 1024


def settled_memory_bytes(daemon: Daemon, below_bytes: int) -> int:
    """Wait until the daemon's memory is back below a bound."""
    seen = 0

    def low_enough() -> int:
        nonlocal seen
        seen = memory_bytes(daemon)
        return seen if seen < below_bytes else 0

    try:
        return wait_until(low_enough, f"less than {below_bytes >> 20} MiB", 10)
    except AssertionError as error:
        raise AssertionError(f"{error}: it has {seen >> 20} MiB") from None
