"""``python -m tests.sim SEED`` repeats one seed; ``--seeds N`` runs as many as asked."""

import argparse
import logging
import sys
import time

from rich.progress import track

from tests.sim.runner import SimulationError, simulate


def main() -> int:
    """0 if every seed holds, 1 at the first that does not."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="run this one, with the daemon's log")
    parser.add_argument("--seeds", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    options = parser.parse_args()
    if options.seed is not None:
        logging.basicConfig(level=logging.INFO, format="    %(message)s", stream=sys.stdout)
        sys.stdout.write(f"{simulate(options.seed, trace=sys.stdout.write)}\n")
        return 0
    logging.disable(logging.CRITICAL)
    started = time.monotonic()
    published = delivered = duplicates = damaged = 0
    seeds = range(options.first, options.first + options.seeds)
    for seed in track(seeds, "simulating", disable=not sys.stderr.isatty(), transient=True):
        try:
            outcome = simulate(seed)
        except SimulationError as error:
            sys.stdout.write(f"FAILED {error}\nrepeat it: python -m tests.sim {seed}\n")
            return 1
        published += outcome.published
        delivered += outcome.delivered
        duplicates += outcome.duplicates
        damaged += outcome.damaged
    seconds = time.monotonic() - started
    sys.stdout.write(
        f"{len(seeds)} seeds in {seconds:.0f} s: {published:,} messages acknowledged, 0 lost but "
        f"{damaged:,} copies to damage, {delivered:,} deliveries, {duplicates:,} of them again\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
