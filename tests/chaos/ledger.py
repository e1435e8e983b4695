"""What the daemon acknowledged and what it delivered, and hence what it lost.

A message says in its body who it is: ``publisher.number.due.size|padding``. ``due`` is Unix
nanoseconds before which it must not come, 0 for at once. All of that without the padding is its
key, from which the whole body can be made again.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Acknowledged", "ChannelBook", "Ledger", "Lives", "body_of", "key_of", "make_key"]

_LAST_MOMENTS_NS = 1_000_000_000
# An OK may be read when the process that sent it is gone already; no process starts as fast.
_OLD_ANSWERS_NS = 100_000_000


def make_key(publisher: int, number: int, due_ns: int, size_bytes: int) -> bytes:
    return b"%d.%d.%d.%d" % (publisher, number, due_ns, size_bytes)


def body_of(key: bytes) -> bytes:
    size = int(key.rpartition(b".")[2])
    return (key + b"|").ljust(size, key[-1:])


def key_of(body: bytes) -> bytes:
    return body.partition(b"|")[0]


class Acknowledged(NamedTuple):
    """When the OK was read, in Unix nanoseconds, and what asked for it."""

    at_ns: int
    how: str


class Lives:
    """When each process of the daemon was killed. Life 0 is before the first start."""

    def __init__(self) -> None:
        self.now = 0
        self.began_ns = 0
        self._ends_ns: list[int] = [0]

    def begin(self) -> None:
        self.now += 1
        self.began_ns = time.time_ns()

    def end(self) -> None:
        self._ends_ns.append(time.monotonic_ns())

    def outlived_by_ns(self, life: int, since_ns: int) -> int:
        """How long the process of ``life`` lived on after ``since_ns``, until now if it lives."""
        ended = life < len(self._ends_ns)
        return (self._ends_ns[life] if ended else time.monotonic_ns()) - since_ns


class _Sent(NamedTuple):
    life: int
    at_ns: int


@dataclass
class ChannelBook:
    """One channel's account. ``owed`` is acknowledged and not finished.

    ``consumed`` says that somebody has subscribed.
    """

    topic: str
    channel: str
    lives: Lives
    consumed: bool = False
    owed: dict[bytes, Acknowledged] = field(default_factory=dict)
    acknowledged: int = 0
    redelivered: int = 0
    duplicates: int = 0
    stale: int = 0
    early: list[str] = field(default_factory=list)
    mangled: list[bytes] = field(default_factory=list)
    _received: set[bytes] = field(default_factory=set)
    _finished: dict[bytes, _Sent] = field(default_factory=dict)
    _held_until_ns: dict[bytes, int] = field(default_factory=dict)
    _requeued: dict[bytes, _Sent] = field(default_factory=dict)
    _left_twice: set[bytes] = field(default_factory=set)

    def acknowledge(self, keys: Iterable[bytes], how: str) -> None:
        note = Acknowledged(time.time_ns(), how)
        for key in keys:
            self.acknowledged += 1
            if key not in self._finished:  # it may come before its OK is read
                self.owed[key] = note

    def receive(self, message_id: bytes, body: bytes) -> bytes:
        """A delivery; the key of the message.

        A duplicate comes although it was finished. It is stale if the daemon lived on for a
        second after that: more than "the last moments" that a kill may cost. A message that a
        kill left twice, in the middle of a delayed REQ, is not stale.
        """
        key = key_of(body)
        if not _is_intact(key, body):
            self.mangled.append(body)
            return key
        self.redelivered += key in self._received
        self._received.add(key)
        due_ns = int(key.split(b".")[2])
        if due_ns and (missing_ns := due_ns - time.time_ns()) > 0:
            self.early.append(f"{key.decode()} deferred, {missing_ns / 1e6:.1f} ms early")
        self._check_held(message_id, key)
        if (finished := self._finished.get(key)) is not None:
            self.duplicates += 1
            late = self.lives.outlived_by_ns(*finished) > _LAST_MOMENTS_NS
            self.stale += late and key not in self._left_twice
        return key

    def finish(self, key: bytes, life: int) -> None:
        """FIN was sent to the process of ``life``."""
        self._finished[key] = _Sent(life, time.monotonic_ns())
        self.owed.pop(key, None)

    def hold(self, message_id: bytes, key: bytes, delay_ms: int, life: int) -> None:
        """REQ with a delay was sent to the process of ``life``."""
        now_ns = time.monotonic_ns()
        self._held_until_ns[message_id] = now_ns + delay_ms * 1_000_000
        self._requeued[key] = _Sent(life, now_ns)

    def put_back(self, keys: Iterable[bytes]) -> None:
        """A lease of these goes back, from log to log, now or later: a kill may leave both."""
        self._left_twice.update(keys)

    def hold_refused(self, message_id: bytes) -> None:
        self._held_until_ns.pop(message_id, None)

    def _check_held(self, message_id: bytes, key: bytes) -> None:
        requeued = self._requeued.get(key)
        if requeued is not None and requeued.life < self.lives.now:
            # REQ stores the message anew, then drops the old record: a kill may come between.
            del self._requeued[key]
            if self.lives.outlived_by_ns(*requeued) <= _LAST_MOMENTS_NS:
                self._left_twice.add(key)
        until_ns = self._held_until_ns.pop(message_id, None)
        note = self.owed.get(key)
        if until_ns is None or note is None:
            return
        if note.at_ns < self.lives.began_ns + _OLD_ANSWERS_NS:
            return  # older than the process: a kill may have left it twice, and this is the other
        missing_ns = until_ns - time.monotonic_ns()
        if missing_ns > 0:
            self.early.append(f"{key.decode()} requeued, {missing_ns / 1e6:.1f} ms early")


@dataclass
class Ledger:
    """All channels of all topics."""

    lives: Lives = field(default_factory=Lives)
    messages: int = 0
    refused: int = 0
    _books: dict[str, list[ChannelBook]] = field(default_factory=dict)

    def add_channel(self, topic: str, channel: str) -> ChannelBook:
        """From now on the channel is owed what its topic gets."""
        book = ChannelBook(topic, channel, self.lives)
        self._books.setdefault(topic, []).append(book)
        return book

    @property
    def books(self) -> Iterator[ChannelBook]:
        return (book for books in self._books.values() for book in books)

    @property
    def topics(self) -> list[str]:
        return list(self._books)

    @property
    def owed(self) -> int:
        return sum(len(book.owed) for book in self.books)

    @property
    def backlog(self) -> int:
        """What is owed where somebody consumes."""
        return sum(len(book.owed) for book in self.books if book.consumed)

    @property
    def finished(self) -> int:
        """Rises as long as anything arrives that had not been finished."""
        return sum(book.acknowledged - len(book.owed) for book in self.books)

    def creditors(self, topic: str) -> list[ChannelBook]:
        """The channels that exist before a publish is sent; give them to ``acknowledge``."""
        return list(self._books[topic])

    def acknowledge(self, books: Sequence[ChannelBook], keys: Sequence[bytes], how: str) -> None:
        self.messages += len(keys)
        for book in books:
            book.acknowledge(keys, how)


def _is_intact(key: bytes, body: bytes) -> bool:
    parts = key.split(b".")
    return len(parts) == 4 and all(map(bytes.isdigit, parts)) and body == body_of(key)
