"""Messages in flight: what one dispatch gave one consumer, under one deadline."""

from nsqpy.core.deadlines import NEVER
from nsqpy.core.subscription import Subscription
from nsqpy.core.window import Run
from nsqpy.message import MessageID

__all__ = ["Flight"]


class Flight:
    """The messages of ``runs``, of which ``remaining`` have not been answered.

    Consumers mostly answer in the order of delivery, so the answered ones are a prefix
    (``answered``) and a set of exceptions behind it (``holes``). Messages are named by their
    place in the flight, which changes when the flight shrinks.
    """

    __slots__ = (
        "_places",
        "_run",
        "_run_at",
        "answered",
        "deadline_ns",
        "delivered_ns",
        "holes",
        "ids",
        "remaining",
        "runs",
        "subscription",
    )

    def __init__(
        self, subscription: Subscription, runs: list[Run], ids: list[MessageID], now_ns: int
    ) -> None:
        self.subscription = subscription
        self.runs = runs
        self.ids = ids
        self.delivered_ns = now_ns
        self.deadline_ns = NEVER
        self.remaining = len(ids)
        self.answered = 0
        self.holes: set[int] = set()
        self._places: dict[MessageID, int] | None = None
        self._run = 0  # the run that holds place ``_run_at``, to go through runs only once
        self._run_at = 0

    def place(self, message_id: MessageID) -> int:
        if self.ids[self.answered] == message_id:
            return self.answered
        if self._places is None:
            self._places = {known: place for place, known in enumerate(self.ids)}
        return self._places[message_id]

    def answer(self, start: int, stop: int) -> list[Run]:
        """Take messages ``start`` to ``stop`` out of the flight; what they are, as runs."""
        taken = self.runs_between(start, stop)
        self.remaining -= stop - start
        if start == self.answered:
            self.answered = stop
            while self.answered in self.holes:
                self.holes.remove(self.answered)
                self.answered += 1
        else:
            self.holes.update(range(start, stop))
        return taken

    def shrink(self) -> None:
        """Let go of what has been answered once that is nearly all: a few messages that take
        long must not keep whole batches in memory. It costs a copy of an eighth at most."""
        if self.remaining * 8 >= len(self.ids):
            return
        runs = self.left()
        ids = [one for start, stop in self.unanswered() for one in self.ids[start:stop]]
        for run in runs:
            run.compact()
        self.runs, self.ids = runs, ids
        self.answered = self._run = self._run_at = 0
        self.holes = set()
        self._places = None

    def unanswered(self) -> list[tuple[int, int]]:
        """The stretches of places that are left."""
        stretches = []
        start = self.answered
        for hole in sorted(self.holes):
            if hole > start:
                stretches.append((start, hole))
            start = hole + 1
        if start < len(self.ids):
            stretches.append((start, len(self.ids)))
        return stretches

    def left(self) -> list[Run]:
        """What has not been answered."""
        return [run for start, stop in self.unanswered() for run in self.runs_between(start, stop)]

    def runs_between(self, start: int, stop: int) -> list[Run]:
        """What messages ``start`` to ``stop`` are, without taking them out."""
        index, at = (self._run, self._run_at) if start >= self._run_at else (0, 0)
        taken = []
        while start < stop:
            run = self.runs[index]
            run_stop = at + len(run)
            if start < run_stop:
                self._run, self._run_at = index, at
                end = min(stop, run_stop)
                taken.append(run if end - start == len(run) else run.part(start - at, end - at))
                start = end
            if start >= run_stop:
                at = run_stop
                index += 1
        return taken
