"""Files that are written, synced in another thread, and closed: never one under the other."""

import errno

import pytest

from nsqpy.errors import StorageError
from tests.unit.storage.log_rig import (
    Log,
    bodies,
    names,
    reopened_after_power_loss,
)


@pytest.fixture
def log() -> Log:
    return Log()


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
