"""One file of blocks: append, acknowledge, and what is left of it after damage."""

import pytest

from nsqpy.message import Batch
from nsqpy.storage.block import BLOCK_HEADER_BYTES, decode_block, encode_block_header
from nsqpy.storage.segment import SEGMENT_HEADER_BYTES, BadStretch, Segment, StoredBlock
from tests.unit.fakes import FakeFiles, batch_of, bodies_of

PATH = "q/00000000000000000005.segment"
JOURNAL = "q/00000000000000000005.journal"
READ_ALL = 1 << 30


@pytest.fixture
def files() -> FakeFiles:
    files = FakeFiles()
    files.make_directory("q")
    return files


@pytest.fixture
def segment(files: FakeFiles) -> Segment:
    return Segment(files, "q", 5)


def append(segment: Segment, *batches: Batch) -> None:
    buffers: list[bytes] = []
    number = segment.stop_number
    for batch in batches:
        buffers += (encode_block_header(batch, number), batch.data)
        number += len(batch)
    segment.append(buffers, sum(map(len, buffers)), number - segment.stop_number)


def contents(segment: Segment, max_bytes: int = READ_ALL) -> list[list[bytes] | str]:
    """The bodies of each block, or why there is none, read ``max_bytes`` at a time."""
    found: list[list[bytes] | str] = []
    offset = SEGMENT_HEADER_BYTES
    while offset < segment.size:
        for item in segment.blocks(offset, max_bytes):
            assert item.offset == offset
            assert item.stop > offset
            offset = item.stop
            if isinstance(item, StoredBlock):
                batch = decode_block(item.header, item.frames, PATH, item.offset)
                found.append(bodies_of(batch))
            else:
                found.append(item.reason)
    return found


def reopened(files: FakeFiles) -> tuple[Segment, int]:
    segment = Segment(files, "q", 5)
    segment.recover()
    return segment, segment.trim()


def test_the_file_begins_with_magic_and_first_number(files: FakeFiles, segment: Segment) -> None:
    batch = batch_of(b"a")
    append(segment, batch)
    head = b"NQSEG001" + bytes.fromhex("0000000000000005")
    assert files.content(PATH) == head + encode_block_header(batch, 5) + batch.data
    assert files.write_count == 1
    assert (segment.records, segment.outstanding, segment.stop_number) == (1, 1, 6)


@pytest.mark.parametrize("max_bytes", [BLOCK_HEADER_BYTES, 100, READ_ALL])
def test_blocks_come_back_in_order_whatever_is_read_at_once(
    segment: Segment, max_bytes: int
) -> None:
    append(segment, batch_of(b"a", b"bb"), batch_of(b"x" * 200))
    append(segment, batch_of(b""))
    assert contents(segment, max_bytes) == [[b"a", b"bb"], [b"x" * 200], [b""]]


def test_a_failed_append_leaves_nothing(files: FakeFiles, segment: Segment) -> None:
    append(segment, batch_of(b"a"))
    before = bytes(files.content(PATH))
    files.fail("write", torn=150)  # the first block is whole, the second is torn
    with pytest.raises(OSError, match="No space"):
        append(segment, batch_of(b"lost"), batch_of(b"lost too"))
    assert files.content(PATH) == before
    assert (segment.records, segment.outstanding) == (1, 1)
    append(segment, batch_of(b"b"))
    assert contents(segment) == [[b"a"], [b"b"]]


def test_a_first_append_that_failed_is_made_again(files: FakeFiles, segment: Segment) -> None:
    files.fail("write", torn=20)
    with pytest.raises(OSError, match="No space"):
        append(segment, batch_of(b"a"))
    assert segment.size == 0
    append(segment, batch_of(b"b"))
    again, cut = reopened(files)
    assert (contents(again), again.records, cut) == ([[b"b"]], 1, 0)


def test_leftovers_of_a_failed_append_are_known_by_their_number(
    files: FakeFiles, segment: Segment
) -> None:
    """Two blocks got through, could not be cut off, and were overwritten by one that is shorter
    but has as many records."""
    leftover_bytes = BLOCK_HEADER_BYTES + len(batch_of(b"x" * 40).data)
    files.fail("write", torn=SEGMENT_HEADER_BYTES + 2 * leftover_bytes)
    files.fail("truncate")
    with pytest.raises(OSError, match="No space"):
        append(segment, *(batch_of(b"x" * 40) for _ in range(3)))
    append(segment, batch_of(b"1", b"2"))
    again, cut = reopened(files)
    assert (again.records, again.outstanding, again.size) == (2, 2, segment.size)
    assert contents(again) == [[b"1", b"2"]]
    assert cut == SEGMENT_HEADER_BYTES + 2 * leftover_bytes - segment.size > leftover_bytes


