"""Lease calls to one nsqd, over ``http.client``: for executors too, where there is no aiohttp.

A lease is many messages of a channel, taken at once and kept by the daemon until somebody commits
or releases it, or it expires. Every call here may be repeated and is, while the node does not
answer: a create, because the caller names the lease.

Source: docs/leases.md.
"""

import http.client
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from struct import Struct
from typing import Any, NamedTuple

from nsqpy.client.nodes import Answer, HTTPNode, NodeUnavailable
from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.errors import NSQError

try:
    from google_crc32c import value as _crc32c
except ImportError:  # an executor without it still has the counts and lengths to check
    _crc32c = None

__all__ = ["Lease", "LeaseGone", "LeaseNode", "LeaseState", "Split", "StreamError"]

log = logging.getLogger(__name__)

_GONE = 410
_NOTHING = 204
_LIST_MAX = 1000
# The create of millions of messages answers when they are in the lease's file.
_CREATE_TIMEOUT_S = 120.0
_READ_BYTES = 2 << 20

_BLOCK_HEADER = Struct(">4sBBHIIqQII")
_BLOCK_MAGIC = b"NQB1"
_HEADER_CRC_AT = 36
_BLOCK_MAX_BYTES = 1 << 30


class LeaseState(StrEnum):
    """What has become of a lease."""

    LEASED = "leased"
    COMMITTED = "committed"
    EXPIRED = "expired"
    RELEASED = "released"
    UNKNOWN = "unknown"


class LeaseGone(NSQError):
    """The lease has ended, or the node has never heard of it."""

    def __init__(self, address: str, lease_id: str, state: LeaseState) -> None:
        super().__init__(address, lease_id, state)
        self.address = address
        self.lease_id = lease_id
        self.state = state

    def __str__(self) -> str:
        return f"lease {self.lease_id} at node {self.address} is gone: {self.state}"


class StreamError(NSQError):
    """The bytes of a lease are not what the daemon promised."""


