"""What is to be done for leases next, in steps: nothing of it may take long."""

from collections.abc import Callable

from nsqpy.clock import Instant
from nsqpy.core.lease import Lease
from nsqpy.errors import StorageError

__all__ = ["LeaseWork", "Step"]

Step = Callable[[Lease, Instant], None]


class LeaseWork:
    """Steps in their order, each once; what follows a step goes behind the others.

    ``rouse`` has ``step`` called. ``when_safe`` calls back once all that has been written is as
    safe as ``--durability`` asks. ``exists`` tells whether there is such a lease still.
    """

    def __init__(
        self,
        *,
        rouse: Callable[[], None],
        when_safe: Callable[[Callable[[StorageError | None], None]], None],
        exists: Callable[[Lease], bool],
    ) -> None:
        self._rouse = rouse
        self._when_safe = when_safe
        self._exists = exists
        self._steps: dict[tuple[Step, Lease], None] = {}

    def add(self, step: Step, lease: Lease) -> None:
        self._steps[step, lease] = None
        self._rouse()

    def add_when_safe(self, step: Step, lease: Lease) -> None:
        """Add ``step`` once all that is written is safe. A device that refuses is asked again;
        who waits for the lease is told."""

        def note(error: StorageError | None) -> None:
            if not self._exists(lease):
                return  # the channel has been emptied or deleted meanwhile
            if error is None:
                self.add(step, lease)
            else:
                lease.answer(error)
                self.add_when_safe(step, lease)

        self._when_safe(note)

    def take_step(self, now: Instant) -> None:
        """Do the next thing that is to be done.

        Raises:
            StorageError: the disk refused; it will be tried again when this is called again.
        """
        if not self._steps:
            return
        step, lease = next(iter(self._steps))
        del self._steps[step, lease]
        try:
            step(lease, now)
        except StorageError:
            self._steps[step, lease] = None
            raise
        if self._steps:
            self._rouse()

    def clear(self) -> None:
        self._steps.clear()
