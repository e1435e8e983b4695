"""The calls on leases over a socket: statuses, JSON, ranges, long polls."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nsqpy.clock import SystemClock
from nsqpy.config import NsqdConfig
from nsqpy.core.broker import Broker
from nsqpy.storage.files import OSFiles
from tests.integration.api import make_api
from tests.integration.http_exchange import Answer, HTTPConnection
from tests.unit.core.leasing import messages_of

CREATE = "/lease/create?topic=t&channel=c"


class Daemon:
    """A broker with turns, as in the daemon, and its API."""

    def __init__(self, data_path: Path) -> None:
        self._clock = SystemClock()
        config = NsqdConfig(data_path=str(data_path), node_id=1)
        now = self._clock.now()
        self.broker = Broker(config, OSFiles(), Random(0), wake=self._wake, start=now)
        self.broker.load(now)
        self.api = make_api(self.broker, self._clock)
        self.held = False
        self.woken = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def _wake(self) -> None:
        self.woken.set()
        asyncio.get_running_loop().call_soon(self.turn)

    def turn(self) -> None:
        if self.held:
            return
        now = self._clock.now()
        self.broker.turn(now)
        self.broker.trash.take().run()
        next_ns = self.broker.next_deadline_ns()
        if next_ns >= 0:
            if self._timer is not None:
                self._timer.cancel()
            delay_s = max(next_ns - now.monotonic_ns, 0) / 1e9
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.turn)

    async def stop(self) -> None:
        await self.api.stop()
        if self._timer is not None:
            self._timer.cancel()
        self.held = True
        self.broker.close()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    daemon = Daemon(tmp_path)
    daemon.broker.topic("t")
    daemon.broker.create_channel("t", "c")
    yield daemon
    await daemon.stop()


@pytest.fixture(params=["tcp", "unix"])
async def http(
    daemon: Daemon, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[HTTPConnection]:
    address = "127.0.0.1:0" if request.param == "tcp" else str(tmp_path / "sock")
    connection = await HTTPConnection.open(await daemon.api.listen(address))
    yield connection
    await connection.close()


def document(answer: Answer) -> dict[str, Any]:
    return dict(json.loads(answer.body))


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, document(answer)["message"]


async def publish(http: HTTPConnection, count: int, size: int = 0) -> list[bytes]:
    bodies = [b"%d" % number + b"." * size for number in range(count)]
    assert (await http.ask("POST", "/mpub?topic=t", b"\n".join(bodies))).status == 200
    return bodies


async def create(http: HTTPConnection, lease_id: str, query: str = "") -> dict[str, Any]:
    answer = await http.ask("POST", f"{CREATE}&id={lease_id}{query}")
    assert answer.status == 200
    return document(answer)


def remove_segments(leases: Path) -> None:
    for path in leases.glob("[0-9]*/*.segment"):
        path.unlink()


class TestCreate:
    async def test_what_it_says(self, daemon: Daemon, http: HTTPConnection) -> None:
        await publish(http, 10)
        lease = await create(http, "a", "&max_messages=6&ttl=60000")
        assert 59_000 < lease.pop("ttl") <= 60_000
        assert lease.pop("expires") > 1_700_000_000_000
        size = lease["bytes"]
        assert lease == {
            "id": "a",
            "topic": "t",
            "channel": "c",
            "node": daemon.broker.node_id,
            "state": "leased",
            "count": 6,
            "bytes": size,
            "reads": 0,
            "splits": [[0, size, 6]],
        }
        again = await create(http, "a", "&max_messages=1&ttl=1")
        assert (again["count"], again["bytes"]) == (6, size)

    async def test_nothing_is_204(self, http: HTTPConnection) -> None:
        answer = await http.ask("POST", f"{CREATE}&id=a")
        assert (answer.status, answer.body) == (204, b"")
        assert "content-length" not in answer.headers
        assert (await http.ask("POST", f"{CREATE}&id=a&wait=1")).status == 204

    async def test_a_long_poll_ends_with_the_first_message(
        self, daemon: Daemon, http: HTTPConnection
    ) -> None:
        waiting = asyncio.create_task(http.ask("POST", f"{CREATE}&id=a&wait=60000"))
        await asyncio.sleep(0)
        daemon.broker.publish("t", [b"late"])
        answer = await waiting
        assert document(answer)["count"] == 1

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("channel=c&id=a", (400, "MISSING_ARG_TOPIC")),
            ("topic=t&id=a", (400, "MISSING_ARG_CHANNEL")),
            ("topic=t&channel=c", (400, "MISSING_ARG_ID")),
            ("topic=t%24&channel=c&id=a", (400, "INVALID_ARG_TOPIC")),
            ("topic=t&channel=c%24&id=a", (400, "INVALID_ARG_CHANNEL")),
            ("topic=t&channel=c&id=", (400, "INVALID_ARG_ID")),
            ("topic=t&channel=c&id=a%2Fb", (400, "INVALID_ARG_ID")),
            ("topic=t&channel=c&id=" + "a" * 129, (400, "INVALID_ARG_ID")),
            ("topic=t&channel=c&id=a&max_messages=0", (400, "INVALID_ARG_MAX_MESSAGES")),
            ("topic=t&channel=c&id=a&max_messages=x", (400, "INVALID_ARG_MAX_MESSAGES")),
            ("topic=t&channel=c&id=a&max_messages=%C2%B2", (400, "INVALID_ARG_MAX_MESSAGES")),
            ("topic=t&channel=c&id=a&max_bytes=-1", (400, "INVALID_ARG_MAX_BYTES")),
            ("topic=t&channel=c&id=a&ttl=0", (400, "INVALID_ARG_TTL")),
            ("topic=t&channel=c&id=a&ttl=2592000001", (400, "INVALID_ARG_TTL")),
            ("topic=t&channel=c&id=a&wait=60001", (400, "INVALID_ARG_WAIT")),
            ("topic=none&channel=c&id=a", (404, "TOPIC_NOT_FOUND")),
            ("topic=t&channel=none&id=a", (404, "CHANNEL_NOT_FOUND")),
            ("topic=t&channel=e%23ephemeral&id=a", (400, "EPHEMERAL_CHANNEL")),
        ],
    )
    async def test_what_it_refuses(
        self, daemon: Daemon, http: HTTPConnection, query: str, expected: tuple[int, str]
    ) -> None:
        daemon.broker.create_channel("t", "e#ephemeral")
        assert refusal(await http.ask("POST", f"/lease/create?{query}")) == expected

    async def test_an_id_of_another_channel(self, daemon: Daemon, http: HTTPConnection) -> None:
        daemon.broker.create_channel("t", "d")
        await publish(http, 1)
        await create(http, "a")
        answer = await http.ask("POST", "/lease/create?topic=t&channel=d&id=a")
        assert refusal(answer) == (409, "LEASE_OF_OTHER_CHANNEL")

    async def test_a_disk_that_refuses(
        self, daemon: Daemon, http: HTTPConnection, tmp_path: Path
    ) -> None:
        await publish(http, 1)
        leases = tmp_path / "queues/t.topic/c.channel/leases"
        leases.write_bytes(b"")  # where the daemon needs a directory
        assert refusal(await http.ask("POST", f"{CREATE}&id=a")) == (503, "EXITING")
        leases.unlink()
        assert (await create(http, "a"))["count"] == 1


class TestRead:
    async def test_the_same_bytes_every_time(self, http: HTTPConnection) -> None:
        bodies = await publish(http, 1000, 1000)
        lease = await create(http, "a")
        first = await http.ask("GET", "/lease/read?id=a")
        assert first.status == 200
        assert first.headers["content-type"] == "application/octet-stream"
        assert first.headers["accept-ranges"] == "bytes"
        assert len(first.body) == lease["bytes"]
        assert messages_of(first.body) == [(body, 1) for body in bodies]
        assert (await http.ask("GET", "/lease/read?id=a")).body == first.body
        (listed,) = document(await http.ask("GET", "/leases"))["leases"]
        assert listed["reads"] == 2

    async def test_ranges(self, http: HTTPConnection) -> None:
        await publish(http, 100, 100)
        size = (await create(http, "a"))["bytes"]
        whole = (await http.ask("GET", "/lease/read?id=a")).body
        for spec, start, stop in [
            ("0-0", 0, 1),
            ("10-99", 10, 100),
            (f"{size - 1}-", size - 1, size),
            ("-5", size - 5, size),
            (f"5-{size + 100}", 5, size),
            (f"-{size + 1}", 0, size),
        ]:
            answer = await http.ask("GET", "/lease/read?id=a", b"", f"Range: bytes={spec}")
            assert answer.status == 206
            assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
            assert answer.body == whole[start:stop]
        for spec in ("bytes=5-4", "bytes=0-1,3-4", "lines=0-1", "bytes=-", "bytes=a-b"):
            answer = await http.ask("GET", "/lease/read?id=a", b"", f"Range: {spec}")
            assert (answer.status, answer.body) == (200, whole)
        for spec in (f"bytes={size}-", "bytes=-0"):
            answer = await http.ask("GET", "/lease/read?id=a", b"", f"Range: {spec}")
            assert refusal(answer) == (416, "RANGE_NOT_SATISFIABLE")
            assert answer.headers["content-range"] == f"bytes */{size}"

    async def test_a_reader_that_goes_away(self, daemon: Daemon, http: HTTPConnection) -> None:
        await publish(http, 900, 5000)
        await create(http, "a")
        http.send(b"GET /lease/read?id=a HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.01)  # it is being sent, or not: both must do
        await http.close()
        other = await HTTPConnection.open(await daemon.api.listen("127.0.0.1:0"))
        assert len((await other.ask("GET", "/lease/read?id=a")).body) > 900 * 5000
        await other.close()

    async def test_pipelined_requests_are_answered_in_order(self, http: HTTPConnection) -> None:
        await publish(http, 900, 5000)
        await create(http, "a")
        request = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"
        http.send(b"".join(request % path for path in (b"ping", b"lease/read?id=a", b"ping")))
        sizes = [len((await http.answer()).body) for _ in range(3)]
        assert sizes[0] == sizes[2] == 2
        assert sizes[1] > 900 * 5000

    async def test_files_that_have_vanished(self, http: HTTPConnection, tmp_path: Path) -> None:
        await publish(http, 1)
        await create(http, "a")
        remove_segments(tmp_path / "queues/t.topic/c.channel/leases")
        assert refusal(await http.ask("GET", "/lease/read?id=a")) == (503, "EXITING")


class TestEnd:
    async def test_lists(self, http: HTTPConnection) -> None:
        await publish(http, 10)
        await create(http, "a", "&max_messages=2")
        await create(http, "b", "&max_messages=2")
        answer = await http.ask("POST", "/lease/extend?id=a,b&ttl=100000")
        leases = document(answer)["leases"]
        assert answer.status == 200
        assert {name: entry["state"] for name, entry in leases.items()} == dict.fromkeys(
            "ab", "leased"
        )
        answer = await http.ask("POST", "/lease/commit", b"a\nnone\n")
        assert (answer.status, document(answer)) == (
            410,
            {
                "message": "LEASE_GONE",
                "state": "unknown",
                "leases": {"a": {"state": "committed"}, "none": {"state": "unknown"}},
            },
        )
        for _ in range(2):
            answer = await http.ask("POST", "/lease/commit?id=a,b")
            assert answer.status == 200
        answer = await http.ask("GET", "/lease/read?id=a")
        assert (answer.status, document(answer)["state"]) == (410, "committed")
        answer = await http.ask("POST", f"{CREATE}&id=a")
        assert (answer.status, document(answer)["state"]) == (410, "committed")

    async def test_released_messages_come_again(self, http: HTTPConnection) -> None:
        await publish(http, 3)
        await create(http, "a")
        for _ in range(2):
            assert (await http.ask("POST", "/lease/release?id=a")).status == 200
        await create(http, "b", "&wait=10000")
        stream = (await http.ask("GET", "/lease/read?id=b")).body
        assert [attempts for _, attempts in messages_of(stream)] == [2, 2, 2]

    async def test_expired_ones_too(self, http: HTTPConnection) -> None:
        await publish(http, 3)
        await create(http, "a", "&ttl=1")
        await create(http, "b", "&wait=10000")
        answer = await http.ask("POST", "/lease/commit?id=a")
        assert (answer.status, document(answer)["leases"]) == (
            410,
            {"a": {"state": "expired", "acknowledged": 0}},
        )

    @pytest.mark.parametrize(
        ("target", "body", "expected"),
        [
            ("/lease/commit", b"", (400, "MISSING_ARG_ID")),
            ("/lease/commit?id=", b"", (400, "INVALID_ARG_ID")),
            ("/lease/commit?id=a,,b", b"", (400, "INVALID_ARG_ID")),
            ("/lease/commit", b"a\n" * 1001, (400, "INVALID_ARG_ID")),
            ("/lease/commit", b"\xff", (400, "INVALID_ARG_ID")),
            ("/lease/commit", b"a\n" * 150_000, (413, "BODY_TOO_BIG")),
            ("/lease/extend?id=a&ttl=x", b"", (400, "INVALID_ARG_TTL")),
        ],
    )
    async def test_what_is_refused(
        self, http: HTTPConnection, target: str, body: bytes, expected: tuple[int, str]
    ) -> None:
        assert refusal(await http.ask("POST", target, body)) == expected

    async def test_calls_wait_for_a_create_under_way(
        self, daemon: Daemon, http: HTTPConnection
    ) -> None:
        await publish(http, 5)
        daemon.held = True
        daemon.woken.clear()
        other = await HTTPConnection.open(await daemon.api.listen("127.0.0.1:0"))
        creating = asyncio.create_task(other.ask("POST", f"{CREATE}&id=a"))
        await daemon.woken.wait()
        assert "a" in daemon.broker.lease_owners
        committing = asyncio.create_task(http.ask("POST", "/lease/commit?id=a"))
        await asyncio.sleep(0)
        daemon.held = False
        daemon.turn()
        assert (await creating).status == 200
        assert (await committing).status == 200
        await other.close()


class TestFigures:
    async def test_stats_and_metrics_count_what_is_leased(self, http: HTTPConnection) -> None:
        await publish(http, 10)
        stats = document(await http.ask("GET", "/stats?format=json"))
        assert "leased_count" not in stats["topics"][0]["channels"][0]
        await create(http, "a", "&max_messages=6")
        stats = document(await http.ask("GET", "/stats?format=json"))
        (channel,) = stats["topics"][0]["channels"]
        assert (channel["depth"], channel["leased_count"], channel["lease_count"]) == (4, 6, 1)
        page = (await http.ask("GET", "/metrics")).body.decode()
        assert 'nsqd_channel_leased{topic="t",channel="c"} 6' in page
        assert 'nsqd_channel_leases{topic="t",channel="c"} 1' in page

    async def test_what_is_listed(self, daemon: Daemon, http: HTTPConnection) -> None:
        await publish(http, 10)
        await create(http, "a", "&max_messages=6")
        listed = document(await http.ask("GET", "/leases?topic=t&channel=c"))
        assert listed["node"] == daemon.broker.node_id
        assert [(entry["id"], entry["count"]) for entry in listed["leases"]] == [("a", 6)]
        assert document(await http.ask("GET", "/leases?topic=other"))["leases"] == []
