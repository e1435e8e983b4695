"""What the disk refused: told once, until it takes something again, and tried again meanwhile."""

import pytest

from nsqpy.clock import SECOND
from nsqpy.core.deadlines import NEVER
from nsqpy.core.disk_health import DiskHealth
from nsqpy.errors import StorageError

FULL = StorageError("data/q", "No space left on device")


@pytest.fixture
def health() -> DiskHealth:
    return DiskHealth()


def test_a_fault_lasts_until_a_write_succeeds(health: DiskHealth) -> None:
    assert str(health) == "OK"
    health.note_fault(FULL)
    assert str(health) == "NOK - data/q: No space left on device"
    health.note_success()
    assert str(health) == "OK"


def test_each_fault_is_logged_once_until_then(
    health: DiskHealth, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        health.note_fault(FULL)
        health.note_fault(StorageError("data/p", "Input/output error"))
    assert len(caplog.records) == 2
    health.note_success()
    health.note_fault(FULL)
    assert caplog.text.count("No space left") == 2


def test_of_very_many_faults_not_all_are_logged(
    health: DiskHealth, caplog: pytest.LogCaptureFixture
) -> None:
    for index in range(1000):
        health.note_fault(StorageError(f"data/{index}", "Input/output error"))
    assert len(caplog.records) == 100


def test_what_was_refused_is_tried_again_together(health: DiskHealth) -> None:
    tried: list[str] = []
    health.retry(0)
    assert health.retry_due_ns == NEVER
    health.retry_later(FULL, lambda: tried.append("a"), SECOND)
    health.retry_later(FULL, lambda: tried.append("b"), SECOND + 1)
    due_ns = health.retry_due_ns
    assert due_ns == SECOND + SECOND // 4
    health.retry(due_ns - 1)
    assert tried == []
    health.retry(due_ns)
    assert (tried, health.retry_due_ns) == (["a", "b"], NEVER)
