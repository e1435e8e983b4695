"""The command line of ``python -m tests.chaos``."""

import shlex
import sys
from dataclasses import dataclass

from nsqpy.config import Durability
from nsqpy.options import one_of, option

__all__ = ["ChaosOptions"]

# Small windows and segments, so that every run overflows, rolls and deletes many of them.
_SMALL = ("--mem-queue-size=200", "--max-bytes-per-file=262144", "--log-level=warn")


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    kills: int = option(100, minimum=0, help="how often the daemon is killed")
    seed: int = option(1, help="what all that is random is drawn from")
    durability: Durability = option(  # noqa: RUF009 - it makes a dataclass field
        Durability.DISK, parse=one_of(Durability), metavar="LEVEL", help="of nsqpy's own daemon"
    )
    daemon: str = option(
        "", metavar="COMMAND",
        help="another NSQ daemon; --tcp-address, --http-address and --data-path are appended",
    )  # fmt: skip
    quiet: float = option(
        8.0, above=0, help="seconds without any arrival after which what is owed is lost"
    )
    disk_full: bool = option(False, help="instead of kills: fill a small file system")
    read_only: bool = option(False, help="instead of kills: take the right to write away")
    json: bool = option(False, help="print the figures as JSON")
    verbose: bool = option(False, help="show the daemon's log also when all is well")

    def command(self, *extra: str) -> list[str]:
        """The daemon's command; ``extra`` are flags that every NSQ daemon knows."""
        if self.daemon:
            return [*shlex.split(self.daemon), *extra]
        program = (sys.executable, "-m", "nsqpy", "nsqd")
        return [*program, f"--durability={self.durability.value}", *_SMALL, *extra]
