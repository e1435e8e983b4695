"""Message frames to Arrow, whatever their sizes."""

from datetime import UTC, datetime

import pytest

from nsqpy.message import Batch, encode_batch
from nsqpy.spark.rows import ARROW_SCHEMA, BATCH_MAX_ROWS, FramesError, Rows

_AT_NS = 1_700_000_000_123_456_789


def frames(bodies: list[bytes], at_ns: int = _AT_NS) -> Batch:
    return encode_batch(bodies, b"".join(b"%016x" % n for n in range(len(bodies))), at_ns)


def rows(*pieces: bytes) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for batch in Rows("orders", "lake", "one:4151").batches(pieces):
        batch.validate(full=True)
        assert batch.schema == ARROW_SCHEMA
        assert batch.num_rows <= BATCH_MAX_ROWS
        found += batch.to_pylist()
    return found


@pytest.mark.parametrize(
    "bodies",
    [
        [b"one"],
        [b"one", b"two", b"six"],
        [b"", b"", b""],
        [b"a", b"bcd", b"", bytes(70_000), b"e"],
        [b"\x00\x00\x00\x1e" * n for n in range(1, 300)],
        [b"same"] * (2 * BATCH_MAX_ROWS + 1),
        [b"a" * (n % 3) for n in range(2 * BATCH_MAX_ROWS + 1)],
    ],
    ids=["one", "even", "empty", "uneven", "growing", "many even", "many uneven"],
)
def test_every_column_is_right(bodies: list[bytes]) -> None:
    found = rows(frames(bodies).data)
    assert [row["body"] for row in found] == bodies
    assert [row["id"] for row in found] == [f"{n:016x}" for n in range(len(bodies))]
    assert {row["timestamp"] for row in found} == {
        datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
    }
    constants = {(row["attempts"], row["topic"], row["channel"], row["node"]) for row in found}
    assert constants == {(1, "orders", "lake", "one:4151")}


def test_attempts_are_what_the_frame_says() -> None:
    batch = frames([b"a", b"b"])
    for _ in range(299):
        batch = batch.raised(0, 2)
    assert {row["attempts"] for row in rows(batch.data)} == {300}


def test_pieces_follow_each_other() -> None:
    found = rows(frames([b"a"]).data, frames([b"b", b"cc"]).data)
    assert [row["body"] for row in found] == [b"a", b"b", b"cc"]


@pytest.mark.parametrize("bodies", [[b"one", b"two"], [b"a", b"bcd"]])
def test_what_is_cut_off_or_no_message_is_refused(bodies: list[bytes]) -> None:
    whole = frames(bodies).data
    for end in range(1, len(whole)):
        if end == len(frames(bodies[:1]).data):
            continue
        with pytest.raises(FramesError):
            rows(whole[:end])
    with pytest.raises(FramesError):
        rows(bytes(100))
