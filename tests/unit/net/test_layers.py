"""Layers between a transport and a protocol, both of them fakes on a real event loop."""

import asyncio
from typing import Any

import pytest

from nsqpy.errors import TransformError
from nsqpy.net.layers import Layers, Stage
from nsqpy.net.tls import ServerTLS, TLSStage
from nsqpy.protocol.transforms import DeflateStage, SnappyStage
from tests.certificates import Certificates

ROUND_BYTES = 256 * 1024


class FakeTransport(asyncio.Transport):
    """Keeps what is written; whether it is read from is ``reading``."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reading = True
        self.closed = self.aborted = False
        self.protocol: asyncio.BaseProtocol | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:  # noqa: ANN401 - asyncio's
        assert not self.closed
        self.written += bytes(data)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def take(self) -> bytes:
        taken, self.written = self.written, b""
        return taken


class Inner(asyncio.Protocol):
    """What lies behind the layers."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.ended = False
        self.writing = True
        self.lost = False

    @property
    def data(self) -> bytes:
        return b"".join(self.received)

    def data_received(self, data: bytes) -> None:
        self.received.append(data)

    def eof_received(self) -> bool:
        self.ended = True
        return True

    def pause_writing(self) -> None:
        self.writing = False

    def resume_writing(self) -> None:
        self.writing = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Setup:
    """One side under test, and the failures it reported."""

    def __init__(self, *stages: Stage) -> None:
        self.transport = FakeTransport()
        self.inner = Inner()
        self.failures: list[str] = []
        self.layers = Layers(self.transport, self.inner, self._failed)
        for stage in stages:
            self.layers.add(stage)

    def _failed(self, error: TransformError) -> None:
        self.failures.append(str(error))
        self.layers.close()


async def rounds(count: int = 3) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_it_takes_the_protocols_place() -> None:
    setup = Setup(DeflateStage())
    assert setup.transport.protocol is setup.layers
    seen = []
    for call in (setup.layers.pause_writing, setup.layers.resume_writing):
        call()
        seen.append(setup.inner.writing)
    assert seen == [False, True]
    setup.layers.connection_lost(None)
    assert setup.inner.lost


async def test_the_outer_stage_is_the_one_next_to_the_wire() -> None:
    setup = Setup(SnappyStage(), DeflateStage())
    setup.layers.write(b"hello")
    outer, inner = SnappyStage(), DeflateStage()
    outer.feed(setup.transport.take())
    inner.feed(outer.read(100))
    assert inner.read(100) == b"hello"
    setup.layers.data_received(outer.encode(inner.encode(b"answer" * 10)))
    assert setup.inner.data == b"answer" * 10


async def test_one_read_becomes_no_more_than_a_round_at_a_time() -> None:
    setup = Setup(DeflateStage())
    zeros = bytes(3 * ROUND_BYTES + 1)
    setup.layers.data_received(DeflateStage().encode(zeros))
    assert [len(piece) for piece in setup.inner.received] == [ROUND_BYTES]
    assert not setup.transport.reading
    await rounds(6)
    assert setup.inner.data == zeros
    assert max(map(len, setup.inner.received)) == ROUND_BYTES
    assert setup.transport.reading


async def test_a_paused_protocol_gets_nothing_and_then_everything() -> None:
    setup = Setup(DeflateStage())
    peer = DeflateStage()
    setup.layers.pause_reading()
    assert not setup.transport.reading
    setup.layers.data_received(peer.encode(b"one"))
    await rounds()
    assert setup.inner.received == []
    setup.layers.resume_reading()
    await rounds()
    assert (setup.inner.data, setup.transport.reading) == (b"one", True)
    setup.layers.data_received(peer.encode(b"two"))
    assert setup.inner.data == b"onetwo"


async def test_pausing_in_the_middle_of_what_one_read_brought() -> None:
    setup = Setup(DeflateStage())
    setup.layers.data_received(DeflateStage().encode(bytes(2 * ROUND_BYTES)))
    setup.layers.pause_reading()
    await rounds()
    assert len(setup.inner.data) == ROUND_BYTES
    setup.layers.resume_reading()
    await rounds(6)
    assert len(setup.inner.data) == 2 * ROUND_BYTES


