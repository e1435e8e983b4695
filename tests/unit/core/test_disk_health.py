"""What the disk refused: told once, until it takes such a thing again, tried again meanwhile."""

import pytest

from nsqpy.clock import SECOND
from nsqpy.core.deadlines import NEVER
from nsqpy.core.disk_health import DiskHealth, Work
from nsqpy.errors import StorageError

FULL = StorageError("data/q", "No space left on device")
BROKEN = StorageError("data/p", "Input/output error")


class Rig:
    """A disk with room for ``room_bytes``, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ns = SECOND
        self.room_bytes = 1 << 30
        self.probes: list[int] = []
        self.retries_asked_for = 0
        self.health = DiskHealth(
            probe=self._probe, turn_ns=lambda: self.now_ns, on_retry=self._on_retry
        )

    def _probe(self, size_bytes: int) -> None:
        self.probes.append(size_bytes)
        if size_bytes > self.room_bytes:
            raise StorageError("data/probe", "No space left on device")

    def _on_retry(self) -> None:
        self.retries_asked_for += 1

    def advance(self) -> None:
        """To the next retry, and through the turn that makes it."""
        self.now_ns = self.health.retry_due_ns
        self.health.retry(self.now_ns)
        self.health.end_turn()


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def health(rig: Rig) -> DiskHealth:
    return rig.health


def test_a_fault_lasts_until_a_write_succeeds(health: DiskHealth) -> None:
    assert str(health) == "OK"
    health.note_fault(FULL)
    assert str(health) == "NOK - data/q: No space left on device"
    health.note_success()
    assert str(health) == "OK"


@pytest.mark.parametrize("work", Work)
def test_that_other_work_succeeds_says_nothing(health: DiskHealth, work: Work) -> None:
    health.note_fault(FULL, work)
    for other in Work:
        if other is not work:
            health.note_success(other)
    assert str(health) != "OK"
    health.note_success(work)
    assert str(health) == "OK"


def test_the_last_fault_that_lasts_is_told(health: DiskHealth) -> None:
    health.note_fault(FULL)
    health.note_fault(BROKEN, Work.SYNC)
    assert health.fault == str(BROKEN)
    health.note_fault(FULL)
    assert health.fault == str(FULL)
    health.note_success()
    assert health.fault == str(BROKEN)


def test_each_fault_is_logged_once_until_all_is_well(
    health: DiskHealth, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        health.note_fault(FULL)
        health.note_fault(BROKEN, Work.SYNC)
        health.note_success()
    assert len(caplog.records) == 2
    health.note_success(Work.SYNC)
    health.note_fault(FULL)
    assert caplog.text.count("No space left") == 2


def test_of_very_many_faults_not_all_are_logged(
    health: DiskHealth, caplog: pytest.LogCaptureFixture
) -> None:
    for index in range(1000):
        health.note_fault(StorageError(f"data/{index}", "Input/output error"))
    assert len(caplog.records) == 100


def test_what_was_refused_is_tried_again_together(rig: Rig, health: DiskHealth) -> None:
    tried: list[str] = []
    health.retry(0)
    assert health.retry_due_ns == NEVER
    health.retry_later(FULL, lambda: tried.append("a"))
    rig.now_ns += 1
    health.retry_later(FULL, lambda: tried.append("b"))
    due_ns = health.retry_due_ns
    assert due_ns == SECOND + SECOND // 4
    assert rig.retries_asked_for == 1
    health.retry(due_ns - 1)
    assert tried == []
    health.retry(due_ns)
    assert (tried, health.retry_due_ns) == (["a", "b"], NEVER)
    health.end_turn()
    assert (str(health), rig.probes) == ("OK", [])


def test_what_fails_again_in_its_turn_is_still_a_fault(rig: Rig, health: DiskHealth) -> None:
    health.retry_later(FULL, lambda: health.retry_later(FULL, lambda: None))
    rig.advance()
    assert str(health) != "OK"
    rig.advance()
    assert str(health) == "OK"


def test_the_disk_is_tried_for_a_publisher_who_does_not_ask_again(
    rig: Rig, health: DiskHealth
) -> None:
    rig.room_bytes = 10_000
    health.note_refused(FULL, 50_000)
    health.note_refused(FULL, 20_000)
    for _ in range(3):
        rig.advance()
        assert str(health) == f"NOK - {FULL}"
    rig.room_bytes = 60_000
    rig.advance()
    assert str(health) == "OK"
    assert rig.probes == [50_000] * 4
    assert health.retry_due_ns == NEVER


@pytest.mark.parametrize(("refused_bytes", "probed_bytes"), [(1, 4096), (1 << 30, 1 << 20)])
def test_with_a_bounded_number_of_bytes(rig: Rig, refused_bytes: int, probed_bytes: int) -> None:
    rig.health.note_refused(FULL, refused_bytes)
    rig.advance()
    assert rig.probes == [probed_bytes]
