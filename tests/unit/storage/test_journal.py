"""Which records are acknowledged, in a file that may have been cut off anywhere."""

import struct

import google_crc32c
import pytest

from nsqpy.storage.journal import Journal
from tests.unit.fakes import FakeFiles

PATH = "q/1.journal"


@pytest.fixture
def files() -> FakeFiles:
    files = FakeFiles()
    files.make_directory("q")
    return files


def group(*numbers: int) -> bytes:
    ranges = struct.pack(f">{len(numbers)}I", *numbers)
    return struct.pack(">II", len(numbers) // 2, google_crc32c.value(ranges)) + ranges


def test_a_flush_is_one_group_with_the_documented_layout(files: FakeFiles) -> None:
    journal = Journal(files, PATH)
    journal.append([0, 3, 7, 1])
    ranges = bytes.fromhex("00000000 00000003 00000007 00000001")
    crc = google_crc32c.value(ranges).to_bytes(4, "big")
    assert files.content(PATH) == bytes.fromhex("00000002") + crc + ranges
    assert files.write_count == 1


def test_the_file_is_made_with_the_first_acknowledgement(files: FakeFiles) -> None:
    journal = Journal(files, PATH)
    assert journal.file is None
    assert files.paths() == []
    journal.append([1, 1])
    assert files.paths() == [PATH]


def test_groups_are_read_back_and_appended_to(files: FakeFiles) -> None:
    Journal(files, PATH).append([0, 3, 7, 1])
    journal = Journal(files, PATH)
    assert journal.replay() == [(0, 3), (7, 1)]
    journal.append([4, 2])
    assert Journal(files, PATH).replay() == [(0, 3), (7, 1), (4, 2)]


def test_a_cut_at_any_byte_leaves_the_whole_groups(files: FakeFiles) -> None:
    first, second = group(0, 1), group(1, 1, 5, 2)
    for cut in range(len(first) + len(second)):
        files.put(PATH, (first + second)[:cut])
        expected = [(0, 1)] if cut >= len(first) else []
        assert Journal(files, PATH).replay() == expected


def test_a_damaged_group_ends_the_journal_for_good(files: FakeFiles) -> None:
    damaged = bytearray(group(0, 1) + group(1, 1) + group(2, 1))
    damaged[len(group(0, 1)) + 11] ^= 1
    files.put(PATH, bytes(damaged))
    journal = Journal(files, PATH)
    assert journal.replay() == [(0, 1)]
    journal.append([9, 1])
    assert Journal(files, PATH).replay() == [(0, 1), (9, 1)]


def test_a_count_beyond_the_file_is_not_believed(files: FakeFiles) -> None:
    files.put(PATH, b"\xff\xff\xff\xff" + bytes(20))
    assert Journal(files, PATH).replay() == []


def test_a_failed_write_counts_for_nothing(files: FakeFiles) -> None:
    journal = Journal(files, PATH)
    journal.append([0, 1])
    files.fail("write", torn=9)
    with pytest.raises(OSError, match="No space left"):
        journal.append([1, 1, 3, 1])
    assert Journal(files, PATH).replay() == [(0, 1)]
    journal.append([1, 1])
    assert Journal(files, PATH).replay() == [(0, 1), (1, 1)]


def test_rewriting_replaces_everything_by_one_group(files: FakeFiles) -> None:
    Journal(files, PATH).append([0, 1, 5, 9])
    journal = Journal(files, PATH)
    journal.replay()
    journal.rewrite([(0, 1), (5, 2)])
    assert files.content(PATH) == group(0, 1, 5, 2)
    journal.append([3, 1])
    assert Journal(files, PATH).replay() == [(0, 1), (5, 2), (3, 1)]
