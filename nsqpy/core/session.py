"""Server side of one V2 connection: commands in, frames out. No sockets, no clocks.

Replies keep the order of commands: what is owed to a publish that is not stored yet holds back
every later reply, but not messages or heartbeats. Source: docs/protocol.md; nsqd/protocol_v2.go.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nsqpy.clock import MILLISECOND, Instant
from nsqpy.core.auth import Applicant, Grant
from nsqpy.core.channel import Channel
from nsqpy.core.deadlines import NEVER
from nsqpy.core.stats import ClientStats, PubCount
from nsqpy.core.subscription import Subscription
from nsqpy.core.topic import Ticket
from nsqpy.errors import ErrorCode, NSQError, ProtocolError
from nsqpy.gojson import go_json
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
from nsqpy.protocol.identify import Features, Limits, negotiate, parse_identify
from nsqpy.tokens import Role
from nsqpy.version import NSQ_VERSION

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
        self.on_done = None
        self.session = session
        self.command = command

    def complete(self, error: NSQError | None = None) -> None:
        assert not self.done
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
        # From the reply to an IDENTIFY that grants layers until they are there: nothing is acted
        # on, nothing is sent.
        self.upgrading = False
        self._layered = False
        self.tls_version = ""  # empty: in clear
        self.tls_cipher_suite = ""
        self.tls_common_name = ""  # of the client's certificate, if it was verified
        self.unsettled_bytes = 0
        self.pub_counts: dict[str, int] = {}
        self.grant: Grant | None = None
        self.asking = False  # the authenticator has not answered yet: nothing is acted on
        self._secret = b""
        self._held: list[Command] = []

    # -- in ---------------------------------------------------------------------------------

    def receive(self, commands: Sequence[Command], now: Instant) -> None:
        """Act on commands in order, until one is fatal.

        What comes while the authenticator is asked is held: the connection stops reading then,
        so that is one read at most.
        """
        is_held = self.asking  # not tested itself: handlers set it, which type checkers do not see
        if is_held:
            self._held += commands
            return
        for index, command in enumerate(commands):
            if self.finished or self._ending or self.upgrading:
                return
            try:
                _HANDLERS[type(command)](self, command, now)
            except ProtocolError as error:
                self.refuse(error)
            if self.asking:
                self._held += commands[index + 1 :]
                return

    def refuse(self, error: ProtocolError) -> None:
        """Report a peer's fault, and close if it is fatal."""
        self._broker.error_counts[error.code] += 1
        self._reply(error_frame(str(error).encode("utf-8", "surrogateescape")))
        if error.fatal:
            self._broker.log_client_error(self.remote_address, error)
            self.end()

    @property
    def upgrade_due(self) -> bool:
        """The reply to IDENTIFY, and what came before it, is in ``out``: now for the layers."""
        return self.upgrading and not self._replies

    def upgraded(self) -> None:
        """The layers that ``features`` grant are there; commands count again."""
        self.upgrading = False
        self._layered = True

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

    def give_back(self, now: Instant) -> None:
        """The connection is cut off unread: what is in flight to it need not wait to time out."""
        if self._subscription is not None and self._channel is not None:
            self._channel.time_out(self._subscription, now)

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
        if self.asking:
            self._held.append(Malformed(None, ""))  # what is held comes first
            return
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
        if self._layered:
            # The original takes it and tries to put new layers over the old ones.
            raise ProtocolError(ErrorCode.INVALID, "cannot IDENTIFY in current state")
        identify = parse_identify(command.body)
        self.features, reply = negotiate(identify, _limits(self._broker), self.features)
        self._reply(OK_FRAME if reply is None else response(reply))
        self.upgrading = self.features.layered

    def _auth(self, command: Auth, now: Instant) -> None:
        if self._broker.authenticator is None:
            raise ProtocolError(ErrorCode.AUTH_DISABLED, "AUTH disabled")
        if self.grant is not None:
            raise ProtocolError(ErrorCode.INVALID, "AUTH already set")
        self._secret = command.secret
        self._ask()

    def _ask(self) -> None:
        """Ask whom the secret belongs to; until the answer every command is held."""
        authenticator = self._broker.authenticator
        assert authenticator is not None
        self.asking = True
        authenticator.ask(
            Applicant(
                secret=self._secret,
                remote_ip=_host(self.remote_address),
                tls=bool(self.tls_version),
                common_name=self.tls_common_name,
            ),
            self._answered,
        )

    def _answered(self, grant: Grant | None, now: Instant) -> None:
        self.asking = False
        if self.finished:
            return
        is_new = self.grant is None
        self.grant = grant
        held, self._held = self._held, []
        if grant is None:
            self.refuse(ProtocolError(ErrorCode.AUTH_FAILED, "AUTH failed"))
        elif not grant.permission_count:
            reason = "AUTH no authorizations found"
            self.refuse(ProtocolError(ErrorCode.UNAUTHORIZED, reason))
        else:
            if is_new:
                self._reply(response(_welcome(grant)))
            self.receive(held, now)

    def _admit(
        self, command: Command, role: Role, verb: str, topic: str, channel: str, now: Instant
    ) -> bool:
        """Whether to go on with the command now; if not, it is held until the authenticator
        has been asked again.

        Raises:
            ProtocolError: E_AUTH_FIRST or E_UNAUTHORIZED.
        """
        grant = self.grant
        if grant is None:
            raise ProtocolError(ErrorCode.AUTH_FIRST, f"AUTH required before {verb}")
        if grant.expires_ns != NEVER and grant.expires_ns <= now.monotonic_ns:
            self._held.append(command)
            self._ask()
            return False
        if not grant.allows(role, topic, channel):
            reason = f'AUTH failed for {verb} on "{topic}" "{channel}"'
            raise ProtocolError(ErrorCode.UNAUTHORIZED, reason)
        return True

    def _subscribe(self, command: Subscribe, now: Instant) -> None:
        features = self.features
        if not features.heartbeat_interval_ns:
            raise ProtocolError(ErrorCode.INVALID, "cannot SUB with heartbeats disabled")
        asked = (Role.CONSUME, "SUB", command.topic, command.channel)
        if self._broker.authenticator is not None and not self._admit(command, *asked, now):
            return
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
        verb, name, bodies, _, delay_ms = command
        if self._broker.authenticator is not None and not self._admit(
            command, Role.PUBLISH, verb, name, "", now
        ):
            return
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
        maximum = self._broker.config.max_rdy_count
        if command.ready_count > maximum:
            reason = f"RDY count {command.ready_count} out of range 0-{maximum}"
            raise ProtocolError(ErrorCode.INVALID, reason)
        subscription.ready_count = command.ready_count
        channel.update_credit(subscription)

    def _finish(self, command: Finish, now: Instant) -> None:
        channel, subscription = self._subscribed()
        for message_id, why in channel.finish(subscription, command.ids, now.wall_ns):
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

    @property
    def standing(self) -> tuple[Channel, Subscription] | None:
        """Where it is a consumer, and what it has there."""
        if self._channel is None or self._subscription is None:
            return None
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
            deflate=features.deflate,
            snappy=features.snappy,
            user_agent=features.user_agent,
            authed=self.grant is not None,
            auth_identity=self.grant.identity if self.grant else "",
            auth_identity_url=self.grant.identity_url if self.grant else "",
            topology_zone=features.topology_zone,
            topology_region=features.topology_region,
            pub_counts=tuple(PubCount(*entry) for entry in sorted(self.pub_counts.items())),
            tls=bool(self.tls_version),
            tls_cipher_suite=self.tls_cipher_suite,
            tls_version=self.tls_version,
            tls_negotiated_protocol_is_mutual=bool(self.tls_version),
        )


