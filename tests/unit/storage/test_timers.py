"""The timer wheel: what is put in for later comes out in time, at little cost until then."""

import errno
from random import Random
from typing import TYPE_CHECKING

import pytest

from nsqpy.clock import MILLISECOND
from nsqpy.errors import StorageError
from nsqpy.message import Batch
from nsqpy.storage.diskqueue import DiskQueue
from nsqpy.storage.timers import NEAR_MS, Slot, TimerWheel, slot_directories, slot_for
from tests.unit.fakes import FakeFiles, FakeListener, batch_of, bodies_of

if TYPE_CHECKING:
    from nsqpy.storage.reader import StoredRun

SECOND_MS = 1000
HOUR_MS = 3600 * SECOND_MS
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_800_000_000_000
ROOM = 10


class Timers:
    """A wheel in memory and the time, which passes from look to look."""

    def __init__(self, files: FakeFiles | None = None, now_ms: int = NOW_MS) -> None:
        self.files = FakeFiles() if files is None else files
        self.now_ms = now_ms
        self.logs: list[DiskQueue] = []
        self.wheel = TimerWheel(self.files, "w", self._open_log)
        self.wheel.open()

    def _open_log(self, path: str) -> DiskQueue:
        queue_log = DiskQueue(
            self.files,
            path,
            name=path,
            segment_max_bytes=1000,
            sync_every=9999,
            listener=FakeListener(),
        )
        queue_log.open()
        self.logs.append(queue_log)
        return queue_log

    def put(self, *delays_ms: int) -> None:
        """One message for each, its body the time due."""
        self.wheel.append([self.batch(delay_ms) for delay_ms in delays_ms], self.now_ms)

    def batch(self, delay_ms: int, count: int = 1) -> Batch:
        due_ms = self.now_ms + delay_ms
        body = b"%d" % due_ms
        return batch_of(*[body] * count, deliver_at_ns=due_ms * MILLISECOND)

    def step(self, room: int = ROOM) -> list[int]:
        """The times due of what the next step brings, finished at once."""
        taken = self.wheel.advance(self.now_ms, room)
        if taken is None:
            runs: list[StoredRun] = []
        else:
            queue_log, runs = taken
            for run in runs:
                queue_log.acknowledge(run.number, run.stop - run.start)
        due = [int(body) for run in runs for body in bodies_of(run.batch, run.start, run.stop)]
        self.flush()
        return due

    def flush(self) -> None:
        for queue_log in self.logs:
            queue_log.end_moves(queue_log.take_moves(), safe=True)
            queue_log.flush()

    def run_until(self, stop_ms: int, room: int = ROOM) -> list[tuple[int, list[int]]]:
        """When each step brought something, and what."""
        steps = []
        while self.wheel.look_ms is not None and self.wheel.look_ms <= stop_ms:
            self.now_ms = max(self.now_ms, self.wheel.look_ms)
            if due := self.step(room):
                steps.append((self.now_ms, due))
        self.now_ms = stop_ms
        return steps

    def directories(self) -> list[str]:
        return self.files.list_directory("w")

    def restart(self) -> "Timers":
        return Timers(self.files.after_kill(), self.now_ms)


@pytest.fixture
def timers() -> Timers:
    return Timers()


class TestSlots:
    @pytest.mark.parametrize(
        ("delay_ms", "width_ms"),
        [
            *((-5, 64), (0, 64), (4095, 64), (4096, 4096), (262_143, 4096), (262_144, 262_144)),
            *((HOUR_MS, 262_144), (DAY_MS, 64**4), (365 * DAY_MS, 64**5)),
            (100 * 365 * DAY_MS, 64**6),
        ],
    )
    def test_the_later_a_message_is_due_the_wider_is_its_slot(
        self, delay_ms: int, width_ms: int
    ) -> None:
        slot = slot_for((NOW_MS + delay_ms) * MILLISECOND, NOW_MS)
        assert slot.width_ms == width_ms
        assert slot.start_ms <= NOW_MS + delay_ms < slot.stop_ms
        assert slot.start_ms % width_ms == 0

    def test_no_wider_than_asked_for(self) -> None:
        assert slot_for((NOW_MS + DAY_MS) * MILLISECOND, NOW_MS, 4096).width_ms == 4096

    def test_what_is_no_slot_is_passed_over(self) -> None:
        files = FakeFiles()
        for name in ("8192-4096", "64-64", "64-65", "a-64", "5", "-64-64"):
            files.make_directory(f"w/{name}")
        assert slot_directories(files, "w") == {
            Slot(64, 64): "w/64-64",
            Slot(8192, 4096): "w/8192-4096",
        }


