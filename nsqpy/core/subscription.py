"""One consumer as its channel sees it: RDY, counts and credit."""

from typing import Protocol

from nsqpy.core.stats import ClientStats

__all__ = ["Consumer", "Subscription"]


class Consumer(Protocol):
    """The other side of a subscription: whoever puts frames on a wire."""

    def deliver(self, frames: list[bytes]) -> None:
        """Take frames that are now in flight to this consumer."""

    def cut(self) -> None:
        """The channel is gone: close the connection, without an error frame."""

    def stats(self) -> ClientStats: ...


class Subscription:
    """A consumer's standing in a channel. Only the channel writes the counts.

    ``ready_count`` (RDY) is a ceiling on messages in flight, not a budget. ``blocked`` is set
    while the consumer's connection has more unsent bytes than it should.
    """

    __slots__ = (
        "blocked",
        "closing",
        "consumer",
        "finish_count",
        "in_flight_count",
        "message_count",
        "msg_timeout_ns",
        "ready_count",
        "requeue_count",
        "sample_rate",
    )

    def __init__(self, consumer: Consumer, *, msg_timeout_ns: int, sample_rate: int = 0) -> None:
        assert msg_timeout_ns > 0
        self.consumer = consumer
        self.msg_timeout_ns = msg_timeout_ns
        self.sample_rate = sample_rate
        self.ready_count = 0
        self.in_flight_count = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.blocked = False
        self.closing = False

    @property
    def credit(self) -> int:
        """How many messages may be sent to it now."""
        if self.blocked or self.closing:
            return 0
        return max(self.ready_count - self.in_flight_count, 0)
