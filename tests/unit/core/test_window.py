"""The window on a queue: what is in memory, what is in the log, and in which order it comes."""

import pytest

from nsqpy.core.window import NOT_STORED, Run, Window
from nsqpy.errors import StorageError
from nsqpy.storage.diskqueue import DiskQueue
from tests.unit.fakes import FakeFiles, FakeListener, batch_of, bodies_of

PLENTY = 1 << 30


@pytest.fixture
def files() -> FakeFiles:
    return FakeFiles()


@pytest.fixture
def queue_log(files: FakeFiles) -> DiskQueue:
    listener = FakeListener()
    log = DiskQueue(
        files, "q", name="t", segment_max_bytes=1000, sync_every=9999, listener=listener
    )
    log.open()
    return log


def put(window: Window, *bodies: bytes) -> None:
    """Each body as a batch of its own."""
    for body in bodies:
        window.put([batch_of(body)])


def taken(window: Window, limit: int = 1000, max_bytes: int = PLENTY) -> list[bytes]:
    return [body for run in window.take(limit, max_bytes) for body in bodies_of_run(run)]


def bodies_of_run(run: Run) -> list[bytes]:
    return bodies_of(run.batch, run.start, run.stop)


class TestLogged:
    """At ``disk`` and ``fsync``: everything is in the log as well."""

    @pytest.fixture(params=[0, 1, 3, 100])
    def window(self, request: pytest.FixtureRequest, queue_log: DiskQueue) -> Window:
        return Window(queue_log, limit=request.param, log_all=True)

    def test_messages_come_in_order_whatever_the_window_holds(self, window: Window) -> None:
        bodies = [b"%d" % index for index in range(20)]
        put(window, *bodies)
        assert window.depth == 20
        assert taken(window, 7) + taken(window, 1) + taken(window) == bodies
        assert (window.depth, window.is_empty()) == (0, True)

    def test_every_message_is_a_record(self, window: Window, queue_log: DiskQueue) -> None:
        put(window, *[b"x"] * 10)
        assert queue_log.depth == 10
        runs = window.take(1000, PLENTY)
        assert [run.number + i for run in runs for i in range(len(run))] == list(range(1, 11))
        for run in runs:
            run.acknowledge(0, len(run))
        assert queue_log.depth == 0

    def test_a_failed_put_takes_nothing(self, window: Window, files: FakeFiles) -> None:
        put(window, b"a")
        files.fail("write")
        with pytest.raises(StorageError):
            window.put([batch_of(b"b"), batch_of(b"c")])
        assert (window.depth, taken(window)) == (1, [b"a"])

    def test_the_window_stops_at_its_limit(self, queue_log: DiskQueue) -> None:
        window = Window(queue_log, limit=3, log_all=True)
        put(window, *[b"%d" % index for index in range(5)])
        assert (window.count, window.backend_depth, window.depth) == (3, 2, 5)
        assert taken(window, 1) == [b"0"]
        put(window, b"5")  # behind what is unread, though there is room
        assert (window.count, window.backend_depth) == (2, 3)
        assert taken(window) == [b"1", b"2", b"3", b"4", b"5"]
        put(window, b"6")
        assert (window.count, window.backend_depth) == (1, 0)


class TestMemory:
    """At ``memory``: the log has only what the window has no room for."""

    def test_what_fits_is_not_written(self, queue_log: DiskQueue, files: FakeFiles) -> None:
        window = Window(queue_log, limit=2, log_all=False)
        put(window, b"a", b"b")
        assert files.write_count == 0
        assert [run.number for run in window.take(9, PLENTY)] == [NOT_STORED, NOT_STORED]

    def test_the_rest_overflows_in_order(self, queue_log: DiskQueue) -> None:
        window = Window(queue_log, limit=2, log_all=False)
        bodies = [b"%d" % index for index in range(6)]
        put(window, *bodies)
        assert (window.count, window.backend_depth, queue_log.depth) == (2, 4, 4)
        assert taken(window) == bodies

    def test_a_full_disk_matters_only_to_what_overflows(
        self, queue_log: DiskQueue, files: FakeFiles
    ) -> None:
        window = Window(queue_log, limit=1, log_all=False)
        files.fail("write", times=-1)
        put(window, b"a")
        with pytest.raises(StorageError):
            put(window, b"b")
        assert taken(window) == [b"a"]


class TestEphemeral:
    """Without a log."""

    @pytest.mark.parametrize(
        ("drop_oldest", "left"), [(False, [b"a", b"b", b"c"]), (True, [b"c", b"d", b"e"])]
    )
    def test_what_does_not_fit_is_dropped(self, drop_oldest: bool, left: list[bytes]) -> None:
        for batches in (
            [batch_of(b"a", b"b", b"c", b"d", b"e")],
            [batch_of(b"a", b"b"), batch_of(b"c", b"d"), batch_of(b"e")],
        ):
            window = Window(None, limit=3, log_all=False, drop_oldest=drop_oldest)
            window.put(batches)
            assert (window.depth, window.backend_depth, window.dropped_count) == (3, 0, 2)
            assert taken(window) == left

    def test_whoever_waits_is_room(self) -> None:
        window = Window(None, limit=0, log_all=False)
        window.put([batch_of(b"a", b"b", b"c")], 2)
        assert (window.dropped_count, taken(window)) == (1, [b"a", b"b"])


