"""What the README tells a reader to type, typed."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def at_addresses_of(nsqd: Daemon, text: str) -> str:
    """The text with the real daemon's addresses in the place of the default ones."""
    return text.replace("127.0.0.1:4150", nsqd.tcp_address).replace(
        "127.0.0.1:4151", nsqd.http_address
    )


def test_the_shell_block(start_nsqd: StartDaemon) -> None:
    (block,) = blocks("sh")
    first, rest = block.split("\n", 1)
    # The fixture starts the daemon, on ports and with data of its own.
    words = shlex.split(first.rstrip("& "))
    assert words[:2] == ["nsqpy", "nsqd"]
    flags = [word for word in words[2:] if not word.startswith("--data-path=")]
    nsqd = start_nsqd(*flags)
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", at_addresses_of(nsqd, rest)],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    # curl's OK, what tail printed, and the statistics.
    assert result.stdout.startswith("OK")
    assert sorted(result.stdout[2:].splitlines()[:3]) == ["hello world", "one", "two"]
    assert "greetings" in result.stdout.split("two")[-1]


def test_the_python_block(nsqd: Daemon) -> None:
    (block,) = blocks("python")
    result = subprocess.run(
        [sys.executable, "-c", at_addresses_of(nsqd, block)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "one cup of tea\n"), result.stderr


def test_every_make_target_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+)$", README, re.MULTILINE))
    targets = {one or other for one, other in named}
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_file_named_exists() -> None:
    for name in re.findall(r"`((?:nsqpy|docs|tests)/[\w/.]+)`", README):
        assert (ROOT / name).exists(), name
