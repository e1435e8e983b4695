"""Batch jobs: they lease messages, read them, and commit, release or forget the lease."""

import asyncio
import random

from nsqpy.protocol.frames import FrameParser, MessageFrames
from nsqpy.storage.block import BLOCK_HEADER_BYTES, parse_block_header
from tests.chaos.ledger import ChannelBook
from tests.chaos.target import ChaosError, Target
from tests.chaos.wire import Answer, HTTPConnection

__all__ = ["lease"]

_RECONNECT_SECONDS = 0.02
_IDLE_SECONDS = 0.1
_WAIT_MS = 200
# No outage may be as long: what is committed late may be done with in part, which nobody can tell.
_TTL_MS = 600_000
_FORGOTTEN_TTL_MS = 500
_COMMIT, _RELEASE, _FORGET = "commit", "release", "forget"


async def lease(target: Target, book: ChannelBook, rng: random.Random, calm: asyncio.Event) -> None:
    """Take leases until cancelled; from ``calm`` on each is committed."""
    serial = 0
    while True:
        serial += 1
        fate = rng.choices((_COMMIT, _RELEASE, _FORGET), (8, 1, 1))[0]
        fate = _COMMIT if calm.is_set() else fate
        limit = rng.choice((1, 20, 500))
        if not await _one(target, book, f"{book.topic}.{book.channel}-{serial}", fate, limit):
            await asyncio.sleep(_IDLE_SECONDS)


async def _one(target: Target, book: ChannelBook, lease_id: str, fate: str, limit: int) -> bool:
    """One lease from beginning to end; whether there was anything to take.

    Raises:
        ChaosError: an answer that cannot be.
    """
    ttl_ms = _FORGOTTEN_TTL_MS if fate is _FORGET else _TTL_MS
    query = f"topic={book.topic}&channel={book.channel}&id={lease_id}&max_messages={limit}"
    created = await _ask(target, "POST", f"/lease/create?{query}&ttl={ttl_ms}&wait={_WAIT_MS}")
    status = _status(created)
    if status in (204, 404):  # nothing there, or not even the channel yet
        return False
    gone = fate is _FORGET and status == 410
    if not created.ok and not gone:
        raise ChaosError(f"create {lease_id}: {created.text}")
    stream = created if gone else await _ask(target, "GET", f"/lease/read?id={lease_id}")
    if fate is _FORGET and _status(stream) == 410:
        return True
    if not stream.ok:
        raise ChaosError(f"read {lease_id}: {stream.text[:200]}")
    keys = [book.receive(message_id, body) for message_id, body in _messages(stream.body)]
    if fate is not _COMMIT:
        book.put_back(keys)
    if fate is _FORGET:
        return True
    ended = await _ask(target, "POST", f"/lease/{fate}?id={lease_id}")
    if not ended.ok:
        raise ChaosError(f"{fate} {lease_id}: {ended.text}")
    for key in keys if fate is _COMMIT else ():
        book.finish(key, target.lives.now)
    return True


def _messages(stream: bytes) -> list[tuple[bytes, bytes]]:
    """Ids and bodies of what stands in blocks."""
    parser = FrameParser()
    found: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(stream):
        header = parse_block_header(stream, at, "lease", at)
        at += BLOCK_HEADER_BYTES
        for frame in parser.feed(stream[at : at + header.length]):
            assert isinstance(frame, MessageFrames)
            found += [(message_id, body) for _, _, message_id, body in frame.messages]
        at += header.length
    return found


async def _ask(target: Target, method: str, path: str) -> Answer:
    """Repeat a call until it is answered."""
    while True:
        try:
            connection = await HTTPConnection.open(target.http_port)
        except OSError:
            await asyncio.sleep(_RECONNECT_SECONDS)
            continue
        try:
            if method == "GET":
                answer = await connection.get(path)
            else:
                answer = await connection.post(path)
            if _status(answer) != 503:  # it stops, or its disk refuses: both end
                return answer
        except (OSError, EOFError):
            pass
        finally:
            connection.close()
        await asyncio.sleep(_RECONNECT_SECONDS)


def _status(answer: Answer) -> int:
    return int(answer.text.split()[1])
