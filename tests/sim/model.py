"""What a client can know: what was answered OK, what was finished, what was due when.

And what damage may have taken: the faults are the simulation's own, so it knows whom they hit.
"""

from collections import Counter

from nsqpy.clock import MILLISECOND, Clock
from nsqpy.core.dead_letters import REDRIVE_CHANNEL, DeadLetterPolicy
from tests.sim.disk import SetAside

__all__ = ["Hit", "InvariantError", "Key", "Model", "Publication", "Queue"]

Key = tuple[str, str]  # topic and channel


class InvariantError(AssertionError):
    """An invariant is broken; the text says which, and by what."""


class Hit:
    """Damage to the bytes from ``offset`` on of a file. ``silent``: none of it need be told."""

    def __init__(self, path: str, offset: int, *, silent: bool) -> None:
        self.path = path
        self.offset = offset
        self.silent = silent

    def is_told(self, set_aside: list[SetAside]) -> bool:
        """Whether whoever lost a message by it can read why."""
        return self.silent or any(
            bad.path == self.path and bad.start <= self.offset < bad.stop for bad in set_aside
        )


class Queue:
    """What the model knows of one channel. Bodies are unique, so they name messages.

    Its dead letters count as its own: they are in the channel or in their topic.
    """

    def __init__(self) -> None:
        self.owed: set[bytes] = set()  # answered OK, not finished
        self.tried: set[bytes] = set()  # delivered, not finished
        self.finishing: set[bytes] = set()  # finished, perhaps not in the journal yet
        self.flushed: set[bytes] = set()  # in the journal, perhaps not on the device yet
        self.synced: set[bytes] = set()  # so is what it was moved from, one sync later
        # Moved from one log to another lately: a crash may leave both copies. Of two generations,
        # since an acknowledgement is written after the copy is safe, and is itself safe later.
        self.moving: set[bytes] = set()
        self.moved: set[bytes] = set()
        self.pumping: set[bytes] = set()  # the topic may have it too
        self.doubled: set[bytes] = set()
        self.finished: set[bytes] = set()  # finished and on disk
        self.delayed: set[bytes] = set()  # deferred or requeued so, and not delivered since
        self.spent: set[bytes] = set()  # its last delivery failed
        self.due_ns: dict[bytes, int] = {}  # not again before
        self.hits: dict[bytes, list[Hit]] = {}  # damage that may have taken it

    def excuse(self, hits: dict[bytes, list[Hit]]) -> None:
        for body, causes in hits.items():
            self.hits[body] = self.hits.get(body, []) + causes

    def drop_tried(self) -> None:
        """Any that was delivered may have been a dead letter, and is not owed any more. It need
        not have had its OK yet."""
        gone = Hit("", 0, silent=True)
        self.excuse({body: [gone] for body in self.tried})
        self.forget_delays()

    def forget_delays(self) -> None:
        """Messages may come before they are due, or once more, where an old record is left."""
        self.spent = set()
        self.due_ns = {}


