"""Bits that flip and files that vanish, and what that may cost: read from the files themselves."""

import struct
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import google_crc32c

from nsqpy.errors import CorruptionError
from nsqpy.message import FRAME_HEADER_BYTES
from nsqpy.storage.block import BLOCK_HEADER_BYTES, BLOCK_MAGIC, decode_block, parse_block_header
from nsqpy.storage.journal import JOURNAL_SUFFIX
from nsqpy.storage.metadata import METADATA_FILE
from nsqpy.storage.segment import SEGMENT_HEADER_BYTES, SEGMENT_SUFFIX
from tests.sim.disk import Disk, Inode
from tests.sim.model import Hit, Model, Queue

__all__ = ["Damage"]

_KINDS = (SEGMENT_SUFFIX, SEGMENT_SUFFIX, JOURNAL_SUFFIX, METADATA_FILE)
_U32_PAIR = struct.Struct(">II")


class _Block(NamedTuple):
    start: int
    stop: int
    first_number: int
    bodies: list[bytes]


class _Group(NamedTuple):
    start: int
    stop: int
    ranges: list[tuple[int, int]]


class Damage:
    """Harms the files of ``disk`` and tells ``model`` what is excused by it."""

    def __init__(self, disk: Disk, model: Model, random: Random) -> None:
        self._disk = disk
        self._model = model
        self._random = random
        self._hits: list[Hit] = []
        self._journals: set[str] = set()  # harmed, and the daemon does not know yet
        self._lost: list[tuple[str, Inode, int]] = []  # vanished, perhaps still written to

    def flip_bit(self) -> str:
        """Flip one bit of one file; says where, or nothing if there is no file."""
        path = self._any_file()
        size = len(self._disk.content(path))
        if not size:
            return ""
        self._harm_lease(path)
        at, bit = self._random.randrange(size), self._random.randrange(8)
        if path.endswith(SEGMENT_SUFFIX):
            self._excuse_block(path, at)
        elif path.endswith(JOURNAL_SUFFIX):
            groups = list(_groups(self._disk.content(path)))
            if any(group.start <= at < group.stop for group in groups):
                self._expect_again(path, [group for group in groups if group.stop <= at])
        self._disk.flip_bit(path, at, bit)
        return f"bit {bit} of byte {at} in {path}"

    def vanish(self) -> str:
        """Remove one file; says which, or nothing if there is none."""
        path = self._any_file()
        if not path:
            return ""
        self._harm_lease(path)
        if path.endswith(SEGMENT_SUFFIX):
            content = self._disk.content(path)
            for hit in self._hits:
                hit.silent |= hit.path == path
            self._excuse(path, 0, self._live(path, list(_blocks(content))), silent=True)
            self._lost.append((path, self._disk.vanish(path), len(content)))
        else:
            if path.endswith(JOURNAL_SUFFIX):
                self._expect_again(path, [])
            self._disk.vanish(path)
        return path

    def _harm_lease(self, path: str) -> None:
        """Damage to a lease, or to the journal of all of a channel's. With its seal a lease may
        lose what tells it from one that never was, and with it all its messages."""
        if "/leases/" not in path:
            return
        self._model.harm_leases(_owner(path))
        directory = path.rpartition("/")[0]
        if path.endswith(JOURNAL_SUFFIX) and not directory.endswith("/journal"):
            for segment in self._disk.paths(SEGMENT_SUFFIX):
                if segment.startswith(directory + "/"):
                    blocks = _blocks(self._disk.content(segment))
                    bodies = [body for block in blocks for body in block.bodies]
                    self._excuse(segment, 0, bodies, silent=True)

    def before_start(self) -> None:
        """The daemon is about to read its files: what was harmed while it ran is settled now."""
        self.account()
        self._lost = []
        for path in sorted(self._journals):
            self._expect_again(path, list(_groups(self._disk.content(path))))
        self._journals = set()

    def account(self) -> None:
        """What was written to a file after it vanished is gone with it."""
        for path, inode, size in self._lost:
            later = [block for block in _blocks(bytes(inode.data)) if block.start >= size]
            bodies = [body for block in later for body in block.bodies]
            self._excuse(path, size, bodies, silent=True)

    def _any_file(self) -> str:
        paths = self._disk.paths(self._random.choice(_KINDS))
        return self._random.choice(paths) if paths else ""

    def _excuse_block(self, path: str, at: int) -> None:
        for block in _blocks(self._disk.content(path)):
            if block.start <= at < block.stop:
                bodies = self._live(path, [block])
                self._excuse(path, block.start, bodies, silent=False)

    def _excuse(self, path: str, offset: int, bodies: list[bytes], *, silent: bool) -> None:
        hit = Hit(path, offset, silent=silent)
        self._hits.append(hit)
        hits = {body: [hit] for body in bodies}
        for queue in self._queues(path):
            queue.excuse(hits)
        topic, channel = _owner(path)
        if not channel and topic in self._model.topic_hits:
            known = self._model.topic_hits[topic]
            for body in bodies:
                known[body] = [*known.get(body, []), hit]

    def _expect_again(self, path: str, groups: list[_Group]) -> None:
        """Only ``groups`` of a journal count from now on: the rest may come again."""
        self._journals.add(path)
        segment = path.removesuffix(JOURNAL_SUFFIX) + SEGMENT_SUFFIX
        blocks = list(_blocks(self._disk.content(segment)))
        bodies = _unacknowledged(segment, blocks, groups)
        for queue in self._queues(path):
            queue.doubled.update(bodies)

    def _live(self, path: str, blocks: list[_Block]) -> list[bytes]:
        journal = path.removesuffix(SEGMENT_SUFFIX) + JOURNAL_SUFFIX
        return _unacknowledged(path, blocks, list(_groups(self._disk.content(journal))))

    def _queues(self, path: str) -> list[Queue]:
        topic, channel = _owner(path)
        model = self._model
        return [model.queue((topic, channel))] if channel else model.queues_of(topic)


