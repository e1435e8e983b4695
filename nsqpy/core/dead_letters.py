"""What becomes of a message that fails again and again: later each time, in the end set aside.

A channel's ``DeadLetterPolicy`` says when; its ``DeadLetters`` hold what is on its way into the
dead letter topic. There every dead letter reaches the channel ``redrive``, whoever else looks at
the topic, and ``Broker.redrive`` takes it from there. Source: docs/protocol.md, Dead letters.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

from nsqpy.clock import MILLISECOND
from nsqpy.core.window import Run
from nsqpy.errors import ConfigError, NSQError
from nsqpy.gojson import JSON, go_number
from nsqpy.message import FRAME_HEADER_BYTES
from nsqpy.names import is_ephemeral, is_valid_name

__all__ = [
    "FAILURES",
    "LEASE_EXPIRED",
    "LEASE_RELEASED",
    "REDRIVE_CHANNEL",
    "REQUEUE",
    "TIMEOUT",
    "DeadLetterPolicy",
    "DeadLetters",
    "Publish",
    "bodies_of",
    "by_attempts",
    "dead_letter_topic",
    "spent_by",
]

log = logging.getLogger(__name__)

REDRIVE_CHANNEL = "redrive"

# Why a delivery failed.
TIMEOUT = "timeout"
REQUEUE = "requeue"
LEASE_RELEASED = "lease released"
LEASE_EXPIRED = "lease expired"
FAILURES = (REQUEUE, TIMEOUT, LEASE_RELEASED, LEASE_EXPIRED)

_ATTEMPTS_MAX = 65535  # what the wire can say
_DELAY_MAX_MS = 365 * 24 * 3_600_000
_FACTOR_MAX = 1000.0

# Bodies into a topic; the last argument hears once whether they are as safe as a publish.
Publish = Callable[[str, list[bytes], Callable[[NSQError | None], None]], None]


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """``max_attempts`` 0 is no limit. ``dead_letter_topic`` empty is the default name.

    A delivery that failed is repeated after ``retry_delay_ns``, times ``retry_delay_factor`` with
    each further one, ``retry_delay_max_ns`` at most; 0 is at once.
    """

    max_attempts: int = 0
    dead_letter_topic: str = ""
    retry_delay_ns: int = 0
    retry_delay_factor: float = 2.0
    retry_delay_max_ns: int = 3_600_000 * MILLISECOND

    def is_spent(self, attempts: int) -> bool:
        """Whether a message whose delivery number ``attempts`` failed gets no other."""
        return 0 < self.max_attempts <= attempts

    def delay_ns(self, attempts: int) -> int:
        """How long a message waits whose delivery number ``attempts`` failed."""
        if not self.retry_delay_ns:
            return 0
        try:
            growth = self.retry_delay_factor ** max(attempts - 1, 0)
        except OverflowError:
            return self.retry_delay_max_ns
        return int(min(self.retry_delay_ns * growth, self.retry_delay_max_ns))

    def as_json(self) -> dict[str, JSON]:
        """The form that ``from_json`` takes; times are ms."""
        return {
            "max_attempts": self.max_attempts,
            "dead_letter_topic": self.dead_letter_topic,
            "retry_delay_ms": self.retry_delay_ns // MILLISECOND,
            "retry_delay_factor": go_number(self.retry_delay_factor),
            "retry_delay_max_ms": self.retry_delay_max_ns // MILLISECOND,
        }

    @classmethod
    def from_json(cls, document: object) -> "DeadLetterPolicy":
        """A policy from decoded JSON; what is left out has its default.

        Raises:
            ConfigError: an unknown key, a value of the wrong kind or out of range.
        """
        if not isinstance(document, dict):
            raise ConfigError("config", document, "the body must be a JSON object")
        for key in document.keys() - _KEYS:
            raise ConfigError(key, document[key], f"{key} is not one of {', '.join(_KEYS)}")
        default = cls()
        policy = cls(
            max_attempts=_integer(document, "max_attempts", 0, _ATTEMPTS_MAX),
            dead_letter_topic=_topic_name(document),
            retry_delay_ns=_integer(document, "retry_delay_ms", 0, _DELAY_MAX_MS) * MILLISECOND,
            retry_delay_factor=_factor(document, default.retry_delay_factor),
            retry_delay_max_ns=MILLISECOND
            * _integer(
                document,
                "retry_delay_max_ms",
                default.retry_delay_max_ns // MILLISECOND,
                _DELAY_MAX_MS,
            ),
        )
        if policy.retry_delay_ns > policy.retry_delay_max_ns:
            reason = "retry_delay_ms must not be above retry_delay_max_ms"
            raise ConfigError("retry_delay_ms", document.get("retry_delay_ms"), reason)
        return policy


_KEYS = tuple(DeadLetterPolicy().as_json())
assert len(_KEYS) == len(fields(DeadLetterPolicy))


def _integer(document: Mapping[str, Any], key: str, default: int, maximum: int) -> int:
    value = document.get(key, default)
    if type(value) is not int or not 0 <= value <= maximum:
        raise ConfigError(key, value, f"{key} must be an integer from 0 to {maximum}")
    return value


def _factor(document: Mapping[str, Any], default: float) -> float:
    key = "retry_delay_factor"
    value = document.get(key, default)
    if type(value) not in (int, float) or not 1 <= value <= _FACTOR_MAX:
        raise ConfigError(key, value, f"{key} must be a number from 1 to {_FACTOR_MAX:g}")
    return float(value)


def _topic_name(document: Mapping[str, Any]) -> str:
    key = "dead_letter_topic"
    value = document.get(key, "")
    if not isinstance(value, str) or (value and not is_valid_name(value)):
        raise ConfigError(key, value, f"{key} must be a topic name")
    if is_ephemeral(value):
        raise ConfigError(key, value, f"{key} must not be #ephemeral: it would drop them")
    return value


def dead_letter_topic(policy: DeadLetterPolicy, topic_name: str, channel_name: str) -> str:
    """The topic that ``policy`` means: the one named, or ``<topic>.<channel>.dead``.

    Empty if that is too long and nothing will be sent there.

    Raises:
        ConfigError: the default name is too long, or the topic is the channel's own.
    """
    key = "dead_letter_topic"
    name = policy.dead_letter_topic
    if not name:
        parts = (topic_name, channel_name, "dead")
        name = ".".join(part.removesuffix("#ephemeral") for part in parts)
        if not is_valid_name(name):
            if not policy.max_attempts:
                return ""
            reason = f"{key} is needed: {name} has more than the 64 bytes of a name"
            raise ConfigError(key, name, reason)
    if name == topic_name:
        raise ConfigError(key, name, f"{key} must not be the channel's own topic")
    return name


def spent_by(failure: str) -> str:
    """The key in ``reasons`` of messages whose last delivery failed so."""
    return f"max_attempts exceeded by {failure}"


class DeadLetters:
    """Those of one channel that are not stored in their ``topic`` yet, and what has been.

    ``publish`` stores them; ``put_back`` takes what could not be stored.
    """

    def __init__(
        self,
        policy: DeadLetterPolicy,
        topic: str,
        *,
        publish: Publish,
        put_back: Callable[[Run], None],
    ) -> None:
        self.policy = policy
        self.topic = topic
        self.count = 0
        self.reasons: dict[str, int] = {}
        self._publish = publish
        self._put_back = put_back
        self._pending: dict[Run, None] = {}

    @property
    def pending_count(self) -> int:
        return sum(map(len, self._pending))

    def bury(self, run: Run, failure: str) -> None:
        """Store messages in the topic. Only then are they done with in the channel, so that a
        crash finds them in one place at least."""
        self._pending[run] = None

        def note(error: NSQError | None) -> None:
            self._settle(run, spent_by(failure), error)

        self._publish(self.topic, bodies_of(run), note)

    def _settle(self, run: Run, reason: str, error: NSQError | None) -> None:
        if run not in self._pending:
            return  # the channel has been emptied or closed meanwhile
        del self._pending[run]
        if error is not None:
            log.error("dead letter topic %s does not take messages - %s", self.topic, error)
            self._put_back(run)
            return
        log.debug("%d messages went to %s - %s", len(run), self.topic, reason)
        run.acknowledge(0, len(run))
        self.count += len(run)
        self.reasons[reason] = self.reasons.get(reason, 0) + len(run)

    def runs(self) -> list[Run]:
        """What waits for the topic to store it."""
        return list(self._pending)

    def clear(self) -> list[Run]:
        """Take it all back; whether it is stored is not waited for any more."""
        runs = list(self._pending)
        self._pending.clear()
        return runs


def by_attempts(run: Run) -> Iterator[tuple[Run, int]]:
    """The stretches of ``run`` whose messages have the same number of attempts, and that."""
    at = 0
    for attempts, group in groupby(map(run.batch.attempts, range(run.start, run.stop))):
        count = sum(1 for _ in group)
        yield run.part(at, at + count), attempts
        at += count


def bodies_of(run: Run) -> list[bytes]:
    """The messages without their headers."""
    frames = (run.batch.frames(index, index + 1) for index in range(run.start, run.stop))
    return [frame[FRAME_HEADER_BYTES:] for frame in frames]
