"""What the README and the page on leases tell a reader to type, typed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon
from tests.ports import free_ports

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
LEASES = (ROOT / "docs" / "leases.md").read_text()


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def at(tcp_address: str, http_address: str, text: str) -> str:
    """The text with these addresses in the place of the default ones."""
    return text.replace("127.0.0.1:4150", tcp_address).replace("127.0.0.1:4151", http_address)


def test_the_shell_block(tmp_path: Path) -> None:
    (block,) = blocks("sh")
    tcp_address, http_address = (f"127.0.0.1:{port}" for port in free_ports(2))
    addresses = f"--tcp-address={tcp_address} --http-address={http_address}"
    assert block.count("nsqpy nsqd ") == 1
    script = at(tcp_address, http_address, block.replace("nsqpy nsqd ", f"nsqpy nsqd {addresses} "))
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"trap 'kill $(jobs -p); wait' EXIT\n{script}"],
        cwd=tmp_path,
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
        [sys.executable, "-c", at(nsqd.tcp_address, nsqd.http_address, block)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "one cup of tea\n"), result.stderr


def test_the_calls_of_leases(nsqd: Daemon, tmp_path: Path) -> None:
    (block,) = blocks("sh", LEASES)
    for what in ("topic/create?topic=orders", "channel/create?topic=orders&channel=lake"):
        assert nsqd.request(f"/{what}", b"").status == 200
    nsqd.publish("orders", b"tea", b"cake")
    script = at(nsqd.tcp_address, nsqd.http_address, block.replace("curl ", "curl -sf "))
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert '"count":2' in result.stdout
    assert result.stdout.endswith('{"leases":{"job-7":{"state":"committed"}}}')
    assert (tmp_path / "job-7.blocks").read_bytes().endswith(b"cake")


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
