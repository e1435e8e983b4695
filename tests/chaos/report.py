"""What a run found, in one line, as JSON, and in full where something was lost."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median

from tests.chaos.ledger import ChannelBook, Ledger, body_of
from tests.chaos.target import Target

__all__ = ["Verdict", "losses", "verdict"]

_SHOWN_MAX = 20
_SHOWN_BYTES = 120


@dataclass(frozen=True, slots=True)
class Verdict:
    """Counts of one run. ``acknowledged`` are messages; ``owed`` are those times their channels.

    ``duplicates`` came after they were finished, ``stale`` ones a second after and more;
    ``redelivered`` is all that came more than once, also what was handed back or in flight.
    """

    seed: int
    kills: int
    seconds: float
    acknowledged: int
    owed: int
    lost: int
    duplicates: int
    stale: int
    redelivered: int
    early: int
    mangled: int
    refused: int
    recovery_median_s: float
    recovery_max_s: float

    @property
    def passed(self) -> bool:
        return not (self.lost or self.early or self.mangled)

    @property
    def line(self) -> str:
        return (
            f"chaos: seed {self.seed}: {self.kills:,} kills in {self.seconds:.0f} s; "
            f"{self.acknowledged:,} messages acknowledged, {self.owed:,} deliveries owed: "
            f"{self.lost:,} lost, {self.mangled:,} mangled, {self.early:,} early, "
            f"{self.duplicates:,} duplicates ({self.stale:,} stale), {self.refused:,} refused; "
            f"recovery median {self.recovery_median_s:.2f} s, max {self.recovery_max_s:.2f} s"
        )

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "passed": self.passed}


def verdict(target: Target, ledger: Ledger, *, seed: int, kills: int, seconds: float) -> Verdict:
    books = list(ledger.books)
    recoveries = target.recoveries_s or [0.0]
    return Verdict(
        seed=seed,
        kills=kills,
        seconds=round(seconds, 1),
        acknowledged=ledger.messages,
        owed=sum(book.acknowledged for book in books),
        lost=ledger.owed,
        duplicates=sum(book.duplicates for book in books),
        stale=sum(book.stale for book in books),
        redelivered=sum(book.redelivered for book in books),
        early=sum(len(book.early) for book in books),
        mangled=sum(len(book.mangled) for book in books),
        refused=ledger.refused,
        recovery_median_s=round(median(recoveries), 3),
        recovery_max_s=round(max(recoveries), 3),
    )


def losses(ledger: Ledger) -> Iterator[str]:
    """A line for each thing that must not be, up to a bound."""
    for book in ledger.books:
        found = [*_lost(book), *book.early, *(f"mangled: {body!r:.200}" for body in book.mangled)]
        for line in found[:_SHOWN_MAX]:
            yield f"{book.topic}/{book.channel}: {line}"
        if len(found) > _SHOWN_MAX:
            yield f"{book.topic}/{book.channel}: and {len(found) - _SHOWN_MAX:,} more"


def _lost(book: ChannelBook) -> Iterator[str]:
    for key, note in book.owed.items():
        when = datetime.fromtimestamp(note.at_ns / 1e9, UTC).strftime("%H:%M:%S.%f")
        yield f"lost: {note.how} acknowledged at {when}: {body_of(key)[:_SHOWN_BYTES].decode()}"
