"""The original's layout: what we read of its files, and what we write for it."""

import struct
from random import Random

import pytest

from nsqpy.message import Batch
from nsqpy.storage.original import (
    OriginalWriter,
    Positions,
    StoredBatch,
    encode_meta,
    find_queues,
    parse_meta,
    read_records,
    remaining_files,
)
from nsqpy.storage.segment import BadStretch
from tests.unit.fakes import FakeFiles, batch_of, bodies_of
from tests.unit.storage.original_files import TIMESTAMP_NS, put_queue, record

MAX_BYTES = 1 << 20


def read(
    content: bytes, offset: int = 0, *, max_bytes: int = MAX_BYTES, resume: bool = False
) -> tuple[list[tuple[int, bytes]], list[BadStretch]]:
    """Offset and body of each record, and what is damaged."""
    files = FakeFiles()
    files.put("d/x", content)
    file = files.open("d/x")
    records: list[tuple[int, bytes]] = []
    bad: list[BadStretch] = []
    for item in read_records(file, offset, max_bytes, resume=resume):
        if isinstance(item, StoredBatch):
            records += zip(item.record_offsets(), bodies_of(item.batch), strict=True)
        else:
            bad.append(item)
    return records, bad


def test_the_record_of_the_reference_is_a_frame_with_one_attempt_more() -> None:
    stored = bytes.fromhex("0000001f") + struct.pack(">qH", TIMESTAMP_NS, 3) + b"0" * 16 + b"hello"
    files = FakeFiles()
    files.put("d/x", stored)
    (item,) = read_records(files.open("d/x"), 0, MAX_BYTES)
    assert isinstance(item, StoredBatch)
    expected = struct.pack(">iiqH", 35, 2, TIMESTAMP_NS, 4) + b"0" * 16 + b"hello"
    assert item.batch.data == expected


def test_attempts_wrap() -> None:
    files = FakeFiles()
    files.put("d/x", record(1, b"x", attempts=65535))
    (item,) = read_records(files.open("d/x"), 0, MAX_BYTES)
    assert isinstance(item, StoredBatch)
    assert item.batch.attempts(0) == 0


@pytest.mark.parametrize(
    ("count", "size"), [(1, 1), (1023, 1), (1024, 1), (1025, 1), (5000, 400), (300, 3000)]
)
def test_all_records_come_in_bounded_batches(count: int, size: int) -> None:
    bodies = [b"%d" % number + b"x" * size for number in range(count)]
    records, bad = read(b"".join(record(n, body) for n, body in enumerate(bodies)))
    assert [body for _, body in records] == bodies
    assert not bad
    at = 0
    for offset, body in records:
        assert offset == at
        at += 30 + len(body)


def test_a_record_longer_than_a_read() -> None:
    large = b"x" * 1_000_000
    content = record(1, b"small") + record(2, large) + record(3, b"after")
    records, bad = read(content)
    assert [body for _, body in records] == [b"small", large, b"after"]
    assert not bad


def test_reading_begins_at_a_position() -> None:
    first = record(1, b"read")
    assert read(first + record(2, b"left"), len(first)) == ([(len(first), b"left")], [])


@pytest.mark.parametrize("cut", [1, 3, 4, 29, 30, 33])
def test_a_torn_end_is_reported(cut: int) -> None:
    whole = record(1, b"whole")
    records, bad = read(whole + record(2, b"torn")[:cut])
    assert records == [(0, b"whole")]
    assert bad == [BadStretch(len(whole), len(whole) + cut, "record is cut off")]


@pytest.mark.parametrize("length", [-1, 0, 25, MAX_BYTES + 27, 1 << 30])
def test_a_length_out_of_bounds_ends_the_file(length: int) -> None:
    whole = record(1, b"whole")
    content = whole + struct.pack(">i", length) + record(2, b"behind")
    records, bad = read(content)
    assert records == [(0, b"whole")]
    assert bad == [BadStretch(len(whole), len(content), f"invalid message size ({length})")]


@pytest.mark.parametrize("filler", [b"", b"\xff", b"ab" * 500, b"0123456789abcdef" * 100_000])
def test_salvage_goes_on_behind_a_bad_length(filler: bytes) -> None:
    whole = record(1, b"whole")
    damage = b"\x7f\xff\xff\xff" + filler
    content = whole + damage + record(2, b"behind") + record(3, b"last")
    records, bad = read(content, resume=True)
    start = len(whole) + len(damage)
    assert [body for _, body in records] == [b"whole", b"behind", b"last"]
    assert [(one.offset, one.stop) for one in bad] == [(len(whole), start)]


def test_a_position_behind_the_end_is_damage() -> None:
    content = record(1, b"x")
    assert read(content, 99) == ([], [BadStretch(len(content), 99, "file is cut off")])


