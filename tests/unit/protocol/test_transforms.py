"""Deflate and snappy: whole, byte by byte, with trailing data, hostile, and by other hands."""

import zlib
from contextlib import suppress

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqpy.errors import TransformError
from nsqpy.protocol.transforms import DeflateStage, SnappyStage

Stage = DeflateStage | SnappyStage
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
# Compressible, incompressible, and longer than one chunk or window.
BODIES = [b"", b"a", b"hello" * 20, bytes(range(256)) * 700, b"x" * 200_000]
EVERYTHING = b"".join(BODIES)


@pytest.fixture(params=[DeflateStage, SnappyStage])
def kind(request: pytest.FixtureRequest) -> type[Stage]:
    found: type[Stage] = request.param
    return found


def drained(stage: Stage, max_bytes: int = 1 << 20) -> bytes:
    """All that a stage has to say."""
    data = b""
    while piece := stage.read(max_bytes):
        data += piece
    return data


class TestBoth:
    def test_each_write_can_be_read_at_once(self, kind: type[Stage]) -> None:
        sender, receiver = kind(), kind()
        for body in BODIES:
            receiver.feed(sender.encode(body))
            assert drained(receiver) == body

    @pytest.mark.parametrize("step", [1, 3, 70_000])
    def test_however_it_is_cut(self, kind: type[Stage], step: int) -> None:
        sender, receiver = kind(), kind()
        wire = b"".join(sender.encode(body) for body in BODIES)
        data = b""
        for at in range(0, len(wire), step):
            receiver.feed(wire[at : at + step])
            data += drained(receiver)
        assert data == EVERYTHING

    def test_what_comes_out_at_once_is_bounded(self, kind: type[Stage]) -> None:
        sender, receiver = kind(), kind()
        zeros = bytes(16 << 20)
        wire = sender.encode(zeros)
        assert len(wire) < len(zeros) // 15
        receiver.feed(wire)
        pieces = []
        while piece := receiver.read(100_000):
            pieces.append(len(piece))
        assert sum(pieces) == len(zeros)
        assert max(pieces) <= 100_000 + 65_536

    def test_nothing_is_said_at_the_end(self, kind: type[Stage]) -> None:
        stage = kind()
        stage.encode(b"data")
        assert stage.end() == b""
        assert not stage.ended


@given(
    kind=st.sampled_from([DeflateStage, SnappyStage]),
    start=st.sampled_from([b"", IDENTIFIER, IDENTIFIER + b"\x00"]),
    noise=st.binary(max_size=2000),
)
def test_noise_gives_the_one_error_or_nothing(
    kind: type[Stage], start: bytes, noise: bytes
) -> None:
    stage = kind()
    stage.feed(start + noise)
    with suppress(TransformError):
        while stage.read(1000):
            pass


class TestDeflate:
    def test_it_is_raw_and_flushed(self) -> None:
        wire = DeflateStage(1).encode(b"hello" * 100)
        assert wire.endswith(b"\x00\x00\xff\xff")
        assert zlib.decompressobj(-15).decompress(wire) == b"hello" * 100

    def test_the_end_of_the_peers_stream_is_the_end(self) -> None:
        compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
        wire = compressor.compress(b"last words") + compressor.flush()
        stage = DeflateStage()
        stage.feed(wire + b"what follows")
        assert (drained(stage), stage.ended) == (b"last words", True)
        stage.feed(b"more")
        assert stage.read(100) == b""

    def test_an_empty_flush_says_nothing(self) -> None:
        stage = DeflateStage()
        stage.feed(b"\x00\x00\x00\xff\xff" * 3)
        assert drained(stage) == b""

    def test_what_is_no_deflate(self) -> None:
        stage = DeflateStage()
        stage.feed(b"PUB topic\n")
        with pytest.raises(TransformError, match=r"^deflate: "):
            stage.read(100)

    @pytest.mark.parametrize("level", [1, 9])
    def test_levels(self, level: int) -> None:
        stage = DeflateStage()
        stage.feed(DeflateStage(level).encode(EVERYTHING))
        assert drained(stage) == EVERYTHING


class TestSnappy:
    def test_the_bytes_of_a_short_message(self) -> None:
        stage = SnappyStage()
        # Too short to shrink by an eighth: a plain chunk. CRC from the format's own library.
        assert stage.encode(b"OK") == IDENTIFIER + b"\x01\x06\x00\x00" + crc_of(b"OK") + b"OK"
        assert stage.encode(b"OK") == b"\x01\x06\x00\x00" + crc_of(b"OK") + b"OK"

    def test_what_shrinks_is_compressed(self) -> None:
        wire = SnappyStage().encode(b"hello" * 20)
        assert wire == bytes(cramjam.snappy.compress(b"hello" * 20))
        assert wire[len(IDENTIFIER)] == 0

    def test_a_chunk_holds_64_kib(self) -> None:
        wire = SnappyStage().encode(bytes(65_537))
        assert bytes(cramjam.snappy.decompress(wire)) == bytes(65_537)
        assert wire.endswith(b"\x01\x05\x00\x00" + crc_of(b"\0") + b"\0")

    def test_it_reads_what_the_library_frames_again_and_again(self) -> None:
        stage = SnappyStage()
        for body in (b"one", b"two" * 1000):
            stage.feed(bytes(cramjam.snappy.compress(body)))  # an identifier each time
            assert drained(stage) == body

    @pytest.mark.parametrize("step", [1, 5, 1000])
    def test_padding_and_what_is_for_others_is_skipped(self, step: int) -> None:
        sender, stage = SnappyStage(), SnappyStage()
        wire = sender.encode(b"a") + b"\xfe\x05\x00\x00" + b"pad.." + b"\x80\x00\x00\x00"
        wire += b"\xfd\x00\x10\x00" + bytes(4096) + sender.encode(b"b")
        data = b""
        for at in range(0, len(wire), step):
            stage.feed(wire[at : at + step])
            data += drained(stage)
        assert data == b"ab"

    @pytest.mark.parametrize(
        ("wire", "reason"),
        [
            (b"\x01\x06\x00\x00....OK", "no stream identifier"),
            (b"\xff\x06\x00\x00sNaPpX", "bad stream identifier"),
            (b"\xff\x07\x00\x00", "bad stream identifier"),
            (IDENTIFIER + b"\x02\x00\x00\x00", "chunk of unknown type 2"),
            (IDENTIFIER + b"\x01\x03\x00\x00...", "chunk of 3 bytes"),
            (IDENTIFIER + b"\x01\x05\x00\x01", "chunk of 65541 bytes"),
            (IDENTIFIER + b"\x00\x00\x00\x10", "chunk of 1048576 bytes"),
            (IDENTIFIER + b"\x01\x06\x00\x00....OK", "checksum does not match"),
            (IDENTIFIER + b"\x00\x08\x00\x00....\x81\x80\x04\x00", "more than 65536 plain bytes"),
            (IDENTIFIER + b"\x00\x07\x00\x00....\x05ab", "snappy: "),
        ],
    )
    def test_what_is_no_snappy(self, wire: bytes, reason: str) -> None:
        stage = SnappyStage()
        stage.feed(wire)
        with pytest.raises(TransformError) as caught:
            stage.read(100)
        assert str(caught.value).startswith("snappy: ")
        assert reason in str(caught.value)


def crc_of(plain: bytes) -> bytes:
    """The masked checksum, as the library frames it."""
    framed = bytes(cramjam.snappy.compress(plain))
    return framed[len(IDENTIFIER) + 4 : len(IDENTIFIER) + 8]
