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
from tests.unit.fakes import batch_of, bodies_of
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
