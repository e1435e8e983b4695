"""Kill the driver and the daemon at random while one streams into a table: ``make chaos-spark``.

    python -m tests.spark.chaos [--kills=50] [--seed=1]

A publisher numbers its messages. The table, as Spark reads it in the end, has to hold every number
that was acknowledged, and none twice; a number whose publish was cut off may be there or not. Exit
status 0 if so.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from nsqpy.client.nodes import HTTPNode, NodeAddress, NodeUnavailable
from nsqpy.errors import NSQError
from nsqpy.options import option, parse_flags
from tests.e2e.daemon import Daemon, wait_until
from tests.ports import free_port
from tests.spark.messages import CHANNEL, TOPIC, waiting

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[2]
_BATCH = 20
_PUBLISH_PAUSE_S = 0.02
_MAX_MESSAGES = "2000"
_PROGRESS_SECONDS = 150.0
_DRAIN_SECONDS = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    kills: int = option(50, minimum=1, help="how many processes to kill, drivers and daemons")
    seed: int = option(1, help="what the moments are drawn from")


@dataclass
class Publisher:
    """Publishes numbers in a thread, one batch after the other, until it is stopped."""

    address: NodeAddress
    acknowledged: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        first = 0
        with HTTPNode(self.address, patience_s=0) as node:
            while not self.stopped.wait(_PUBLISH_PAUSE_S):
                numbers = range(first, first + _BATCH)
                first += _BATCH
                try:
                    node.publish(TOPIC, [b"%d|" % number for number in numbers])
                except NodeUnavailable:
                    self.doubtful.update(numbers)
                else:
                    self.acknowledged.update(numbers)


class Driver:
    """The streaming job as a process group, started again after each end."""

    def __init__(self, work: Path, address: str) -> None:
        self._command = [
            *(sys.executable, "-m", "tests.spark.driver", address),
            *(str(work / "checkpoint"), str(work / "out"), "stream", _MAX_MESSAGES),
        ]
        self._commits = work / "checkpoint" / "commits"
        self.log = work / "driver.log"
        self.ended_by_itself = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.committed_at_start = 0

    def start(self) -> None:
        self.committed_at_start = self.committed()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=_ROOT,
                env={**os.environ, "PYTHONWARNINGS": "ignore", "SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def check(self) -> None:
        """Start it again if the query has failed, which a long enough outage may make it do."""
        assert self._process is not None
        if self._process.poll() is not None:
            self.ended_by_itself += 1
            self.start()

    def kill(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def committed(self) -> int:
        """How many batches Spark has committed, over all starts; it keeps the last hundred."""
        if not self._commits.exists():
            return 0
        numbers = [int(path.name) for path in self._commits.iterdir() if path.name.isdecimal()]
        return max(numbers, default=-1) + 1

    def wait_batch(self) -> None:
        """Until it has committed a batch since it was started."""

        def progressed() -> bool:
            self.check()
            return self.committed() > self.committed_at_start

        wait_until(progressed, "a batch of the stream", _PROGRESS_SECONDS)


@dataclass(frozen=True, slots=True)
class Kills:
    """How often whom."""

    driver: int
    daemon: int


def main(arguments: Sequence[str]) -> int:
    options = parse_flags(_Options, arguments, "python -m tests.spark.chaos", intro=__doc__ or "")
    work = Path(tempfile.mkdtemp(prefix="chaos-spark-"))
    (work / "data").mkdir()
    began_s = time.monotonic()
    port = free_port()
    with Daemon(work / "data", f"--http-address=127.0.0.1:{port}") as nsqd:
        address = NodeAddress.parse(nsqd.http_address)
        with HTTPNode(address) as node:
            node.call("POST", "/topic/create", {"topic": TOPIC})
            node.create_channel(TOPIC, CHANNEL)
        driver = Driver(work, str(address))
        publisher = Publisher(address)
        thread = threading.Thread(target=publisher.run, daemon=True)
        thread.start()
        driver.start()
        try:
            kills = _storm(options, nsqd, driver)
            publisher.stopped.set()
            thread.join()
            wait_until(lambda: _empty(nsqd, driver), "an empty channel", _DRAIN_SECONDS)
        finally:
            publisher.stopped.set()
            driver.kill()
    faults = _faults(_table(work / "out"), publisher)
    sys.stdout.write(
        f"chaos-spark: seed {options.seed}: {kills.driver} kills of the driver, {kills.daemon} of "
        f"the daemon in {time.monotonic() - began_s:.0f} s; {len(publisher.acknowledged):,} "
        f"messages acknowledged, {len(publisher.doubtful):,} cut off, {driver.committed():,} "
        f"batches, {driver.ended_by_itself} queries failed and began again: "
        f"{'; '.join(faults) or 'every message in the table once'}\n"
    )
    if faults:
        sys.stderr.write(f"chaos-spark: what it left is in {work}\n")
        return 1
    shutil.rmtree(work)
    return 0


def _storm(options: _Options, nsqd: Daemon, driver: Driver) -> Kills:
    """Kill one or the other, wherever they are: at the start, in a batch, between two."""
    rng = random.Random(options.seed)
    drivers = 0
    for number in range(1, options.kills + 1):
        if rng.random() < 0.5:
            # Mostly while it works; now and then while it is still starting or recovering.
            if rng.random() < 0.85:
                driver.wait_batch()
            time.sleep(rng.uniform(0, 2))
            driver.kill()
            driver.start()
            drivers += 1
            victim = "driver"
        else:
            time.sleep(rng.uniform(0.1, 3))
            nsqd.kill()
            nsqd.start()
            victim = "daemon"
        driver.check()
        sys.stderr.write(f"chaos-spark: {number}/{options.kills} {victim}\n")
    return Kills(drivers, options.kills - drivers)


def _empty(nsqd: Daemon, driver: Driver) -> bool:
    driver.check()
    try:
        return waiting(nsqd) == (0, 0)
    except (NSQError, OSError):
        return False


def _table(out: Path) -> Counter[int]:
    """How often each number is in the table, as Spark reads it: rows of failed attempts are not."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        rows = spark.read.parquet(str(out)).selectExpr("cast(body as string) as body").collect()
        return Counter(int(row.body.partition("|")[0]) for row in rows)
    finally:
        spark.stop()


def _faults(table: Counter[int], publisher: Publisher) -> list[str]:
    lost = publisher.acknowledged - table.keys()
    twice = [number for number, count in table.items() if count > 1]
    unknown = table.keys() - publisher.acknowledged - publisher.doubtful
    return [
        f"{len(found):,} {what}, such as {sorted(found)[:5]}"
        for what, found in (("lost", lost), ("more than once", twice), ("from nowhere", unknown))
        if found
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
