"""One Spark session for every test here: starting one takes longer than most of them."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsqpy.spark import register
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon
from tests.e2e.test_lookupd import LookupDaemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

StartListed = Callable[..., Daemon]


# The demo's data set brings pandas, which no data source needs.
_PANDAS = "ignore:PySpark does not yet fully support pandas:FutureWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.nodeid:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.filterwarnings(_PANDAS))


@pytest.fixture
def lookupd(tmp_path: Path) -> Iterator[Daemon]:
    """``nsqpy nsqlookupd``, which knows nobody yet."""
    with LookupDaemon(tmp_path) as running:
        yield running


@pytest.fixture
def start_listed(start_nsqd: StartDaemon, lookupd: Daemon) -> StartListed:
    """Start a daemon that tells ``lookupd`` of itself; ``wait_listed`` waits until that knows."""

    def start(*flags: str) -> Daemon:
        return start_nsqd(
            f"--lookupd-tcp-address={lookupd.tcp_address}",
            "--broadcast-address=127.0.0.1",
            *flags,
        )

    return start


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Two tasks at a time, and three attempts for each: ``local[2]`` would allow one."""
    from pyspark.sql import SparkSession

    # Unset, the workers would run whatever python3 is on the path.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # For every JVM that a test starts: most live for seconds, and two cores are few.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("nsqpy tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()
