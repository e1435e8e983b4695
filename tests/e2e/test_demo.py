"""The demo, as a person runs it but with fewer flights."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.daemon import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def start_demo(tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    (tmp_path / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "examples.flights", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def daemons_below(path: Path) -> list[str]:
    """The command lines of running daemons whose data is below ``path``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text()
        except OSError:
            continue
        if str(path) in command:
            found.append(command)
    return found


def test_the_demo_checks_its_counts_and_leaves_only_tables_and_a_chart(tmp_path: Path) -> None:
    with start_demo(tmp_path, "20000", str(tmp_path / "out")) as demo:
        text, _ = demo.communicate(timeout=110)
    assert demo.returncode == 0, text
    assert "every count is right" in text
    assert text.count("20,000") >= 4
    assert list((tmp_path / "tmp").iterdir()) == []
    left = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert left == ["delays", "flights", "mean-delay.png"]
    assert (tmp_path / "out" / "mean-delay.png").read_bytes().startswith(b"\x89PNG")
    assert daemons_below(tmp_path) == []


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    with start_demo(tmp_path, "100000") as demo:
        wait_until(lambda: daemons_below(tmp_path), "the demo's daemon")
        demo.send_signal(signal.SIGINT)
        text, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, text
    assert "Traceback" not in text
    assert list((tmp_path / "tmp").iterdir()) == []
    assert daemons_below(tmp_path) == []


def test_a_wrong_argument_is_refused(tmp_path: Path) -> None:
    with start_demo(tmp_path, "many") as demo:
        text, _ = demo.communicate(timeout=60)
    assert (demo.returncode, text[:6]) == (2, "usage:")