class TestInTime:
    def test_an_empty_wheel_asks_for_nothing(self, timers: Timers) -> None:
        assert timers.wheel.look_ms is None
        assert timers.step() == []

    def test_nothing_before_it_is_near(self, timers: Timers) -> None:
        timers.put(HOUR_MS)
        assert timers.wheel.count == 1
        look_ms = timers.wheel.look_ms
        assert look_ms is not None
        assert NOW_MS < look_ms < NOW_MS + HOUR_MS
        timers.now_ms = look_ms - 1
        assert timers.step() == []
        assert timers.wheel.count == 1

    @pytest.mark.parametrize("room", [1000, 5, 0])
    def test_everything_comes_before_it_is_due_or_then(self, timers: Timers, room: int) -> None:
        random = Random(room)
        delays = [int(10 ** random.uniform(0, 10)) for _ in range(300)]
        delays += [random.randrange(5000) for _ in range(300)]
        for at in range(0, 600, 20):
            timers.put(*delays[at : at + 20])
        steps = timers.run_until(NOW_MS + 10**11, room)
        came = [due for _, dues in steps for due in dues]
        assert sorted(came) == sorted(NOW_MS + delay for delay in delays)
        for now_ms, dues in steps:
            assert now_ms <= min(dues)
            if len(dues) > room:
                assert max(dues) - now_ms < 64
        assert timers.wheel.count == 0

    def test_what_is_read_early_is_due_soon(self, timers: Timers) -> None:
        timers.put(30 * DAY_MS, 365 * DAY_MS)
        for now_ms, dues in timers.run_until(NOW_MS + 366 * DAY_MS):
            assert max(dues) - now_ms < 2 * NEAR_MS

    def test_what_fits_is_not_moved_about(self, timers: Timers) -> None:
        timers.put(*range(10 * SECOND_MS, 11 * SECOND_MS, 100))
        ((_, dues),) = timers.run_until(NOW_MS + HOUR_MS)
        assert len(dues) == 10
        assert timers.files.write_count == 2, "the slot, and the journal at the end"

    def test_after_a_long_stop_all_of_it_is_overdue(self, timers: Timers) -> None:
        timers.put(*[7 * DAY_MS] * 30, SECOND_MS)
        late = Timers(timers.files.after_kill(), NOW_MS + 60 * DAY_MS)
        assert sum(len(dues) for _, dues in late.run_until(late.now_ms)) == 31