async def test_a_broken_stream_is_told_once() -> None:
    setup = Setup(SnappyStage())
    setup.layers.data_received(b"PUB t\n\0\0\0\1a")
    assert setup.failures == ["snappy: no stream identifier"]
    assert (setup.transport.closed, setup.transport.aborted) == (True, False)
    setup.layers.data_received(b"more")
    assert (len(setup.failures), setup.inner.received) == (1, [])
    setup.layers.write(b"too late")
    assert setup.transport.written == b""


async def test_the_end_of_the_inner_stream_is_the_end() -> None:
    setup = Setup(DeflateStage())
    setup.layers.data_received(b"\x03\x00" + b"what follows")  # an empty last block
    assert setup.inner.ended
    setup.layers.data_received(b"more")
    assert setup.inner.received == []


async def test_an_end_of_the_connection_is_passed_on() -> None:
    setup = Setup(DeflateStage())
    assert setup.layers.eof_received() is True
    assert setup.inner.ended


async def test_bytes_that_came_early_are_the_stages() -> None:
    setup = Setup()
    setup.layers.add(DeflateStage(), early=DeflateStage().encode(b"early"))
    await rounds()
    assert setup.inner.data == b"early"


class TestHandshake:
    @pytest.fixture
    def server(self, certificates: Certificates) -> TLSStage:
        pair = certificates.server
        context = ServerTLS(cert=str(pair.cert), key=str(pair.key)).context()
        return TLSStage(context, server_side=True)

    @pytest.fixture
    def client(self, certificates: Certificates) -> TLSStage:
        context = certificates.context()
        return TLSStage(context, server_side=False, server_hostname="127.0.0.1")

    async def test_then_tls_and_compression_in_it(self, client: TLSStage, server: TLSStage) -> None:
        setup = Setup()
        outcomes: list[TransformError | None] = []
        setup.layers.start_tls(server, outcomes.append)
        while not client.handshake():
            setup.layers.data_received(client.owed())
            client.feed(setup.transport.take())
        assert outcomes == []
        # Its last word, and the first of what is said then, in one read.
        setup.layers.data_received(client.owed() + client.encode(b"hello"))
        assert outcomes == [None]
        setup.layers.add(DeflateStage())
        setup.layers.write(b"OK")
        client.feed(setup.transport.take())
        inflated = DeflateStage()
        inflated.feed(client.read(1000))
        assert inflated.read(100) == b"OK"

    async def test_what_comes_right_behind_it(self, client: TLSStage, server: TLSStage) -> None:
        setup = Setup()
        outcomes: list[TransformError | None] = []
        setup.layers.start_tls(server, outcomes.append)
        while not client.handshake():
            setup.layers.data_received(client.owed())
            client.feed(setup.transport.take())
        setup.layers.data_received(client.owed() + client.encode(b"hello"))
        await rounds()
        assert (outcomes, setup.inner.data) == ([None], b"hello")
        setup.layers.data_received(client.end())
        assert setup.inner.ended
        setup.layers.close()
        client.feed(setup.transport.take())
        assert (client.read(10), client.ended) == (b"", True)

    async def test_a_failure_is_told_and_can_be_answered_in_clear(self, server: TLSStage) -> None:
        setup = Setup()
        outcomes: list[TransformError | None] = []
        setup.layers.start_tls(server, outcomes.append)
        setup.layers.data_received(b"NOP\n" * 10)
        assert [str(outcome) for outcome in outcomes] == ["tls: wrong version number"]
        setup.transport.take()
        setup.layers.write_clear(b"sorry")
        setup.layers.close()
        assert (setup.transport.written, setup.transport.closed) == (b"sorry", True)
        setup.layers.data_received(b"NOP\n")
        assert len(outcomes) == 1

    async def test_it_takes_no_longer_than_it_may(
        self, server: TLSStage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nsqpy.net.layers.HANDSHAKE_TIMEOUT_S", 0.01)
        setup = Setup()
        outcome: asyncio.Future[TransformError | None] = asyncio.get_running_loop().create_future()
        setup.layers.start_tls(server, outcome.set_result)
        assert str(await asyncio.wait_for(outcome, 5)) == "tls: handshake timed out"

    async def test_a_peer_that_leaves(self, server: TLSStage) -> None:
        setup = Setup()
        outcomes: list[TransformError | None] = []
        setup.layers.start_tls(server, outcomes.append)
        setup.layers.eof_received()
        assert [str(outcome) for outcome in outcomes] == ["tls: EOF"]
        setup.layers.connection_lost(None)
        assert setup.inner.lost
