"""Every endpoint, over a socket, against the real broker on a real directory."""

import asyncio
import json
import re
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nsqpy.clock import SystemClock
from nsqpy.config import NsqdConfig
from nsqpy.core.broker import Broker
from nsqpy.errors import StorageError
from nsqpy.storage.files import OSFiles
from tests.integration.api import make_api
from tests.integration.http_exchange import Answer, HTTPConnection

MAX_MSG_SIZE = 100
MAX_BODY_SIZE = 1000


class Daemon:
    """A broker whose turns run as in the daemon, unless ``held``."""

    def __init__(self, data_path: Path) -> None:
        config = NsqdConfig(
            data_path=str(data_path),
            max_msg_size=MAX_MSG_SIZE,
            max_body_size=MAX_BODY_SIZE,
            broadcast_address="node.example",
            node_id=1,
        )
        self._clock = SystemClock()
        self.held = False
        self.turns_wanted = asyncio.Event()
        self.broker = Broker(config, OSFiles(), Random(0), wake=self._wake, start=self._clock.now())
        self.api = make_api(self.broker, self._clock)

    def _wake(self) -> None:
        self.turns_wanted.set()
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        if not self.held:
            self.broker.turn(self._clock.now())

    def release(self) -> None:
        self.held = False
        self._turn()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    await daemon.api.stop()
    daemon.broker.close()


@pytest.fixture
async def http(daemon: Daemon) -> AsyncIterator[HTTPConnection]:
    connection = await HTTPConnection.open(await daemon.api.listen("127.0.0.1:0"))
    yield connection
    await connection.close()


def is_ok(answer: Answer) -> bool:
    return (answer.status, answer.body) == (200, b"OK")


def is_empty(answer: Answer) -> bool:
    assert "content-type" not in answer.headers
    return (answer.status, answer.body) == (200, b"")


def refusal(answer: Answer) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    return answer.status, json.loads(answer.body)["message"]


def records(*bodies: bytes) -> bytes:
    return struct.pack(">i", len(bodies)) + b"".join(
        struct.pack(">i", len(body)) + body for body in bodies
    )


