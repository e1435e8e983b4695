"""The simulation over a few hundred seeds; ``make sim SEEDS=10000`` runs as many as asked.

A failing seed says how to see it again: ``python -m tests.sim SEED``.
"""

import pytest

from tests.sim.runner import SimulationError, simulate

SEEDS = 300


def test_every_invariant_holds_after_every_step() -> None:
    for seed in range(SEEDS):
        simulate(seed)


def test_a_disk_that_loses_writes_in_silence_is_found_out() -> None:
    # The canary: if this passes unnoticed, the checks above check nothing.
    found = 0
    for seed in range(20):
        try:
            simulate(seed, lies=True)
        except SimulationError:
            found += 1
    assert found >= 10, "a disk that forgets is not noticed"


def test_a_seed_repeats_itself() -> None:
    assert simulate(7) == simulate(7)


def test_a_failure_names_its_seed() -> None:
    def until_one_fails() -> None:
        for seed in range(20):
            simulate(seed, lies=True)

    with pytest.raises(SimulationError, match=r"seed \d+, step \d+"):
        until_one_fails()
