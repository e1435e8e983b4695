"""Batches: encoded once, cut by offsets, found again in bytes."""

import pytest

from nsqpy.message import FRAME_HEADER_BYTES, Batch, decode_batch, encode_batch

WALL_NS = 1_795_239_962_876_387_448
UNEVEN = [b"a", b"", b"ccc", b"dddddddd"]
EVEN = [b"aa", b"bb", b"cc"]


def ids(count: int) -> list[bytes]:
    return [b"%016x" % index for index in range(count)]


def batch(bodies: list[bytes], deliver_at_ns: int = 0) -> Batch:
    return encode_batch(bodies, b"".join(ids(len(bodies))), WALL_NS, deliver_at_ns)


def frame(body: bytes, message_id: bytes, attempts: int = 1) -> bytes:
    data = WALL_NS.to_bytes(8, "big") + attempts.to_bytes(2, "big") + message_id + body
    return (len(data) + 4).to_bytes(4, "big") + b"\0\0\0\x02" + data


def frames(bodies: list[bytes], attempts: int = 1) -> bytes:
    return b"".join(
        frame(body, message_id, attempts)
        for body, message_id in zip(bodies, ids(len(bodies)), strict=True)
    )


@pytest.mark.parametrize("bodies", [[b"hello"], [b""], EVEN, UNEVEN])
def test_a_batch_is_the_frames_of_its_messages(bodies: list[bytes]) -> None:
    made = batch(bodies)
    assert made.data == frames(bodies)
    assert len(made) == len(bodies)
    assert made.ids(0, len(made)) == ids(len(bodies))
    assert made.deliver_at_ns == 0
    assert [made.frames(i, i + 1) for i in range(len(made))] == [
        frame(body, message_id) for body, message_id in zip(bodies, ids(len(bodies)), strict=True)
    ]


def test_all_frames_are_not_copied() -> None:
    made = batch(UNEVEN)
    assert made.frames(0, 4) is made.data
    assert made.slice(0, 4) is made


@pytest.mark.parametrize("bodies", [EVEN, UNEVEN])
def test_sizes(bodies: list[bytes]) -> None:
    made = batch(bodies)
    assert made.size_bytes(1, 3) == len(bodies[1]) + len(bodies[2]) + 2 * FRAME_HEADER_BYTES
    assert made.body_bytes(1, 3) == len(bodies[1]) + len(bodies[2])
    assert made.body_bytes(0, len(bodies)) == len(b"".join(bodies))


@pytest.mark.parametrize("bodies", [EVEN, UNEVEN])
def test_a_slice_is_a_batch(bodies: list[bytes]) -> None:
    part = batch(bodies, deliver_at_ns=7).slice(1, 3)
    assert (len(part), part.deliver_at_ns) == (2, 7)
    assert part.ids(0, 2) == ids(3)[1:]
    assert part.data == frames(bodies[:3])[-part.size_bytes(0, 2) :]
    assert part.frames(1, 2) == frame(bodies[2], ids(3)[2])


def test_fit_takes_what_stays_within_the_bound_and_at_least_one() -> None:
    made = batch([b"x" * 66] * 10)  # frames of 100 bytes
    assert [made.fit(2, 9, limit) for limit in (0, 99, 100, 199, 200, 699, 700, 5000)] == [
        *(3, 3, 3, 3, 4, 8, 9, 9)
    ]
    assert made.fit(9, 10, 1) == 10


def test_raised_messages_have_one_attempt_more() -> None:
    made = batch(UNEVEN)
    raised = made.raised(1, 4, deliver_at_ns=99)
    assert [raised.attempts(index) for index in range(3)] == [2, 2, 2]
    assert [made.attempts(index) for index in range(4)] == [1, 1, 1, 1]
    assert raised.deliver_at_ns == 99
    assert raised.data == frames(UNEVEN, attempts=2)[made.size_bytes(0, 1) :]
    assert raised.frames(2, 3) == frame(UNEVEN[3], ids(4)[3], attempts=2)


def test_attempts_wrap() -> None:
    last = decode_batch(frame(b"x", ids(1)[0], attempts=65535), 1)
    assert last.raised(0, 1).attempts(0) == 0


@pytest.mark.parametrize("bodies", [[b"hello"], [b""], EVEN, UNEVEN, [b"x"] * 1000])
def test_decoding_finds_the_same_batch(bodies: list[bytes]) -> None:
    made = batch(bodies)
    found = decode_batch(made.data, len(bodies), 5)
    assert found.data == made.data
    assert list(found.offsets) == list(made.offsets)
    assert found.deliver_at_ns == 5


@pytest.mark.parametrize(
    ("data", "count", "reason"),
    [
        (frames(UNEVEN), 3, "4 frames found, not 3"),
        (frames(UNEVEN), 5, "4 frames found, not 5"),
        (frames(EVEN), 2, "3 frames found, not 2"),
        (b"", 1, "0 frames found, not 1"),
        (frames(UNEVEN)[:-1], 4, "4 frames found, not 4"),
        (frames(UNEVEN) + b"\0" * 33, 4, "frame at 148 is cut off"),
        (b"\0\0\0\x1d" + b"x" * 100, 2, "frame at 0 is too short"),
        (b"\xff\xff\xff\xff" + b"x" * 100, 2, "frame at 0 is too short"),
        (b"\0\0\0\0" + b"\0\0\0\0", 2, "frame at 0 is cut off"),
        ((b"\0\0\0\x1d" + b"x" * 29) * 2, 2, "frame at 0 is too short"),
        (b"\0\0\0\0", 1, "frame at 0 is cut off"),
    ],
)
def test_bytes_that_do_not_add_up_are_refused(data: bytes, count: int, reason: str) -> None:
    with pytest.raises(ValueError, match="^" + reason + "$"):
        decode_batch(data, count)
