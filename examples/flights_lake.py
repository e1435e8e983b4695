"""The demo's last act: a channel drained by a Spark job, its means checked, a chart of them."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from examples.flights_data import Delays

__all__ = ["LakeError", "LakeResult", "drain_lake"]

_ROOT = Path(__file__).resolve().parents[1]
_JOB_SECONDS = 150.0
_SHOWN_BYTES = 2_000


class LakeError(Exception):
    """The Spark job did not end well; the text says how."""


@dataclass(frozen=True, slots=True)
class LakeResult:
    """What the job did. ``differences`` is empty when every mean is the data set's own."""

    messages: int
    seconds: float
    carriers: int
    differences: list[str]
    left_behind: list[Path]


async def drain_lake(
    http_address: str, topic: str, channel: str, delays: Delays, out: Path
) -> LakeResult:
    """Run ``examples/spark_flights.py``, compare its means with ``delays``, draw them.

    Raises:
        LakeError: the job failed, or took too long.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.spark_flights"),
        *(f"--nsqd-http-address={http_address}", f"--topic={topic}", f"--channel={channel}"),
        f"--to={out}",
        cwd=_ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        told, errors = await asyncio.wait_for(process.communicate(), _JOB_SECONDS)
    except TimeoutError:
        raise LakeError(f"the Spark job was not done after {_JOB_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        ending = errors[-_SHOWN_BYTES:].decode(errors="replace")
        raise LakeError(f"the Spark job ended with {process.returncode}:\n{ending}")
    said = json.loads(told.splitlines()[-1])
    rows = pq.read_table(out / "delays").to_pylist()
    chart = out / "mean-delay.png"
    _draw({row["carrier"]: row["mean_delay"] for row in rows}, said["messages"], chart)
    return LakeResult(
        said["messages"],
        said["seconds"],
        len(rows),
        _differences(rows, delays),
        [out / "flights", out / "delays", chart],
    )


def _differences(rows: list[dict[str, Any]], delays: Delays) -> list[str]:
    here = {row["carrier"]: (row["arrived"], row["minutes_late"]) for row in rows}
    right = {
        carrier: (count, delays.minutes_late[carrier]) for carrier, count in delays.arrived.items()
    }
    found = [
        f"Spark, carrier {carrier}: arrived and minutes late are {here.get(carrier)}, not "
        f"{right.get(carrier)}"
        for carrier in sorted(here.keys() | right.keys())
        if here.get(carrier) != right.get(carrier)
    ]
    return found + [
        f"Spark, carrier {row['carrier']}: mean delay {row['mean_delay']}"
        for row in rows
        if row["mean_delay"] != delays.mean(row["carrier"])
    ]


def _draw(means: dict[str, float], messages: int, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    ordered = sorted(means.items(), key=lambda item: item[1])
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    bars = axes.barh([name for name, _ in ordered], [mean for _, mean in ordered])
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.1)
    axes.set_xlabel("mean delay at arrival, minutes")
    axes.set_ylabel("carrier")
    axes.set_title(f"Flights from New York in 2013, by carrier ({messages:,} messages)")
    figure.savefig(path, dpi=120)
    plt.close(figure)
