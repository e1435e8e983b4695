"""A message as a consumer's handler sees it."""

from typing import Protocol

from nsqpy.client.connection import ClientConnection
from nsqpy.protocol.frames import MessageFields

__all__ = ["AnswerSink", "Message"]


class AnswerSink(Protocol):
    """Where a message's first answer goes: the consumer, which tells its backoff of it."""

    def finish_message(self, message: "Message") -> None: ...

    def requeue_message(self, message: "Message", delay_ms: int | None, backoff: bool) -> None: ...

    def touch_message(self, message: "Message") -> None: ...


class Message:
    """One delivery of a message.

    The first answer wins: after ``finish`` or ``requeue``, every further call does nothing.
    Answers are written at the end of the turn of the event loop; none of them waits.

    Attributes:
        id: 16 ASCII bytes.
        body: as published.
        timestamp_ns: when it was published, Unix time.
        attempts: 1 at the first delivery.
    """

    __slots__ = (
        "answered",
        "attempts",
        "auto_response",
        "body",
        "connection",
        "id",
        "sink",
        "timestamp_ns",
    )

    def __init__(
        self, sink: AnswerSink, connection: ClientConnection, fields: MessageFields
    ) -> None:
        self.sink = sink
        self.connection = connection
        self.timestamp_ns, self.attempts, self.id, self.body = fields
        self.answered = False
        self.auto_response = True

    def __repr__(self) -> str:
        return f"Message(id={self.id!r}, attempts={self.attempts}, {len(self.body)} bytes)"

    @property
    def topic(self) -> str:
        """The topic that it was published to."""
        return self.connection.topic

    @property
    def nsqd_address(self) -> str:
        """The address of the nsqd that it came from."""
        return self.connection.address

    def disable_auto_response(self) -> None:
        """Leave it unanswered when the handler returns; somebody will answer later."""
        self.auto_response = False

    def finish(self) -> None:
        """It is done: nsqd forgets it."""
        if not self.answered:
            self.answered = True
            self.sink.finish_message(self)

    def requeue(self, delay_ms: int | None = None, *, backoff: bool = True) -> None:
        """Have it delivered again, after ``delay_ms``.

        Without a delay it is ``default_requeue_delay`` times the attempts, at most
        ``max_requeue_delay``. With ``backoff`` it counts as a failure, and the consumer
        slows down.
        """
        if not self.answered:
            self.answered = True
            self.sink.requeue_message(self, delay_ms, backoff)

    def touch(self) -> None:
        """Start its time limit at nsqd again; any number of times until it is answered."""
        if not self.answered:
            self.sink.touch_message(self)
