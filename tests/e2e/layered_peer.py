"""A client made of a socket, with the layers that IDENTIFY grants over it."""

import json
import socket
import ssl
from types import TracebackType
from typing import Any, Self

from nsqpy.protocol import requests
from nsqpy.protocol.transforms import DeflateStage, SnappyStage
from tests.e2e.daemon import DEADLINE_SECONDS
from tests.e2e.peer import Frame

__all__ = ["LayeredPeer"]

OK = Frame(0, b"OK")


class LayeredPeer:
    """One connection, to ``host:port`` or a Unix socket's path. ``identify`` puts the layers in
    place, by hand and with Python's own ``ssl``."""

    def __init__(self, address: str) -> None:
        if "/" in address:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(DEADLINE_SECONDS)
            self.socket.connect(address)
        else:
            host, _, port = address.rpartition(":")
            self.socket = socket.create_connection((host, int(port)), DEADLINE_SECONDS)
        self._stage: SnappyStage | DeflateStage | None = None
        self._received = b""
        self.socket.sendall(requests.MAGIC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def identify(
        self,
        tls: ssl.SSLContext | None = None,
        *,
        snappy: bool = False,
        deflate: bool = False,
        early: bytes = b"",
    ) -> dict[str, Any]:
        """Ask for layers, and take those that are granted; ``early`` is sent before the reply."""
        fields = {"feature_negotiation": True, "tls_v1": tls is not None}
        request = requests.identify(fields | {"snappy": snappy, "deflate": deflate})
        self.socket.sendall(request + early)
        reply = self.frame()
        assert reply is not None
        features: dict[str, Any] = json.loads(reply.data)
        if features["tls_v1"]:
            assert tls is not None
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
            assert self.frame() == OK
        if features["snappy"] or features["deflate"]:
            self._stage = SnappyStage() if features["snappy"] else DeflateStage()
            # The daemon goes on at once, so the OK may have come together with the reply.
            self._stage.feed(self._received)
            self._received = self._stage.read(1 << 24)
            assert self.frame() == OK
        return features

    def send(self, *parts: bytes) -> None:
        data = b"".join(parts)
        self.socket.sendall(data if self._stage is None else self._stage.encode(data))

    def send_raw(self, data: bytes) -> None:
        """Past the compression."""
        self.socket.sendall(data)

    def frame(self) -> Frame | None:
        """The next frame; None at the end of the stream."""
        head = self._read_exactly(4)
        if head is None:
            return None
        data = self._read_exactly(int.from_bytes(head, "big"))
        assert data is not None
        return Frame(int.from_bytes(data[:4], "big"), data[4:])

    def _read_exactly(self, size: int) -> bytes | None:
        while len(self._received) < size:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                assert not self._received, f"cut off in the middle: {self._received!r}"
                return None
            if self._stage is not None:
                self._stage.feed(data)
                data = self._stage.read(1 << 24)
            self._received += data
        taken, self._received = self._received[:size], self._received[size:]
        return taken
