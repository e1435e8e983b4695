"""Fixtures that every layer of the tests may ask for."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.certificates import Certificates
from tests.e2e.daemon import Daemon

StartDaemon = Callable[..., Daemon]


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Not to be changed by a test."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def start_nsqd(tmp_path: Path) -> Iterator[StartDaemon]:
    """Start the real daemon with the given flags; any number of them, each with its own data."""
    started: list[Daemon] = []

    def start(*flags: str) -> Daemon:
        data_path = tmp_path / f"nsqd-{len(started)}"
        data_path.mkdir()
        daemon = Daemon(data_path, *flags)
        started.append(daemon)
        return daemon.start()

    yield start
    for daemon in started:
        daemon.kill()
        # Captured, hence shown only for a test that failed.
        sys.stdout.write(f"--- log of the daemon in {daemon.data_path}\n{daemon.log}")


@pytest.fixture
def nsqd(start_nsqd: StartDaemon) -> Daemon:
    """One real daemon with default settings."""
    return start_nsqd()
