"""One simulated daemon, its clients, a disk that misbehaves, and a small model of what is owed.

A seed decides everything: the configuration, how likely each command is (a swarm: some seeds never
requeue, some hardly do anything else), which faults strike and when. The model knows only what a
client can know: what was answered OK, what was finished, what was due when.
"""

import errno
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random

from nsqpy.clock import MILLISECOND, SECOND, ManualClock
from nsqpy.config import Durability, NsqdConfig
from nsqpy.core.broker import Broker
from nsqpy.core.channel import Channel, NotInFlightError, NotOwnerError
from nsqpy.core.stats import ClientStats
from nsqpy.core.subscription import Subscription
from nsqpy.core.topic import Ticket
from nsqpy.errors import NSQError, StorageError
from nsqpy.message import MessageID
from nsqpy.protocol.frames import FrameParser, MessageFrames
from tests.sim.disk import Disk

__all__ = ["InvariantError", "World"]

TOPICS = ("orders", "events")
CHANNELS = ("archive", "metrics", "mail")
MSG_TIMEOUT_NS = 60 * SECOND


class InvariantError(AssertionError):
    """A promise of DESIGN 3 is broken; the text says which, and by what."""


class Client:
    """A consumer that remembers what it holds."""

    def __init__(self, world: "World", topic: str, name: str) -> None:
        self.key = (topic, name)
        self.subscription = Subscription(self, msg_timeout_ns=MSG_TIMEOUT_NS)
        self.channel: Channel = world.broker.subscribe(topic, name, self.subscription)
        self.holding: dict[MessageID, bytes] = {}
        self.gone = False
        self._world = world
        self._parser = FrameParser()

    def deliver(self, frames: list[bytes]) -> None:
        for frame in self._parser.feed(b"".join(frames)):
            assert isinstance(frame, MessageFrames)
            for _, _, identity, body in frame.messages:
                self.holding[MessageID(identity)] = body
                self._world.model.delivered(self.key, body, self._world.clock.now().wall_ns)

    def cut(self) -> None:
        self.gone = True

    def stats(self) -> ClientStats:
        return ClientStats(
            client_id="sim", hostname="sim", remote_address="sim:1", state=3, connect_ts=0
        )


class Queue:
    """What the model knows of one channel. Bodies are unique, so they name messages."""

    def __init__(self) -> None:
        self.owed: set[bytes] = set()  # answered OK, not finished
        self.finishing: set[bytes] = set()  # finished, perhaps not in the journal yet
        self.flushed: set[bytes] = set()  # in the journal, perhaps not on the device yet
        self.synced: set[bytes] = set()  # so is what it was moved from, one sync later
        # Moved from one log to another lately: a crash may leave both copies. Of two generations,
        # since an acknowledgement is written after the copy is safe, and is itself safe later.
        self.moving: set[bytes] = set()
        self.moved: set[bytes] = set()
        self.doubled: set[bytes] = set()
        self.finished: set[bytes] = set()  # finished and on disk


class Publication:
    """Bodies, and whom they are owed to once there is an OK: every channel that existed when they
    were published, or else the first to appear."""

    def __init__(self, bodies: list[bytes], queues: list[Queue]) -> None:
        self.bodies = bodies
        self.queues = queues
        self.acknowledged = False

    def acknowledge(self) -> None:
        self.acknowledged = True
        for queue in self.queues:
            queue.owed.update(self.bodies)
            queue.owed -= queue.finished | queue.synced | queue.flushed | queue.finishing


