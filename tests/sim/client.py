"""A consumer of the simulation, and how its answers reach the model."""

from typing import TYPE_CHECKING

from nsqpy.clock import MILLISECOND, SECOND, Instant
from nsqpy.core.broker import Broker
from nsqpy.core.dead_letters import DeadLetterPolicy
from nsqpy.core.in_flight import NotInFlightError, NotOwnerError
from nsqpy.core.stats import ClientStats
from nsqpy.core.subscription import Subscription
from nsqpy.message import MessageID
from nsqpy.protocol.frames import FrameParser, MessageFrames
from tests.sim.model import Key, Model

if TYPE_CHECKING:
    from nsqpy.core.channel import Channel

__all__ = ["MSG_TIMEOUT_NS", "Client"]

MSG_TIMEOUT_NS = 60 * SECOND


class Client:
    """A consumer that remembers what it holds: body and attempts of each id."""

    def __init__(self, broker: Broker, model: Model, key: Key, ready_count: int) -> None:
        self.key = key
        self.subscription = Subscription(self, msg_timeout_ns=MSG_TIMEOUT_NS)
        self.channel: Channel = broker.subscribe(*key, self.subscription)
        self.holding: dict[MessageID, tuple[bytes, int]] = {}
        self.gone = False
        self._broker = broker
        self._model = model
        self._parser = FrameParser()
        self.subscription.ready_count = ready_count
        self.channel.update_credit(self.subscription)

    def deliver(self, frames: list[bytes]) -> None:
        for frame in self._parser.feed(b"".join(frames)):
            assert isinstance(frame, MessageFrames)
            for _, attempts, identity, body in frame.messages:
                self.holding[MessageID(identity)] = (body, attempts)
                self._model.delivered(self.key, body)

    def cut(self) -> None:
        self.gone = True

    def stats(self) -> ClientStats:
        return ClientStats(
            client_id="sim", hostname="sim", remote_address="sim:1", state=3, connect_ts=0
        )

    def leave(self) -> None:
        if not self.gone:
            self.channel.unsubscribe(self.subscription)

    def finish(self, ids: list[MessageID]) -> None:
        failed = {identity for identity, _ in self.channel.finish(self.subscription, ids)}
        for identity in ids:
            body, _ = self.holding.pop(identity)
            if identity not in failed:
                self._model.finish(self.key, body)

    def requeue(self, identity: MessageID, delay_ns: int, now: Instant) -> None:
        body, attempts = self.holding.pop(identity)
        policy = self._policy()
        try:
            self.channel.requeue(self.subscription, identity, delay_ns, now)
        except (NotInFlightError, NotOwnerError):
            return
        delay_ns = delay_ns or policy.delay_ns(attempts)
        due_ns = now.wall_ns + delay_ns if delay_ns >= MILLISECOND else 0
        self._model.failed(self.key, body, due_ns, is_last=policy.is_spent(attempts))

    def _policy(self) -> DeadLetterPolicy:
        letters = self.channel.dead_letters
        return DeadLetterPolicy() if letters is None else letters.policy

    def touch(self, identity: MessageID, now: Instant) -> None:
        try:
            self.channel.touch(self.subscription, identity, now.monotonic_ns)
        except (NotInFlightError, NotOwnerError):
            self.holding.pop(identity)
