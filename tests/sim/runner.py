"""Runs seeds; each is a world of its own, repeatable to the last byte."""

from collections.abc import Callable
from dataclasses import dataclass

from nsqpy.errors import NSQError
from tests.sim.world import World

__all__ = ["STEPS", "Outcome", "SimulationError", "simulate"]

STEPS = 150


class SimulationError(AssertionError):
    """A seed broke a promise. Repeat it with ``python -m tests.sim SEED``."""

    def __init__(self, seed: int, world: World, step: int, cause: BaseException) -> None:
        super().__init__(seed, step)
        self.seed = seed
        self.step = step
        self.world = world
        self.cause = cause

    def __str__(self) -> str:
        config = self.world.config
        return (
            f"seed {self.seed}, step {self.step}: {self.cause!r}; durability {config.durability}, "
            f"window {config.mem_queue_size}, segments of {config.max_bytes_per_file}; "
            f"last commands: {' '.join(self.world.trace[-12:])}"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened under one seed, in messages."""

    published: int
    delivered: int
    duplicates: int


def simulate(
    seed: int,
    *,
    steps: int = STEPS,
    lies: bool = False,
    trace: Callable[[str], object] | None = None,
) -> Outcome:
    """Run one seed to its end; ``trace`` gets a line for each step.

    Raises:
        SimulationError: an invariant does not hold, or the daemon failed.
    """
    world = World(seed, lies=lies)
    done = 0
    try:
        for done in range(1, steps + 1):
            world.step()
            if trace is not None:
                trace(f"{done} {world.trace[-1]}\n")
        world.drain()
    except (AssertionError, NSQError, OSError, LookupError, TypeError, ValueError) as cause:
        raise SimulationError(seed, world, done, cause) from cause
    deliveries = world.model.deliveries
    return Outcome(
        published=world.model.published,
        delivered=deliveries.total(),
        duplicates=deliveries.total() - len(deliveries),
    )
