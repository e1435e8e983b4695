"""Damaged files: what comes out of them is what was put in, or a CorruptionError."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqpy.errors import CorruptionError
from nsqpy.message import Batch, encode_batch
from nsqpy.storage.block import (
    BLOCK_HEADER_BYTES,
    decode_block,
    encode_block_header,
    parse_block_header,
)
from nsqpy.storage.journal import Journal
from nsqpy.storage.segment import SEGMENT_HEADER_BYTES, Segment, StoredBlock
from tests.unit.fakes import FakeFiles

FIRST_NUMBER = 1000
fuzzing = settings(max_examples=150, derandomize=True, deadline=None, database=None)

pytestmark = pytest.mark.slow

# Bodies with the marks of blocks and frames in them, to mislead whoever looks for those.
bodies = st.one_of(
    st.binary(max_size=30), st.sampled_from([b"NQB1", b"NQB1\1\1\0\0", b"NQSEG001", b"\0\0\0\x1e"])
)
batches = st.builds(
    lambda texts, deliver_at_ns: encode_batch(
        texts, b"".join(b"%016x" % index for index in range(len(texts))), 7, deliver_at_ns
    ),
    st.lists(bodies, min_size=1, max_size=6),
    st.sampled_from([0, 0, 1, (1 << 63) - 1]),
)
damages = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 1 << 20), st.integers(0, 7)),
    st.tuples(st.just("zero"), st.integers(0, 1 << 20), st.integers(1, 60)),
    st.tuples(st.just("cut"), st.integers(0, 1 << 20), st.just(0)),
    st.tuples(st.just("drop"), st.integers(0, 1 << 20), st.integers(1, 60)),
    st.tuples(st.just("double"), st.integers(0, 1 << 20), st.integers(1, 60)),
)
Damage = tuple[str, int, int]


def apply(data: bytearray, damage: Damage) -> None:
    kind, place, amount = damage
    at = place % len(data)
    if kind == "flip":
        data[at] ^= 1 << amount
    elif kind == "zero":
        data[at : at + amount] = bytes(len(data[at : at + amount]))
    elif kind == "cut":
        del data[at:]
    elif kind == "drop":
        del data[at : at + amount]
    else:
        data[at:at] = data[at : at + amount]


def as_tuple(batch: Batch) -> tuple[bytes, list[int], int]:
    return batch.data, list(batch.offsets), batch.deliver_at_ns


def block(batch: Batch, first_number: int) -> bytes:
    return encode_block_header(batch, first_number) + batch.data


@fuzzing
@given(batches, st.integers(0, (1 << 64) - 1), st.lists(damages, max_size=3))
def test_a_block_is_what_was_written_or_an_error(
    batch: Batch, first_number: int, done: list[Damage]
) -> None:
    data = bytearray(block(batch, first_number))
    for damage in done:
        if data:
            apply(data, damage)
    try:
        header = parse_block_header(bytes(data), 0, "file", 0)
        found = decode_block(header, bytes(data[BLOCK_HEADER_BYTES:][: header.length]), "file", 0)
    except CorruptionError:
        assert done
        return
    assert header.first_number == first_number
    assert as_tuple(found) == as_tuple(batch)


def every_block(segment: Segment) -> list[tuple[int, Batch]]:
    """First number and content of all blocks that pass their checks, read as the log reads."""
    found: list[tuple[int, Batch]] = []
    offset = SEGMENT_HEADER_BYTES
    while offset < segment.size:
        for item in segment.blocks(offset, 100):
            assert item.stop > offset
            offset = item.stop
            if isinstance(item, StoredBlock):
                try:
                    batch = decode_block(item.header, item.frames, segment.path, item.offset)
                except CorruptionError:
                    continue
                found.append((item.header.first_number, batch))
    return found


def written(files: FakeFiles, many: list[Batch]) -> list[tuple[int, Batch]]:
    segment = Segment(files, "q", FIRST_NUMBER)
    blocks = []
    for batch in many:
        number = segment.stop_number
        data = block(batch, number)
        segment.append([data], len(data), len(batch))
        blocks.append((number, batch))
    return blocks


@fuzzing
@given(st.lists(batches, min_size=1, max_size=6), st.lists(damages, max_size=3))
def test_a_segment_gives_only_blocks_that_were_written(
    many: list[Batch], done: list[Damage]
) -> None:
    files = FakeFiles()
    files.make_directory("q")
    blocks = [(number, as_tuple(batch)) for number, batch in written(files, many)]
    (path,) = files.paths()
    for damage in done:
        if files.content(path):
            apply(files.content(path), damage)
    segment = Segment(files, "q", FIRST_NUMBER)
    segment.recover()
    segment.trim()
    found = [(number, as_tuple(batch)) for number, batch in every_block(segment)]
    assert all(entry in blocks for entry in found)
    if not done:
        assert found == blocks


@fuzzing
@given(st.lists(batches, min_size=2, max_size=6), st.integers(0, 5), st.integers(0, 1 << 20))
def test_one_damaged_block_costs_no_other(many: list[Batch], which: int, place: int) -> None:
    files = FakeFiles()
    files.make_directory("q")
    blocks = [(number, as_tuple(batch)) for number, batch in written(files, many)]
    which %= len(many) - 1  # not the last: what is damaged at the end is cut off there
    before = sum(BLOCK_HEADER_BYTES + len(batch.data) for batch in many[:which])
    length = BLOCK_HEADER_BYTES + len(many[which].data)
    (path,) = files.paths()
    files.content(path)[SEGMENT_HEADER_BYTES + before + place % length] ^= 0x40
    segment = Segment(files, "q", FIRST_NUMBER)
    assert segment.recover() == []
    assert segment.trim() == 0
    found = [(number, as_tuple(batch)) for number, batch in every_block(segment)]
    assert found == blocks[:which] + blocks[which + 1 :]


ranges = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 50)), min_size=1, max_size=5)


@fuzzing
@given(st.lists(ranges, min_size=1, max_size=5), st.lists(damages, max_size=3))
def test_a_journal_gives_a_beginning_of_what_was_written(
    groups: list[list[tuple[int, int]]], done: list[Damage]
) -> None:
    files = FakeFiles()
    files.make_directory("q")
    journal = Journal(files, "q/journal")
    for group in groups:
        journal.append([number for entry in group for number in entry])
    for damage in done:
        if files.content("q/journal"):
            apply(files.content("q/journal"), damage)
    beginnings = [sum(groups[:count], []) for count in range(len(groups) + 1)]  # noqa: RUF017
    found = Journal(files, "q/journal").replay()
    doubled = any(kind == "double" for kind, _, _ in done)
    assert found in beginnings or (doubled and set(found) <= set(beginnings[-1]))
