"""Reading a log back: in batches, past what is damaged, and again after a fault."""

import errno

import pytest

from nsqpy.errors import StorageError
from nsqpy.storage.block import BLOCK_HEADER_BYTES
from nsqpy.storage.segment import SEGMENT_HEADER_BYTES
from tests.unit.fakes import batch_of
from tests.unit.storage.log_rig import (
    Log,
    bodies,
    names,
    numbered,
    raises_full,
    read_all,
)


@pytest.fixture
def log() -> Log:
    return Log()


class TestReading:
    def test_small_blocks_are_read_back_as_one_batch(self, log: Log) -> None:
        for body in (b"a", b"b", b"c"):
            log.append(body)
        (run,) = log.queue.read()
        assert (run.start, run.stop, run.number) == (0, 3, 1)

    def test_blocks_due_at_different_times_are_not_joined(self, log: Log) -> None:
        log.queue.append(
            [batch_of(b"a", deliver_at_ns=5), batch_of(b"b", deliver_at_ns=5)], held=False
        )
        log.queue.append([batch_of(b"c", deliver_at_ns=6), batch_of(b"d")], held=False)
        found = [(run.batch.deliver_at_ns, len(run.batch)) for run in log.queue.read()]
        assert found == [(5, 2), (6, 1), (0, 1)]

    def test_reading_goes_on_where_it_stopped(self) -> None:
        log = Log(segment_max_bytes=1 << 20)
        for index in range(50):
            log.append(b"%d" % index)
        assert len(log.queue.read(200)) < 50
        log.append(b"50")
        assert bodies(log.queue)[-2:] == [b"49", b"50"]

    def test_held_messages_are_not_read_back(self, log: Log) -> None:
        assert log.append(b"a", held=True) == 1
        assert (log.queue.depth, log.queue.unread, log.queue.read()) == (1, 0, [])
        assert log.append(b"b") == 2
        assert read_all(log.queue) == [(2, b"b")]
        log.append(b"c", held=True)
        assert log.queue.read() == []


class TestFaults:
    def test_a_failed_read_is_made_again(self, log: Log) -> None:
        log.append(b"a", b"b")
        log.files.fail("read", errno=errno.EIO)
        with pytest.raises(StorageError, match="Input/output error"):
            log.queue.read()
        assert log.queue.unread == 2
        assert bodies(log.queue) == [b"a", b"b"]

    def test_what_was_read_before_a_fault_is_given_out(self, log: Log) -> None:
        log.append(b"a", b"b", b"c")
        log.damage(2)
        log.files.fail("read", skip=1, errno=errno.EIO)
        (run,) = log.queue.read()
        assert numbered(run) == [(1, b"a")]
        assert (log.queue.unread, log.queue.bad_blocks) == (2, 0)
        assert read_all(log.queue) == [(3, b"c")]
        assert log.queue.bad_blocks == 1


class TestDamage:
    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_one_flipped_bit_costs_one_block(
        self, log: Log, number: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        for index in (1, 2, 3, 4):
            log.append(b"x" * 40 + b"%d" % index)
        log.damage(number)
        kept = [index for index in (1, 2, 3, 4) if index != number]
        queue = log.queue
        assert [found for found, _ in read_all(queue)] == kept
        assert (queue.depth, queue.unread, queue.bad_blocks) == (3, 0, 1)
        (bad,) = log.files.paths(".bad")
        offset = 16 + (number - 1) * (BLOCK_HEADER_BYTES + 75)
        assert bad == f"q/00000000000000000001.segment.{offset}.bad"
        assert len(log.files.content(bad)) == BLOCK_HEADER_BYTES + 75
        assert f"at byte {offset}: checksum of the block does not match" in caplog.text
        assert "TOPIC(t): 1 messages of q/00000000000000000001.segment are lost" in caplog.text

    def test_the_lost_ones_are_acknowledged_so_that_the_segment_can_go(self, log: Log) -> None:
        for _ in range(4):
            log.append(b"x" * 40)
        log.damage(2)
        for number, _ in read_all(log.queue):
            log.queue.acknowledge(number, 1)
        log.queue.flush()
        assert log.segments() == names(4)
        assert bodies(log.reopen()) == []

    def test_a_damaged_header_too(self, log: Log) -> None:
        log.append(b"a")
        log.append(b"b", b"c")
        log.files.content(log.files.paths()[0])[16] ^= 1
        assert read_all(log.queue) == [(2, b"b"), (3, b"c")]
        assert (log.queue.bad_blocks, log.queue.depth) == (1, 2)

    def test_damage_that_cannot_be_set_aside_does_not_stop_the_rest(
        self, log: Log, caplog: pytest.LogCaptureFixture
    ) -> None:
        log.append(b"a", b"b", b"c")
        log.damage(2)
        log.files.fail("write", times=-1)
        assert bodies(log.queue) == [b"a", b"c"]
        assert "cannot write" in caplog.text
        assert log.queue.bad_blocks == 1

    def test_a_file_that_vanished_costs_only_its_own_messages(self, log: Log) -> None:
        for _ in range(9):
            log.append(b"x" * 40)
        log.queue.end_sync(log.queue.take_unsynced(), safe=True)
        log.files.remove(log.files.paths(".segment")[1])
        assert [number for number, _ in read_all(log.queue)] == [1, 2, 3, 7, 8, 9]
        assert (log.queue.depth, log.queue.bad_blocks) == (6, 1)

    def test_whole_blocks_behind_the_end_of_a_segment_are_not_its_own(self, log: Log) -> None:
        """An append failed half-way, could not be cut off, and went to the next segment."""
        log.append(b"x" * 40)
        log.append(b"x" * 40)
        torn = BLOCK_HEADER_BYTES + 74
        log.files.fail("write", torn=torn)
        log.files.fail("truncate")
        with raises_full():
            log.append(b"y" * 40)
        log.append(b"z" * 140)
        assert log.segments() == names(1, 3)
        queue = log.reopen(killed=True)
        assert queue.depth == 3
        assert read_all(queue) == [(1, b"x" * 40), (2, b"x" * 40), (3, b"z" * 140)]
        assert (queue.depth, queue.bad_blocks) == (3, 1)

    def test_a_whole_segment_that_vanished_is_given_up_at_once(self) -> None:
        log = Log(segment_max_bytes=1 << 20)
        count = 50_000
        log.queue.append([batch_of(*[b"x"] * 1000) for _ in range(count // 1000)], held=False)
        (path,) = log.files.paths()
        log.append(b"y" * (1 << 20))
        log.files.content(path)[SEGMENT_HEADER_BYTES:] = bytes(
            len(log.files.content(path)) - SEGMENT_HEADER_BYTES
        )
        assert [number for number, _ in read_all(log.queue)] == [count + 1]
        assert (log.queue.depth, log.queue.bad_blocks) == (1, 1)
        log.queue.flush()
        assert log.files.paths(".segment") == [f"q/{count + 1:020d}.segment"]
