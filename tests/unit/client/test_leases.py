"""The stream of a lease taken apart, cut anywhere."""

import pytest

from nsqpy.client.leases import Lease, Split, StreamError, _Blocks
from nsqpy.message import encode_batch
from nsqpy.storage.block import encode_block_header


def block(*bodies: bytes) -> tuple[bytes, bytes]:
    """A block, and the frames in it."""
    ids = b"".join(b"%016x" % number for number in range(len(bodies)))
    batch = encode_batch(bodies, ids, 7)
    return encode_block_header(batch, 1) + batch.data, batch.data


ONE, ONE_FRAMES = block(b"one", b"two")
TWO, TWO_FRAMES = block(b"three")
SPLIT = Split(0, len(ONE + TWO), 3)


@pytest.mark.parametrize("step", [1, 7, 40, 41, 1000])
def test_blocks_may_be_cut_anywhere(step: int) -> None:
    stream = ONE + TWO
    blocks = _Blocks()
    found = [blocks.feed(stream[at : at + step]) for at in range(0, len(stream), step)]
    blocks.end(SPLIT)
    assert b"".join(found) == ONE_FRAMES + TWO_FRAMES
    # Whole messages only: what is given out begins a message.
    assert {piece for piece in found if piece} <= {ONE_FRAMES, TWO_FRAMES, ONE_FRAMES + TWO_FRAMES}


def test_a_block_that_is_cut_off_is_an_error() -> None:
    blocks = _Blocks()
    blocks.feed((ONE + TWO)[:-1])
    with pytest.raises(StreamError, match="cut off"):
        blocks.end(SPLIT)


def test_a_missing_block_is_an_error() -> None:
    blocks = _Blocks()
    blocks.feed(ONE)
    with pytest.raises(StreamError, match="2 messages came, not 3"):
        blocks.end(SPLIT)


@pytest.mark.parametrize("at", [0, 4, 12, 30, 37, 60])
def test_a_flipped_bit_is_an_error(at: int) -> None:
    damaged = bytearray(ONE)
    damaged[at] ^= 1
    with pytest.raises(StreamError):
        _Blocks().feed(bytes(damaged))


def test_a_lease_as_the_node_tells_it() -> None:
    told = {
        "id": "a", "topic": "t", "channel": "c", "node": "f" * 32, "state": "leased", "count": 3,
        "bytes": 200, "expires": 5, "ttl": 4, "reads": 1, "splits": [[0, 100, 1], [100, 100, 2]],
    }  # fmt: skip
    lease = Lease.of(told)
    assert lease.splits == (Split(0, 100, 1), Split(100, 100, 2))
    assert (lease.count, lease.length, lease.expires_ns) == (3, 200, 5_000_000)