class Publication:
    """Bodies, and whom they are owed to once there is an OK: every channel that existed when they
    were published, or else the first that appears."""

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
    """The promises, seen from outside.

    ``graves`` says whose dead letters are in the channel ``redrive`` of a topic;
    ``moved_by_failure`` are the channels that have, or have had, a maximum of attempts or a delay
    before the next. ``paused`` and ``policies`` hold what was answered OK.
    """

    def __init__(self, topics: tuple[str, ...], clock: Clock) -> None:
        self.topics = topics
        self._clock = clock
        self.queues: dict[Key, Queue] = {}
        self.graves: dict[Key, Key] = {}
        self.moved_by_failure: set[Key] = set()
        self.policies: dict[Key, DeadLetterPolicy] = {}
        self.paused: dict[str, bool] = {}
        self.offered: dict[str, set[bytes]] = {topic: set() for topic in topics}
        self.unclaimed: dict[str, list[Publication]] = {topic: [] for topic in topics}
        self.topic_hits: dict[str, dict[bytes, list[Hit]]] = {topic: {} for topic in topics}
        self.due_ns: dict[bytes, int] = {}
        self.known: set[bytes] = set()
        self.leased: dict[str, tuple[Key, set[bytes], int]] = {}  # with when it expires
        self.returning: dict[Key, set[bytes]] = {}  # what leases put back
        self.shaky: set[Key] = set()  # channels with damage to what they know of their leases
        self.deliveries: Counter[tuple[Key, bytes]] = Counter()
        self.published = 0

    def queue(self, key: Key) -> Queue:
        """Whoever is owed what the channel ``key`` holds; nobody, if the owner is deleted."""
        return self.queues.get(self.graves.get(key, key)) or Queue()

    def queues_of(self, topic: str) -> list[Queue]:
        """All that the topic's own messages are owed to."""
        keys = {
            self.graves.get(key, key) for key in (*self.queues, *self.graves) if key[0] == topic
        }
        return [self.queues[key] for key in sorted(keys) if key in self.queues]

    # -- what clients do ----------------------------------------------------------------------

    def add_channel(self, key: Key) -> None:
        if key in self.queues:
            return
        queue = self.queues[key] = Queue()
        # What the topic still has goes to this channel too.
        queue.delayed |= self.due_ns.keys() & self.offered[key[0]]
        unclaimed, self.unclaimed[key[0]] = self.unclaimed[key[0]], []
        if unclaimed:
            queue.excuse(self.topic_hits[key[0]])
        for publication in unclaimed:
            publication.queues = [queue]
            if publication.acknowledged:
                publication.acknowledge()

    def delete_channel(self, key: Key) -> None:
        del self.queues[key]
        self.policies.pop(key, None)

    def empty(self, key: Key) -> None:
        queue = self.queues[key] = Queue()
        # What the topic still has is on its way here.
        queue.delayed |= self.due_ns.keys() & self.offered[key[0]]

    def configure(self, key: Key, policy: DeadLetterPolicy, dead_topic: str) -> None:
        """``policy`` is in effect, whether it was answered OK or not."""
        self.graves[dead_topic, REDRIVE_CHANNEL] = key
        if policy.max_attempts or policy.retry_delay_ns:
            self.moved_by_failure.add(key)
        self.policies.pop(key, None)

    def publish(self, topic: str, bodies: list[bytes]) -> Publication:
        self.offered[topic].update(bodies)
        queues = [queue for key, queue in self.queues.items() if key[0] == topic]
        publication = Publication(bodies, queues)
        for queue in queues:
            queue.delayed |= self.due_ns.keys() & bodies
        if not queues:
            self.unclaimed[topic].append(publication)
        return publication

    def acknowledged(self, publication: Publication) -> None:
        self.published += len(publication.bodies)
        publication.acknowledge()

    def delivered(self, key: Key, body: bytes) -> None:
        queue = self.queue(key)
        wall_ns = self._clock.now().wall_ns
        if body not in self.known:
            raise InvariantError(f"{key} got {body!r}, which nobody published")
        if body not in queue.doubled:
            if body in queue.finished:
                raise InvariantError(f"{key} got {body!r} again after its FIN was on disk")
            if body in queue.spent and key not in self.graves:
                raise InvariantError(f"{key} got {body!r} again after its last attempt failed")
            if wall_ns < queue.due_ns.pop(body, 0) - MILLISECOND:
                raise InvariantError(f"{key} got {body!r} again before its delay was over")
            if any(
                owner == key and body in bodies and wall_ns < expires_ns
                for owner, bodies, expires_ns in self.leased.values()
            ):
                raise InvariantError(f"{key} got {body!r}, which is leased")
        if wall_ns < self.due_ns.get(body, 0) - MILLISECOND:
            raise InvariantError(f"{key} got {body!r} before it was due")
        queue.tried.add(body)
        queue.delayed.discard(body)
        self.deliveries[key, body] += 1

    def finish(self, key: Key, body: bytes) -> None:
        queue = self.queue(key)
        queue.owed.discard(body)
        queue.tried.discard(body)
        queue.finishing.add(body)

    def failed(self, key: Key, body: bytes, due_ns: int, *, is_last: bool) -> None:
        """Its consumer requeued it: not before ``due_ns``, or never if that was the last time."""
        queue = self.queue(key)
        if is_last:
            queue.spent.add(body)
        elif due_ns:
            queue.moving.add(body)
            queue.delayed.add(body)
            queue.due_ns[body] = due_ns

    def harm_leases(self, key: Key) -> None:
        """What a channel knows of its leases is damaged: they may be put back, and come twice."""
        self.shaky.add(key)
        self.queue(key).doubled |= self.offered.get(key[0], set())

    # -- how safe it is -----------------------------------------------------------------------

    def pump(self, topics: set[str]) -> None:
        """A turn begins; ``topics`` hold messages, which some channels may have already."""
        for (topic, _), queue in self.queues.items():
            if topic in topics:
                queue.pumping |= self.offered[topic] - queue.finished
        self.note_moves()

    def end_pump(self, topics: set[str]) -> None:
        """The turn is over: what is left in ``topics`` may stay there for long."""
        for (topic, _), queue in self.queues.items():
            if topic not in topics:
                queue.moving |= queue.pumping
                queue.pumping = set()

    def note_moves(self) -> None:
        """What is late may go from log to log until it is due; and whatever failed may be on its
        way, to be deferred, to its dead letters, or back."""
        for key, bodies in self.returning.items():
            self.queue(key).moving |= bodies
        for queue in self.queues.values():
            queue.moving |= queue.delayed
        for key in sorted(self.moved_by_failure & self.queues.keys()):
            self.queues[key].moving |= self.queues[key].tried

    def flush(self) -> None:
        """Everything finished so far is in the journal."""
        for queue in self.queues.values():
            queue.flushed |= queue.finishing
            queue.finishing = set()

    def settle(self, *, all_written: bool) -> None:
        """A sync succeeded: everything in the journal is a step safer. Unless ``all_written``,
        the acknowledgement of a move may not be there yet."""
        for queue in self.queues.values():
            queue.finished |= queue.synced
            queue.synced, queue.flushed = queue.flushed, set()
            if all_written:
                queue.moved, queue.moving = queue.moving, set()

    def settle_all(self) -> None:
        """Everything in the journal is as safe as it will get."""
        for queue in self.queues.values():
            queue.finished |= queue.synced | queue.flushed
            queue.synced, queue.flushed = set(), set()
            queue.moved, queue.moving = set(), set()

    def fail_sync(self) -> None:
        """What a dead letter topic has written but not synced is put back all the same."""
        for key in sorted(self.moved_by_failure & self.queues.keys()):
            self.queues[key].doubled |= self.queues[key].tried

    def crash(self) -> None:
        """What was finished in the last moments may come again, or may not."""
        for queue in self.queues.values():
            queue.finishing = set()
            queue.flushed = set()
            queue.synced = set()
            queue.doubled |= queue.pumping | queue.moving | queue.moved
            queue.pumping = set()

    def forget_delays(self) -> None:
        for queue in self.queues.values():
            queue.forget_delays()

    def check_nothing_lost(self, set_aside: list[SetAside]) -> None:
        """Everything owed has come, or was hit; and that was told."""
        for key, queue in self.queues.items():
            lost = sorted(queue.owed - queue.hits.keys())
            if lost:
                raise InvariantError(f"{key} never got {len(lost)} messages: {lost[:3]}")
            for body in sorted(queue.owed):
                if not any(hit.is_told(set_aside) for hit in queue.hits[body]):
                    raise InvariantError(f"{key} lost {body!r} to damage, without a word of it")

    @property
    def damaged(self) -> int:
        """How many messages damage has taken, of a channel each."""
        return sum(len(queue.owed) for queue in self.queues.values())
