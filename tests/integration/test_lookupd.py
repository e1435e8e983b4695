"""nsqlookupd over sockets: every endpoint byte for byte, with daemons that announce themselves."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from nsqpy.clock import SECOND, ManualClock
from nsqpy.net.listeners import ListenError
from nsqpy.protocol.lookup import (
    MAGIC,
    OK_FRAME,
    PING,
    PeerInfo,
    identify,
    register,
    reply_frame,
    unregister,
)
from nsqpy_lookupd.app import Lookupd
from nsqpy_lookupd.config import LookupdConfig
from tests.integration.http_exchange import Answer, HTTPConnection
from tests.integration.lookup_peer import LookupPeer

CONFIG = LookupdConfig(
    tcp_address="127.0.0.1:0",
    http_address="127.0.0.1:0",
    broadcast_address="lookup.example",
)
NEVER = -6795364578871345152

Join = Callable[..., Awaitable[LookupPeer]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def lookupd(clock: ManualClock) -> AsyncIterator[Lookupd]:
    async with Lookupd(CONFIG, "vm", clock=clock) as running:
        yield running


@pytest.fixture
async def http(lookupd: Lookupd) -> AsyncIterator[HTTPConnection]:
    connection = await HTTPConnection.open(lookupd.http_address)
    yield connection
    await connection.close()


@pytest.fixture
async def join(lookupd: Lookupd) -> AsyncIterator[Join]:
    """Makes daemons that have identified themselves and registered something."""
    joined: list[LookupPeer] = []

    async def join(*commands: bytes, host: str = "host") -> LookupPeer:
        peer = await LookupPeer.identified(lookupd.tcp_address, host)
        joined.append(peer)
        for command in commands:
            assert await peer.ask(command) == b"OK"
        return peer

    yield join
    for peer in joined:
        await peer.close()


def producer(peer: LookupPeer, host: str = "host") -> dict[str, object]:
    return {
        "remote_address": peer.name,
        "hostname": "",
        "broadcast_address": host,
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
        "topology_zone": "",
        "topology_region": "",
    }


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


async def told(http: HTTPConnection, target: str) -> object:
    """The JSON of a good answer, whose form is checked."""
    answer = await http.ask("GET", target)
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    value: object = json.loads(answer.body)
    assert answer.body == compact(value)
    return value


async def done(http: HTTPConnection, target: str) -> None:
    """A POST that answers with nothing."""
    answer = await http.ask("POST", target)
    assert (answer.status, answer.body) == (200, b""), answer
    assert "content-type" not in answer.headers
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


async def names_of(http: HTTPConnection, target: str) -> list[str]:
    """The ``remote_address`` of each producer."""
    value = await told(http, target)
    assert isinstance(value, dict)
    return [found["remote_address"] for found in value["producers"]]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.001)


# --- endpoints ---


async def test_ping_and_info(http: HTTPConnection) -> None:
    answer = await http.ask("GET", "/ping")
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "x-nsq-content-type" not in answer.headers
    assert await told(http, "/info") == {"version": "1.3.0"}


async def test_nothing_is_known_at_first(http: HTTPConnection) -> None:
    assert await told(http, "/topics") == {"topics": []}
    assert await told(http, "/channels?topic=t") == {"channels": []}
    assert await told(http, "/channels?topic=$") == {"channels": []}
    assert await told(http, "/nodes") == {"producers": []}
    assert await told(http, "/debug") == {}


async def test_what_a_daemon_announced(
    http: HTTPConnection, join: Join, clock: ManualClock
) -> None:
    one = await join(register("t", "c"), register("t", "d"))
    two = await join(register("t"), host="other")
    assert await told(http, "/topics") == {"topics": ["t"]}
    assert await told(http, "/channels?topic=t") == {"channels": ["c", "d"]}
    both = [producer(one), producer(two, "other")]
    assert await told(http, "/lookup?topic=t") == {"channels": ["c", "d"], "producers": both}
    listed = [{**found, "tombstones": [False], "topics": ["t"]} for found in both]
    assert await told(http, "/nodes") == {"producers": listed}
    assert (await http.ask("GET", "/nodes")).body == compact({"producers": listed})


async def test_debug(http: HTTPConnection, join: Join, clock: ManualClock) -> None:
    peer = await join(register("t", "c"))
    await done(http, "/topic/create?topic=empty")
    await done(http, "/topic/tombstone?topic=t&node=host:4151")
    now_ns = clock.now().wall_ns
    clock.advance(60 * SECOND)

    def entry(*, tombstoned_at: int | None = None) -> dict[str, object]:
        return {
            "broadcast_address": "host",
            "hostname": "",
            "http_port": 4151,
            "id": peer.name,
            "last_update": now_ns,
            "tcp_port": 4150,
            "tombstoned": tombstoned_at is not None,
            "tombstoned_at": NEVER if tombstoned_at is None else tombstoned_at,
            "topology_region": "",
            "topology_zone": "",
            "version": "1.3.0",
        }

    found = await told(http, "/debug")
    assert found == {
        "client::": [entry()],
        "topic:t:": [entry(tombstoned_at=now_ns)],
        "channel:t:c": [entry()],
    }
    assert (await http.ask("GET", "/debug")).body == compact(found)


async def test_a_large_directory_is_told_whole(http: HTTPConnection, join: Join) -> None:
    names = [f"t{number}" for number in range(1500)]
    peer = await join()
    peer.send(b"".join(register(name) for name in names))
    for _ in names:
        assert await peer.reply() == b"OK"
    (node,) = (await told(http, "/nodes"))["producers"]  # type: ignore[index]
    assert node["topics"] == names
    assert len(await told(http, "/debug")) == 1501  # type: ignore[arg-type]


async def test_creating_and_deleting(http: HTTPConnection, join: Join) -> None:
    await done(http, "/channel/create?topic=t&channel=c")
    await done(http, "/channel/create?topic=t&channel=c")
    await done(http, "/topic/create?topic=u%23ephemeral")
    await done(http, "/topic/create?topic=u%23ephemeral")
    assert await told(http, "/topics") == {"topics": ["t", "u#ephemeral"]}
    assert await told(http, "/lookup?topic=t") == {"channels": ["c"], "producers": []}
    await done(http, "/channel/delete?topic=t&channel=c")
    assert await told(http, "/lookup?topic=t") == {"channels": [], "producers": []}
    for topic in ("t", "u%23ephemeral", "unknown", "%24", "*", ""):
        await done(http, f"/topic/delete?topic={topic}")
    assert await told(http, "/topics") == {"topics": []}


REFUSALS = [
    ("GET", "/lookup", 400, "MISSING_ARG_TOPIC"),
    ("GET", "/lookup?topic=", 404, "TOPIC_NOT_FOUND"),
    ("GET", "/lookup?topic=$", 404, "TOPIC_NOT_FOUND"),
    ("GET", "/lookup?topic=*", 404, "TOPIC_NOT_FOUND"),
    ("GET", "/lookup?topic=unknown", 404, "TOPIC_NOT_FOUND"),
    ("GET", "/channels", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/create", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/create?topic=", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/topic/create?topic=a/b", 400, "INVALID_ARG_TOPIC"),
    ("POST", "/topic/delete", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/tombstone?node=x", 400, "MISSING_ARG_TOPIC"),
    ("POST", "/topic/tombstone?topic=x", 400, "MISSING_ARG_NODE"),
    *(
        ("POST", f"/channel/{verb}{query}", 400, code)
        for verb in ("create", "delete")
        for query, code in [
            ("?channel=c", "MISSING_ARG_TOPIC"),
            ("?topic=&channel=", "INVALID_ARG_TOPIC"),
            ("?topic=t", "MISSING_ARG_CHANNEL"),
            ("?topic=t&channel=%ff", "INVALID_ARG_CHANNEL"),
        ]
    ),
    ("POST", "/channel/delete?topic=t&channel=c", 404, "CHANNEL_NOT_FOUND"),
    *(
        (method, f"{path}?topic=t&channel=c&node=n&{bad}", 400, "INVALID_REQUEST")
        for method, path in [
            ("GET", "/lookup"),
            ("GET", "/channels"),
            ("POST", "/topic/create"),
            ("POST", "/topic/delete"),
            ("POST", "/topic/tombstone"),
            ("POST", "/channel/create"),
            ("POST", "/channel/delete"),
        ]
        for bad in ("x=%zz", "x;y")
    ),
    ("GET", "/", 404, "NOT_FOUND"),
    ("GET", "/stats", 404, "NOT_FOUND"),
    ("POST", "/lookup?topic=t", 405, "METHOD_NOT_ALLOWED"),
    ("GET", "/topic/create?topic=t", 405, "METHOD_NOT_ALLOWED"),
]


@pytest.mark.parametrize(("method", "target", "status", "code"), REFUSALS)
async def test_a_refusal(
    http: HTTPConnection, method: str, target: str, status: int, code: str
) -> None:
    answer = await http.ask(method, target)
    assert (answer.status, answer.body) == (status, b'{"message":"%b"}' % code.encode())
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


async def test_what_every_path_does(http: HTTPConnection) -> None:
    head = await http.ask("HEAD", "/topics")
    assert (head.status, head.headers["allow"]) == (405, "get, options")
    options = await http.ask("OPTIONS", "/topic/create")
    assert (options.status, options.headers["allow"]) == (200, "options, post")
    moved: list[Answer] = [
        await http.ask("GET", "/Lookup/?topic=t"),
        await http.ask("POST", "//topic/create?topic=t"),
    ]
    assert [(answer.status, answer.headers["location"]) for answer in moved] == [
        (301, "/lookup?topic=t"),
        (307, "/topic/create?topic=t"),
    ]


async def test_a_body_does_not_count(http: HTTPConnection) -> None:
    assert (await http.ask("POST", "/topic/create", b"topic=t")).status == 400
    assert (await http.ask("POST", "/topic/create?topic=t", b"x" * 5000)).status == 200
    assert await told(http, "/topics") == {"topics": ["t"]}


async def test_metrics(http: HTTPConnection, lookupd: Lookupd, join: Join) -> None:
    await join(register("t", "c"), register("u"), register("u"))
    bad = await LookupPeer.open(lookupd.tcp_address, MAGIC + b"REGISTER t\n")
    await bad.rest()
    await bad.close()
    expected = {
        "topics": 2,
        "channels": 1,
        "producers": 1,
        "registrations": 3,
        "connections": 1,
        "registered_total": 3,
        'errors_total{code="E_INVALID"}': 1,
    }

    async def reached() -> bool:
        answer = await http.ask("GET", "/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        found = re.findall(r"^nsqlookupd_(\S+) (\S+)$", answer.body.decode(), re.MULTILINE)
        return {name: float(value) for name, value in found} == expected

    await until(reached)


# --- the protocol ---


async def test_one_segment_gives_four_replies_in_order(lookupd: Lookupd) -> None:
    info = PeerInfo(broadcast_address="h", tcp_port=1, http_port=2, version="v")
    data = MAGIC + PING + identify(info) + register("t", "c") + PING
    http_port, tcp_port = (
        int(address.rpartition(":")[2]) for address in (lookupd.http_address, lookupd.tcp_address)
    )
    identity = {
        "broadcast_address": "lookup.example",
        "hostname": "vm",
        "http_port": http_port,
        "tcp_port": tcp_port,
        "version": "1.3.0",
    }
    peer = await LookupPeer.open(lookupd.tcp_address, data)
    peer.end()
    assert await peer.rest() == OK_FRAME + reply_frame(compact(identity)) + OK_FRAME * 2
    await peer.close()


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"  V2", b"E_BAD_PROTOCOL"),
        (MAGIC + b"REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (MAGIC + b"IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY invalid body size -1"),
        (MAGIC + b"IDENTIFY\n\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (MAGIC + b"IDENTIFY\n\0\0\0\2{", b"E_BAD_BODY IDENTIFY failed to read body"),
    ],
)
async def test_a_fault_is_answered_and_ends_the_connection(
    lookupd: Lookupd, join: Join, data: bytes, reply: bytes
) -> None:
    healthy = await join(register("t"))
    peer = await LookupPeer.open(lookupd.tcp_address, data)
    peer.end()
    assert await peer.rest() == reply_frame(reply)
    await peer.close()
    assert await healthy.ask(PING) == b"OK"


async def test_a_connection_that_ends_is_forgotten_at_once(
    http: HTTPConnection, join: Join
) -> None:
    peer = await join(register("t", "c"))
    other = await join(register("t"))
    await peer.close()

    async def gone() -> bool:
        return await names_of(http, "/nodes") == [other.name]

    await until(gone)
    assert await told(http, "/lookup?topic=t") == {
        "channels": ["c"],
        "producers": [producer(other)],
    }


async def test_a_fault_drops_what_was_registered(http: HTTPConnection, join: Join) -> None:
    peer = await join(register("t", "c"))
    assert (await peer.ask(b"nonsense\n")).startswith(b"E_INVALID")
    assert await told(http, "/lookup?topic=t") == {"channels": ["c"], "producers": []}
    assert await names_of(http, "/nodes") == []


async def test_a_tombstone_and_its_end(
    http: HTTPConnection, join: Join, clock: ManualClock
) -> None:
    peer = await join(register("t"), host="fd00::1")

    async def shown() -> tuple[list[str], list[bool]]:
        (node,) = (await told(http, "/nodes"))["producers"]  # type: ignore[index]
        return await names_of(http, "/lookup?topic=t"), node["tombstones"]

    await done(http, "/topic/tombstone?topic=t&node=%5Bfd00::1%5D:4151")
    assert await shown() == ([], [True])
    clock.advance(45 * SECOND)
    assert await shown() == ([peer.name], [False])


async def test_silence_hides_and_a_ping_restores(
    http: HTTPConnection, join: Join, clock: ManualClock
) -> None:
    peer = await join(register("t"))
    clock.advance(300 * SECOND + 1)
    assert await names_of(http, "/lookup?topic=t") == []
    assert await names_of(http, "/nodes") == []
    assert await peer.ask(PING) == b"OK"
    assert await names_of(http, "/lookup?topic=t") == [peer.name]
    assert await names_of(http, "/nodes") == [peer.name]


async def test_unregistering_an_ephemeral_channel_and_a_plain_one(
    http: HTTPConnection, join: Join
) -> None:
    peer = await join(register("t", "c#ephemeral"), register("t", "c"))
    assert await peer.ask(unregister("t", "c#ephemeral")) == b"OK"
    assert await peer.ask(unregister("t", "c")) == b"OK"
    assert await told(http, "/channels?topic=t") == {"channels": ["c"]}


# --- bounds ---


def registers(count: int) -> Iterator[bytes]:
    return (register(f"topic{number}", "c") for number in range(count))


@pytest.mark.slow
async def test_a_flood_from_one_does_not_keep_others_waiting(
    http: HTTPConnection, join: Join
) -> None:
    flooding, healthy = await join(), await join(register("t"))
    count = 20_000
    flooding.send(b"".join(registers(count)))
    answered = 0
    while (await http.ask("GET", f"/lookup?topic=topic{count - 1}")).status == 404:
        assert await healthy.ask(PING) == b"OK"
        assert await names_of(http, "/lookup?topic=t") == [healthy.name]
        answered += 1
    assert answered > 3
    for _ in range(count):
        assert await flooding.reply() == b"OK"


@pytest.mark.slow
async def test_one_that_goes_is_in_no_answer_though_it_had_thousands_of_topics(
    http: HTTPConnection, join: Join
) -> None:
    count = 5000
    peer = await join(*registers(count))
    await peer.close()
    async with asyncio.timeout(30):
        while await told(http, "/nodes") != {"producers": []}:
            pass
    for number in range(0, count, 500):
        found = await told(http, f"/lookup?topic=topic{number}")
        assert found == {"channels": ["c"], "producers": []}
    assert len((await told(http, "/topics"))["topics"]) == count  # type: ignore[index]


# --- start and stop ---


async def test_a_stop_closes_every_connection_at_once(clock: ManualClock) -> None:
    async with Lookupd(CONFIG, "vm", clock=clock) as lookupd:
        silent = await LookupPeer.open(lookupd.tcp_address, b"")
        peer = await LookupPeer.identified(lookupd.tcp_address)
        address = lookupd.tcp_address
    for one in (silent, peer):
        with contextlib.suppress(ConnectionResetError):
            assert await one.rest() == b""
        await one.close()
    with pytest.raises(ConnectionRefusedError):
        await LookupPeer.open(address)


@pytest.mark.parametrize("listener", ["tcp_address", "http_address"])
async def test_a_port_that_is_taken(lookupd: Lookupd, listener: str) -> None:
    taken = lookupd.tcp_address if listener == "tcp_address" else lookupd.http_address
    second = Lookupd(replace(CONFIG, **{listener: taken}), "vm")  # type: ignore[arg-type]
    with pytest.raises(ListenError) as caught:
        await second.start()
    reason = f"listen ({taken}) failed - listen tcp {taken}: bind: address already in use"
    assert str(caught.value) == reason
    if second.tcp_address:
        with pytest.raises(ConnectionRefusedError):
            await LookupPeer.open(second.tcp_address)