class TestOnDisk:
    def test_one_write_for_each_slot(self, timers: Timers) -> None:
        timers.put(DAY_MS, DAY_MS + 1, DAY_MS + 2, 20 * DAY_MS)
        assert timers.files.write_count == 2

    def test_a_restart_finds_all_of_it(self, timers: Timers) -> None:
        delays = [SECOND_MS, HOUR_MS, HOUR_MS, DAY_MS]
        timers.put(*delays)
        again = timers.restart()
        assert again.wheel.count == 4
        came = [due for _, dues in again.run_until(NOW_MS + 2 * DAY_MS) for due in dues]
        assert came == [NOW_MS + delay for delay in delays]

    @pytest.mark.parametrize("when", [0, 1, 2])
    def test_a_kill_in_the_middle_of_a_split_loses_nothing(self, timers: Timers, when: int) -> None:
        timers.wheel.append([timers.batch(HOUR_MS, 50)] * 400, NOW_MS)
        assert timers.wheel.look_ms is not None
        timers.now_ms = timers.wheel.look_ms
        for _ in range(when):
            assert timers.wheel.advance(timers.now_ms, ROOM) is None
        again = timers.restart()
        came = [due for _, dues in again.run_until(NOW_MS + 2 * HOUR_MS) for due in dues]
        assert len(came) >= 20_000

    def test_a_slot_that_is_done_with_leaves_nothing(self, timers: Timers) -> None:
        timers.put(SECOND_MS, 2 * SECOND_MS, DAY_MS)
        assert len(timers.directories()) == 3
        timers.run_until(NOW_MS + HOUR_MS)
        assert len(timers.directories()) == 1
        timers.run_until(NOW_MS + 2 * DAY_MS)
        assert timers.directories() == []
        assert timers.files.open_files == []

    def test_what_was_done_with_when_it_was_killed_is_cleared_up(self, timers: Timers) -> None:
        timers.put(SECOND_MS)
        timers.now_ms += SECOND_MS
        taken = timers.wheel.advance(timers.now_ms, ROOM)
        assert taken is not None
        taken[0].on_drained = None
        taken[0].acknowledge(1, 1)
        taken[0].flush()
        assert timers.restart().directories() == []

    def test_only_some_logs_keep_their_files_open(self, timers: Timers) -> None:
        for level in range(2, 60):
            timers.put(level * 4096)
        assert len(timers.directories()) > 50
        for queue_log in timers.logs:
            queue_log.end_sync(queue_log.take_unsynced(), safe=True)
        assert len(timers.files.open_files) <= 8
        timers.put(*range(2 * 4096, 59 * 4096, 4096))  # and the others can be written to
        assert timers.wheel.count == 58 + 57

    def test_damage_is_set_aside_and_outlives_its_slot(self, timers: Timers) -> None:
        timers.put(SECOND_MS, SECOND_MS + 1)
        (path,) = timers.files.paths(".segment")
        timers.files.content(path)[-1] ^= 1
        again = timers.restart()
        assert (again.wheel.count, again.wheel.bad_blocks) == (1, 1)
        timers.files.content(path)[-1] ^= 1
        timers.files.content(path)[80] ^= 1
        again = timers.restart()
        (step,) = again.run_until(NOW_MS + HOUR_MS)
        assert step[1] == [NOW_MS + SECOND_MS + 1]
        assert again.wheel.bad_blocks == 1
        assert [path for path in again.files.paths() if path.endswith(".bad")]
        assert again.wheel.count == 0

    def test_emptying_forgets_all_of_it(self, timers: Timers) -> None:
        timers.put(SECOND_MS, DAY_MS)
        timers.wheel.empty()
        assert (timers.wheel.count, timers.wheel.look_ms) == (0, None)
        assert timers.directories() == []
        timers.put(SECOND_MS)
        assert timers.wheel.count == 1

    def test_closing_lets_go_of_every_file(self, timers: Timers) -> None:
        timers.put(SECOND_MS, DAY_MS)
        timers.wheel.close()
        assert timers.files.open_files == []
        assert timers.restart().wheel.count == 2


