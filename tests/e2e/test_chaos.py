"""The short form of ``make chaos``: a few kills, and what the count itself would not overlook."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.ledger import Ledger, body_of, make_key

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def chaos(work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(work)},  # a failure leaves its data there
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_nothing_acknowledged_is_lost_by_kills_at_random_moments(tmp_path: Path) -> None:
    result = chaos(tmp_path, "--kills=4", "--seed=3", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["kills"], report["passed"]) == (4, True)
    assert (report["lost"], report["early"], report["mangled"]) == (0, 0, 0)
    assert report["acknowledged"] > 0
    assert 0 < report["recovery_median_s"] <= report["recovery_max_s"]


def test_a_daemon_that_keeps_its_queues_in_memory_is_caught(tmp_path: Path) -> None:
    command = f"{sys.executable} -m nsqpy nsqd --durability=memory --log-level=warn"
    result = chaos(tmp_path, "--kills=1", "--seed=3", "--quiet=3.5", f"--daemon={command}")
    assert result.returncode == 1, result.stdout
    assert " acknowledged at " in result.stderr
    assert " 0 lost" not in result.stdout


def test_a_daemon_that_does_not_start_is_said_to(tmp_path: Path) -> None:
    result = chaos(tmp_path, "--kills=1", "--daemon=false")
    assert result.returncode == 1
    assert "the daemon ended by itself with 1" in result.stderr


def test_the_ledger_tells_duplicates_early_and_mangled_deliveries() -> None:
    ledger = Ledger()
    book = ledger.add_channel("t", "c")
    plain, late = make_key(0, 1, 0, 60), make_key(0, 2, 1 << 62, 60)
    ledger.acknowledge(ledger.creditors("t"), [plain, late], "PUB")
    assert ledger.owed == 2

    assert book.receive(b"id-1", body_of(plain)) == plain
    assert (book.duplicates, book.redelivered) == (0, 0)
    book.finish(plain, life=0)
    assert ledger.owed == 1
    book.receive(b"id-1", body_of(plain))
    assert (book.duplicates, book.redelivered) == (1, 1)

    book.receive(b"id-2", body_of(late))
    assert len(book.early) == 1
    book.receive(b"id-2", body_of(late)[:-1])
    assert book.mangled == [body_of(late)[:-1]]


def test_an_arrival_before_its_ok_is_not_owed_afterwards() -> None:
    ledger = Ledger()
    book = ledger.add_channel("t", "c")
    key = make_key(0, 1, 0, 60)
    book.finish(book.receive(b"id", body_of(key)), life=0)
    ledger.acknowledge(ledger.creditors("t"), [key], "PUB")
    assert (ledger.owed, book.acknowledged) == (0, 1)


def test_a_requeued_message_is_early_unless_a_kill_may_have_left_it_twice() -> None:
    ledger = Ledger()
    book = ledger.add_channel("t", "c")
    key = make_key(0, 1, 0, 60)
    ledger.acknowledge(ledger.creditors("t"), [key], "PUB")
    book.hold(b"id", key, 60_000, life=0)
    book.receive(b"id", body_of(key))
    assert len(book.early) == 1

    book.hold(b"id", key, 60_000, life=0)
    ledger.lives.end()
    ledger.lives.begin()
    book.receive(b"id", body_of(key))
    assert len(book.early) == 1
