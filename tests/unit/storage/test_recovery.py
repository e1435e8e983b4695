"""What the next process makes of a log, however the last one ended."""

import errno

import pytest

from nsqpy.errors import StorageError
from nsqpy.storage.block import BLOCK_HEADER_BYTES
from nsqpy.storage.segment import SEGMENT_HEADER_BYTES
from tests.unit.storage.log_rig import (
    Log,
    bodies,
    read_all,
)

BLOCK_BYTES = BLOCK_HEADER_BYTES + 75  # of one message with a body of 41 bytes


@pytest.fixture
def log() -> Log:
    return Log()


class TestReplay:
    def test_close_and_open_keep_what_is_owed(self, log: Log) -> None:
        log.append(b"a", b"b", b"c", held=True)
        log.queue.acknowledge(2, 1)
        queue = log.reopen()
        assert (queue.depth, queue.unread) == (2, 2)
        assert read_all(queue) == [(1, b"a"), (3, b"c")]
        assert log.append(b"d") == 4

    def test_a_log_that_was_emptied_out_begins_again(self, log: Log) -> None:
        log.append(b"a", held=True)
        log.queue.acknowledge(1, 1)
        queue = log.reopen()
        assert (queue.depth, queue.read()) == (0, [])
        assert log.append(b"b") == 2
        assert read_all(queue) == [(2, b"b")]

    def test_a_torn_tail_is_cut_and_said(self, log: Log, caplog: pytest.LogCaptureFixture) -> None:
        log.append(b"a")
        log.append(b"b")
        del log.files.content(log.files.paths()[0])[-1]
        queue = log.reopen(killed=True)
        assert queue.depth == 1
        torn = BLOCK_HEADER_BYTES + 34
        path = log.files.paths()[0]
        assert f"TOPIC(t): cut {torn} torn bytes off {path}" in caplog.text
        log.append(b"c")
        assert read_all(queue) == [(1, b"a"), (2, b"c")]

    def test_a_number_given_again_is_not_acknowledged_already(self, log: Log) -> None:
        """Power loss: the journal was kept, the record it speaks of was not."""
        log.append(b"a")
        log.append(b"lost")
        read_all(log.queue)
        log.queue.acknowledge(2, 1)
        log.queue.flush()
        del log.files.content(log.files.paths(".segment")[0])[-1]
        log.reopen(killed=True)
        assert log.append(b"new") == 2
        assert bodies(log.reopen(killed=True)) == [b"a", b"new"]

    def test_a_journal_without_a_segment_is_removed(self, log: Log) -> None:
        """Its acknowledgements would be taken for those of a later segment of the same name."""
        log.append(b"a", held=True)
        log.queue.acknowledge(1, 1)
        log.queue.flush()
        log.files.fail("remove", path=".journal")
        log.queue.empty()
        assert log.files.paths() == ["q/00000000000000000001.journal"]
        log.reopen(killed=True)
        assert log.append(b"new") == 1
        assert bodies(log.reopen(killed=True)) == [b"new"]

    def test_files_of_others_are_left_alone(self, log: Log) -> None:
        log.append(b"a")
        log.files.put("q/notes.segment", b"mine")
        log.files.put("q/00000000000000000001.segment.16.bad", b"damaged")
        assert bodies(log.reopen()) == [b"a"]
        assert log.files.content("q/notes.segment") == b"mine"

    def test_a_directory_that_cannot_be_read_is_an_error(self, log: Log) -> None:
        log.append(b"a")
        log.files.fail("read", errno=errno.EIO)
        with pytest.raises(StorageError, match="Input/output error"):
            log.open()

    def test_the_first_segments_need_not_be_open_all_at_once(self, log: Log) -> None:
        for _ in range(30):
            log.append(b"x" * 40)
        log.reopen()
        assert len(log.files.open_files) == 1


