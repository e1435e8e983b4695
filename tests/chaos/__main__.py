"""Kill a daemon at random moments, hundreds of times, and count what it lost: ``make chaos``.

    python -m tests.chaos [--kills=100] [--seed=1] [--durability=disk] [--json]
    python -m tests.chaos --daemon="nsqd --mem-queue-size=0"      (any NSQ daemon)
    python -m tests.chaos --disk-full | --read-only

It exits with 0 if nothing that was acknowledged is lost, mangled or early; duplicates are counted.
A seed repeats what is sent and when is killed, not how the system schedules it.
"""

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nsqpy.options import parse_flags
from tests.chaos.ledger import Lives
from tests.chaos.mounts import NotPermittedError
from tests.chaos.options import ChaosOptions
from tests.chaos.refusal import RefusalReport, fill_disk, take_write_away
from tests.chaos.report import losses, verdict
from tests.chaos.storm import Storm, Strength
from tests.chaos.target import ChaosError, Target

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run and print; the exit status."""
    options = parse_flags(ChaosOptions, arguments, "python -m tests.chaos", intro=__doc__ or "")
    notes = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    work = Path(tempfile.mkdtemp(prefix="chaos-"))
    status = 1
    try:
        status = _run(options, work, notes)
    finally:
        if status:
            notes.print(f"chaos: what the daemon left is in {work}")
        else:
            shutil.rmtree(work)
    return status


def _run(options: ChaosOptions, work: Path, notes: Console) -> int:
    try:
        if options.disk_full:
            return _tell(asyncio.run(fill_disk(options, work)), options, notes)
        if options.read_only:
            return _tell(asyncio.run(take_write_away(options, work)), options, notes)
        return asyncio.run(_storm(options, work, notes))
    except NotPermittedError as error:
        notes.print(f"chaos: skipped: {error}")
        return 0
    except ChaosError as error:
        notes.print(f"chaos: seed {options.seed}: FAILED: {error}")
        return 1


async def _storm(options: ChaosOptions, work: Path, notes: Console) -> int:
    data_path = work / "data"
    data_path.mkdir()
    target = Target(options.command(), data_path, work / "log", Lives())
    progress = Progress(
        TextColumn("killing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=notes, disable=not notes.is_terminal, transient=True,
    )  # fmt: skip
    bar = progress.add_task("", total=options.kills)
    storm = Storm(
        target,
        Strength(options.kills, options.seed, options.quiet),
        lambda kills: progress.update(bar, completed=kills),
    )
    began = time.monotonic()
    passed = False
    try:
        with progress:
            await storm.run()
        found = verdict(
            target,
            storm.ledger,
            seed=options.seed,
            kills=options.kills,
            seconds=time.monotonic() - began,
        )
        passed = found.passed
        for line in losses(storm.ledger):
            notes.print(line)
        sys.stdout.write(f"{json.dumps(found.as_dict()) if options.json else found.line}\n")
    finally:
        target.close()
        if options.verbose or not passed:
            notes.print(f"--- the end of the daemon's log\n{target.log_tail}")
    return 0 if passed else 1


def _tell(report: RefusalReport, options: ChaosOptions, notes: Console) -> int:
    if options.verbose or not report.passed:
        notes.print(f"--- the end of the daemon's log\n{report.log_tail}")
    for line in report.faults:
        notes.print(f"chaos: FAILED: {line}")
    sys.stdout.write(f"{json.dumps(report.as_dict()) if options.json else report.line}\n")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