def put_in_the_way(path: Path) -> None:
    """A file where the daemon needs a directory."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")


class TestHealth:
    async def test_all_is_well(self, http: HTTPConnection) -> None:
        answer = await http.ask("GET", "/healthz", b"")
        assert answer.status == 200
        assert json.loads(answer.body) == {"live": "OK", "ready": "OK", "disk": "OK"}
        for check in ("live", "ready", "disk"):
            answer = await http.ask("GET", f"/healthz/{check}", b"")
            assert (answer.status, json.loads(answer.body)) == (200, {check: "OK"})
        assert refusal(await http.ask("GET", "/healthz/other", b"")) == (404, "NOT_FOUND")

    async def test_a_disk_that_refuses_is_no_reason_to_restart(
        self, daemon: Daemon, http: HTTPConnection
    ) -> None:
        daemon.broker._health.note_fault(StorageError("/data/x", "no space left on device"))
        answer = await http.ask("GET", "/healthz", b"")
        assert answer.status == 503
        fault = "NOK - /data/x: no space left on device"
        assert json.loads(answer.body) == {"live": "OK", "ready": fault, "disk": fault}
        assert (await http.ask("GET", "/healthz/live", b"")).status == 200
        assert (await http.ask("GET", "/healthz/disk", b"")).status == 503

    async def test_a_daemon_that_stops_is_not_ready(
        self, daemon: Daemon, http: HTTPConnection
    ) -> None:
        daemon.broker.exiting = True
        assert (await http.ask("GET", "/healthz/ready", b"")).status == 503
        assert (await http.ask("GET", "/healthz/disk", b"")).status == 200


class TestMetrics:
    async def test_the_figures_of_stats_in_prometheus_format(
        self, daemon: Daemon, http: HTTPConnection
    ) -> None:
        await http.ask("POST", "/channel/create?topic=t%23ephemeral&channel=c", b"")
        assert is_ok(await http.ask("POST", "/pub?topic=t", b"abc"))
        assert is_empty(await http.ask("POST", "/channel/create?topic=t&channel=c", b""))
        assert is_ok(await http.ask("POST", "/pub?topic=t&defer=60000", b"later"))
        answer = await http.ask("GET", "/metrics", b"")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        found = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(answer.body.decode())
            for sample in family.samples
        }
        assert found["nsqd_healthy",] == 1
        assert found["nsqd_topic_messages_total", "t"] == 2
        assert found["nsqd_topic_message_bytes_total", "t"] == 8
        assert found["nsqd_channel_deferred", "c", "t"] == 1
        assert found["nsqd_channel_bad_blocks_total", "c", "t"] == 0
        daemon.broker._health.note_fault(StorageError("/data/x", "no space left on device"))
        assert b"nsqd_healthy 0.0" in (await http.ask("GET", "/metrics", b"")).body


class TestPub:
    async def test_stores_the_body(self, daemon: Daemon, http: HTTPConnection) -> None:
        answer = await http.ask("POST", "/pub?topic=t", b"x" * MAX_MSG_SIZE)
        assert is_ok(answer)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        topic = daemon.broker.topics["t"]
        assert (topic.message_count, topic.message_bytes) == (1, MAX_MSG_SIZE)

    @pytest.mark.parametrize(
        ("query", "body", "refused"),
        [
            ("", b"x" * 101, (413, "MSG_TOO_BIG")),
            ("?topic=%zz", b"", (400, "MSG_EMPTY")),
            ("?topic=%zz", b"x", (400, "INVALID_REQUEST")),
            ("?topic=a;b", b"x", (400, "INVALID_REQUEST")),
            ("", b"topic=t", (400, "MISSING_ARG_TOPIC")),
            ("?topic=", b"x", (400, "INVALID_TOPIC")),
            ("?topic=a%0a", b"x", (400, "INVALID_TOPIC")),
            ("?topic=%ff", b"x", (400, "INVALID_TOPIC")),
            ("?topic=t&defer=", b"x", (400, "INVALID_DEFER")),
            ("?topic=t&defer=31536000001", b"x", (400, "INVALID_DEFER")),
        ],
    )
    async def test_refusals_in_order(
        self, http: HTTPConnection, query: str, body: bytes, refused: tuple[int, str]
    ) -> None:
        assert refusal(await http.ask("POST", f"/pub{query}", body)) == refused

    async def test_the_topic_is_there_even_if_the_delay_is_wrong(
        self, daemon: Daemon, http: HTTPConnection
    ) -> None:
        await http.ask("POST", "/pub?topic=t&defer=x", b"x")
        assert daemon.broker.topics["t"].message_count == 0

    async def test_a_delay_defers(self, daemon: Daemon, http: HTTPConnection) -> None:
        await http.ask("POST", "/topic/create?topic=t")
        await http.ask("POST", "/channel/create?topic=t&channel=c")
        assert is_ok(await http.ask("POST", "/pub?topic=t&defer=3600000", b"x"))
        channel = daemon.broker.topics["t"].channels["c"]
        assert (channel.depth, channel.deferred_count) == (0, 1)

    async def test_ok_waits_until_it_is_stored(self, daemon: Daemon, http: HTTPConnection) -> None:
        await http.ask("POST", "/topic/create?topic=t")
        daemon.held = True
        daemon.turns_wanted.clear()
        asked = asyncio.create_task(http.ask("POST", "/pub?topic=t", b"x"))
        await daemon.turns_wanted.wait()
        assert not asked.done()
        daemon.release()
        assert is_ok(await asked)

    async def test_a_stopping_daemon_refuses(self, daemon: Daemon, http: HTTPConnection) -> None:
        daemon.broker.exiting = True
        for target in ("/pub?topic=t", "/mpub?topic=t"):
            assert refusal(await http.ask("POST", target, b"x")) == (503, "EXITING")

    async def test_a_directory_that_cannot_be_made_refuses(
        self, daemon: Daemon, http: HTTPConnection, tmp_path: Path
    ) -> None:
        put_in_the_way(tmp_path / "queues" / "blocked.topic")
        assert refusal(await http.ask("POST", "/pub?topic=blocked", b"x")) == (503, "EXITING")


class TestMpub:
    @pytest.mark.parametrize(
        ("query", "body", "count"),
        [
            ("", b"a\n\nb\n", 2),
            ("&binary=false", b"a\nb", 2),
            ("&binary=0", b"a", 1),
            ("", b"", 0),
            ("", b"\n\n", 0),
            ("&binary=true", records(b"a", b"b", b"c"), 3),
            ("&binary=1", records(b"a"), 1),
            ("&binary=yes", records(b"a"), 1),
            ("&binary=", records(b"a") + b"trailing", 1),
        ],
    )
    async def test_stores_all_messages(
        self, daemon: Daemon, http: HTTPConnection, query: str, body: bytes, count: int
    ) -> None:
        assert is_ok(await http.ask("POST", f"/mpub?topic=t{query}", body))
        assert daemon.broker.topics["t"].message_count == count

    @pytest.mark.parametrize(
        ("query", "body", "refused"),
        [
            ("", b"x" * 1001, (413, "BODY_TOO_BIG")),
            ("?topic=;", b"x", (400, "INVALID_REQUEST")),
            ("", b"x", (400, "MISSING_ARG_TOPIC")),
            ("?topic=*", b"x", (400, "INVALID_TOPIC")),
            ("?topic=t", b"a\n" + b"x" * 101, (413, "MSG_TOO_BIG")),
            ("?topic=t&binary=1", b"", (413, "BAD_BODY")),
            ("?topic=t&binary=1", b"\0\0\0\1\0\0\0\2a", (413, "BAD_MESSAGE")),
        ],
    )
    async def test_refusals(
        self, http: HTTPConnection, query: str, body: bytes, refused: tuple[int, str]
    ) -> None:
        assert refusal(await http.ask("POST", f"/mpub{query}", body)) == refused

    async def test_one_bad_message_refuses_all_but_the_topic_is_there(
        self, daemon: Daemon, http: HTTPConnection
    ) -> None:
        await http.ask("POST", "/mpub?topic=t", b"good\n" + b"x" * 101)
        assert daemon.broker.topics["t"].message_count == 0

    @pytest.mark.parametrize("query", ["", "&binary=true"])
    async def test_chunks_are_bounded(self, http: HTTPConnection, query: str) -> None:
        http.send(b"POST /mpub?topic=t%b HTTP/1.1\r\nHost: a\r\n" % query.encode())
        http.send(b"Transfer-Encoding: chunked\r\n\r\n400\r\n" + b"\n" * 1024 + b"\r\n0\r\n\r\n")
        assert refusal(await http.answer()) == (413, "BODY_TOO_BIG")


class TestTopicsAndChannels:
    async def test_a_life(self, daemon: Daemon, http: HTTPConnection) -> None:
        topics = daemon.broker.topics
        for _ in range(2):
            assert is_empty(await http.ask("POST", "/topic/create?topic=t"))
            assert is_empty(await http.ask("POST", "/channel/create?topic=t&channel=c%23ephemeral"))
            assert is_empty(await http.ask("POST", "/channel/create?topic=t&channel=d"))
        assert list(topics["t"].channels) == ["c#ephemeral", "d"]
        for state, verb in ((True, "pause"), (False, "unpause")):
            assert is_empty(await http.ask("POST", f"/topic/{verb}?topic=t"))
            assert is_empty(await http.ask("POST", f"/channel/{verb}?topic=t&channel=d"))
            assert (topics["t"].paused, topics["t"].channels["d"].paused) == (state, state)
        await http.ask("POST", "/pub?topic=t", b"x")
        assert topics["t"].channels["d"].depth == 1
        assert is_empty(await http.ask("POST", "/channel/empty?topic=t&channel=d"))
        assert topics["t"].channels["d"].depth == 0
        assert is_empty(await http.ask("POST", "/topic/empty?topic=t"))
        assert is_empty(await http.ask("POST", "/channel/delete?topic=t&channel=d"))
        assert list(topics["t"].channels) == ["c#ephemeral"]
        assert is_empty(await http.ask("POST", "/topic/delete?topic=t"))
        assert topics == {}

    @pytest.mark.parametrize(
        ("target", "refused"),
        [
            ("/topic/create", (400, "MISSING_ARG_TOPIC")),
            ("/topic/create?topic=$", (400, "INVALID_TOPIC")),
            ("/topic/create?topic=%", (400, "INVALID_REQUEST")),
            *(
                case
                for verb in ("delete", "pause", "unpause")
                for case in (
                    (f"/topic/{verb}", (400, "MISSING_ARG_TOPIC")),
                    (f"/topic/{verb}?topic=$", (404, "TOPIC_NOT_FOUND")),
                    (f"/topic/{verb}?topic=none", (404, "TOPIC_NOT_FOUND")),
                )
            ),
            ("/topic/empty", (400, "MISSING_ARG_TOPIC")),
            ("/topic/empty?topic=$", (400, "INVALID_TOPIC")),
            ("/topic/empty?topic=none", (404, "TOPIC_NOT_FOUND")),
            *(
                case
                for verb in ("create", "delete", "empty", "pause", "unpause")
                for case in (
                    (f"/channel/{verb}", (400, "MISSING_ARG_TOPIC")),
                    (f"/channel/{verb}?topic=$", (400, "INVALID_ARG_TOPIC")),
                    (f"/channel/{verb}?topic=t", (400, "MISSING_ARG_CHANNEL")),
                    (f"/channel/{verb}?topic=t&channel=", (400, "INVALID_ARG_CHANNEL")),
                    (f"/channel/{verb}?topic=none&channel=c", (404, "TOPIC_NOT_FOUND")),
                )
            ),
            *(
                (f"/channel/{verb}?topic=t&channel=none", (404, "CHANNEL_NOT_FOUND"))
                for verb in ("delete", "empty", "pause", "unpause")
            ),
        ],
    )
    async def test_refusals(
        self, http: HTTPConnection, target: str, refused: tuple[int, str]
    ) -> None:
        await http.ask("POST", "/topic/create?topic=t")
        assert refusal(await http.ask("POST", target)) == refused

    async def test_a_stopping_daemon_refuses(self, daemon: Daemon, http: HTTPConnection) -> None:
        daemon.broker.exiting = True
        assert refusal(await http.ask("POST", "/topic/create?topic=t")) == (503, "EXITING")


class TestAboutTheDaemon:
    async def test_ping_tells_health(self, daemon: Daemon, http: HTTPConnection) -> None:
        answer = await http.ask("GET", "/ping")
        assert is_ok(answer)
        assert "x-nsq-content-type" not in answer.headers
        daemon.broker._health.note_fault(StorageError("/data/x", "no space left on device"))
        answer = await http.ask("GET", "/ping")
        assert answer.status == 500
        assert answer.body == b"NOK - /data/x: no space left on device"
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"

    async def test_info(self, daemon: Daemon) -> None:
        address = await daemon.api.listen("127.0.0.1:0")
        http = await HTTPConnection.open(address)
        answer = await http.ask("GET", "/info")
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert answer.body.decode() == (
            '{"version":"1.3.0","broadcast_address":"node.example","hostname":"vm",'
            f'"http_port":{address.rpartition(":")[2]},"tcp_port":4150,'
            f'"start_time":{daemon.broker.start_time_s},"max_heartbeat_interval":60000000000,'
            '"max_output_buffer_size":65536,"max_output_buffer_timeout":30000000000,'
            '"max_deflate_level":6,"topology_zone":"","topology_region":"",'
            '"max_msg_size":100,"max_body_size":1000}'
        )
        await http.close()

    async def test_a_unix_socket_has_no_port(self, daemon: Daemon, tmp_path: Path) -> None:
        http = await HTTPConnection.open(await daemon.api.listen(str(tmp_path / "http.sock")))
        assert json.loads((await http.ask("GET", "/info")).body)["http_port"] == -1
        await http.close()

    async def test_requests_are_logged_but_publishing_is_not(
        self, http: HTTPConnection, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "nsqpy.net.http")
        await http.ask("POST", "/pub?topic=t", b"x")
        await http.ask("POST", "/mpub", b"x")
        await http.ask("GET", "/debug/pprof/cmdline")
        await http.ask("POST", "/channel/create?topic=t&channel=ch")
        (line,) = (r.message for r in caplog.records if r.name == "nsqpy.net.http.requests")
        assert re.fullmatch(
            r"200 POST /channel/create\?topic=t&channel=ch \(127\.0\.0\.1:\d+\) [\d.]+(µs|ms)", line
        )


class TestStats:
    async def test_json_with_filters(self, http: HTTPConnection) -> None:
        for target in ("topic/create?topic=a", "topic/create?topic=b"):
            await http.ask("POST", f"/{target}")
        await http.ask("POST", "/channel/create?topic=b&channel=c")
        await http.ask("POST", "/mpub?topic=b", b"x\nyz")

        async def ask(query: str) -> dict[str, object]:
            answer = await http.ask("GET", f"/stats?format=json{query}")
            assert answer.headers["content-type"] == "application/json; charset=utf-8"
            document = json.loads(answer.body)
            assert isinstance(document, dict)
            return document

        everything = await ask("")
        assert list(everything) == [
            *("version", "health", "start_time", "topics", "memory", "producers")
        ]
        topics = everything["topics"]
        assert isinstance(topics, list)
        assert [topic["topic_name"] for topic in topics] == ["a", "b"]
        assert (topics[1]["message_count"], topics[1]["message_bytes"]) == (2, 3)
        assert topics[1]["channels"][0]["depth"] == 2
        assert topics[1]["channels"][0]["clients"] == []
        memory = everything["memory"]
        assert isinstance(memory, dict)
        assert memory["heap_in_use_bytes"] > 1_000_000
        assert len(memory) == 9

        assert "memory" not in await ask("&include_mem=false")
        assert "memory" in await ask("&include_mem=False")
        assert (await ask("&topic=none"))["topics"] is None
        assert (await ask("&topic=a&channel=c"))["topics"] == []
        bare = (await ask("&topic=b&include_clients=0"))["topics"]
        assert isinstance(bare, list)
        assert bare[0]["channels"][0]["clients"] is None

    async def test_text_is_for_anything_else(self, http: HTTPConnection) -> None:
        for query in ("", "?format=JSON", "?format=text&include_mem=0"):
            answer = await http.ask("GET", f"/stats{query}")
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert answer.body.startswith(b"nsqd v1.3.0 (built w/python")
            assert (b"\nMemory:\n" in answer.body) == ("include_mem" not in query)

    async def test_a_bad_query_is_refused(self, http: HTTPConnection) -> None:
        assert refusal(await http.ask("GET", "/stats?a=%zz")) == (400, "INVALID_REQUEST")


class TestConfig:
    @pytest.mark.parametrize(
        ("name", "shown", "kind"),
        [
            ("msg_timeout", b"60000000000", "application/json"),
            ("log_level", b"2", "application/json"),
            ("snappy", b"true", "application/json"),
            ("nsqlookupd_tcp_addresses", b"[]", "application/json"),
            ("id", b"1", "application/json"),
            ("tls_min_version", b"771", "application/json"),
            ("broadcast_address", b"node.example", "text/plain"),
            ("log_prefix", b"[nsqd] ", "text/plain"),
            ("statsd_prefix", b"nsq.node_example_0.", "text/plain"),
        ],
    )
    async def test_is_read(self, http: HTTPConnection, name: str, shown: bytes, kind: str) -> None:
        answer = await http.ask("GET", f"/config/{name}")
        assert (answer.status, answer.body) == (200, shown)
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"

    @pytest.mark.parametrize("name", ["none", "msg_timeout_ns", "config", "version", "worker_id"])
    async def test_unknown_names(self, http: HTTPConnection, name: str) -> None:
        assert refusal(await http.ask("GET", f"/config/{name}")) == (400, "INVALID_OPTION")

    async def test_what_may_change_is_changed(self, daemon: Daemon, http: HTTPConnection) -> None:
        body = b'["127.0.0.1:4160", "b:4160"]'
        answer = await http.ask("PUT", "/config/nsqlookupd_tcp_addresses", body)
        assert json.loads(answer.body) == ["127.0.0.1:4160", "b:4160"]
        assert daemon.broker.config.nsqlookupd_tcp_addresses == ("127.0.0.1:4160", "b:4160")
        answer = await http.ask("PUT", "/config/nsqlookupd_tcp_addresses", b"null")
        assert answer.body == b"[]"
        assert (await http.ask("PUT", "/config/log_level", b"WARN")).body == b"3"
        assert (await http.ask("PUT", "/config/log_level", b"info")).body == b"2"
        assert daemon.broker.config.log_level == "info"

    @pytest.mark.parametrize(
        ("name", "body", "refused"),
        [
            ("log_level", b"", (413, "INVALID_VALUE")),
            ("log_level", b"x" * 101, (413, "INVALID_VALUE")),
            ("log_level", b"warning", (400, "INVALID_VALUE")),
            ("log_level", b'"info"', (400, "INVALID_VALUE")),
            ("log_level", b"\xff", (400, "INVALID_VALUE")),
            ("nsqlookupd_tcp_addresses", b"a:1", (400, "INVALID_VALUE")),
            ("nsqlookupd_tcp_addresses", b"[1]", (400, "INVALID_VALUE")),
            ("msg_timeout", b"1", (400, "INVALID_OPTION")),
            ("none", b"1", (400, "INVALID_OPTION")),
        ],
    )
    async def test_refusals(
        self, http: HTTPConnection, name: str, body: bytes, refused: tuple[int, str]
    ) -> None:
        assert refusal(await http.ask("PUT", f"/config/{name}", body)) == refused


CHANNEL = "?topic=t&channel=c"
POLICY = {
    "max_attempts": 3,
    "dead_letter_topic": "t.c.dead",
    "retry_delay_ms": 100,
    "retry_delay_factor": 1.5,
    "retry_delay_max_ms": 3_600_000,
}


class TestDeadLetters:
    @pytest.fixture(autouse=True)
    async def channel(self, http: HTTPConnection) -> None:
        await http.ask("POST", "/topic/create?topic=t")
        await http.ask("POST", f"/channel/create{CHANNEL}")

    async def test_what_is_set_is_shown(self, http: HTTPConnection) -> None:
        before = await http.ask("GET", f"/channel/config{CHANNEL}")
        assert json.loads(before.body)["max_attempts"] == 0
        body = json.dumps({"max_attempts": 3, "retry_delay_ms": 100, "retry_delay_factor": 1.5})
        answer = await http.ask("POST", f"/channel/config{CHANNEL}", body.encode())
        assert (answer.status, json.loads(answer.body)) == (200, POLICY)
        again = await http.ask("GET", f"/channel/config{CHANNEL}")
        assert again.body == answer.body

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"", "the body must be a JSON object"),
            (b"\xff", "the body must be a JSON object"),
            (b"[" * 4000, "the body must be a JSON object"),
            (b"[1]", "the body must be a JSON object"),
            (b'{"max_attempts":70000}', "max_attempts must be an integer from 0 to 65535"),
            (b'{"retry_delay_factor":NaN}', "retry_delay_factor must be a number from 1 to 1000"),
            (
                b'{"dead_letter_topic":"t"}',
                "dead_letter_topic must not be the channel's own topic",
            ),
        ],
    )
    async def test_a_wrong_one_is_refused_with_the_reason(
        self, http: HTTPConnection, body: bytes, reason: str
    ) -> None:
        answer = await http.ask("POST", f"/channel/config{CHANNEL}", body)
        assert refusal(answer) == (400, f"INVALID_CONFIG {reason}")

    async def test_a_long_name_needs_a_dead_letter_topic(self, http: HTTPConnection) -> None:
        query = f"?topic=t&channel={'c' * 60}"
        await http.ask("POST", f"/channel/create{query}")
        answer = await http.ask("POST", f"/channel/config{query}", b'{"max_attempts":1}')
        status, reason = refusal(answer)
        assert status == 400
        assert reason.startswith("INVALID_CONFIG dead_letter_topic is needed: t.ccc")
        body = b'{"max_attempts":1,"dead_letter_topic":"d"}'
        assert (await http.ask("POST", f"/channel/config{query}", body)).status == 200

    async def test_a_long_body_is_refused(self, http: HTTPConnection) -> None:
        answer = await http.ask("POST", f"/channel/config{CHANNEL}", b" " * 4097)
        assert refusal(answer) == (413, "BODY_TOO_BIG")

    @pytest.mark.parametrize(
        ("query", "refused"),
        [
            ("", (400, "MISSING_ARG_TOPIC")),
            ("?topic=t", (400, "MISSING_ARG_CHANNEL")),
            ("?topic=t&channel=$", (400, "INVALID_ARG_CHANNEL")),
            ("?topic=no&channel=c", (404, "TOPIC_NOT_FOUND")),
            ("?topic=t&channel=no", (404, "CHANNEL_NOT_FOUND")),
        ],
    )
    async def test_the_channel_has_to_be_there(
        self, http: HTTPConnection, query: str, refused: tuple[int, str]
    ) -> None:
        assert refusal(await http.ask("GET", f"/channel/config{query}")) == refused
        assert refusal(await http.ask("POST", f"/channel/config{query}", b"{}")) == refused
        assert refusal(await http.ask("POST", f"/channel/redrive{query}")) == refused

    async def test_redrive_tells_how_many_went_and_how_many_are_left(
        self, http: HTTPConnection
    ) -> None:
        await http.ask("POST", f"/channel/config{CHANNEL}", b'{"max_attempts":1}')
        await http.ask("POST", "/topic/create?topic=t.c.dead")
        await http.ask("POST", "/channel/create?topic=t.c.dead&channel=redrive")
        await http.ask("POST", "/mpub?topic=t.c.dead", b"a\nb\nc")
        answer = await http.ask("POST", f"/channel/redrive{CHANNEL}&max=2")
        assert json.loads(answer.body) == {"count": 2, "left": 1}
        answer = await http.ask("POST", f"/channel/redrive{CHANNEL}")
        assert json.loads(answer.body) == {"count": 1, "left": 0}

    @pytest.mark.parametrize("value", ["", "0", "-1", "x", "1e3", "100001", "9999999"])
    async def test_max_is_a_number_in_its_range(self, http: HTTPConnection, value: str) -> None:
        answer = await http.ask("POST", f"/channel/redrive{CHANNEL}&max={value}")
        assert refusal(answer) == (400, "INVALID_ARG_MAX")

    async def test_a_stopping_daemon_sends_nothing_back(
        self, daemon: Daemon, http: HTTPConnection
    ) -> None:
        daemon.broker.exiting = True
        answer = await http.ask("POST", f"/channel/redrive{CHANNEL}")
        assert refusal(answer) == (503, "EXITING")


class TestDebug:
    @pytest.mark.parametrize(
        ("name", "part"),
        [
            ("", b"/debug/pprof/goroutine\n"),
            ("cmdline", b"pytest"),
            ("goroutine", b"thread MainThread"),
            ("threadcreate", b"MainThread"),
            ("heap", b"builtins.dict"),
        ],
    )
    async def test_profiles_are_text(self, http: HTTPConnection, name: str, part: bytes) -> None:
        answer = await http.ask("GET", f"/debug/pprof/{name}")
        assert answer.status == 200
        assert part in answer.body
        assert "x-nsq-content-type" not in answer.headers

    @pytest.mark.slow
    async def test_a_profile_shows_what_ran(self, http: HTTPConnection) -> None:
        answer = await http.ask("GET", "/debug/pprof/profile?seconds=1")
        assert answer.status == 200
        assert b"function calls" in answer.body

    @pytest.mark.parametrize("seconds", ["0", "301", "x", "", "-1", "9999999999"])
    async def test_a_profile_has_an_end(self, http: HTTPConnection, seconds: str) -> None:
        answer = await http.ask("GET", f"/debug/pprof/profile?seconds={seconds}")
        assert refusal(answer) == (400, "INVALID_REQUEST")

    async def test_memory_is_freed(self, http: HTTPConnection) -> None:
        assert is_empty(await http.ask("POST", "/debug/freememory"))

    async def test_go_s_own_are_not_there(self, http: HTTPConnection) -> None:
        for method, path in (("GET", "pprof/block"), ("PUT", "setblockrate")):
            assert refusal(await http.ask(method, f"/debug/{path}")) == (404, "NOT_FOUND")
