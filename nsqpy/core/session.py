"""Server side of one V2 connection: commands in, frames out. No sockets, no clocks.

Replies keep the order of commands: what is owed to a publish that is not stored yet holds back
every later reply, but not messages or heartbeats. Source: reference nsqd 1.3, 1.8, 1.10.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nsqpy.clock import MILLISECOND, Instant
from nsqpy.core.channel import Channel
from nsqpy.core.stats import ClientStats, PubCount
from nsqpy.core.subscription import Subscription
from nsqpy.core.topic import Ticket
from nsqpy.errors import ErrorCode, NSQError, ProtocolError
from nsqpy.protocol.commands import (
    Auth,
    Close,
    Command,
    Finish,
    Identify,
    Malformed,
    Nop,
    Publish,
    Ready,
    Requeue,
    State,
    Subscribe,
    Touch,
)
from nsqpy.protocol.frames import CLOSE_WAIT_FRAME, HEARTBEAT_FRAME, OK_FRAME, error_frame
from nsqpy.protocol.frames import response_frame as response
from nsqpy.protocol.identify import Features, negotiate, parse_identify

if TYPE_CHECKING:
    from nsqpy.core.broker import Broker

__all__ = ["Session"]


# What a waiting publish costs beside its bodies, about: many small ones are bounded by it.
_TICKET_BYTES = 256


class _PublishTicket(Ticket):
    """One publish command, and the replies it is owed."""

    __slots__ = ("command", "session")

    def __init__(self, session: "Session", command: Publish, deliver_at_ns: int) -> None:
        # As Ticket's, written out: one is made for each PUB.
        self.bodies = bodies = command.bodies
        self.size = len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
        self.deliver_at_ns = deliver_at_ns
        self.done = False
        self.error = None
        self.session = session
        self.command = command

    def complete(self, error: NSQError | None = None) -> None:
        self.done = True
        self.error = error
        self.session.settle()


class Session:
    """One connection's state; ``out`` is what to write next, in order.

    The connection sets ``on_output``, called when ``out`` or ``finished`` begins to want it, and
    reads ``finished``: close once ``out`` is written. Times are given with each call.
    """

    def __init__(
        self, broker: "Broker", features: Features, remote_address: str, now: Instant
    ) -> None:
        self._broker = broker
        self._replies: deque[_PublishTicket | bytes] = deque()
        self._channel: Channel | None = None
        self._subscription: Subscription | None = None
        self._connected_s = now.wall_ns // 1_000_000_000
        self.features = features
        self.remote_address = remote_address
        self.state = State.INITIAL
        self.out: list[bytes] = []
        self.on_output: Callable[[], None] = _nobody
        self.finished = False
        self._ending = False
        self.unsettled_bytes = 0
        self.pub_counts: dict[str, int] = {}

    # -- in ---------------------------------------------------------------------------------

    def receive(self, commands: Sequence[Command], now: Instant) -> None:
        """Act on commands in order, until one is fatal."""
        for command in commands:
            if self.finished or self._ending:
                return
            try:
                _HANDLERS[type(command)](self, command, now)
            except ProtocolError as error:
                self.refuse(error)

    def refuse(self, error: ProtocolError) -> None:
        """Report a peer's fault, and close if it is fatal."""
        self._reply(error_frame(str(error).encode("utf-8", "surrogateescape")))
        if error.fatal:
            self._broker.log_client_error(self.remote_address, error)
            self.end()

    def heartbeat(self) -> None:
        self.out.append(HEARTBEAT_FRAME)
        self.on_output()

    def deliver(self, frames: list[bytes]) -> None:
        """Messages from the channel that are now in flight to this client."""
        self.out += frames
        self.on_output()

    def cut(self) -> None:
        """Close without a word: shutdown, or the channel is deleted. Clients reconnect."""
        self.finished = True
        self._stop_deliveries()
        self.on_output()

    def _stop_deliveries(self) -> None:
        if self._subscription is not None and self._channel is not None:
            self._subscription.closing = True
            self._channel.update_credit(self._subscription)

    def set_blocked(self, blocked: bool) -> None:
        """The connection has more unsent bytes than it should, or has got rid of them."""
        if self._subscription is not None and self._channel is not None:
            self._subscription.blocked = blocked
            self._channel.update_credit(self._subscription)

    def disconnected(self) -> None:
        """The connection is gone."""
        self.finished = True
        self._replies.clear()
        if self._subscription is not None and self._channel is not None:
            self._channel.unsubscribe(self._subscription)
            self._broker.consumer_left(self._channel)
            self._channel = None

    # -- replies ----------------------------------------------------------------------------

    def _reply(self, frame: bytes) -> None:
        if self._replies:
            self._replies.append(frame)
        else:
            self.out.append(frame)
            self.on_output()

    def end(self) -> None:
        """Close once every reply that is owed has gone out; nothing more is acted on."""
        self._ending = True
        self._stop_deliveries()
        if self._replies:
            self._replies.append(b"")
        else:
            self.cut()

    def settle(self) -> None:
        """Send the replies that nothing holds back any more."""
        replies = self._replies
        while replies:
            head = replies[0]
            if isinstance(head, bytes):
                if head:
                    self.out.append(head)
                else:
                    self.finished = True
            elif not head.done:
                break
            elif head.error is None:
                self.unsettled_bytes -= head.size + _TICKET_BYTES
                self.out.append(OK_FRAME * head.command.replies)
            else:
                self._publish_failed(head.command.verb, head.error)
                return
            replies.popleft()
        self.on_output()

    def _publish_failed(self, verb: str, why: NSQError) -> None:
        # Fatal, so whatever else was owed is owed to nobody.
        self._replies.clear()
        reason = getattr(why, "reason", str(why))
        self.refuse(ProtocolError(ErrorCode(f"E_{verb}_FAILED"), f"{verb} failed {reason}"))

    # -- one handler a command --------------------------------------------------------------

    def _identify(self, command: Identify, now: Instant) -> None:
        identify = parse_identify(command.body)
        self.features, reply = negotiate(identify, self._broker.limits, self.features)
        self._reply(OK_FRAME if reply is None else response(reply))

    def _auth(self, command: Auth, now: Instant) -> None:
        raise ProtocolError(ErrorCode.AUTH_DISABLED, "AUTH disabled")

    def _subscribe(self, command: Subscribe, now: Instant) -> None:
        features = self.features
        if not features.heartbeat_interval_ns:
            raise ProtocolError(ErrorCode.INVALID, "cannot SUB with heartbeats disabled")
        subscription = Subscription(
            self, msg_timeout_ns=features.msg_timeout_ns, sample_rate=features.sample_rate
        )
        try:
            channel = self._broker.subscribe(command.topic, command.channel, subscription)
        except NSQError as error:
            reason = getattr(error, "reason", str(error))
            raise ProtocolError(ErrorCode.SUB_FAILED, f"SUB failed {reason}") from error
        self._channel, self._subscription = channel, subscription
        self.state = State.SUBSCRIBED
        self._reply(OK_FRAME)

    def _publish(self, command: Publish, now: Instant) -> None:
        _, name, bodies, _, delay_ms = command
        deliver_at_ns = now.wall_ns + delay_ms * MILLISECOND if delay_ms else 0
        ticket = _PublishTicket(self, command, deliver_at_ns)
        self._replies.append(ticket)
        self.unsettled_bytes += ticket.size + _TICKET_BYTES
        try:
            topic = self._broker.topic_to_publish(name)
        except NSQError as error:
            ticket.complete(error)
            return
        topic.publish(ticket)
        counts = self.pub_counts
        counts[name] = counts.get(name, 0) + len(bodies)

    def _ready(self, command: Ready, now: Instant) -> None:
        channel, subscription = self._subscribed()
        maximum = self._broker.limits.max_rdy_count
        if command.ready_count > maximum:
            reason = f"RDY count {command.ready_count} out of range 0-{maximum}"
            raise ProtocolError(ErrorCode.INVALID, reason)
        subscription.ready_count = command.ready_count
        channel.update_credit(subscription)

    def _finish(self, command: Finish, now: Instant) -> None:
        channel, subscription = self._subscribed()
        for message_id, why in channel.finish(subscription, command.ids):
            self._refuse_answer(ErrorCode.FIN_FAILED, "FIN", message_id, why)

    def _requeue(self, command: Requeue, now: Instant) -> None:
        channel, subscription = self._subscribed()
        delay_ns = min(command.delay_ms * MILLISECOND, self._broker.config.max_req_timeout_ns)
        try:
            channel.requeue(subscription, command.id, delay_ns, now)
        except NSQError as why:
            self._refuse_answer(ErrorCode.REQ_FAILED, "REQ", command.id, why)

    def _touch(self, command: Touch, now: Instant) -> None:
        channel, subscription = self._subscribed()
        try:
            channel.touch(subscription, command.id, now.monotonic_ns)
        except NSQError as why:
            self._refuse_answer(ErrorCode.TOUCH_FAILED, "TOUCH", command.id, why)

    def _refuse_answer(self, code: ErrorCode, verb: str, message_id: bytes, why: NSQError) -> None:
        name = message_id.decode("utf-8", "surrogateescape")
        self.refuse(ProtocolError(code, f"{verb} {name} failed {why}", fatal=False))

    def _close(self, command: Close, now: Instant) -> None:
        _, subscription = self._subscribed()
        subscription.ready_count = 0
        self._stop_deliveries()
        self.state = State.CLOSING
        self._reply(CLOSE_WAIT_FRAME)

    def _nop(self, command: Nop, now: Instant) -> None:
        pass

    def _malformed(self, command: Malformed, now: Instant) -> None:
        if command.code is None:
            self.end()
        else:
            raise ProtocolError(command.code, command.reason)

    def _subscribed(self) -> tuple[Channel, Subscription]:
        # The parser refuses these commands in the initial state, and a failed SUB is fatal.
        assert self._channel is not None
        assert self._subscription is not None
        return self._channel, self._subscription

    # -- statistics -------------------------------------------------------------------------

    def stats(self) -> ClientStats:
        subscription, features = self._subscription, self.features
        return ClientStats(
            client_id=features.client_id,
            hostname=features.hostname,
            remote_address=self.remote_address,
            state=int(self.state),
            ready_count=subscription.ready_count if subscription else 0,
            in_flight_count=subscription.in_flight_count if subscription else 0,
            message_count=subscription.message_count if subscription else 0,
            finish_count=subscription.finish_count if subscription else 0,
            requeue_count=subscription.requeue_count if subscription else 0,
            connect_ts=self._connected_s,
            sample_rate=features.sample_rate,
            user_agent=features.user_agent,
            topology_zone=features.topology_zone,
            topology_region=features.topology_region,
            pub_counts=tuple(PubCount(*entry) for entry in sorted(self.pub_counts.items())),
        )


def _nobody() -> None:
    """No connection yet."""


_HANDLERS: dict[type, Callable[..., None]] = {
    Identify: Session._identify,
    Auth: Session._auth,
    Subscribe: Session._subscribe,
    Publish: Session._publish,
    Ready: Session._ready,
    Finish: Session._finish,
    Requeue: Session._requeue,
    Touch: Session._touch,
    Close: Session._close,
    Nop: Session._nop,
    Malformed: Session._malformed,
}
