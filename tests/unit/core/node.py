"""A whole broker in memory, moved by hand: for tests of what happens in turns."""

from random import Random
from typing import TYPE_CHECKING, cast

from nsqpy.clock import MILLISECOND, ManualClock
from nsqpy.config import Durability, NsqdConfig
from nsqpy.core.broker import Broker
from nsqpy.core.channel import Channel
from nsqpy.core.deadlines import NEVER
from nsqpy.core.session import Session
from nsqpy.core.subscription import Subscription
from nsqpy.core.topic import Ticket
from nsqpy.errors import NSQError
from nsqpy.message import MessageID
from nsqpy.protocol.commands import CommandParser
from nsqpy.protocol.frames import ErrorFrame, FrameParser, MessageFrames, ResponseFrame
from nsqpy.protocol.identify import Features
from tests.unit.fakes import FakeConsumer, FakeFiles, Received

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Client", "Node", "NodeConsumer"]

DATA = "data"


class NodeConsumer(FakeConsumer):
    """A consumer subscribed to a channel of a node."""

    def __init__(self, node: "Node", topic: str, channel: str, **settings: int) -> None:
        super().__init__()
        self._node = node
        ready_count = settings.pop("ready_count", 1)
        settings.setdefault("msg_timeout_ns", node.config.msg_timeout_ns)
        self.subscription = Subscription(self, **settings)
        self.channel: Channel = node.broker.subscribe(topic, channel, self.subscription)
        self.ready(ready_count)

    def ready(self, count: int) -> None:
        self.subscription.ready_count = count
        self.channel.update_credit(self.subscription)

    def finish(self, *ids: MessageID) -> list[str]:
        """The reasons of those that failed."""
        failures = self.channel.finish(self.subscription, list(ids))
        return [str(why) for _, why in failures]

    def requeue(self, message_id: MessageID, delay_ns: int = 0) -> None:
        self.channel.requeue(self.subscription, message_id, delay_ns, self._node.clock.now())

    def touch(self, message_id: MessageID) -> None:
        self.channel.touch(self.subscription, message_id, self._node.clock.monotonic_ns())

    def leave(self) -> None:
        self.channel.unsubscribe(self.subscription)
        self._node.broker.consumer_left(self.channel)


class Client:
    """A connection that speaks bytes, with a session behind it."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._frames = FrameParser()
        self._commands = CommandParser(
            max_msg_size=node.config.max_msg_size,
            max_body_size=node.config.max_body_size,
            max_defer_ms=node.config.max_defer_timeout_ns // 1_000_000,
        )
        features = Features(
            client_id="peer", hostname="peer", msg_timeout_ns=node.config.msg_timeout_ns
        )
        self.session = Session(node.broker, features, "peer:1", node.clock.now())
        node.broker.sessions[self.session] = None
        self._commands.feed(b"  V2")

    def send(self, data: bytes) -> None:
        self.session.receive(self._commands.feed(data), self._node.clock.now())

    def publish(self, topic: str, body: bytes) -> None:
        self.send(b"PUB %s\n%s%s" % (topic.encode(), len(body).to_bytes(4, "big"), body))

    def subscribe(self, topic: str, channel: str, ready_count: int = 1) -> None:
        self.send(f"SUB {topic} {channel}\nRDY {ready_count}\n".encode())
        assert self.take() == [b"OK"]

    def take(self) -> list[bytes | Received]:
        """What was sent since the last call: replies and errors as bytes, and messages."""
        out, self.session.out = self.session.out, []
        taken: list[bytes | Received] = []
        for frame in self._frames.feed(b"".join(out)):
            match frame:
                case ResponseFrame(data) | ErrorFrame(data):
                    taken.append(data)
                case MessageFrames(messages):
                    taken += [Received(a, b, MessageID(c), d) for a, b, c, d in messages]
                case _:
                    raise AssertionError(frame)
        return taken

    def disconnect(self) -> None:
        self._node.broker.sessions.pop(self.session, None)
        self.session.disconnected()


class Node:
    """Broker, files and clock. ``config`` overrides the configuration."""

    def __init__(self, files: FakeFiles | None = None, **config: object) -> None:
        self.clock = ManualClock()
        self.files = FakeFiles() if files is None else files
        self.files.make_directory(DATA)
        config.setdefault("durability", Durability.DISK)
        make = cast("Callable[..., NsqdConfig]", NsqdConfig)
        self.config = make(data_path=DATA, node_id=1, **config)
        self._start()

    def _start(self) -> None:
        self.wake_count = 0
        self.clock.advance(10 * MILLISECOND)  # it takes time, or message ids would come again
        now = self.clock.now()
        self.broker = Broker(self.config, self.files, Random(1), wake=self._wake, start=now)
        self.broker.load(now)
        self.turn()

    def _wake(self) -> None:
        self.wake_count += 1

    def turn(self) -> None:
        self.wake_count = 0
        self.broker.turn(self.clock.now())
        self.broker.trash.take().run()

    def settle(self) -> None:
        """Turns until nothing asks for one."""
        self.turn()
        for _ in range(1000):
            if not self.wake_count:
                return
            self.turn()
        raise AssertionError("the broker never comes to rest")

    def advance(self, duration_ns: int) -> None:
        """Let time pass as the daemon does: a turn at every deadline on the way."""
        until_ns = self.clock.monotonic_ns() + duration_ns
        self.settle()
        for _ in range(10_000):
            next_ns = self.broker.next_deadline_ns()
            if next_ns == NEVER or next_ns > until_ns:
                break
            self.clock.advance(max(next_ns - self.clock.monotonic_ns(), 0))
            self.settle()
            self.sync()
        self.clock.advance(until_ns - self.clock.monotonic_ns())
        self.settle()

    def sync(self) -> None:
        """What the daemon does with a sync that is due."""
        if self.broker.sync_due(self.clock.now()):
            work = self.broker.begin_sync()
            work.run()
            self.broker.end_sync(work, None)
            self.settle()

    def publish_later(self, topic: str, *bodies: bytes, delay_ns: int = 0) -> Ticket:
        deliver_at_ns = self.clock.now().wall_ns + delay_ns if delay_ns else 0
        return self.broker.publish(topic, list(bodies), deliver_at_ns=deliver_at_ns)

    def publish(self, topic: str, *bodies: bytes, delay_ns: int = 0) -> NSQError | None:
        """Publish, take a turn, sync if that is due; the error, if it failed."""
        ticket = self.publish_later(topic, *bodies, delay_ns=delay_ns)
        self.settle()
        self.sync()
        assert ticket.done
        return ticket.error

    def subscribe(self, topic: str, channel: str, **settings: int) -> NodeConsumer:
        return NodeConsumer(self, topic, channel, **settings)

    def channel(self, topic: str, channel: str) -> Channel:
        return self.broker.topics[topic].channels[channel]

    def restart(self) -> None:
        """Stop gracefully, and start again on the same files."""
        self.broker.close()
        assert not self.files.open_files, [file.path for file in self.files.open_files]
        self._start()

    def crash(self) -> None:
        """Be killed, and start again on what was written."""
        self.files = self.files.after_kill()
        self._start()

    def lose_power(self) -> None:
        """Start again on what was synced."""
        self.files = self.files.after_power_loss()
        self._start()
