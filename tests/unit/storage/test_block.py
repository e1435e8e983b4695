"""A block's bytes, and what is refused."""

import struct

import google_crc32c
import pytest

from nsqpy.errors import CorruptionError
from nsqpy.message import Batch
from nsqpy.storage.block import (
    BLOCK_HEADER_BYTES,
    decode_block,
    encode_block_header,
    parse_block_header,
)
from tests.unit.fakes import batch_of, bodies_of

# Written out by hand: one message "hi", id 1, first number 9, due at 0x0102.
FRAME = bytes.fromhex(
    "00000020 00000002 18fae27693b40000 0001 30303030303030303030303030303031 6869"
)
HEADER_WITHOUT_CRC = bytes.fromhex(
    "4e514231 01 02 0000 00000001 00000024 0000000000000102 0000000000000009"
)


def checked(head: bytes) -> bytes:
    """``head`` without its own checksum, completed."""
    return head + struct.pack(">I", google_crc32c.value(head))


def header_of(batch: Batch, first_number: int = 1) -> bytes:
    return encode_block_header(batch, first_number)


def parse(data: bytes) -> object:
    return parse_block_header(data, 0, "a/file", 16)


def test_the_layout_is_the_documented_one() -> None:
    batch = batch_of(b"hi", deliver_at_ns=0x0102)
    assert batch.data == FRAME
    crc = struct.pack(">I", google_crc32c.value(FRAME))
    assert header_of(batch, 9) == checked(HEADER_WITHOUT_CRC + crc)
    assert len(header_of(batch)) == BLOCK_HEADER_BYTES


def test_kind_tells_deferred_messages_from_others() -> None:
    assert header_of(batch_of(b"a"))[5] == 1
    assert header_of(batch_of(b"a", deliver_at_ns=1))[5] == 2


@pytest.mark.parametrize("deliver_at_ns", [0, 1 << 60])
def test_what_was_encoded_is_read_back(deliver_at_ns: int) -> None:
    batch = batch_of(b"a", b"", b"ccc", deliver_at_ns=deliver_at_ns)
    header = parse_block_header(b"xx" + header_of(batch, 77), 2, "a/file", 18)
    assert header[:4] == (3, len(batch.data), deliver_at_ns, 77)
    decoded = decode_block(header, batch.data, "a/file", 18)
    assert (bodies_of(decoded), decoded.deliver_at_ns) == ([b"a", b"", b"ccc"], deliver_at_ns)


@pytest.mark.parametrize("at", range(BLOCK_HEADER_BYTES))
def test_any_flipped_byte_of_a_header_is_noticed(at: int) -> None:
    damaged = bytearray(header_of(batch_of(b"a")))
    damaged[at] ^= 0x10
    with pytest.raises(CorruptionError):
        parse(bytes(damaged))


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (header_of(batch_of(b"a"))[:-1], "block header is cut off"),
        (b"", "block header is cut off"),
        (b"NQB2" + header_of(batch_of(b"a"))[4:], "no block starts here"),
        (header_of(batch_of(b"a"))[:-1] + b"\0", "checksum of the block header does not match"),
        (
            checked(b"NQB1\x02\x01" + bytes(30)),
            "block version 2 kind 1 is unknown",
        ),
        (
            checked(b"NQB1\x01\x03" + bytes(30)),
            "block version 1 kind 3 is unknown",
        ),
        (checked(b"NQB1\x01\x01" + bytes(30)), "0 messages do not fit into 0 bytes"),
        (
            checked(b"NQB1\x01\x01\0\0" + struct.pack(">IIqQI", 2, 67, 0, 1, 0)),
            "2 messages do not fit into 67 bytes",
        ),
    ],
)
def test_a_header_that_is_none_is_refused_with_its_place(head: bytes, reason: str) -> None:
    with pytest.raises(CorruptionError) as caught:
        parse(head)
    assert (caught.value.path, caught.value.offset, caught.value.reason) == ("a/file", 16, reason)
    assert str(caught.value) == f"a/file at byte 16: {reason}"


def test_frames_that_do_not_match_the_header_are_refused() -> None:
    batch = batch_of(b"abc", b"defg")
    header = parse_block_header(header_of(batch), 0, "f", 0)
    for frames, reason in (
        (batch.data[:-1], "block is cut off"),
        (batch.data[:-1] + b"G", "checksum of the block does not match"),
    ):
        with pytest.raises(CorruptionError, match=reason):
            decode_block(header, frames, "f", 0)


def test_frames_that_do_not_add_up_are_refused_whatever_the_checksum_says() -> None:
    batch = batch_of(b"abc", b"defg")
    header = parse_block_header(header_of(batch), 0, "f", 0)
    with pytest.raises(CorruptionError, match="2 frames found, not 3"):
        decode_block(header._replace(records=3), batch.data, "f", 0)
