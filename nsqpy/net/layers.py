"""Layers between a connection's transport and its protocol: TLS and compression.

A connection begins in clear. ``Layers`` then takes its protocol's place at the transport, and the
transport's place at the protocol, so that neither knows; a connection without layers pays nothing.
Source: IDENTIFY in docs/protocol.md.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from nsqpy.errors import TransformError
from nsqpy.net.tls import HANDSHAKE_TIMEOUT_S, TLSStage

__all__ = ["Layers", "Stage"]

# Plain bytes given to the protocol in one round of the loop: as a plain read gives at most.
_READ_MAX_BYTES = 256 * 1024


class Stage(Protocol):
    """One layer, both directions. ``protocol.transforms`` and ``net.tls`` have them."""

    ended: bool

    def encode(self, data: bytes) -> bytes: ...

    def feed(self, data: bytes) -> None: ...

    def read(self, max_bytes: int) -> bytes: ...

    def end(self) -> bytes: ...


class Layers(asyncio.Protocol, asyncio.Transport):
    """Takes over ``transport`` from ``protocol`` at once; then give it TLS, or stages, or both.

    ``failed`` is called when the peer sends what is no stream of its kind; it has to close.

    The socket is not read while decoded bytes wait, so what is held is bounded by one read, and
    what comes out of it in a round of the loop by ``_READ_MAX_BYTES``.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        protocol: asyncio.Protocol,
        failed: Callable[[TransformError], None],
    ) -> None:
        super().__init__()
        self._transport = transport
        self._protocol = protocol
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._stages: list[Stage] = []  # the outermost, next to the socket, first
        self._tls: TLSStage | None = None
        self._handshaken: Callable[[TransformError | None], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False  # by the protocol
        self._behind = False  # more can be decoded, and a call to do so is on its way
        self._over = False
        transport.set_protocol(self)

    def start_tls(
        self, stage: TLSStage, done: Callable[[TransformError | None], None], early: bytes = b""
    ) -> None:
        """Begin the handshake; ``done`` is told how it went, within ``HANDSHAKE_TIMEOUT_S``.

        After a failure nothing but ``write_clear`` and ``close`` makes sense. It is not told
        anything when the connection is lost first. ``early`` has come already.
        """
        self._tls = stage
        self._stages.append(stage)
        self._handshaken = done
        self._timer = self._loop.call_later(
            HANDSHAKE_TIMEOUT_S, self._end_handshake, TransformError("tls", "handshake timed out")
        )
        stage.feed(early)
        self._go_on_shaking_hands()

    def add(self, stage: Stage, early: bytes = b"") -> None:
        """Put a stage next to the protocol; ``early`` are bytes of it that have come already."""
        self._stages.append(stage)
        stage.feed(early)
        if early:
            self._decode_soon()

    def write_clear(self, data: bytes) -> None:
        """Past every layer: for what has to be said when TLS did not come about."""
        self._transport.write(data)

    # What the transport calls.

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._stages[0].feed(data)
        if self._handshaken is not None:
            self._go_on_shaking_hands()
        elif not self._behind and not self._paused:
            self._decode()

    def eof_received(self) -> bool | None:
        if self._handshaken is not None:
            self._end_handshake(TransformError("tls", "EOF"))
        if self._over:
            return True
        self._over = True
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._handshaken = None
        self._cancel_timer()
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    # What the protocol calls.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._transport.is_closing():
            return
        encoded = bytes(data)
        try:
            for stage in reversed(self._stages):
                encoded = stage.encode(encoded)
        except TransformError as error:
            self._fail(error)
            return
        self._transport.write(encoded)

    def pause_reading(self) -> None:
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self._decode_soon()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        if self._transport.is_closing():
            return
        if self._tls is not None and self._handshaken is None:
            self._transport.write(self._tls.end())
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's
        return self._transport.get_extra_info(name, default)

    # The handshake.

    def _go_on_shaking_hands(self) -> None:
        assert self._tls is not None
        try:
            done = self._tls.handshake()
        except TransformError as error:
            self._send_owed()  # the alert
            self._end_handshake(error)
            return
        self._send_owed()
        if done:
            self._end_handshake(None)
            self._decode_soon()  # the peer may have gone on at once

    def _end_handshake(self, error: TransformError | None) -> None:
        self._cancel_timer()
        done, self._handshaken = self._handshaken, None
        self._over = error is not None
        if done is not None:
            done(error)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_owed(self) -> None:
        owed = self._tls.owed() if self._tls is not None else b""
        if owed:
            self._transport.write(owed)

    # Decoding.

    def _decode_soon(self) -> None:
        """Have what is held looked at; until then the socket rests."""
        if not self._behind and not self._transport.is_closing():
            self._behind = True
            self._transport.pause_reading()
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        self._behind = False
        if self._over or self._paused or self._transport.is_closing():
            return
        if self._handshaken is None:
            self._decode()
        if not self._behind and not self._paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def _decode(self) -> None:
        """Give the protocol what has come, up to the limit of a round."""
        try:
            data = self._read(len(self._stages) - 1)
        except TransformError as error:
            self._fail(error)
            return
        self._send_owed()
        if data:
            self._protocol.data_received(data)
        if self._transport.is_closing() or self._over:
            return
        if len(data) >= _READ_MAX_BYTES:
            self._decode_soon()
        elif any(stage.ended for stage in self._stages):
            self._over = True
            if not self._protocol.eof_received():
                self.close()

    def _read(self, level: int) -> bytes:
        """Up to about a round's limit from the stage at ``level``, and from those outside it."""
        stage = self._stages[level]
        if not level:
            return stage.read(_READ_MAX_BYTES)
        parts: list[bytes] = []
        left_bytes = _READ_MAX_BYTES
        while left_bytes > 0:
            data = stage.read(left_bytes)
            if not data:
                outer = self._read(level - 1)
                if not outer:
                    break
                stage.feed(outer)
            parts.append(data)
            left_bytes -= len(data)
        return b"".join(parts)

    def _fail(self, error: TransformError) -> None:
        if not self._over:
            self._over = True
            self._failed(error)