def test_queues_are_found_by_their_files() -> None:
    queues = find_queues(
        [
            *("nsqd.dat", "queues", "nsqd.dat.123.tmp", "t.diskqueue.meta.dat.77.tmp"),
            *("t.diskqueue.meta.dat", "t.diskqueue.000010.dat", "t.diskqueue.000002.dat"),
            *("t:c.diskqueue.000000.dat", "t:c.diskqueue.000000.dat.bad"),
            *("t;d.diskqueue.meta.dat", "a.diskqueue.b.diskqueue.1000000.dat"),
        ]
    )
    found = [(queue.topic, queue.channel, queue.numbers, queue.has_meta) for queue in queues]
    assert found == [
        ("a.diskqueue.b", None, [1000000], False),
        ("t", None, [2, 10], True),
        ("t", "c", [0], False),
        ("t", "d", [], True),
    ]
    assert queues[1].file_names == [
        *("t.diskqueue.000002.dat", "t.diskqueue.000010.dat", "t.diskqueue.meta.dat")
    ]
    assert queues[0].file_names == ["a.diskqueue.b.diskqueue.1000000.dat"]


def test_positions_read_and_written() -> None:
    positions = Positions(9, 0, 0, 2, 50)
    assert encode_meta(positions) == b"9\n0,0\n2,50\n"
    assert parse_meta(b"9\n0,0\n2,50\n") == positions


@pytest.mark.parametrize(
    "content", [b"", b"9\n", b"9\n0,-1\n2,5\n", b"1\n3,0\n2,9\n", b"1\n2,7\n2,5\n"]
)
def test_positions_that_cannot_be(content: bytes) -> None:
    with pytest.raises(ValueError, match="position"):
        parse_meta(content)


def test_what_remains_begins_at_the_read_position_and_ends_with_the_files() -> None:
    (queue,) = find_queues([f"t.diskqueue.{number:06d}.dat" for number in (1, 2, 3, 4)])
    assert remaining_files(queue, Positions(0, 2, 70, 3, 9)) == [(2, 70), (3, 0), (4, 0)]
    assert remaining_files(queue, None) == [(1, 0), (2, 0), (3, 0), (4, 0)]


def test_what_is_written_is_what_the_original_writes() -> None:
    files, expected = FakeFiles(), FakeFiles()
    files.make_directory("d")
    writer = OriginalWriter(files, "d", "t:c", max_bytes_per_file=80)
    bodies = [b"one", b"two", b"x" * 100, b"last"]
    writer.write(batch_of(*bodies))
    writer.close()
    put_queue(
        expected,
        "d/t:c",
        *([stored(1, b"one"), stored(2, b"two")], [stored(3, b"x" * 100)], [stored(4, b"last")]),
    )
    assert files.paths() == expected.paths()
    for path in files.paths():
        assert files.content(path) == expected.content(path), path
    assert not files.open_files
    assert files.after_power_loss().content("d/t:c.diskqueue.000001.dat")


def stored(number: int, body: bytes) -> bytes:
    """The record of ``batch_of``'s message: published, never delivered."""
    content = struct.pack(">qH", 1_800_000_000_000_000_000, 0) + b"%016x" % number + body
    return struct.pack(">i", len(content)) + content


def test_what_is_written_can_be_read() -> None:
    files = FakeFiles()
    files.make_directory("d")
    writer = OriginalWriter(files, "d", "t", max_bytes_per_file=1 << 20)
    batch = Batch(batch_of(b"a", b"bc").raised(0, 2).data, [0, 35, 71])
    writer.write(batch)
    writer.close()
    (item,) = read_records(files.open("d/t.diskqueue.000000.dat"), 0, MAX_BYTES)
    assert isinstance(item, StoredBatch)
    assert item.batch.data == batch.data


def test_nothing_written_leaves_no_files() -> None:
    files = FakeFiles()
    files.make_directory("d")
    OriginalWriter(files, "d", "t", max_bytes_per_file=80).close()
    assert files.paths() == []


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_damaged_the_file_is_accounted_for_to_the_byte(seed: int, resume: bool) -> None:
    random = Random(seed)
    content = bytearray()
    for number in range(50):
        content += record(number, random.randbytes(random.randrange(1, 200)))
    for _ in range(random.randrange(1, 20)):
        content[random.randrange(len(content))] = random.randrange(256)
    del content[random.randrange(len(content)) :]
    records, bad = read(bytes(content), max_bytes=200, resume=resume)
    pieces = [(offset, offset + 30 + len(body)) for offset, body in records]
    pieces += [(one.offset, one.stop) for one in bad]
    end = 0
    for start, stop in sorted(pieces):
        assert start == end < stop
        end = stop
    assert end == len(content)