class TestRecover:
    def test_an_intact_file_is_taken_as_it_is(self, files: FakeFiles, segment: Segment) -> None:
        append(segment, batch_of(b"a", b"b"), batch_of(b"c"))
        again, cut = reopened(files)
        assert (again.size, again.records, again.outstanding, cut) == (segment.size, 3, 3, 0)

    def test_a_cut_at_any_byte_leaves_the_whole_blocks(
        self, files: FakeFiles, segment: Segment
    ) -> None:
        append(segment, batch_of(b"a"))
        first_stop = segment.size
        append(segment, batch_of(b"b", b"c"))
        whole = bytes(files.content(PATH))
        for length in range(len(whole)):
            files.put(PATH, whole[:length])
            again, cut = reopened(files)
            stop = first_stop if length >= first_stop else 0
            assert (again.size, again.records) == (stop, 1 if stop else 0)
            assert contents(again) == ([[b"a"]] if stop else [])
            assert cut == length - max(stop, min(length, SEGMENT_HEADER_BYTES))
            append(again, batch_of(b"next"))
            assert contents(again)[-1] == [b"next"]
            assert contents(reopened(files)[0]) == contents(again)

    def test_damage_in_the_middle_stays_for_the_reader(
        self, files: FakeFiles, segment: Segment
    ) -> None:
        append(segment, batch_of(b"a"))
        damaged_at = segment.size
        append(segment, batch_of(b"b"))
        append(segment, batch_of(b"c"))
        files.content(PATH)[damaged_at] ^= 1
        again, cut = reopened(files)
        assert (again.size, again.records, cut) == (segment.size, 3, 0)
        assert contents(again) == [[b"a"], "no block starts here", [b"c"]]

    def test_zeros_behind_the_end_are_cut_off(self, files: FakeFiles, segment: Segment) -> None:
        append(segment, batch_of(b"a"))
        files.content(PATH).extend(bytes(5000))
        again, cut = reopened(files)
        assert (again.size, again.records, cut) == (segment.size, 1, 5000)

    def test_a_vanished_file_is_an_empty_segment(self, files: FakeFiles) -> None:
        again, cut = reopened(files)
        assert (again.size, again.records, cut) == (0, 0, 0)


class TestDamage:
    def test_the_next_trustworthy_header_is_found(self, files: FakeFiles, segment: Segment) -> None:
        append(segment, batch_of(b"NQB1" + bytes(60) + b"NQB1"))  # what looks like headers
        second = segment.size
        append(segment, batch_of(b"b"))
        files.content(PATH)[SEGMENT_HEADER_BYTES + 9] ^= 0xFF
        (bad,) = segment.blocks(SEGMENT_HEADER_BYTES, READ_ALL)
        reason = "checksum of the block header does not match"
        assert bad == BadStretch(SEGMENT_HEADER_BYTES, second, reason)
        assert contents(segment) == [reason, [b"b"]]

    def test_a_header_across_the_edge_of_two_reads_is_found(
        self, files: FakeFiles, segment: Segment
    ) -> None:
        megabyte = 1024 * 1024
        # The scan for it begins one byte behind the damaged header and reads a megabyte at once.
        for shift in (1, 3, 39, 41):
            edge = SEGMENT_HEADER_BYTES + 1 + megabyte
            fill = edge - shift - SEGMENT_HEADER_BYTES - BLOCK_HEADER_BYTES - 34
            segment = Segment(files, "q", 5)
            files.put(PATH, b"")
            append(segment, batch_of(bytes(fill)))
            assert segment.size == edge - shift
            append(segment, batch_of(b"b"))
            files.content(PATH)[SEGMENT_HEADER_BYTES] = 0
            assert contents(segment) == ["no block starts here", [b"b"]]

    def test_a_length_beyond_the_end_is_damage(self, files: FakeFiles, segment: Segment) -> None:
        append(segment, batch_of(b"a" * 50))
        del files.content(PATH)[-1]
        segment.size -= 1
        assert contents(segment) == ["block is cut off"]

    def test_a_file_that_lost_its_end_ends_there(self, files: FakeFiles, segment: Segment) -> None:
        append(segment, batch_of(b"a"))
        append(segment, batch_of(b"b" * 100))
        append(segment, batch_of(b"c"))
        stop = segment.size
        for kept in (0, SEGMENT_HEADER_BYTES):
            del files.content(PATH)[kept:]
            (bad,) = segment.blocks(SEGMENT_HEADER_BYTES, READ_ALL)
            assert bad == BadStretch(SEGMENT_HEADER_BYTES, stop, "file is cut off")