class TestTake:
    @pytest.fixture
    def window(self) -> Window:
        window = Window(None, limit=100, log_all=False)
        window.put([batch_of(b"a", b"b", b"c", b"d"), batch_of(b"e", b"f")])
        return window

    def test_no_more_than_asked_for(self, window: Window) -> None:
        assert taken(window, 3) == [b"a", b"b", b"c"]
        assert taken(window, 2) == [b"d", b"e"]
        assert (window.depth, taken(window, 0), taken(window, 9)) == (1, [], [b"f"])

    def test_about_as_many_bytes_as_asked_for_and_at_least_one_message(
        self, window: Window
    ) -> None:
        assert taken(window, 9, 1) == [b"a"]
        assert taken(window, 9, 2 * 35) == [b"b", b"c"]
        assert taken(window, 9, 2 * 35 + 34) == [b"d", b"e"]
        assert taken(window, 9, 1000) == [b"f"]

    def test_what_is_put_back_comes_first_and_in_order(self, window: Window) -> None:
        window.put_back(window.take(5, PLENTY))
        assert window.depth == 6
        assert taken(window) == [b"a", b"b", b"c", b"d", b"e", b"f"]

    def test_what_is_owed_again_comes_last(self, window: Window) -> None:
        (run,) = window.take(1, PLENTY)
        window.put_run(run.again())
        assert taken(window)[-1] == b"a"

    def test_clearing_gives_everything(self, window: Window) -> None:
        window.take(1, PLENTY)
        assert [body for run in window.clear() for body in bodies_of_run(run)] == [
            *(b"b", b"c", b"d", b"e", b"f"),
        ]
        assert window.depth == 0


class TestDrop:
    def test_ranges_are_cut_out_of_what_is_in_memory(self, queue_log: DiskQueue) -> None:
        window = Window(queue_log, limit=100, log_all=True)
        put(window, *[b"%d" % number for number in range(1, 11)])
        assert window.drop([[9, 20], [2, 4], [6, 7]]) == 5
        assert window.count == queue_log.depth == 5
        assert taken(window) == [b"1", b"4", b"5", b"7", b"8"]

    def test_what_is_in_no_log_stays(self, queue_log: DiskQueue) -> None:
        window = Window(queue_log, limit=100, log_all=False)
        put(window, b"1", b"2")
        assert window.drop([[0, 100]]) == 0
        assert taken(window) == [b"1", b"2"]


def test_a_log_that_cannot_be_read_costs_nothing_that_was_in_memory(
    queue_log: DiskQueue, files: FakeFiles
) -> None:
    window = Window(queue_log, limit=2, log_all=True)
    put(window, b"a", b"b", b"c")
    files.fail("read")
    assert taken(window) == [b"a", b"b"]
    files.fail("read")
    with pytest.raises(StorageError):
        window.take(9, PLENTY)
    assert taken(window) == [b"c"]


class TestRun:
    def test_again_raises_attempts_and_keeps_the_record(self, queue_log: DiskQueue) -> None:
        run = Run(batch_of(b"a", b"b", b"c"), 1, 3, 8, queue_log)
        again = run.again(77)
        assert (again.start, again.stop, again.number, again.raised) == (0, 2, 8, True)
        assert again.batch.deliver_at_ns == 77
        assert [again.batch.attempts(index) for index in range(2)] == [2, 2]
        assert run.batch.attempts(1) == 1
        assert not Run(batch_of(b"a"), 0, 1).again().raised

    def test_a_part_knows_its_record(self, queue_log: DiskQueue) -> None:
        part = Run(batch_of(b"a", b"b", b"c", b"d"), 1, 4, 8, queue_log).part(1, 3)
        assert (bodies_of_run(part), part.number, len(part)) == ([b"c", b"d"], 9, 2)
        assert Run(batch_of(b"a", b"b"), 0, 2).part(1, 2).number == NOT_STORED

    def test_a_small_part_of_a_large_batch_can_do_without_it(self, queue_log: DiskQueue) -> None:
        batch = batch_of(*[b"x%d" % index for index in range(20)])
        run = Run(batch, 5, 7, 8, queue_log, raised=True)
        run.compact()
        assert bodies_of_run(run) == [b"x5", b"x6"]
        assert len(run.batch) == 2
        assert (run.number, run.log, run.raised) == (8, queue_log, True)
        large = Run(batch, 5, 12)
        large.compact()
        assert (large.batch, large.start, large.stop) == (batch, 5, 12)
