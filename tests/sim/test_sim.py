"""The simulation over a few hundred seeds; ``make sim SEEDS=10000`` runs as many as asked.

A failing seed says how to see it again: ``python -m tests.sim SEED``.
"""

import pytest

from tests.sim.canaries import CANARIES
from tests.sim.model import InvariantError
from tests.sim.runner import SimulationError, simulate

SEEDS = 300


def first_failure(*, lies: bool = False) -> SimulationError:
    for seed in range(SEEDS):
        try:
            simulate(seed, lies=lies)
        except SimulationError as failure:
            return failure
    pytest.fail("nothing was noticed")


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


@pytest.mark.parametrize(("owner", "method", "variant"), CANARIES)
def test_so_is_code_that_loses_more_than_it_may(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, variant: object
) -> None:
    monkeypatch.setattr(owner, method, variant)
    assert isinstance(first_failure().cause, InvariantError)


def test_a_seed_repeats_itself() -> None:
    assert simulate(7) == simulate(7)


def test_a_failure_names_its_seed_and_what_was_done() -> None:
    failure = first_failure(lies=True)
    header, *steps = str(failure).splitlines()
    assert header.startswith(f"seed {failure.seed}, step {failure.step}: ")
    assert len(steps) > failure.step
