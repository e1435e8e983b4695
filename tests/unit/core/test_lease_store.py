"""What leases have on disk: what a journal says after a restart, and what it forgets."""

from functools import partial

import pytest

from nsqpy.core.lease import Lease, LeaseState
from nsqpy.core.lease_store import LeaseStore
from nsqpy.errors import StorageError
from nsqpy.storage.diskqueue import DiskQueue
from tests.unit.fakes import FakeFiles, FakeListener, batch_of

DIRECTORY = "leases"


def open_log(files: FakeFiles, directory: str) -> DiskQueue:
    queue_log = DiskQueue(
        files,
        directory,
        name="log",
        segment_max_bytes=300,
        sync_every=1000,
        listener=FakeListener(),
    )
    queue_log.open()
    return queue_log


class Rig:
    """A store on files that may be killed; ``removed`` is what it wants to be rid of."""

    def __init__(self, files: FakeFiles) -> None:
        self.files = files
        self.removed: list[str] = []
        opener = partial(open_log, files)
        self.store = LeaseStore(
            files, DIRECTORY, open_log=opener, open_journal=opener, remove=self.removed.append
        )
        self.found = self.store.find(0)
        self.leases = self.store.replay()

    def make(self, lease_id: str) -> Lease:
        lease = self.store.make(lease_id)
        assert lease.log is not None
        lease.log.append([batch_of(b"m")], held=False)
        lease.count, lease.size, lease.expires_ns = 1, 75, 5_000
        lease.sources = [[1, 2]]
        lease.splits.add(75, 1)
        self.store.record(lease, wall_ns=1_000)
        lease.state = LeaseState.LEASED
        return lease

    def again(self) -> "Rig":
        """What a restart finds."""
        self.store.sync()
        return Rig(self.files.after_kill())


@pytest.fixture
def rig() -> Rig:
    return Rig(FakeFiles())


def test_nothing_is_made_before_the_first_lease(rig: Rig) -> None:
    assert rig.files.paths() == []
    assert (rig.found, rig.leases) == ({}, {})


def test_a_lease_comes_back_as_it_was(rig: Rig) -> None:
    rig.store.note(rig.make("a"), 2_000, "extended", expires=9_000)
    again = rig.again()
    lease = again.leases["a"]
    assert again.found == {1: f"{DIRECTORY}/00000001"}
    assert (lease.serial, lease.count, lease.size, lease.expires_ns) == (1, 1, 75, 9_000)
    assert (lease.state, lease.sources) == (LeaseState.LEASED, [[1, 2]])
    assert lease.splits.triples() == [(0, 75, 1)]


def test_an_end_is_all_that_is_left(rig: Rig) -> None:
    lease = rig.make("a")
    rig.store.note(lease, 2_000, "extended", expires=9_000)
    rig.store.note(lease, 2_500, "read", offset=0, length=10)
    details = {"state": "committed", "at": 3_000, "serial": 1, "disowned": False}
    rig.store.note(lease, 3_000, "ended", **details)
    rig.store.supersede(lease, "sources")
    rig.store.scrap(lease)
    assert rig.removed == [f"{DIRECTORY}/00000001"]
    assert list(lease.records) == ["ended"]
    lease = rig.again().leases["a"]
    assert (lease.state, lease.ended_ns, lease.sources) == (LeaseState.COMMITTED, 3_000, [])


def test_numbers_of_directories_do_not_come_again(rig: Rig) -> None:
    lease = rig.make("a")
    details = {"state": "committed", "at": 3_000, "serial": 1, "disowned": False}
    rig.store.note(lease, 3_000, "ended", **details)
    rig.store.scrap(lease)
    rig.files.remove_tree(f"{DIRECTORY}/00000001")
    assert rig.again().make("b").serial == 2


def test_the_journal_lets_go_of_what_is_forgotten(rig: Rig) -> None:
    for number in range(50):
        lease = rig.make(f"lease-{number}")
        rig.store.scrap(lease)
        rig.store.forget(lease)
        rig.store.sync()
    assert len([path for path in rig.files.paths(".segment") if "/journal/" in path]) == 1
    assert rig.again().leases == {}


def test_reads_are_counted_over_a_restart(rig: Rig) -> None:
    lease = rig.make("a")
    for offset, length in [(0, 50), (60, 15)]:
        lease.cover(offset, length)
        rig.store.note(lease, 2_000, "read", offset=offset, length=length)
    lease = rig.again().leases["a"]
    assert lease.covered == [(0, 50), (60, 75)]
    lease.cover(50, 10)
    assert lease.reads == 1


def test_damaged_bytes_that_were_set_aside_stay(rig: Rig) -> None:
    lease = rig.make("a")
    rig.files.replace_whole(f"{DIRECTORY}/00000001/x.segment.16.bad", b"damaged")
    rig.store.scrap(lease)
    assert rig.removed == []
    assert rig.files.list_directory(f"{DIRECTORY}/00000001") == ["x.segment.16.bad"]


def test_a_disk_that_refuses(rig: Rig) -> None:
    rig.files.fail("write", path="journal", times=-1)
    with pytest.raises(StorageError):
        rig.make("a")
    rig.files.heal()
    rig.files.fail("list")
    with pytest.raises(StorageError):
        rig.store.find(0)