def _owner(path: str) -> tuple[str, str]:
    """The topic and the channel of a log's file; no channel if it is the topic's own."""
    _, _, topic, channel, *_ = path.split("/")
    is_channel = channel.endswith(".channel")
    return topic.removesuffix(".topic"), channel.removesuffix(".channel") if is_channel else ""


def _blocks(content: bytes) -> Iterator[_Block]:
    """The intact blocks of a segment."""
    at = SEGMENT_HEADER_BYTES
    while at >= 0:
        try:
            header = parse_block_header(content, at, "", at)
            stop = at + BLOCK_HEADER_BYTES + header.length
            batch = decode_block(header, content[at + BLOCK_HEADER_BYTES : stop], "", at)
        except CorruptionError:
            at = content.find(BLOCK_MAGIC, at + 1)
        else:
            frames = (batch.frames(index, index + 1) for index in range(len(batch)))
            bodies = [frame[FRAME_HEADER_BYTES:] for frame in frames]
            yield _Block(at, stop, header.first_number, bodies)
            at = stop


def _groups(content: bytes) -> Iterator[_Group]:
    """The groups of a journal up to the first damaged one."""
    at = 0
    while at + _U32_PAIR.size <= len(content):
        count, crc = _U32_PAIR.unpack_from(content, at)
        stop = at + _U32_PAIR.size * (1 + count)
        packed = content[at + _U32_PAIR.size : stop]
        if stop > len(content) or google_crc32c.value(packed) != crc:
            return
        yield _Group(at, stop, list(_U32_PAIR.iter_unpack(packed)))
        at = stop


def _unacknowledged(path: str, blocks: list[_Block], groups: list[_Group]) -> list[bytes]:
    """The bodies in ``blocks`` of the segment ``path`` that ``groups`` do not acknowledge."""
    first = int(path.rpartition("/")[2].removesuffix(SEGMENT_SUFFIX))
    acknowledged = {
        first + number
        for group in groups
        for offset, length in group.ranges
        for number in range(offset, offset + length)
    }
    return [
        body
        for block in blocks
        for number, body in enumerate(block.bodies, block.first_number)
        if number not in acknowledged
    ]
