"""The log: what goes in comes out once, whatever order it is acknowledged in and whatever the
disk does."""

import errno
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from nsqpy.errors import StorageError
from nsqpy.message import Batch
from nsqpy.storage.block import BLOCK_HEADER_BYTES
from nsqpy.storage.diskqueue import DiskQueue, StoredRun
from tests.unit.fakes import FakeFiles, FakeListener, batch_of, bodies_of

SEGMENT_MAX_BYTES = 400  # three blocks of one message with a body of up to 40 bytes


class Log:
    """A DiskQueue in memory; ``reopen`` is what the next process makes of it."""

    def __init__(self, segment_max_bytes: int = SEGMENT_MAX_BYTES, sync_every: int = 1000) -> None:
        self.files = FakeFiles()
        self._segment_max_bytes = segment_max_bytes
        self._sync_every = sync_every
        self.open()

    def open(self) -> DiskQueue:
        self.listener = FakeListener()
        self.queue = DiskQueue(
            self.files,
            "q",
            name="TOPIC(t)",
            segment_max_bytes=self._segment_max_bytes,
            sync_every=self._sync_every,
            listener=self.listener,
        )
        self.queue.open()
        return self.queue

    def reopen(self, *, killed: bool = False) -> DiskQueue:
        if not killed:
            self.queue.close()
            assert not self.files.open_files
        self.files = self.files.after_kill()
        return self.open()

    def append(self, *bodies: bytes, held: bool = False) -> int:
        """Each body as a block of its own; the number of the first."""
        return self.queue.append([batch_of(body) for body in bodies], held=held)

    def segments(self) -> list[str]:
        return [path[2:] for path in self.files.paths(".segment")]

    def damage(self, number: int) -> None:
        """Flip a bit of the body of message ``number`` of the first segment, one a block."""
        content = self.files.content(self.files.paths(".segment")[0])
        at = content.index(b"NQB1")
        for _ in range(number - 1):
            at = content.index(b"NQB1", at + 1)
        content[at + BLOCK_HEADER_BYTES + 34] ^= 1


@pytest.fixture
def log() -> Log:
    return Log()


def read_all(queue: DiskQueue, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    """Every message still unread, with its number."""
    found = []
    while runs := queue.read(max_bytes):
        for run in runs:
            found += numbered(run)
    assert queue.unread == 0
    return found


def numbered(run: StoredRun) -> list[tuple[int, bytes]]:
    return list(enumerate(bodies_of(run.batch, run.start, run.stop), run.number))


def bodies(queue: DiskQueue) -> list[bytes]:
    return [body for _, body in read_all(queue)]


def names(*first_numbers: int) -> list[str]:
    return [f"{number:020d}.segment" for number in first_numbers]


def raises_full() -> "pytest.RaisesExc[StorageError]":
    return pytest.raises(StorageError, match="q: No space left on device")


class TestAppendAndRead:
    def test_an_empty_log_gives_nothing(self, log: Log) -> None:
        assert (log.queue.read(), log.queue.depth, log.queue.unread) == ([], 0, 0)
        assert log.files.paths() == []

    def test_numbers_count_up_from_one(self, log: Log) -> None:
        assert log.queue.append([batch_of(b"a", b"b"), batch_of(b"c")], held=False) == 1
        assert log.append(b"d") == 4
        assert (log.queue.depth, log.queue.unread) == (4, 4)
        assert read_all(log.queue) == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]
        assert (log.queue.depth, log.queue.unread) == (4, 0)

    def test_one_append_is_one_write(self, log: Log) -> None:
        log.append(b"a", b"b", b"c")
        assert log.files.write_count == 1

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

    def test_holding_while_something_is_unread_is_a_bug_of_ours(self, log: Log) -> None:
        log.append(b"a")
        with pytest.raises(AssertionError):
            log.append(b"b", held=True)


