"""Who may call what over HTTP: every role against every endpoint, as one table."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from nsqpy.clock import SystemClock
from nsqpy.config import NsqdConfig
from nsqpy.core.broker import Broker
from nsqpy.daemon.access import NEEDS
from nsqpy.daemon.auth import Gatekeeper
from nsqpy.net.http import Router
from nsqpy.storage.files import OSFiles
from nsqpy.tokens import Role, hash_token, parse_tokens
from tests.integration.api import make_api
from tests.integration.http_exchange import Answer, HTTPConnection

# Callers: a token of each role on the topic "own" alone, one of each on every topic, a token
# nobody knows, and none.
ROLES = [role.value for role in Role]
CALLERS = [*ROLES, *(f"{role}>" for role in ROLES), "unknown", "none"]


def token_file() -> str:
    lines = []
    for caller in CALLERS[:-2]:
        role = caller.removesuffix(">")
        name, topics = (f"{role}.all", ">") if caller.endswith(">") else (role, "own")
        lines.append(f"{name} {hash_token(caller.encode())} {role} {topics}")
    return "\n".join(lines)


class Daemon:
    def __init__(self, data_path: Path) -> None:
        clock = SystemClock()
        config = NsqdConfig(data_path=str(data_path), node_id=1)
        self._clock = clock
        self.broker = Broker(config, OSFiles(), Random(0), wake=self._wake, start=clock.now())
        gatekeeper = Gatekeeper(clock, parse_tokens(token_file()))
        self.broker.authenticator = gatekeeper
        self.api = make_api(self.broker, clock, gatekeeper=gatekeeper)

    def _wake(self) -> None:
        asyncio.get_running_loop().call_soon(lambda: self.broker.turn(self._clock.now()))


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    daemon = Daemon(tmp_path)
    for topic in ("own", "other"):
        daemon.broker.topic(topic)
        daemon.broker.create_channel(topic, "c")
    yield daemon
    await daemon.api.stop()
    daemon.broker.close()


@pytest.fixture
async def address(daemon: Daemon) -> str:
    return await daemon.api.listen("127.0.0.1:0")


async def call(address: str, caller: str, method: str, target: str, body: bytes = b"") -> Answer:
    connection = await HTTPConnection.open(address)
    try:
        headers = [] if caller == "none" else [f"Authorization: Bearer {caller}"]
        return await connection.ask(method, target, body, *headers)
    finally:
        await connection.close()


EVERYBODY = set(CALLERS)
KNOWN = EVERYBODY - {"unknown", "none"}
ADMIN_OF_OWN = {"admin", "admin>"}
PUBLISHER_OF_OWN = {"publish", "publish>"} | ADMIN_OF_OWN
CONSUMER_OF_OWN = {"consume", "consume>"} | ADMIN_OF_OWN
NODE_ADMIN = {"admin>"}

# method, target with the topic "own", body: who may call it, who may with "other".
TABLE: list[tuple[str, str, bytes, set[str], set[str]]] = [
    ("GET", "/ping", b"", EVERYBODY, EVERYBODY),
    ("GET", "/healthz", b"", EVERYBODY, EVERYBODY),
    ("GET", "/healthz/live", b"", EVERYBODY, EVERYBODY),
    ("GET", "/info", b"", KNOWN, KNOWN),
    ("GET", "/stats", b"", KNOWN, KNOWN),
    ("GET", "/metrics", b"", KNOWN, KNOWN),
    ("POST", "/pub?topic=own", b"x", PUBLISHER_OF_OWN, {"publish>", "admin>"}),
    ("POST", "/mpub?topic=own", b"x", PUBLISHER_OF_OWN, {"publish>", "admin>"}),
    ("POST", "/topic/create?topic=own", b"", ADMIN_OF_OWN, NODE_ADMIN),
    ("POST", "/topic/pause?topic=own", b"", ADMIN_OF_OWN, NODE_ADMIN),
    ("POST", "/topic/unpause?topic=own", b"", ADMIN_OF_OWN, NODE_ADMIN),
    ("POST", "/topic/empty?topic=own", b"", ADMIN_OF_OWN, NODE_ADMIN),
    ("POST", "/channel/create?topic=own&channel=c", b"", ADMIN_OF_OWN, NODE_ADMIN),
    ("POST", "/channel/pause?topic=own&channel=c", b"", ADMIN_OF_OWN, NODE_ADMIN),
    ("POST", "/channel/unpause?topic=own&channel=c", b"", ADMIN_OF_OWN, NODE_ADMIN),
    ("POST", "/channel/empty?topic=own&channel=c", b"", ADMIN_OF_OWN, NODE_ADMIN),
    ("GET", "/channel/config?topic=own&channel=c", b"", KNOWN, {f"{role}>" for role in ROLES}),
    ("POST", "/channel/config?topic=own&channel=c", b"{}", ADMIN_OF_OWN, NODE_ADMIN),
    ("POST", "/channel/redrive?topic=own&channel=c", b"", ADMIN_OF_OWN, NODE_ADMIN),
    ("POST", "/channel/delete?topic=own&channel=c", b"", ADMIN_OF_OWN, NODE_ADMIN),
    ("POST", "/topic/delete?topic=own", b"", ADMIN_OF_OWN, NODE_ADMIN),
    (
        *("POST", "/lease/create?topic=own&channel=c&id=x", b""),
        *(CONSUMER_OF_OWN, {"consume>", "admin>"}),
    ),
    # Of a lease that there is not; test_a_lease_is_for_who_may_consume_its_topic has the others.
    ("GET", "/lease/read?id=x", b"", KNOWN, KNOWN),
    ("POST", "/lease/extend?id=x", b"", KNOWN, KNOWN),
    ("POST", "/lease/commit?id=x", b"", KNOWN, KNOWN),
    ("POST", "/lease/release?id=x", b"", KNOWN, KNOWN),
    ("GET", "/leases", b"", KNOWN, KNOWN),
    ("GET", "/drain", b"", NODE_ADMIN, NODE_ADMIN),
    ("POST", "/drain?timeout=1h", b"", NODE_ADMIN, NODE_ADMIN),
    ("GET", "/config/log_level", b"", NODE_ADMIN, NODE_ADMIN),
    ("PUT", "/config/log_level", b"info", NODE_ADMIN, NODE_ADMIN),
    ("GET", "/debug/pprof/", b"", NODE_ADMIN, NODE_ADMIN),
    ("GET", "/debug/pprof/cmdline", b"", NODE_ADMIN, NODE_ADMIN),
    ("GET", "/debug/pprof/goroutine", b"", NODE_ADMIN, NODE_ADMIN),
    ("GET", "/debug/pprof/threadcreate", b"", NODE_ADMIN, NODE_ADMIN),
    ("GET", "/debug/pprof/heap", b"", NODE_ADMIN, NODE_ADMIN),
    ("POST", "/debug/freememory", b"", NODE_ADMIN, NODE_ADMIN),
]
NOT_IN_TABLE = {("GET", "/debug/pprof/profile")}  # takes a second


@pytest.mark.parametrize(("method", "target", "body", "own", "other"), TABLE)
async def test_who_may_call(
    daemon: Daemon, address: str, method: str, target: str, body: bytes, own: set[str],
    other: set[str],
) -> None:  # fmt: skip
    for topic, allowed in (("own", own), ("other", other)):
        path = target.replace("topic=own", f"topic={topic}")
        for caller in [*(EVERYBODY - allowed), *allowed]:  # who may delete it comes last
            answer = await call(address, caller, method, path, body)
            if caller in allowed:
                assert answer.status in (200, 204, 404, 410), (caller, path, answer)
            else:
                unknown = caller in ("unknown", "none")
                expected = (401, "UNAUTHORIZED") if unknown else (403, "FORBIDDEN")
                assert (answer.status, json.loads(answer.body)["message"]) == expected, caller
                assert ("www-authenticate" in answer.headers) is unknown


def test_the_table_has_every_endpoint(daemon: Daemon) -> None:
    routes = daemon.api._routes()
    router = Router(routes)
    tried = {(method, id(router.find(target.partition("?")[0])[0])) for method, target, *_ in TABLE}
    for path, methods in routes.items():
        for method in methods:
            assert (method, id(methods)) in tried or (method, path) in NOT_IN_TABLE, path


def test_every_rule_is_for_an_endpoint(daemon: Daemon) -> None:
    routes = daemon.api._routes()
    assert all(method in routes[path] for method, path in NEEDS)


async def test_figures_are_cut_to_the_topics_of_the_token(daemon: Daemon, address: str) -> None:
    for caller, names in (("observe", ["own"]), ("observe>", ["other", "own"])):
        answer = await call(address, caller, "GET", "/stats?format=json")
        assert [topic["topic_name"] for topic in json.loads(answer.body)["topics"]] == names
        answer = await call(address, caller, "GET", "/metrics")
        assert (b'topic="other"' in answer.body) is ("other" in names)
        assert b'topic="own"' in answer.body
    answer = await call(address, "observe", "GET", "/stats?format=json&topic=other")
    assert not json.loads(answer.body)["topics"]


async def test_a_lease_is_for_who_may_consume_its_topic(address: str) -> None:
    for topic in ("own", "other"):
        await call(address, "admin>", "POST", f"/pub?topic={topic}", b"x")
        target = f"/lease/create?topic={topic}&channel=c&id={topic}"
        assert (await call(address, "consume>", "POST", target)).status == 200
    for method, target in (("GET", "/lease/read"), ("POST", "/lease/extend")):
        for caller in KNOWN:
            status = (await call(address, caller, method, f"{target}?id=own")).status
            assert status == (200 if caller in CONSUMER_OF_OWN else 403), (target, caller)
            status = (await call(address, caller, method, f"{target}?id=other")).status
            assert status == (200 if caller in ("consume>", "admin>") else 403), (target, caller)
    for target in ("/lease/commit", "/lease/release"):
        answer = await call(address, "consume", "POST", f"{target}?id=own,other")
        assert answer.status == 403, "one that is not the caller's spoils the list"
    listed = json.loads((await call(address, "consume", "GET", "/leases")).body)["leases"]
    assert [lease["id"] for lease in listed] == ["own"]
    assert (await call(address, "consume", "POST", "/lease/commit?id=own")).status == 200


async def test_dead_letters_go_to_no_topic_that_is_not_the_callers(address: str) -> None:
    target = "/channel/config?topic=own&channel=c"
    body = b'{"max_attempts": 1, "dead_letter_topic": "other"}'
    assert (await call(address, "admin", "POST", target, body)).status == 403
    assert (await call(address, "admin>", "POST", target, body)).status == 200


async def test_a_body_is_not_read_from_whom_it_is_not_taken(address: str) -> None:
    connection = await HTTPConnection.open(address)
    connection.send(b"POST /pub?topic=own HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nab")
    assert (await connection.answer()).status == 401
    assert await connection.closed()
    await connection.close()


async def test_refusals_are_counted(daemon: Daemon, address: str) -> None:
    for caller in ("none", "unknown", "consume"):
        await call(address, caller, "POST", "/pub?topic=own", b"x")
    answer = await call(address, "observe", "GET", "/metrics")
    for count in ('{code="UNAUTHORIZED"} 2.0', '{code="FORBIDDEN"} 1.0'):
        assert f"nsqd_http_errors_total{count}\n".encode() in answer.body


@pytest.mark.parametrize(
    "header", ["Basic admin>", "Bearer", "Bearer ", "admin>", "Bearer admin> x", "Bearer \xff"]
)
async def test_only_a_bearer_is_let_in(address: str, header: str) -> None:
    connection = await HTTPConnection.open(address)
    answer = await connection.ask("GET", "/info", b"", f"Authorization: {header}")
    assert answer.status == 401
    await connection.close()


async def test_the_scheme_is_in_any_case(address: str) -> None:
    connection = await HTTPConnection.open(address)
    answer = await connection.ask("GET", "/info", b"", "Authorization: bEaReR  observe")
    assert answer.status == 200
    await connection.close()