class TestFaults:
    @pytest.mark.parametrize("operation", ["write", "make_directory", "open"])
    @pytest.mark.parametrize("skip", [0, 1])
    def test_all_of_it_is_stored_or_nothing(
        self, timers: Timers, operation: str, skip: int
    ) -> None:
        timers.files.fail(operation, skip=skip)
        with pytest.raises(StorageError):
            timers.put(SECOND_MS, HOUR_MS, DAY_MS)
        assert timers.wheel.count == 0
        timers.put(SECOND_MS, HOUR_MS, DAY_MS)
        assert len(timers.run_until(NOW_MS + 2 * DAY_MS)) == 3

    def test_a_full_disk_stops_splitting_and_loses_nothing(self, timers: Timers) -> None:
        timers.wheel.append([timers.batch(HOUR_MS, 50), timers.batch(HOUR_MS + 9, 1)], NOW_MS)
        look_ms = timers.wheel.look_ms
        assert look_ms is not None
        timers.now_ms = look_ms
        timers.files.fail("write", times=-1, errno=errno.ENOSPC)
        for _ in range(3):
            with pytest.raises(StorageError):
                timers.wheel.advance(timers.now_ms, ROOM)
            assert timers.wheel.count == 51
        # Another slot that has passed is not kept waiting.
        timers.files.heal()
        timers.wheel.append([timers.batch(0)], timers.now_ms)
        timers.files.fail("write", times=-1, errno=errno.ENOSPC)
        taken = timers.wheel.advance(timers.now_ms, ROOM)
        assert taken is not None
        assert len(taken[1]) == 1
        timers.files.heal()
        came = [due for _, dues in timers.run_until(NOW_MS + 2 * HOUR_MS) for due in dues]
        assert sorted(came) == [NOW_MS + HOUR_MS] * 50 + [NOW_MS + HOUR_MS + 9]

    def test_on_a_disk_that_stays_full_they_are_read_when_their_slot_begins(
        self, timers: Timers
    ) -> None:
        many, also = timers.batch(HOUR_MS, 50), timers.batch(2 * HOUR_MS, 50)
        timers.wheel.append([many, also], NOW_MS)
        begins = [slot_for(batch.deliver_at_ns, NOW_MS).start_ms for batch in (many, also)]
        timers.files.fail("write", times=-1, errno=errno.ENOSPC)
        for begin_ms in begins:
            timers.now_ms = begin_ms - SECOND_MS  # too early to give up splitting
            with pytest.raises(StorageError):
                timers.wheel.advance(timers.now_ms, ROOM)
            timers.now_ms = begin_ms
            taken = timers.wheel.advance(timers.now_ms, ROOM)
            assert taken is not None
            assert sum(run.stop - run.start for run in taken[1]) == 50
        assert timers.wheel.count == 0

    def test_without_room_they_come_when_their_slot_has_passed(self, timers: Timers) -> None:
        timers.wheel.append([timers.batch(HOUR_MS, 50)], NOW_MS)
        assert timers.wheel.look_ms is not None
        timers.now_ms = timers.wheel.look_ms
        timers.files.fail("write", times=-1, errno=errno.ENOSPC)
        for now_ms in (timers.now_ms, NOW_MS + HOUR_MS):
            with pytest.raises(StorageError):
                timers.wheel.advance(now_ms, 0)
        timers.now_ms = NOW_MS + HOUR_MS + NEAR_MS
        taken = timers.wheel.advance(timers.now_ms, 0)
        assert taken is not None
        assert sum(run.stop - run.start for run in taken[1]) == 50

    def test_a_log_that_cannot_be_read_is_tried_again(self, timers: Timers) -> None:
        timers.put(SECOND_MS)
        timers.now_ms += SECOND_MS
        timers.files.fail("read", errno=errno.EIO)
        with pytest.raises(StorageError):
            timers.wheel.advance(timers.now_ms, ROOM)
        assert timers.step() == [NOW_MS + SECOND_MS]

    def test_a_directory_that_cannot_be_read_stops_the_start(self, timers: Timers) -> None:
        timers.files.fail("list", path="w", errno=errno.EIO)
        with pytest.raises(StorageError, match="w: Input/output error"):
            timers.wheel.open()

    def test_a_directory_that_cannot_be_removed_is_left_for_the_next_start(
        self, timers: Timers, caplog: pytest.LogCaptureFixture
    ) -> None:
        timers.put(SECOND_MS)
        timers.files.fail("remove", path="w/", times=-1)
        timers.run_until(NOW_MS + HOUR_MS)
        assert "cannot" in caplog.text
        timers.files.heal()
        assert timers.restart().directories() == []