class TestRolling:
    def test_a_segment_rolls_at_its_size_and_is_named_by_its_first_number(self, log: Log) -> None:
        for index in range(7):
            log.append(b"x" * 40 + b"%d" % index)
        assert log.segments() == names(1, 4, 7)
        assert bodies(log.queue) == [b"x" * 40 + b"%d" % index for index in range(7)]

    def test_a_batch_larger_than_a_segment_gets_one_of_its_own(self, log: Log) -> None:
        log.append(b"a")
        log.append(b"x" * 2000)
        log.append(b"b")
        assert log.segments() == names(1, 2, 3)
        assert bodies(log.queue) == [b"a", b"x" * 2000, b"b"]

    def test_only_what_is_written_or_read_stays_open(self, log: Log) -> None:
        for _ in range(30):
            log.append(b"x" * 40)
        log.queue.end_sync(log.queue.take_unsynced(), safe=True)
        assert len(log.segments()) == 10
        assert len(log.files.open_files) == 2
        read_all(log.queue)
        assert len(log.files.open_files) == 1

    def test_finished_segments_are_deleted_and_the_last_one_is_not(self, log: Log) -> None:
        for _ in range(7):
            log.append(b"x" * 40)
        read_all(log.queue)
        log.queue.acknowledge(1, 7)
        log.queue.flush()
        assert log.segments() == names(7)
        assert log.files.paths(".journal") == ["q/00000000000000000007.journal"]
        assert log.queue.depth == 0

    def test_a_segment_in_the_middle_is_deleted_too(self, log: Log) -> None:
        for _ in range(10):
            log.append(b"x" * 40)
        read_all(log.queue)
        log.queue.acknowledge(4, 3)
        log.queue.flush()
        assert log.segments() == names(1, 7, 10)

    def test_the_deletion_of_one_in_the_middle_does_not_make_up_messages(self, log: Log) -> None:
        """The first segment's length used to be told by the name of the next one."""
        for index in range(10):
            log.append(b"x" * 40 + b"%d" % index)
        read_all(log.queue)
        log.queue.acknowledge(1, 1)
        log.queue.acknowledge(4, 6)
        log.queue.flush()
        assert log.segments() == names(1, 10)
        for killed in (False, True):
            queue = log.reopen(killed=killed)
            assert (queue.depth, queue.unread) == (3, 3)
        assert [number for number, _ in read_all(log.queue)] == [2, 3, 10]
        log.queue.acknowledge(2, 2)
        log.queue.flush()
        assert log.segments() == names(10)

    def test_what_cannot_be_sealed_is_not_deleted_yet(self, log: Log) -> None:
        for _ in range(10):
            log.append(b"x" * 40)
        read_all(log.queue)
        log.files.fail("write", path="01.journal")
        log.queue.acknowledge(4, 3)
        log.queue.flush()
        assert log.segments() == names(1, 4, 7, 10)
        log.queue.acknowledge(7, 3)
        log.queue.flush()
        assert log.segments() == names(1, 10)
        assert log.reopen().depth == 4

    def test_a_lost_seal_costs_no_memory_and_no_message(self, log: Log) -> None:
        for index in range(10):
            log.append(b"x" * 40 + b"%d" % index)
        read_all(log.queue)
        log.queue.acknowledge(4, 6)
        log.queue.flush()
        first, last = log.files.paths(".segment")
        log.files.put(first.replace(".segment", ".journal"), b"")
        far = f"q/{10**15:020d}.segment"
        log.files.put(far, b"NQSEG001" + (10**15).to_bytes(8, "big"))
        log.files.remove(last)
        queue = log.reopen(killed=True)
        assert queue.depth < 20
        assert [number for number, _ in read_all(queue)] == [1, 2, 3]
        assert queue.depth == 3

    def test_a_segment_that_cannot_be_deleted_is_let_go(
        self, log: Log, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(4):
            log.append(b"x" * 40)
        read_all(log.queue)
        log.files.fail("remove", errno=errno.EROFS)
        log.queue.acknowledge(1, 3)
        log.queue.flush()
        assert "cannot delete q/00000000000000000001.segment" in caplog.text
        assert log.queue.depth == 1


class TestAcknowledge:
    def test_any_order_across_segments(self) -> None:
        for seed in range(5):
            random = Random(seed)
            log = Log()
            for index in range(20):
                log.append(b"x" * 40 + b"%d" % index)
            order = [number for number, _ in read_all(log.queue)]
            random.shuffle(order)
            kept = sorted(order[:4])
            for number in order[4:]:
                log.queue.acknowledge(number, 1)
                if random.random() < 0.3:
                    log.queue.flush()
            assert log.queue.depth == 4
            queue = log.reopen()
            assert queue.depth == 4
            assert [number for number, _ in read_all(queue)] == kept

    def test_a_stretch_may_cross_segments(self, log: Log) -> None:
        for _ in range(7):
            log.append(b"x" * 40)
        read_all(log.queue)
        log.queue.acknowledge(2, 5)
        log.queue.flush()
        assert [number for number, _ in read_all(log.reopen())] == [1, 7]

    def test_part_of_a_block(self, log: Log) -> None:
        log.queue.append([batch_of(b"a", b"b", b"c", b"d", b"e")], held=True)
        log.queue.acknowledge(2, 1)
        log.queue.acknowledge(4, 1)
        queue = log.reopen()
        assert read_all(queue) == [(1, b"a"), (3, b"c"), (5, b"e")]

    def test_it_is_said_once_until_the_next_flush(self, log: Log) -> None:
        log.append(b"a", b"b", b"c", held=True)
        log.queue.acknowledge(1, 1)
        log.queue.acknowledge(2, 1)
        assert log.listener.acked == 1
        log.queue.flush()
        log.queue.acknowledge(3, 1)
        assert log.listener.acked == 2

    def test_unflushed_acknowledgements_die_with_the_process(self, log: Log) -> None:
        log.append(b"a", held=True)
        log.queue.acknowledge(1, 1)
        assert bodies(log.reopen(killed=True)) == [b"a"]

    def test_flushed_ones_do_not(self, log: Log) -> None:
        log.append(b"a", held=True)
        log.queue.acknowledge(1, 1)
        log.queue.flush()
        assert bodies(log.reopen(killed=True)) == []

    def test_a_failed_flush_is_made_again(self, log: Log) -> None:
        for _ in range(6):
            log.append(b"x" * 40, held=True)
        log.queue.acknowledge(1, 1)
        log.queue.acknowledge(5, 1)
        log.files.fail("write", skip=1, path=".journal", torn=5)
        with raises_full():
            log.queue.flush()
        log.queue.flush()
        assert [number for number, _ in read_all(log.reopen())] == [2, 3, 4, 6]


class TestRanges:
    """What a lease does to a log: much of it at once, whoever acknowledged some before."""

    def test_the_rest_is_acknowledged_a_segment_at_a_time(self) -> None:
        log = Log(segment_max_bytes=160)  # two records each
        log.append(b"1", b"2")
        log.append(b"3", b"4")
        log.append(b"5", b"6")
        read_all(log.queue)
        log.queue.acknowledge(2, 1)
        assert log.queue.acknowledge_rest(1, 6) == (3, 1)
        assert log.queue.acknowledge_rest(3, 6) == (5, 2)
        assert log.queue.acknowledge_rest(5, 6) == (6, 1)
        assert log.queue.acknowledge_rest(1, 6) == (3, 0)
        log.queue.flush()
        log.reopen(killed=True)
        assert read_all(log.queue) == [(6, b"6")]

    def test_numbers_that_are_not_there_are_passed_over(self, log: Log) -> None:
        assert log.queue.acknowledge_rest(1, 100) == (100, 0)
        log.append(b"1")
        read_all(log.queue)
        assert log.queue.acknowledge_rest(1, 100) == (2, 1)
        assert log.queue.acknowledge_rest(2, 100) == (100, 0)

    def test_only_what_is_unread_is_discarded(self, log: Log) -> None:
        for body in (b"1", b"2", b"3", b"4"):
            log.append(body)
        (run,) = log.queue.read(75)
        assert numbered(run) == [(1, b"1")]
        assert log.queue.discard_rest(1, 4) == 2
        assert (log.queue.unread, log.queue.depth) == (1, 2)
        assert read_all(log.queue) == [(4, b"4")]

    def test_whether_a_range_is_done(self, log: Log) -> None:
        log.append(b"1", b"2", b"3", b"4")
        read_all(log.queue)
        log.queue.acknowledge(2, 2)
        assert log.queue.is_done(2, 4)
        assert not log.queue.is_done(2, 5)
        assert not log.queue.is_done(1, 3)
        assert log.queue.is_done(5, 9)

    def test_a_sealed_log_knows_it_after_a_kill(self, log: Log) -> None:
        log.append(b"1", b"2")
        log.queue.seal()
        log.queue.seal()
        log.reopen(killed=True)
        assert log.queue.is_sealed
        assert log.append(b"3") > 2
        assert not log.queue.is_sealed

    def test_nothing_is_sealed_that_is_empty(self, log: Log) -> None:
        log.queue.seal()
        assert not log.queue.is_sealed

    def test_regions_are_all_blocks_and_nothing_else(self) -> None:
        log = Log(segment_max_bytes=160)
        for body in (b"1", b"2", b"3"):
            log.append(body)
        stream = b"".join(
            log.files.content(path)[offset : offset + length]
            for path, offset, length in log.queue.regions()
        )
        assert stream.count(b"NQB1") == 3
        assert stream.startswith(b"NQB1")
        assert len(stream) == 3 * (BLOCK_HEADER_BYTES + 35)

    def test_an_abandoned_log_leaves_its_files(self, log: Log) -> None:
        log.append(b"1")
        log.queue.abandon()
        assert log.files.open_files == []
        assert log.segments() == names(1)
        assert (log.queue.depth, log.queue.unread) == (0, 0)


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


class TestFaults:
    def test_a_failed_append_stores_nothing(self, log: Log) -> None:
        log.append(b"a")
        log.files.fail("write", torn=30)
        with raises_full():
            log.append(b"b", b"c")
        assert (log.queue.depth, log.queue.unread) == (1, 1)
        assert log.append(b"d") == 2
        assert read_all(log.reopen(killed=True)) == [(1, b"a"), (2, b"d")]

    @pytest.mark.parametrize("operation", ["open", "write"])
    def test_a_failed_first_append_too(self, log: Log, operation: str) -> None:
        log.files.fail(operation)
        with raises_full():
            log.append(b"a")
        assert log.queue.depth == 0
        assert log.append(b"b") == 1
        assert read_all(log.queue) == [(1, b"b")]

    def test_a_segment_that_cannot_be_begun(self, log: Log) -> None:
        log.append(b"x" * 300)
        log.files.fail("open")
        with raises_full():
            log.append(b"y" * 300)
        log.append(b"z" * 300)
        assert log.segments() == names(1, 2)
        assert bodies(log.queue) == [b"x" * 300, b"z" * 300]

    def test_a_failed_held_append_leaves_the_reader_where_it_was(self, log: Log) -> None:
        log.append(b"a", held=True)
        log.files.fail("write")
        with raises_full():
            log.append(b"b", held=True)
        log.append(b"c")
        assert read_all(log.queue) == [(2, b"c")]

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

    def test_every_write_may_fail_once_and_nothing_is_lost(self) -> None:
        """A fixed run of appends and flushes, with the n-th write failing, for every n."""
        for nth in range(40):
            log = Log()
            log.files.fail("write", skip=nth, torn=nth)
            stored: set[bytes] = set()
            finished: set[bytes] = set()
            for index in range(12):
                body = b"%d" % index * 20
                if _succeeds(partial(log.append, body)):
                    stored.add(body)
                for run in log.queue.read():
                    for number, found in numbered(run):
                        if number % 3:
                            log.queue.acknowledge(number, 1)
                            finished.add(found)
                _succeeds(log.queue.flush)
            _succeeds(log.queue.flush)
            assert log.queue.depth == len(stored - finished)
            queue = log.reopen(killed=True)
            assert queue.depth == len(stored - finished)
            assert set(bodies(queue)) == stored - finished


def _succeeds(action: Callable[[], object]) -> bool:
    try:
        action()
    except StorageError:
        return False
    return True


class TestSync:
    def test_files_are_handed_out_once(self, log: Log) -> None:
        assert log.queue.take_unsynced() == []
        log.append(b"a", held=True)
        log.append(b"b", held=True)
        assert log.listener.unsynced == 1
        (segment,) = log.queue.take_unsynced()
        assert log.queue.take_unsynced() == []
        log.queue.acknowledge(1, 1)
        log.queue.flush()
        assert log.listener.unsynced == 2
        (journal,) = log.queue.take_unsynced()
        assert segment is not journal

    def test_sync_every_counts_writes(self) -> None:
        log = Log(sync_every=3)
        for overdue in (0, 0, 1, 1):
            log.append(b"a")
            assert log.listener.overdue == overdue
        log.queue.take_unsynced()
        for overdue in (1, 1, 2):
            log.append(b"a")
            assert log.listener.overdue == overdue

    def test_a_file_being_synced_is_closed_afterwards(self, log: Log) -> None:
        for _ in range(4):
            log.append(b"x" * 40, held=True)
        syncing = log.queue.take_unsynced()
        log.queue.acknowledge(1, 3)
        log.queue.flush()
        assert log.segments() == names(4)
        for file in syncing:
            file.sync()  # would fail on a closed file
        log.queue.end_sync(syncing, safe=True)
        assert len(log.files.open_files) == 1

    def test_a_file_let_go_during_a_sync_stays_open_for_the_next(self, log: Log) -> None:
        """The log rolls on while it is synced; a descriptor closed here may be another file's."""
        log.append(b"x" * 40)
        syncing = log.queue.take_unsynced()
        for _ in range(6):
            log.append(b"x" * 40)
        assert log.segments() == names(1, 4, 7)
        log.queue.end_sync(syncing, safe=True)
        unsynced = log.queue.take_unsynced()
        assert len(unsynced) == 3
        for file in unsynced:
            file.sync()  # would fail on a closed file
        log.queue.end_sync(unsynced, safe=True)
        assert bodies(reopened_after_power_loss(log)) == [b"x" * 40] * 7

    def test_what_is_deleted_need_not_be_synced(self, log: Log) -> None:
        for _ in range(4):
            log.append(b"x" * 40, held=True)
        log.queue.acknowledge(1, 3)
        log.queue.flush()
        assert len(log.queue.take_unsynced()) == 1
        assert len(log.files.open_files) == 1

    def test_emptying_and_closing_during_a_sync_leaves_it_its_files(self, log: Log) -> None:
        """A channel is deleted while its last messages are on their way to the device."""
        log.append(b"a", held=True)
        syncing = log.queue.take_unsynced()
        log.append(b"b", held=True)
        log.queue.empty()
        log.queue.close()
        for file in syncing:
            file.sync()
        log.queue.end_sync(syncing, safe=True)
        assert log.files.open_files == []

    def test_closing_during_a_sync_syncs_the_rest_and_leaves_it_its_files(self, log: Log) -> None:
        log.append(b"a", held=True)
        syncing = log.queue.take_unsynced()
        log.append(b"b", held=True)
        log.queue.close()
        assert bodies(reopened_after_power_loss(log)) == [b"a", b"b"]
        for file in syncing:
            file.sync()
        log.queue.end_sync(syncing, safe=True)
        assert log.files.open_files == []

    def test_what_was_synced_survives_a_power_loss(self, log: Log) -> None:
        log.append(b"a", b"b", held=True)
        for file in log.queue.take_unsynced():
            file.sync()
        log.append(b"c", held=True)
        assert bodies(reopened_after_power_loss(log)) == [b"a", b"b"]

    def test_closing_syncs(self, log: Log) -> None:
        log.append(b"a", b"b", held=True)
        log.queue.acknowledge(1, 1)
        log.queue.close()
        assert bodies(reopened_after_power_loss(log)) == [b"b"]

    def test_closing_lets_go_of_its_files_even_if_it_fails(self, log: Log) -> None:
        log.append(b"a", held=True)
        log.files.fail("sync", errno=errno.EIO)
        with pytest.raises(StorageError, match="Input/output error"):
            log.queue.close()
        assert log.files.open_files == []


def reopened_after_power_loss(log: Log) -> DiskQueue:
    survivor = Log()
    survivor.files = log.files.after_power_loss()
    return survivor.open()


class TestEmpty:
    def test_nothing_is_left_and_numbers_go_on(self, log: Log) -> None:
        for _ in range(5):
            log.append(b"x" * 40)
        log.queue.read()
        log.queue.acknowledge(1, 1)
        log.queue.flush()
        log.queue.empty()
        assert (log.queue.depth, log.queue.unread, log.queue.read()) == (0, 0, [])
        assert log.files.paths() == []
        assert log.append(b"new") == 6
        assert read_all(log.queue) == [(6, b"new")]
        assert read_all(log.reopen()) == [(6, b"new")]

    def test_an_emptied_log_stays_empty(self, log: Log) -> None:
        log.append(b"a")
        log.queue.empty()
        log.queue.flush()
        assert log.reopen().depth == 0


def test_a_long_random_life_of_a_log() -> None:
    """Appends, reads, acknowledgements, restarts and kills against a plain dict."""
    for seed in range(8):
        random = Random(seed)
        log = Log(segment_max_bytes=random.choice([200, 1000, 5000]))
        owed: dict[bytes, None] = {}
        read: dict[int, bytes] = {}
        unflushed: set[bytes] = set()
        for step in range(300):
            action = random.random()
            if action < 0.4:
                batches = [_batch(random, step, index) for index in range(random.randint(1, 3))]
                held = not log.queue.unread and random.random() < 0.5
                number = log.queue.append(batches, held=held)
                stored = [body for batch in batches for body in bodies_of(batch)]
                owed |= dict.fromkeys(stored)
                if held:
                    read |= dict(enumerate(stored, number))
            elif action < 0.6:
                for run in log.queue.read(random.choice([1 << 20, 150])):
                    read |= dict(numbered(run))
            elif action < 0.9:
                for number in random.sample(sorted(read), min(len(read), 4)):
                    body = read.pop(number)
                    log.queue.acknowledge(number, 1)
                    del owed[body]
                    unflushed.add(body)
            elif action < 0.97:
                log.queue.flush()
                unflushed.clear()
            else:
                killed = random.random() < 0.5
                log.reopen(killed=killed)
                read = dict(read_all(log.queue))
                again = set(read.values()) - owed.keys()
                assert again <= (unflushed if killed else set()), (seed, step)
                owed |= dict.fromkeys(again)
                unflushed.clear()
            assert log.queue.depth == len(owed), (seed, step)
            assert log.queue.unread == len(owed) - len(read), (seed, step)
        left = [*read.values(), *bodies(log.queue)]
        assert sorted(left) == sorted(owed), seed


def _batch(random: Random, step: int, index: int) -> Batch:
    count = random.choice([1, 1, 2, 5])
    return batch_of(*(b"%d.%d.%d" % (step, index, place) for place in range(count)))


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