class Model:
    """The promises, seen from outside."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, str], Queue] = {}
        self.offered: dict[str, set[bytes]] = {topic: set() for topic in TOPICS}
        self.unclaimed: dict[str, list[Publication]] = {topic: [] for topic in TOPICS}
        self.due_ns: dict[bytes, int] = {}
        self.known: set[bytes] = set()
        self.deliveries: Counter[tuple[tuple[str, str], bytes]] = Counter()
        self.duplicates = 0
        self.published = 0

    def add_channel(self, key: tuple[str, str]) -> None:
        if key in self.queues:
            return
        queue = self.queues[key] = Queue()
        unclaimed, self.unclaimed[key[0]] = self.unclaimed[key[0]], []
        for publication in unclaimed:
            publication.queues = [queue]
            if publication.acknowledged:
                publication.acknowledge()

    def publish(self, topic: str, bodies: list[bytes]) -> Publication:
        self.offered[topic].update(bodies)
        queues = [queue for key, queue in self.queues.items() if key[0] == topic]
        publication = Publication(bodies, queues)
        if not queues:
            self.unclaimed[topic].append(publication)
        return publication

    def acknowledged(self, publication: Publication) -> None:
        self.published += len(publication.bodies)
        publication.acknowledge()

    def delivered(self, key: tuple[str, str], body: bytes, wall_ns: int) -> None:
        queue = self.queues[key]
        if body not in self.known:
            raise InvariantError(f"{key} got {body!r}, which nobody published")
        if body in queue.finished and body not in queue.doubled:
            raise InvariantError(f"{key} got {body!r} again after its FIN was on disk")
        if wall_ns < self.due_ns.get(body, 0) - MILLISECOND:
            raise InvariantError(f"{key} got {body!r} before it was due")
        self.deliveries[key, body] += 1

    def finish(self, key: tuple[str, str], body: bytes) -> None:
        queue = self.queues[key]
        queue.owed.discard(body)
        queue.finishing.add(body)

    def flush(self) -> None:
        """Everything finished so far is in the journal."""
        for queue in self.queues.values():
            queue.flushed |= queue.finishing
            queue.finishing = set()

    def settle(self) -> None:
        """Everything in the journal is as safe as it will get."""
        for queue in self.queues.values():
            queue.finished |= queue.synced
            queue.synced, queue.flushed = queue.flushed, set()
            queue.moved, queue.moving = queue.moving, set()

    def crash(self) -> None:
        """What was finished in the last moments may come again, or may not."""
        for queue in self.queues.values():
            queue.finishing = set()
            queue.flushed = set()
            queue.synced = set()
            queue.doubled |= queue.moving | queue.moved

    def empty(self, key: tuple[str, str]) -> None:
        self.queues[key] = Queue()


class World:
    """``step`` does one random thing and checks every invariant; ``drain`` ends it."""

    def __init__(self, seed: int, *, lies: bool = False) -> None:
        self.random = Random(seed)
        self.disk = Disk(Random(seed + 1))
        self.clock = ManualClock()
        self.model = Model()
        self.clients: list[Client] = []
        self.paused: set[str] = set()
        self.serial = 0
        self.trace: list[str] = []
        durability = self.random.choice([Durability.DISK, Durability.DISK, Durability.FSYNC])
        self.config = NsqdConfig(
            data_path="data",
            node_id=1,
            durability=durability,
            mem_queue_size=self.random.choice([0, 1, 5, 100, 10_000]),
            max_bytes_per_file=self.random.choice([1_000, 4_000, 100_000]),
            sync_every=self.random.choice([1, 10, 2500]),
        )
        self.disk.lies = lies
        weights = {command: self.random.choice([0, 1, 1, 3, 10]) for command in self._commands()}
        weights[self._publish] = weights[self._publish] or 3
        weights[self._turn] = 10
        weights[self._deliver] = weights[self._deliver] or 5
        for rare in (self._kill, self._restart, self._lose_power, self._delete, self._empty):
            weights[rare] = min(weights.get(rare, 0), 1)
        self._weights = weights
        self.disk.make_directory("data")
        self._start()

    def _commands(self) -> list[Callable[[], None]]:
        commands = [
            *(self._publish, self._publish_deferred, self._turn, self._subscribe, self._leave),
            *(self._deliver, self._finish, self._requeue, self._touch, self._wait, self._pause),
            *(self._empty, self._delete, self._sync, self._fail_disk, self._heal_disk),
            *(self._restart, self._kill),
        ]
        if self.config.durability is Durability.FSYNC:
            commands.append(self._lose_power)
        return commands

    # -- running ----------------------------------------------------------------------------

    def step(self) -> None:
        (command,) = self.random.choices(list(self._weights), weights=list(self._weights.values()))
        self.trace.append(command.__name__.lstrip("_"))
        command()
        self._check()

    def _start(self) -> None:
        now = self.clock.now()
        self.broker = Broker(self.config, self.disk, self.random, wake=_nothing, start=now)
        self.broker.load(now)
        known = self.model.queues
        for topic_name, name in known:
            found = self.broker.topics.get(topic_name)
            if found is None or name not in found.channels:
                raise InvariantError(f"channel {topic_name}/{name} is gone")
        # A channel whose creation or deletion was answered with an error may be there or not.
        for topic in self.broker.topics.values():
            for name in [name for name in topic.channels if (topic.name, name) not in known]:
                self.broker.delete_channel(topic.name, name)

    def _check(self) -> None:
        """Invariant 3: every message is in exactly one place."""
        for topic in self.broker.topics.values():
            for channel in topic.channels.values():
                channel.audit()

    def drain(self) -> None:
        """Let everybody finish everything, and see whether anything owed never came."""
        self.disk.failing = {}
        for topic in self.broker.topics.values():
            topic.unpause()
            for channel in topic.channels.values():
                channel.unpause()
        for key in list(self.model.queues):
            client = Client(self, *key)
            client.subscription.ready_count = 2500
            client.channel.update_credit(client.subscription)
            self.clients.append(client)
        for _ in range(200):
            self._turn()
            self._run_sync()
            for client in self.clients:
                while client.holding and not client.gone:
                    self._finish_some(client, len(client.holding))
            if not any(queue.owed for queue in self.model.queues.values()):
                break
            self.clock.advance(20 * MSG_TIMEOUT_NS)
            self._check()
        for key, queue in self.model.queues.items():
            if queue.owed:
                sample = sorted(queue.owed)[:3]
                raise InvariantError(f"{key} never got {len(queue.owed)} messages: {sample}")

    # -- commands ---------------------------------------------------------------------------

    def _bodies(self) -> list[bytes]:
        count = self.random.choice([1, 1, 1, 2, 7, 40])
        self.serial += count
        pad = b"." * self.random.choice([0, 0, 50])
        bodies = [b"%d%s" % (self.serial - index, pad) for index in range(count)]
        self.model.known.update(bodies)
        return bodies

    def _publish(self) -> None:
        self._publish_at(0)

    def _publish_deferred(self) -> None:
        delay_ns = self.random.choice([1, 500, 5_000, 3_000_000]) * MILLISECOND
        self._publish_at(self.clock.now().wall_ns + delay_ns)

    def _publish_at(self, deliver_at_ns: int) -> None:
        topic = self.random.choice(TOPICS)
        bodies = self._bodies()
        for body in bodies:
            self.model.due_ns[body] = deliver_at_ns
        model = self.model
        try:
            ticket = self.broker.publish(topic, bodies, deliver_at_ns=deliver_at_ns)
        except StorageError:
            return

        publication = model.publish(topic, bodies)

        def note(done: Ticket) -> None:
            if done.error is None:
                model.acknowledged(publication)

        ticket.on_done = note

    def _turn(self) -> None:
        now = self.clock.now()
        for key, queue in self.model.queues.items():
            topic = self.broker.topics.get(key[0])
            if topic is not None and topic.depth:
                queue.moving |= self.model.offered[key[0]] - queue.finished
        self.broker.turn(now)
        if not self.broker.retrying:
            self.model.flush()
            if self.config.durability is not Durability.FSYNC:
                self.model.settle()
                self.model.settle()

    def _sync(self) -> None:
        if self.broker.sync_due(self.clock.now()):
            self._run_sync()

    def _run_sync(self) -> None:
        work = self.broker.begin_sync()
        error = None
        try:
            work.run()
        except StorageError as failure:
            error = failure
        self.broker.end_sync(work, error)
        if error is None:
            self.model.settle()

    def _subscribe(self) -> None:
        key = (self.random.choice(TOPICS), self.random.choice(CHANNELS))
        try:
            client = Client(self, *key)
        except NSQError:
            return
        self.model.add_channel(key)
        client.subscription.ready_count = self.random.choice([1, 3, 50])
        client.channel.update_credit(client.subscription)
        self.clients.append(client)

    def _leave(self) -> None:
        if self.clients:
            client = self.clients.pop(self.random.randrange(len(self.clients)))
            if not client.gone:
                client.channel.unsubscribe(client.subscription)

    def _deliver(self) -> None:
        self._turn()

    def _some_client(self) -> Client | None:
        self.clients = [client for client in self.clients if not client.gone]
        holding = [client for client in self.clients if client.holding]
        return self.random.choice(holding) if holding else None

    def _finish(self) -> None:
        client = self._some_client()
        if client is not None:
            self._finish_some(client, self.random.randint(1, len(client.holding)))

    def _finish_some(self, client: Client, count: int) -> None:
        ids = list(client.holding)
        if self.random.random() < 0.3:
            self.random.shuffle(ids)
        ids = ids[:count]
        failed = {identity for identity, _ in client.channel.finish(client.subscription, ids)}
        for identity in ids:
            body = client.holding.pop(identity)
            if identity not in failed:
                self.model.finish(client.key, body)

    def _requeue(self) -> None:
        client = self._some_client()
        if client is None:
            return
        identity = self.random.choice(list(client.holding))
        body = client.holding.pop(identity)
        delay_ns = self.random.choice([0, 0, 100, 10_000]) * MILLISECOND
        now = self.clock.now()
        try:
            client.channel.requeue(client.subscription, identity, delay_ns, now)
        except (NotInFlightError, NotOwnerError):
            return
        if delay_ns:
            self.model.queues[client.key].moving.add(body)
            self.model.due_ns[body] = 0  # due per channel; lateness is what requeue is tested for

    def _touch(self) -> None:
        client = self._some_client()
        if client is not None:
            identity = self.random.choice(list(client.holding))
            try:
                client.channel.touch(client.subscription, identity, self.clock.now().monotonic_ns)
            except (NotInFlightError, NotOwnerError):
                client.holding.pop(identity)

    def _wait(self) -> None:
        self.clock.advance(self.random.choice([1, 100, 2_000, 61_000]) * MILLISECOND)
        self._turn()

    def _pause(self) -> None:
        topic = self.random.choice(TOPICS)
        if topic in self.broker.topics:
            entry = self.broker.topics[topic]
            if entry.paused:
                entry.unpause()
            else:
                entry.pause()

    def _empty(self) -> None:
        key = self._some_key()
        if key is not None:
            self.broker.empty_channel(*key)
            self.model.empty(key)

    def _delete(self) -> None:
        key = self._some_key()
        if key is None:
            return
        with suppress(StorageError):
            self.broker.delete_channel(*key)
        if key[1] not in self.broker.topics[key[0]].channels:
            del self.model.queues[key]

    def _some_key(self) -> tuple[str, str] | None:
        keys = [key for key in self.model.queues if key[0] in self.broker.topics]
        return self.random.choice(keys) if keys else None

    def _fail_disk(self) -> None:
        operation = self.random.choice(["write", "sync", "open"])
        code = {"write": errno.ENOSPC, "sync": errno.EIO, "open": errno.EMFILE}[operation]
        self.disk.failing = {operation: code}

    def _heal_disk(self) -> None:
        self.disk.failing = {}
        self.clock.advance(SECOND)
        self._turn()

    def _restart(self) -> None:
        self.disk.failing = {}
        self.broker.close()
        self.model.flush()
        self.model.settle()
        self.model.settle()
        self._forget_clients()
        self._start()

    def _kill(self) -> None:
        self.disk.failing = {}
        self.model.crash()
        self._forget_clients()
        self._start()

    def _lose_power(self) -> None:
        self.disk.failing = {}
        self.disk.lose_power()
        self.model.crash()
        self._forget_clients()
        self._start()

    def _forget_clients(self) -> None:
        self.clients = []


def _nothing() -> None:
    """The simulation takes turns when it likes."""
