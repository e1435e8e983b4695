"""What the server sends against what the client reads."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqpy.message import encode_batch
from nsqpy.protocol.frames import (
    BadFrame,
    ErrorFrame,
    Frame,
    FrameParser,
    MessageFrames,
    ResponseFrame,
    error_frame,
    response_frame,
)
from tests.fuzz.cutting import cut_up, cuts, in_bytes

fuzzing = settings(max_examples=200, derandomize=True, deadline=None, database=None)

pytestmark = pytest.mark.slow

# Each item is what the server writes, and what the client should make of it.
Item = tuple[bytes, list[object]]


def message_item(bodies: list[bytes], timestamp_ns: int, raises: int) -> Item:
    ids = [b"%016x" % (timestamp_ns % 1000 + index) for index in range(len(bodies))]
    batch = encode_batch(bodies, b"".join(ids), timestamp_ns)
    for _ in range(raises):
        batch = batch.raised(0, len(batch))
    fields = [
        (timestamp_ns, 1 + raises, message_id, body)
        for message_id, body in zip(ids, bodies, strict=True)
    ]
    return batch.frames(0, len(batch)), list(fields)


items: st.SearchStrategy[Item] = st.one_of(
    st.binary(max_size=30).map(lambda data: (response_frame(data), [ResponseFrame(data)])),
    st.binary(max_size=30).map(lambda data: (error_frame(data), [ErrorFrame(data)])),
    st.builds(
        message_item,
        st.lists(st.binary(max_size=20), min_size=1, max_size=8),
        st.integers(0, (1 << 63) - 1),
        st.integers(0, 3),
    ),
)


def flat(frames: list[Frame]) -> list[object]:
    """Runs of messages taken apart, because where they are cut depends on the reads."""
    found: list[object] = []
    for frame in frames:
        if isinstance(frame, MessageFrames):
            assert frame.messages
            found += frame.messages
        else:
            found.append(frame)
    return found


def parse(parts: list[bytes], limit: int = 0) -> list[object]:
    parser = FrameParser(limit)
    return flat([frame for part in parts for frame in parser.feed(part)])


@fuzzing
@given(st.lists(items, max_size=10), cuts)
def test_what_the_server_writes_is_what_the_client_reads(
    written: list[Item], places: list[int]
) -> None:
    data = b"".join(item[0] for item in written)
    expected = [frame for item in written for frame in item[1]]
    assert parse([data]) == expected
    assert parse(cut_up(data, places)) == expected
    assert parse(in_bytes(data)) == expected


@fuzzing
@given(st.lists(items, max_size=5), st.binary(max_size=60), cuts, st.sampled_from([0, 40]))
def test_any_bytes_give_frames_or_one_bad_frame(
    written: list[Item], garbage: bytes, places: list[int], limit: int
) -> None:
    data = b"".join(item[0] for item in written) + garbage
    whole = parse([data], limit)
    assert not any(isinstance(frame, BadFrame) for frame in whole[:-1])
    assert parse(cut_up(data, places), limit) == whole
    assert parse(in_bytes(data), limit) == whole