def _limits(broker: "Broker") -> Limits:
    """What IDENTIFY may negotiate."""
    config = broker.config
    return Limits(
        max_heartbeat_interval_ns=config.max_heartbeat_interval_ns,
        min_output_buffer_timeout_ns=config.min_output_buffer_timeout_ns,
        max_output_buffer_timeout_ns=config.max_output_buffer_timeout_ns,
        output_buffer_timeout_ns=config.output_buffer_timeout_ns,
        max_output_buffer_size=config.max_output_buffer_size,
        msg_timeout_ns=config.msg_timeout_ns,
        max_msg_timeout_ns=config.max_msg_timeout_ns,
        max_rdy_count=config.max_rdy_count,
        max_deflate_level=config.max_deflate_level,
        topology_region=config.topology_region,
        topology_zone=config.topology_zone,
        version=NSQ_VERSION,
        tls=config.has_tls,
        snappy=config.snappy,
        deflate=config.deflate,
        auth_required=broker.authenticator is not None,
    )


def _welcome(grant: Grant) -> bytes:
    return go_json(
        {
            "identity": grant.identity,
            "identity_url": grant.identity_url,
            "permission_count": grant.permission_count,
        }
    )


def _host(address: str) -> str:
    """Of ``host:port``; empty for ``@``, a Unix socket."""
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


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
