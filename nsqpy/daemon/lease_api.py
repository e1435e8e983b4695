"""The calls on leases: from a URL to the desk. Source: docs/leases.md."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from nsqpy.clock import MILLISECOND, Clock
from nsqpy.core.broker import Broker
from nsqpy.core.channel import Channel
from nsqpy.core.lease import (
    Lease,
    LeaseGoneError,
    LeaseRefusedError,
    LeaseRequest,
    LeaseState,
    LeaseTerms,
    is_valid_lease_id,
)
from nsqpy.core.lease_book import LeaseBook
from nsqpy.core.lease_desk import LeaseDesk, Outcome
from nsqpy.core.lease_taker import ChannelGoneError
from nsqpy.daemon.access import Access
from nsqpy.daemon.refusals import refusals
from nsqpy.errors import StorageError
from nsqpy.gojson import JSON
from nsqpy.net.http import (
    FileReply,
    HTTPError,
    Reply,
    Request,
    Route,
    argument,
    json_reply,
    legal_name,
)
from nsqpy.net.sendfile import FilePart
from nsqpy.tokens import Role

__all__ = ["LeaseAPI"]

log = logging.getLogger(__name__)

_MESSAGES_MAX = 1_000_000_000
_MESSAGES_DEFAULT = 1_000_000
_BYTES_MAX = 2**63 - 1
_TTL_DEFAULT_MS = 3600 * 1000
_TTL_MAX_MS = 30 * 24 * 3600 * 1000
_WAIT_MAX_MS = 60 * 1000
_IDS_MAX = 1000
_IDS_MAX_BYTES = 256 * 1024
_STATUS = {"TOO_MANY_LEASES": 429, "LEASE_OF_OTHER_CHANNEL": 409}
_NOTHING = Reply(204)
_NO_TERMS = LeaseTerms(0, 0, 0)


class LeaseAPI:
    """What answers ``/lease/*`` and ``/leases``."""

    def __init__(self, broker: Broker, clock: Clock, access: Access) -> None:
        self._desk = LeaseDesk(broker)
        self._clock = clock
        self._access = access

    def routes(self) -> Mapping[str, Mapping[str, Route]]:
        return {
            "/lease/create": {"POST": Route(self._create)},
            "/lease/read": {"GET": Route(self._read)},
            "/lease/extend": {"POST": Route(self._extend)},
            "/lease/commit": {"POST": Route(self._commit)},
            "/lease/release": {"POST": Route(self._release)},
            "/leases": {"GET": Route(self._list)},
        }

    # -- one lease --------------------------------------------------------------------------

    async def _create(self, request: Request) -> Reply:
        query = request.query
        topic, channel = legal_name(query, "topic"), legal_name(query, "channel")
        wanted = LeaseRequest(
            _lease_id(query),
            LeaseTerms(
                max_messages=_number(query, "max_messages", _MESSAGES_DEFAULT, 1, _MESSAGES_MAX),
                max_bytes=_number(query, "max_bytes", _BYTES_MAX, 1, _BYTES_MAX),
                ttl_ns=_ttl_ns(query),
            ),
        )
        wait_ms = _number(query, "wait", 0, 0, _WAIT_MAX_MS)
        wanted.patient = wait_ms > 0
        with _refusals():
            self._desk.create(topic, channel, wanted, self._clock.now())
            if not wanted.done:
                await self._wait_done(topic, channel, wanted, wait_ms / 1000)
            if wanted.error is not None:
                raise wanted.error
        if wanted.lease is None:
            return _NOTHING
        lease = wanted.lease
        splits: list[JSON] = [list(split) for split in lease.splits.triples()]
        where: dict[str, JSON] = {"topic": topic, "channel": channel, "node": self._desk.node_id}
        return json_reply({"id": lease.id, **where, **self._shown(lease), "splits": splits})

    async def _wait_done(
        self, topic: str, channel: str, wanted: LeaseRequest, wait_s: float
    ) -> None:
        """Return when the request is completed. ``wait_s`` bounds the time without messages; what
        has been begun comes to its end."""
        done = asyncio.Event()
        wanted.on_done = done.set
        if wanted.patient:
            try:
                async with asyncio.timeout(wait_s):
                    await done.wait()
            except TimeoutError:
                self._desk.stop_waiting(topic, channel, wanted)
        await done.wait()

    async def _read(self, request: Request) -> Reply:
        lease_id = _lease_id(request.query)
        self._check(request, [lease_id])
        with _refusals():
            await self._wait_taken([lease_id])
            book, lease = self._desk.find(lease_id)
            parts = [FilePart(*region) for region in book.regions(lease)]
            try:
                return FileReply(parts, request.range, partial(self._note_read, book, lease))
            except OSError as error:
                raise StorageError.of(lease_id, error) from error

    def _note_read(self, book: LeaseBook, lease: Lease, offset: int, length: int) -> None:
        book.note_read(lease, offset, length, self._clock.now())

    async def _list(self, request: Request) -> Reply:
        query = request.query
        sees = self._access.sees(request)
        channels = self._desk.channels(query.get("topic", ""), query.get("channel", ""))
        leases = [
            entry
            for channel in channels
            if sees is None or sees(channel.topic_name)
            for entry in self._leases_of(channel)
        ]
        return json_reply({"node": self._desk.node_id, "leases": leases})

    def _leases_of(self, channel: Channel) -> Iterator[JSON]:
        where: dict[str, JSON] = {"topic": channel.topic_name, "channel": channel.name}
        assert channel.leases is not None
        for lease in channel.leases.leases():
            yield {"id": lease.id, **where, **self._shown(lease)}

    def _shown(self, lease: Lease) -> dict[str, JSON]:
        now_ns = self._clock.now().wall_ns
        return {
            "state": lease.state.value,
            "count": lease.count,
            "bytes": lease.size,
            "expires": lease.expires_ns // MILLISECOND,
            "ttl": max(lease.expires_ns - now_ns, 0) // MILLISECOND,
            "reads": lease.reads,
        }

    # -- lists of them ----------------------------------------------------------------------

    async def _extend(self, request: Request) -> Reply:
        ids = await self._ids(request)
        ttl_ns = _ttl_ns(request.query)
        return await self._act(ids, lambda: self._desk.extend(ids, ttl_ns, self._clock.now()))

    async def _commit(self, request: Request) -> Reply:
        ids = await self._ids(request)
        return await self._act(ids, lambda: self._desk.commit(ids, self._clock.now()))

    async def _release(self, request: Request) -> Reply:
        ids = await self._ids(request)
        return await self._act(ids, lambda: self._desk.release(ids, self._clock.now()))

    async def _ids(self, request: Request) -> Sequence[str]:
        ids = await _ids(request)
        self._check(request, ids)
        return ids

    def _check(self, request: Request, ids: Sequence[str]) -> None:
        """Raises HTTPError 403 if a lease is of a topic that the caller may not consume."""
        topics = {self._desk.topic_of(lease_id) for lease_id in ids}
        for topic in sorted(filter(None, topics)):
            self._access.require(request, Role.CONSUME, topic)

    async def _wait_taken(self, ids: Sequence[str]) -> None:
        """Return when those that are just being taken have been, or not."""
        for lease_id in ids:
            request = LeaseRequest(lease_id, _NO_TERMS)
            if self._desk.join(request):
                taken = asyncio.Event()
                request.on_done = taken.set
                await taken.wait()

    async def _act(self, ids: Sequence[str], act: Callable[[], list[Outcome]]) -> Reply:
        """Answer once it is as safe as ``--durability`` asks."""
        with _refusals():
            await self._wait_taken(ids)
            outcomes = act()
            safe: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
            self._desk.when_safe(partial(_note_safe, safe))
            error = await safe
            if error is not None:
                raise error
        leases: JSON = {outcome.lease_id: _outcome(outcome) for outcome in outcomes}
        failed = next((outcome for outcome in outcomes if not outcome.done), None)
        if failed is None:
            return json_reply({"leases": leases})
        return json_reply({"message": "LEASE_GONE", "state": failed.state, "leases": leases}, 410)


def _note_safe(safe: "asyncio.Future[StorageError | None]", error: StorageError | None) -> None:
    if not safe.done():  # the connection may have been closed meanwhile
        safe.set_result(error)


def _outcome(outcome: Outcome) -> JSON:
    shown: dict[str, JSON] = {"state": outcome.state}
    if outcome.state == LeaseState.LEASED:
        shown["expires"] = outcome.expires_ns // MILLISECOND
    if outcome.state == LeaseState.EXPIRED:
        shown["acknowledged"] = outcome.acknowledged
    return shown


@contextmanager
def _refusals() -> Iterator[None]:
    """As of the other calls. A disk that refuses is no reason to give up: every call may be
    repeated."""
    with refusals(if_storage=(503, "EXITING")):
        try:
            yield
        except LeaseRefusedError as error:
            raise HTTPError(_STATUS.get(error.code, 400), error.code) from None
        except LeaseGoneError as error:
            raise _GoneHTTPError(error.state) from None
        except ChannelGoneError:
            raise HTTPError(503, "EXITING") from None


class _GoneHTTPError(HTTPError):
    def __init__(self, state: str) -> None:
        super().__init__(410, "LEASE_GONE")
        self.state = state

    def reply(self) -> Reply:
        return json_reply({"message": self.code, "state": self.state}, self.status)


def _lease_id(query: Mapping[str, str]) -> str:
    value = argument(query, "id")
    if not is_valid_lease_id(value):
        raise HTTPError(400, "INVALID_ARG_ID")
    return value


def _number(query: Mapping[str, str], key: str, default: int, least: int, most: int) -> int:
    text = query.get(key)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise HTTPError(400, f"INVALID_ARG_{key.upper()}")
    value = int(text)
    if not least <= value <= most:
        raise HTTPError(400, f"INVALID_ARG_{key.upper()}")
    return value


def _ttl_ns(query: Mapping[str, str]) -> int:
    return _number(query, "ttl", _TTL_DEFAULT_MS, 1, _TTL_MAX_MS) * MILLISECOND


async def _ids(request: Request) -> Sequence[str]:
    """The ids of the query, or else of the body, each once."""
    given = request.query.get("id")
    if given is not None:
        ids = given.split(",")
    else:
        body = await request.body(_IDS_MAX_BYTES, "BODY_TOO_BIG")
        ids = body.decode(errors="replace").split()
        if not ids:
            raise HTTPError(400, "MISSING_ARG_ID")
    if len(ids) > _IDS_MAX or not all(map(is_valid_lease_id, ids)):
        raise HTTPError(400, "INVALID_ARG_ID")
    return list(dict.fromkeys(ids))
