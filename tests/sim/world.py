"""One simulated daemon, its clients and a disk that misbehaves, moved one random step at a time.

A seed decides everything: the configuration, which commands and faults there are and how likely
each is (a swarm: some seeds never requeue, some hardly do anything else), and when they strike.
"""

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

from nsqpy.clock import MILLISECOND, SECOND, ManualClock
from nsqpy.config import Durability, NsqdConfig
from nsqpy.core.broker import Broker
from nsqpy.core.dead_letters import DeadLetterPolicy, dead_letter_topic
from nsqpy.core.topic import Ticket
from nsqpy.errors import NSQError, StorageError
from nsqpy.storage.metadata import METADATA_FILE
from tests.sim.client import MSG_TIMEOUT_NS, Client
from tests.sim.damage import Damage
from tests.sim.disk import Disk
from tests.sim.leases import BatchJob
from tests.sim.model import InvariantError, Key, Model

__all__ = ["World"]

TOPICS = ("orders", "events")
CHANNELS = ("archive", "metrics", "mail")
METADATA_PATH = f"data/{METADATA_FILE}"
FAULTS = {
    "write": errno.ENOSPC,
    "sync": errno.EIO,
    "read": errno.EIO,
    "open": errno.EMFILE,
}


class World:
    """``step`` does one random thing and checks every invariant; ``drain`` ends it.

    ``trace`` says what was done, a line a step; ``enabled`` what this seed can do at all.
    """

    def __init__(self, seed: int, *, lies: bool = False) -> None:
        self.random = Random(seed)
        self.disk = Disk(Random(seed + 1))
        self.clock = ManualClock()
        self.model = Model(TOPICS, self.clock)
        self.damage = Damage(self.disk, self.model, Random(seed + 2))
        self.job = BatchJob(self.model, self.disk, self.clock)
        self.clients: list[Client] = []
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
        self._weights = self._draw_weights()
        self.enabled = [_name(command) for command, weight in self._weights.items() if weight]
        self._decay = self.random.choice([0, 0, 0.3, 1])  # how likely files rot while it is down
        self.disk.make_directory("data")
        self._start()

    def _draw_weights(self) -> dict[Callable[[], None], int]:
        always = {self._publish: 3, self._turn: 10, self._deliver: 5, self._subscribe: 1}
        often = [
            *(self._publish_deferred, self._leave, self._finish, self._requeue),
            *(self._touch, self._wait, self._pause, self._sync, self._fail_disk, self._heal_disk),
            *(self._configure, self._redrive),
            *(self._lease, self._read_lease, self._extend_lease),
            *(self._commit_lease, self._release_lease),
        ]
        rare = [
            *(self._empty, self._delete, self._empty_grave, self._restart, self._kill),
            *(self._flip_bit, self._vanish),
        ]
        if self.config.durability is Durability.FSYNC:
            rare.append(self._lose_power)
        random = self.random
        weights = {command: random.choice([weight, 3, 10]) for command, weight in always.items()}
        weights |= {command: random.choice([0, 1, 1, 3, 10]) for command in often}
        weights |= {command: random.choice([0, 1]) for command in rare}
        focus = random.choice(
            [
                *((), ()),
                (self._configure, self._requeue, self._wait, self._redrive),
                (self._flip_bit, self._vanish, self._kill, self._restart),
                (self._lease, self._commit_lease, self._release_lease, self._kill, self._leave),
                (self._lease, self._read_lease, self._extend_lease, self._restart, self._leave),
            ]
        )
        return weights | dict.fromkeys(focus, 3)

    # -- running ----------------------------------------------------------------------------

    def step(self) -> None:
        (command,) = self.random.choices(list(self._weights), weights=list(self._weights.values()))
        self.trace.append(_name(command))
        command()
        self._check()

    def note(self, text: str) -> None:
        """Add to the trace what the step under way does."""
        self.trace[-1] += f" {text}"

    def _start(self) -> None:
        rotten = not self.disk.is_whole(METADATA_PATH)
        self.disk.bad_files = []
        self._set_aside_before = len(self.disk.set_aside)
        try:
            self._load()
        except StorageError as error:
            if not rotten or "failed to parse metadata" not in str(error):
                raise
            # The start is refused. What somebody can do is move the file away: whatever has a
            # directory exists without it, and only pauses and configurations are lost.
            self.note("refused")
            self.disk.remove(METADATA_PATH)
            self._load()
        self._check_topology()
        self.job.reborn(self.broker)
        self.model.shaky = set()
        if rotten:
            self._repair_metadata()
        else:
            self._check_metadata()

    def _load(self) -> None:
        now = self.clock.now()
        self.broker = Broker(self.config, self.disk, self.random, wake=_nothing, start=now)
        self.broker.load(now)

    def _check_topology(self) -> None:
        known = self.model.queues
        for topic_name, name in known:
            found = self.broker.topics.get(topic_name)
            if found is None or name not in found.channels:
                raise InvariantError(f"channel {topic_name}/{name} is gone")
        # A channel whose creation or deletion was answered with an error may be there or not.
        for topic in self.broker.topics.values():
            for name in list(topic.channels):
                if (topic.name, name) not in known and (topic.name, name) not in self.model.graves:
                    self.broker.delete_channel(topic.name, name)

    def _check_metadata(self) -> None:
        for name, paused in self.model.paused.items():
            if self.broker.topics[name].paused is not paused:
                raise InvariantError(f"topic {name} should have paused={paused}")
        for key, policy in self.model.policies.items():
            if self.broker.channel_config(*key) != policy:
                raise InvariantError(f"channel {key} has lost its configuration")

    def _repair_metadata(self) -> None:
        """Set once more what a damaged file may have lost, or changed."""
        self.model.paused = {}
        for key in self.model.queues:
            self._set_policy(key, self.model.policies.get(key, DeadLetterPolicy()))

    def _check(self) -> None:
        """Invariant 3, every message is in exactly one place; and damage is counted."""
        told = 0
        for topic in self.broker.topics.values():
            told += topic.bad_block_count
            for channel in topic.channels.values():
                told += channel.bad_block_count
                channel.audit()
        least, most = len(self.disk.bad_files), len(self.disk.set_aside) - self._set_aside_before
        if not least <= told <= most:
            raise InvariantError(f"bad_block_count is {told}, set aside were {least} to {most}")

    def drain(self) -> None:
        """Let everybody finish everything, and see whether anything owed never came."""
        self.disk.failing = {}
        self.trace.append("drain")
        for topic in self.broker.topics.values():
            topic.unpause()
            for channel in topic.channels.values():
                channel.unpause()
        self.model.forget_delays()
        for key in self.model.queues:
            self.clients.append(Client(self.broker, self.model, key, 2500))
        for attempt in range(200):
            self._exhume()
            for _ in range(10):  # leases go back a step at a time
                self._turn()
            self._run_sync()
            for client in self.clients:
                while client.holding and not client.gone:
                    self._finish_some(client, len(client.holding))
            if not self._is_busy():
                break
            self.clock.advance(MSG_TIMEOUT_NS << min(attempt, 20))  # at last for two years
            self._check()
        self.damage.account()
        self.model.check_nothing_lost(self.disk.set_aside)
        if self._is_busy():
            raise InvariantError("there is a message that nobody can get")

    def _exhume(self) -> None:
        """Send all dead letters back to where they came from, wherever that sent them."""
        for (dead_topic, _), key in self.model.graves.items():
            if key in self.model.queues:
                policy = DeadLetterPolicy(dead_letter_topic=dead_topic)
                self.broker.set_channel_config(*key, policy)
                self.broker.redrive(*key, 100_000, self.clock.now())

    def _is_busy(self) -> bool:
        """Whether a message is left that somebody is owed."""
        for topic in self.broker.topics.values():
            if topic.channels and topic.depth:
                return True
            for name, channel in topic.channels.items():
                key = topic.name, name
                waiting = channel.depth + channel.deferred_count + channel.leased_count
                busy = waiting or channel.in_flight_count
                if self.model.graves.get(key, key) in self.model.queues and busy:
                    return True
        return False

    # -- publishing -------------------------------------------------------------------------

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
        delay_ns = self.random.choice([1, 500, 5_000, 3_000_000, 40_000_000_000]) * MILLISECOND
        self._publish_at(self.clock.now().wall_ns + delay_ns)

    def _publish_at(self, deliver_at_ns: int) -> None:
        topic = self.random.choice(TOPICS)
        bodies = self._bodies()
        self.note(f"{topic} {bodies[-1].rstrip(b'.').decode()}+{len(bodies)}")
        if deliver_at_ns:
            self.model.due_ns |= dict.fromkeys(bodies, deliver_at_ns)
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

    # -- the daemon's own -------------------------------------------------------------------

    def _turn(self) -> None:
        self.job.before_turn()
        self.model.pump(self._topics_with_messages())
        self.broker.turn(self.clock.now())
        self.broker.trash.take().run()
        self.model.end_pump(self._topics_with_messages())
        if not self.broker.retrying:
            self.model.flush()
            if self.config.durability is not Durability.FSYNC:
                self.model.settle_all()

    def _topics_with_messages(self) -> set[str]:
        return {topic.name for topic in self.broker.topics.values() if topic.depth}

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
            self.model.settle(all_written=not self.broker.retrying)
        else:
            self.model.fail_sync()

    # -- consumers --------------------------------------------------------------------------

    def _subscribe(self) -> None:
        key = (self.random.choice(TOPICS), self.random.choice(CHANNELS))
        graves = [grave for grave in self.model.graves if self._has(grave)]
        if graves and self.random.random() < 0.2:
            key = self.random.choice(graves)
        self.note("/".join(key))
        try:
            client = Client(self.broker, self.model, key, self.random.choice([1, 3, 50]))
        except NSQError:
            return
        if key not in self.model.graves:
            self.model.add_channel(key)
        self.clients.append(client)

    def _has(self, key: Key) -> bool:
        topic = self.broker.topics.get(key[0])
        return topic is not None and key[1] in topic.channels

    def _leave(self) -> None:
        if self.clients:
            self.clients.pop(self.random.randrange(len(self.clients))).leave()

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
        client.finish(ids[:count])

    def _requeue(self) -> None:
        client = self._some_client()
        if client is not None:
            delay_ns = self.random.choice([0, 0, 100, 10_000]) * MILLISECOND
            count = self.random.choice([1, len(client.holding)])
            for identity in self.random.sample(list(client.holding), count):
                client.requeue(identity, delay_ns, self.clock.now())
            if self.disk.failing:  # the dead letter topic may not take them
                self.model.forget_delays()

    def _touch(self) -> None:
        client = self._some_client()
        if client is not None:
            client.touch(self.random.choice(list(client.holding)), self.clock.now())

    def _wait(self) -> None:
        waits_ms = [1, 100, 2_000, 61_000, 1_500_000, 20_000_000_000]
        self.clock.advance(self.random.choice(waits_ms) * MILLISECOND)
        self._turn()

    # -- administration ---------------------------------------------------------------------

    def _pause(self) -> None:
        name = self.random.choice(TOPICS)
        topic = self.broker.topics.get(name)
        if topic is None:
            return
        self.model.paused.pop(name, None)
        change = self.broker.unpause_topic if topic.paused else self.broker.pause_topic
        with suppress(StorageError):
            change(name)
            self.model.paused[name] = topic.paused

    def _empty(self) -> None:
        key = self._some_key()
        if key is not None:
            self.note("/".join(key))
            self.broker.empty_channel(*key, self.clock.now())
            self.model.empty(key)
            self.job.forget_channel(key)

    def _delete(self) -> None:
        key = self._some_key()
        if key is None:
            return
        self.note("/".join(key))
        with suppress(StorageError):
            self.broker.delete_channel(*key)
        if not self._has(key):
            self.model.delete_channel(key)
            self.job.forget_channel(key)

    def _some_key(self) -> Key | None:
        keys = [key for key in self.model.queues if key[0] in self.broker.topics]
        return self.random.choice(keys) if keys else None

    # -- dead letters -----------------------------------------------------------------------

    def _configure(self) -> None:
        key = self._some_key()
        if key is None:
            return
        random = self.random
        policy = DeadLetterPolicy(
            max_attempts=random.choice([0, 1, 2, 3]),
            dead_letter_topic=random.choice(["", "graves.{}.{}".format(*key)]),
            retry_delay_ns=random.choice([0, 0, 100, 5_000]) * MILLISECOND,
            retry_delay_factor=random.choice([1.0, 2.0, 10.0]),
            retry_delay_max_ns=20 * SECOND,
        )
        self.note(f"{'/'.join(key)} max_attempts={policy.max_attempts}")
        with suppress(StorageError):
            self._set_policy(key, policy)

    def _set_policy(self, key: Key, policy: DeadLetterPolicy) -> None:
        self.model.configure(key, policy, dead_letter_topic(policy, *key))
        self.broker.set_channel_config(*key, policy)
        self.model.policies[key] = self.broker.channel_config(*key)

    def _redrive(self) -> None:
        key = self._some_key()
        if key is None:
            return
        self.model.note_moves()
        self.model.queues[key].forget_delays()
        with suppress(StorageError):
            limit = self.random.choice([1, 10, 1000])
            count, _ = self.broker.redrive(*key, limit, self.clock.now())
            self.note(f"{'/'.join(key)} {count}")

    def _empty_grave(self) -> None:
        """Drop somebody's dead letters; nobody but the daemon knows exactly which those are."""
        graves = [grave for grave in self.model.graves if self._has(grave)]
        if not graves:
            return
        grave = self.random.choice(graves)
        self.note(grave[0])
        self.model.queue(grave).drop_tried()
        if self.random.random() < 0.5:
            self.broker.empty_channel(*grave, self.clock.now())
        else:
            with suppress(StorageError):
                self.broker.delete_topic(grave[0])

    # -- leases -----------------------------------------------------------------------------

    def _lease(self) -> None:
        key = self._some_key()
        if key is not None:
            limit = self.random.choice([1, 10, 1000])
            ttl_ns = self.random.choice([100, 10_000, 3_600_000]) * MILLISECOND
            patient = self.random.random() < 0.2
            lease_id = self.job.create(key, limit, ttl_ns, patient=patient)
            self.note(f"{'/'.join(key)} {lease_id}")

    def _some_lease(self) -> str:
        ids = self.job.ids
        lease_id = self.random.choice(ids) if ids else ""
        self.note(lease_id)
        return lease_id

    def _read_lease(self) -> None:
        if lease_id := self._some_lease():
            self.job.check(lease_id)

    def _extend_lease(self) -> None:
        if lease_id := self._some_lease():
            self.job.extend(lease_id, self.random.choice([100, 3_600_000]) * MILLISECOND)

    def _commit_lease(self) -> None:
        if lease_id := self._some_lease():
            self.job.commit(lease_id)

    def _release_lease(self) -> None:
        if lease_id := self._some_lease():
            self.job.release(lease_id)

    # -- faults -----------------------------------------------------------------------------

    def _fail_disk(self) -> None:
        operation = self.random.choice(list(FAULTS))
        self.note(operation)
        self.disk.failing = {operation: FAULTS[operation]}
        self.model.forget_delays()

    def _heal_disk(self) -> None:
        self.disk.failing = {}
        self.clock.advance(SECOND)
        self._turn()

    def _flip_bit(self) -> None:
        self.note(self.damage.flip_bit())

    def _vanish(self) -> None:
        self.note(self.damage.vanish())

    def _restart(self) -> None:
        self.disk.failing = {}
        self.broker.close()
        self.model.flush()
        self.model.settle_all()
        self._start_again()

    def _kill(self) -> None:
        self.model.crash()
        self._start_again()

    def _lose_power(self) -> None:
        self.disk.lose_power()
        self.model.crash()
        self._start_again()

    def _start_again(self) -> None:
        self.disk.failing = {}
        self.clock.advance(10 * MILLISECOND)  # it takes time, or message ids would come again
        self.clients = []
        self.model.forget_delays()
        while self.random.random() < self._decay / 2:
            self.note(
                self.damage.flip_bit() if self.random.random() < 0.7 else self.damage.vanish()
            )
        self.damage.before_start()
        self._start()


def _name(command: Callable[[], None]) -> str:
    return command.__name__.lstrip("_")


def _nothing() -> None:
    """The simulation takes turns when it likes."""
