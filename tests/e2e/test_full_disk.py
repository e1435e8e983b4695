"""A running daemon whose disk takes no more: refused at once, said why, drained, and healed."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.chaos.mounts import NotPermittedError
from tests.chaos.options import ChaosOptions
from tests.chaos.refusal import REFUSED_WITHIN_MS, RefusalReport, fill_disk, take_write_away

pytestmark = pytest.mark.slow

Story = Callable[[ChaosOptions, Path], Awaitable[RefusalReport]]


def told(story: Story, work: Path) -> RefusalReport:
    async def tell() -> RefusalReport:
        return await story(ChaosOptions(), work)

    try:
        return asyncio.run(tell())
    except NotPermittedError as error:
        pytest.skip(str(error))


def check(report: RefusalReport) -> None:
    assert report.faults == [], f"{report.line}\n--- log of the daemon\n{report.log_tail}"
    assert report.lost == 0
    assert report.refusals > 0
    assert report.refused_p99_ms <= REFUSED_WITHIN_MS


def test_a_full_disk(tmp_path: Path) -> None:
    report = told(fill_disk, tmp_path)
    check(report)
    assert report.ping.startswith("NOK - ")
    assert report.ping.endswith("No space left on device")


def test_a_directory_that_becomes_read_only(tmp_path: Path) -> None:
    report = told(take_write_away, tmp_path)
    check(report)
    assert report.ping.startswith("NOK - ")
    assert report.ping.endswith("Permission denied")