class Split(NamedTuple):
    """A part of a lease's stream that can be read by itself: bytes, and messages in them."""

    offset: int
    length: int
    messages: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A living lease, as the node tells of it. ``splits`` cover the whole stream, in order."""

    id: str
    topic: str
    channel: str
    node: str
    count: int
    length: int
    expires_ns: int
    reads: int
    splits: tuple[Split, ...]

    @classmethod
    def of(cls, told: Mapping[str, Any], node: str = "") -> "Lease":
        return cls(
            id=str(told["id"]),
            topic=str(told["topic"]),
            channel=str(told["channel"]),
            node=str(told.get("node", node)),
            count=int(told["count"]),
            length=int(told["bytes"]),
            expires_ns=int(told["expires"]) * MILLISECOND,
            reads=int(told["reads"]),
            splits=tuple(Split(*map(int, split)) for split in told.get("splits", ())),
        )


class LeaseNode(HTTPNode):
    """The lease calls of one node. Every one raises ``NodeUnavailable`` when patience runs out,
    and ``NodeRefused`` for an answer that no lease explains, such as 404 TOPIC_NOT_FOUND."""

    def create(
        self,
        topic: str,
        channel: str,
        lease_id: str,
        *,
        max_messages: int,
        max_bytes: int,
        ttl_ns: int,
        wait_ns: int = 0,
    ) -> Lease | None:
        """Take messages under that id; None if there were none for ``wait_ns``.

        An id that lives is the same lease again, and lives ``ttl_ns`` from now.

        Raises:
            LeaseGone: the id has ended.
        """
        params: dict[str, str | int] = {
            "topic": topic,
            "channel": channel,
            "id": lease_id,
            "max_messages": max_messages,
            "max_bytes": max_bytes,
            "ttl": ttl_ns // MILLISECOND,
            "wait": wait_ns // MILLISECOND,
        }
        timeout_s = _CREATE_TIMEOUT_S + wait_ns / SECOND
        answer = self.call("POST", "/lease/create", params, timeout_s=timeout_s)
        if answer.status == _NOTHING:
            return None
        if answer.status == _GONE:
            raise self._gone(lease_id, answer)
        if answer.status != 200:
            raise self.refused("/lease/create", answer)
        return Lease.of(answer.json())

    def extend(
        self, lease_ids: Sequence[str], ttl_ns: int, patience_s: float | None = None
    ) -> dict[str, LeaseState]:
        """Have them live ``ttl_ns`` from now; ``LEASED`` for each that does."""
        return self._each("extend", lease_ids, {"ttl": ttl_ns // MILLISECOND}, patience_s)

    def commit(
        self, lease_ids: Sequence[str], patience_s: float | None = None
    ) -> dict[str, LeaseState]:
        """Acknowledge all their messages; ``COMMITTED`` for each where that holds."""
        return self._each("commit", lease_ids, {}, patience_s)

    def release(self, lease_ids: Sequence[str]) -> dict[str, LeaseState]:
        """Put their messages back; ``RELEASED`` for each where that holds."""
        return self._each("release", lease_ids, {})

    def leases(self, topic: str, channel: str) -> list[Lease]:
        """The living leases of a channel, without split points."""
        told = self._leases(topic, channel)
        return [Lease.of(one, told["node"]) for one in told["leases"]]

    def node_id(self) -> str:
        """Who the node is, wherever it listens: the same as long as its data is."""
        return str(self._leases("", "")["node"])

    def read(self, lease_id: str, split: Split) -> Iterator[bytes]:
        """The message frames of a part, in pieces of whole messages.

        A connection that breaks is made again, and reading goes on where it stood.

        Raises:
            LeaseGone: the lease has ended.
            StreamError: a block is damaged, or the count is not the split's.
        """
        blocks = _Blocks()
        for data in self._stream(lease_id, split):
            frames = blocks.feed(data)
            if frames:
                yield frames
        blocks.end(split)

    def _stream(self, lease_id: str, split: Split) -> Iterator[bytes]:
        at, end = split.offset, split.offset + split.length
        deadline_s = 0.0
        pause_s = 0.0
        while at < end:
            try:
                for data in self._range(lease_id, at, end):
                    at += len(data)
                    deadline_s = pause_s = 0.0
                    yield data
            except NodeUnavailable as error:
                now_s = time.monotonic()
                deadline_s = deadline_s or now_s + self.patience_s
                if now_s > deadline_s:
                    raise
                pause_s = min(max(0.05, 2 * pause_s), 1.0)
                log.warning("reading lease %s: %s; asking again", lease_id, error)
                time.sleep(pause_s)

    def _range(self, lease_id: str, start: int, end: int) -> Iterator[bytes]:
        """One attempt. Raises NodeUnavailable when it breaks off."""
        headers = {"Range": f"bytes={start}-{end - 1}"}
        reply = self.stream("GET", "/lease/read", {"id": lease_id}, headers=headers)
        complete = False
        try:
            if reply.status != 206:
                answer = Answer(reply.status, reply.read(1 << 16))
                raise self._not_read(lease_id, answer)
            left = end - start
            while left:
                data = reply.read(min(left, _READ_BYTES))
                if not data:
                    raise NodeUnavailable(str(self.address), "the connection was closed")
                left -= len(data)
                yield data
            complete = True
        except (OSError, http.client.HTTPException) as error:
            raise self.unavailable(error) from error
        finally:
            reply.close()
            # Left early, by an error or by a reader that has enough: the rest is still to come.
            if not complete:
                self.close()

    def _not_read(self, lease_id: str, answer: Answer) -> NSQError:
        if answer.status == _GONE:
            return self._gone(lease_id, answer)
        if answer.status >= 500:
            return NodeUnavailable(str(self.address), f"it answers {answer.status} {answer.code}")
        return self.refused("/lease/read", answer)

    def _leases(self, topic: str, channel: str) -> dict[str, Any]:
        params = {"topic": topic, "channel": channel} if topic else {}
        answer = self.call("GET", "/leases", params)
        if answer.status != 200:
            raise self.refused("/leases", answer)
        return answer.json()

    def _each(
        self,
        verb: str,
        lease_ids: Sequence[str],
        params: Mapping[str, str | int],
        patience_s: float | None = None,
    ) -> dict[str, LeaseState]:
        states: dict[str, LeaseState] = {}
        for first in range(0, len(lease_ids), _LIST_MAX):
            body = "\n".join(lease_ids[first : first + _LIST_MAX]).encode()
            path = f"/lease/{verb}"
            answer = self.call("POST", path, params, body, patience_s=patience_s)
            if answer.status not in (200, _GONE):
                raise self.refused(path, answer)
            for lease_id, told in answer.json()["leases"].items():
                states[lease_id] = LeaseState(told["state"])
        return states

    def _gone(self, lease_id: str, answer: Answer) -> LeaseGone:
        state = LeaseState(answer.json().get("state", LeaseState.UNKNOWN))
        return LeaseGone(str(self.address), lease_id, state)


class _Blocks:
    """Blocks cut anywhere to message frames. Source: docs/storage.md, block."""

    def __init__(self) -> None:
        self._rest = b""
        self._count = 0

    def feed(self, data: bytes) -> bytes:
        """The frames of every block that is whole by now."""
        data = self._rest + data if self._rest else data
        at, end = 0, len(data)
        parts = []
        while at + _BLOCK_HEADER.size <= end:
            count, length, crc = _parse_header(data, at)
            frames_at = at + _BLOCK_HEADER.size
            if frames_at + length > end:
                break
            frames = data[frames_at : frames_at + length]
            if _crc32c is not None and _crc32c(frames) != crc:
                raise StreamError("checksum of a block does not match")
            parts.append(frames)
            self._count += count
            at = frames_at + length
        self._rest = data[at:]
        return b"".join(parts)

    def end(self, split: Split) -> None:
        if self._rest:
            raise StreamError(f"a block is cut off after {len(self._rest)} bytes")
        if self._count != split.messages:
            raise StreamError(f"{self._count} messages came, not {split.messages}")


def _parse_header(data: bytes, at: int) -> tuple[int, int, int]:
    magic, version, _, _, count, length, _, _, crc, header_crc = _BLOCK_HEADER.unpack_from(data, at)
    if magic != _BLOCK_MAGIC or version != 1 or length > _BLOCK_MAX_BYTES:
        raise StreamError("this is no block of messages")
    if _crc32c is not None and header_crc != _crc32c(data[at : at + _HEADER_CRC_AT]):
        raise StreamError("checksum of a block's header does not match")
    return count, length, crc