class TestAcknowledge:
    def test_any_order_and_what_is_still_outstanding(self, segment: Segment) -> None:
        append(segment, batch_of(*[b"x"] * 6))
        segment.acknowledge(4, 2)
        segment.acknowledge(0, 1)
        assert segment.outstanding == 3
        assert [segment.is_acked(offset) for offset in range(7)] == [
            *(True, False, False, False, True, True, False),
        ]
        assert segment.acked_count(0, 6) == 3
        assert segment.acked_count(1, 4) == 0

    def test_neighbours_become_one_range(self, files: FakeFiles, segment: Segment) -> None:
        append(segment, batch_of(*[b"x"] * 6))
        for offset in (0, 1, 2, 4, 5):
            segment.acknowledge(offset, 1)
        assert segment.pending == [0, 3, 4, 2]
        segment.flush()
        assert (segment.pending, files.write_count) == ([], 2)

    def test_records_appended_later_can_be_acknowledged(self, segment: Segment) -> None:
        append(segment, batch_of(b"a"))
        segment.acknowledge(0, 1)
        append(segment, batch_of(b"b", b"c"))
        segment.acknowledge(2, 1)
        assert segment.outstanding == 1

    def test_nothing_to_flush_writes_nothing(self, files: FakeFiles, segment: Segment) -> None:
        append(segment, batch_of(b"a"))
        assert segment.flush() is None
        assert files.paths() == [PATH]

    def test_a_failed_flush_stays_pending(self, files: FakeFiles, segment: Segment) -> None:
        append(segment, batch_of(b"a"))
        segment.acknowledge(0, 1)
        files.fail("write", path=".journal")
        with pytest.raises(OSError, match="No space"):
            segment.flush()
        assert segment.pending == [0, 1]
        assert segment.flush() is not None

    def test_twice_is_a_bug_of_ours(self, segment: Segment) -> None:
        append(segment, batch_of(b"a", b"b"))
        segment.acknowledge(1, 1)
        with pytest.raises(AssertionError, match="twice"):
            segment.acknowledge(0, 2)
        with pytest.raises(AssertionError, match="never written"):
            segment.acknowledge(2, 1)

    def test_the_journal_is_read_back(self, files: FakeFiles, segment: Segment) -> None:
        append(segment, batch_of(*[b"x"] * 4))
        segment.acknowledge(1, 2)
        segment.flush()
        again, _ = reopened(files)
        again.replay_journal()
        assert again.outstanding == 2
        assert [again.is_acked(offset) for offset in range(4)] == [False, True, True, False]

    def test_acks_of_lost_records_are_struck_out(self, files: FakeFiles, segment: Segment) -> None:
        """Or the record that gets their number next would count as acknowledged."""
        append(segment, batch_of(b"a"))
        kept = bytes(files.content(PATH))
        append(segment, batch_of(b"b", b"c"))
        segment.acknowledge(0, 2)
        segment.acknowledge(2, 1)
        segment.flush()
        files.put(PATH, kept)
        again, _ = reopened(files)
        again.replay_journal()
        assert (again.records, again.outstanding) == (1, 0)
        append(again, batch_of(b"new"))
        third, _ = reopened(files)
        third.replay_journal()
        assert (third.records, third.outstanding) == (2, 1)

    def test_a_seal_tells_where_the_records_end(self, files: FakeFiles, segment: Segment) -> None:
        append(segment, batch_of(b"a", b"b"))
        segment.acknowledge(1, 1)
        assert segment.seal() is not None
        assert segment.seal() is None
        segment.flush()
        again = Segment(files, "q", 5)
        again.records = 1000  # as it looks when the next segment begins at 1005
        again.replay_journal()
        assert (again.records, again.outstanding, again.sealed) == (2, 1, True)

    def test_a_seal_of_more_records_than_are_left(self, files: FakeFiles, segment: Segment) -> None:
        """The file may have lost its end, or have vanished and been made anew."""
        append(segment, batch_of(b"a"))
        kept = bytes(files.content(PATH))
        append(segment, batch_of(b"b", b"c"))
        assert segment.seal() is not None
        files.put(PATH, kept)
        again, _ = reopened(files)
        again.replay_journal()
        assert (again.records, again.outstanding, again.sealed) == (1, 1, True)
