"""What becomes of messages whose delivery failed: another one, at once or later, or none."""

import logging
from collections.abc import Callable

from nsqpy.clock import Instant
from nsqpy.core.dead_letters import DeadLetterPolicy, DeadLetters, Publish, by_attempts
from nsqpy.core.deferred import DeferredMessages
from nsqpy.core.window import Run, Window
from nsqpy.errors import StorageError

__all__ = ["Redelivery"]

log = logging.getLogger(__name__)


class Redelivery:
    """Between a channel's flights and leases on one side, and its ``window``, its ``deferred``
    messages and its dead letters on the other. ``letters`` is None while there is no policy."""

    __slots__ = ("_deferred", "_name", "_window", "letters")

    def __init__(self, name: str, window: Window, deferred: DeferredMessages) -> None:
        self._name = name
        self._window = window
        self._deferred = deferred
        self.letters: DeadLetters | None = None

    def set_policy(
        self,
        policy: DeadLetterPolicy,
        topic: str,
        *,
        publish: Publish,
        put_back: Callable[[Run], None],
    ) -> None:
        """From here on ``policy`` says it; ``topic`` is its dead letter topic."""
        if self.letters is None:
            self.letters = DeadLetters(policy, topic, publish=publish, put_back=put_back)
        else:
            self.letters.policy, self.letters.topic = policy, topic

    def fail(self, run: Run, failure: str, delay_ns: int, now: Instant) -> int:
        """A delivery failed: there is another, unless the policy says that it was the last.
        ``delay_ns`` 0 leaves its time to the policy.

        Returns how many messages are available at once.
        """
        letters = self.letters
        if letters is None:
            return self._again(run, delay_ns, now)
        available = 0
        for part, attempts in by_attempts(run):
            if letters.policy.is_spent(attempts):
                letters.bury(part, failure)
            else:
                wait_ns = delay_ns or letters.policy.delay_ns(attempts)
                available += self._again(part, wait_ns, now)
        return available

    def _again(self, run: Run, delay_ns: int, now: Instant) -> int:
        if not delay_ns:
            self._window.put_run(run.again())
            return len(run)
        try:
            self._deferred.again(run, delay_ns, now)
        except StorageError as error:
            log.error("CHANNEL(%s): delay not stored - %s", self._name, error)
        return 0

    def fail_stored(self, run: Run, failure: str, now: Instant) -> tuple[int, int]:
        """As ``fail``, for so many messages that memory is no place for those to be delivered at
        once: they go to the queue's own log. Returns the range of it that all of them are in,
        which is empty if they are elsewhere.

        Raises:
            StorageError: they are where they were.
        """
        letters = self.letters
        if letters is None:
            first = self._window.store([run], raised=True)
            return first, first + len(run)
        policy = letters.policy
        at_once: list[Run] = []
        others: list[tuple[Run, int]] = []
        for part, attempts in by_attempts(run):
            if policy.is_spent(attempts) or policy.delay_ns(attempts):
                others.append((part, attempts))
            else:
                at_once.append(part)
        if at_once:
            self._window.store(at_once, raised=True)
        for part, attempts in others:
            if policy.is_spent(attempts):
                letters.bury(part, failure)
            else:
                self._again(part, policy.delay_ns(attempts), now)
        return 0, 0

    # -- on their way to the dead letter topic ----------------------------------------------

    @property
    def dying_count(self) -> int:
        return self.letters.pending_count if self.letters is not None else 0

    def dying(self) -> list[Run]:
        return self.letters.runs() if self.letters is not None else []

    def clear(self) -> list[Run]:
        """Take back what no dead letter topic has stored yet."""
        return self.letters.clear() if self.letters is not None else []
