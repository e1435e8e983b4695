"""Runs seeds; each is a world of its own, repeatable to the last byte."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.world import World

__all__ = ["STEPS", "Outcome", "SimulationError", "simulate"]

STEPS = 150


class SimulationError(AssertionError):
    """A seed broke a promise; the text is what it did, step by step. Repeat it with
    ``python -m tests.sim SEED``."""

    def __init__(self, seed: int, world: World, step: int, cause: BaseException) -> None:
        super().__init__(seed, step)
        self.seed = seed
        self.step = step
        self.world = world
        self.cause = cause

    def __str__(self) -> str:
        world, config = self.world, self.world.config
        steps = [f"{number:4} {text}" for number, text in enumerate(world.trace, 1)]
        return (
            f"seed {self.seed}, step {self.step}: {self.cause!r}\n"
            f"durability {config.durability}, window {config.mem_queue_size}, segments of "
            f"{config.max_bytes_per_file} bytes; it could {', '.join(world.enabled)}\n"
            + "\n".join(steps)
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened under one seed, in messages; ``damaged`` are what damage took, and may."""

    published: int
    delivered: int
    duplicates: int
    damaged: int


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
    except Exception as cause:
        raise SimulationError(seed, world, done, cause) from cause
    deliveries = world.model.deliveries
    return Outcome(
        published=world.model.published,
        delivered=deliveries.total(),
        duplicates=deliveries.total() - len(deliveries),
        damaged=world.model.damaged,
    )