class TestDamagedEnd:
    """What stands behind the last good block is cut off, but damage is not thrown away."""

    @pytest.fixture
    def log(self) -> Log:
        log = Log()
        for index in (1, 2, 3):
            log.append(b"x" * 40 + b"%d" % index)
        return log

    @pytest.mark.parametrize("at", [0, 8, 35, 39, BLOCK_HEADER_BYTES, BLOCK_BYTES - 1])
    def test_a_flipped_bit_in_the_last_block_is_told_and_set_aside(
        self, log: Log, at: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        (path,) = log.files.paths()
        offset = SEGMENT_HEADER_BYTES + 2 * BLOCK_BYTES
        log.files.content(path)[offset + at] ^= 1
        damaged = bytes(log.files.content(path)[offset:])
        queue = log.reopen(killed=True)
        assert (queue.depth, queue.bad_blocks) == (2, 1)
        assert bytes(log.files.content(f"{path}.{offset}.bad")) == damaged
        assert f"{path} at byte {offset}: " in caplog.text
        assert log.append(b"new") == 3
        assert [number for number, _ in read_all(queue)] == [1, 2, 3]

    def test_several_damaged_blocks_too(self, log: Log) -> None:
        log.damage(2)
        log.damage(3)
        queue = log.reopen(killed=True)
        assert (queue.depth, queue.bad_blocks) == (1, 2)
        assert len(log.files.paths(".bad")) == 2

    @pytest.mark.parametrize("kept", [1, BLOCK_HEADER_BYTES, BLOCK_BYTES - 1])
    def test_a_torn_write_is_no_damage(self, log: Log, kept: int) -> None:
        (path,) = log.files.paths()
        del log.files.content(path)[SEGMENT_HEADER_BYTES + 2 * BLOCK_BYTES + kept :]
        queue = log.reopen(killed=True)
        assert (queue.depth, queue.bad_blocks, log.files.paths(".bad")) == (2, 0, [])

    def test_nor_are_the_zeros_that_a_power_cut_leaves(self, log: Log) -> None:
        (path,) = log.files.paths()
        log.files.content(path).extend(bytes(4096))
        queue = log.reopen(killed=True)
        assert (queue.depth, queue.bad_blocks, log.files.paths(".bad")) == (3, 0, [])


@pytest.mark.parametrize("size", [0, 10, 20, 60, SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES])
def test_a_segment_that_lost_its_end_is_told(
    log: Log, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        log.append(b"x" * 40)
    first = log.files.paths(".segment")[0]
    del log.files.content(first)[size:]
    queue = log.reopen(killed=True)
    assert [number for number, _ in read_all(queue)] == [4]
    assert f"{first} is too short for its messages" in caplog.text


def test_a_sealed_segment_that_is_the_last_takes_no_more_records(log: Log) -> None:
    """A seal says where a segment ends; what is appended behind it would not be found."""
    _, second, _ = (log.append(letter * 200) for letter in (b"a", b"b", b"c"))
    log.queue.acknowledge(second, 1)
    log.queue.flush()  # deletes the second segment and seals the first
    log.queue.close()
    log.files.remove(log.files.paths(".segment")[-1])  # lost, as a power cut may do
    log.open()
    log.append(b"new")
    queue = log.reopen(killed=True)
    assert [body for _, body in read_all(queue)] == [b"a" * 200, b"new"]


def test_a_sealed_segment_with_no_record_left_keeps_its_name(log: Log) -> None:
    """It may have vanished and been made anew, empty, and the ones behind it be gone."""
    _, second, _ = (log.append(letter * 200) for letter in (b"a", b"b", b"c"))
    log.queue.acknowledge(second, 1)
    log.queue.flush()
    log.queue.close()
    first, last = log.files.paths(".segment")
    log.files.remove(last)
    log.files.put(first, b"")
    log.open()
    log.append(b"new")
    queue = log.reopen(killed=True)
    assert [body for _, body in read_all(queue)] == [b"new"]
