"""``/metrics`` as Prometheus reads it, and what stands on it: docs, dashboard, rules."""

import asyncio
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nsqpy.clock import SECOND, SystemClock
from nsqpy.config import NsqdConfig
from nsqpy.core.dead_letters import FAILURES, DeadLetterPolicy
from nsqpy.core.session import Session
from nsqpy.daemon.app import Nsqd
from nsqpy.daemon.metrics import Metrics
from nsqpy.net.limits import REFUSALS
from nsqpy.protocol import requests
from tests.unit.core.leasing import Tenant
from tests.unit.core.node import Client, Node

ROOT = Path(__file__).parents[2]

Samples = dict[tuple[str, ...], float]


def samples(page: bytes) -> Samples:
    """By name and the values of the labels, which are in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


@pytest.fixture
async def scrape(tmp_path: Path) -> Samples:
    """Of a whole daemon in which there is a topic, a channel, a consumer and an error."""
    config = NsqdConfig(
        data_path=str(tmp_path),
        tcp_address="127.0.0.1:0",
        http_address="127.0.0.1:0",
        broadcast_address="127.0.0.1",
        e2e_processing_latency_percentiles=(0.99, 0.5),
    )
    daemon = Nsqd(config, "vm")
    await daemon.start()
    tcp_port = daemon._broker.config.broadcast_tcp_port
    http_port = daemon._broker.config.broadcast_http_port
    reader, writer = await asyncio.open_connection("127.0.0.1", tcp_port)
    writer.write(requests.MAGIC + requests.identify({"client_id": 'a"b\\c\nd'}))
    writer.write(requests.sub("t", "c") + requests.rdy(5) + requests.pub("t", b"x"))
    async with asyncio.timeout(10):
        await reader.readuntil(b"x")
    asker, question = await asyncio.open_connection("127.0.0.1", http_port)
    question.write(b"POST /topic/delete?topic=none HTTP/1.1\r\nHost: x\r\n\r\n")
    question.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(10):
        answer = await asker.read()
    page = answer[answer.index(b"# HELP") :]
    for end in (writer, question):
        end.close()
    await daemon.stop()
    return samples(page)


async def test_the_figures_of_a_daemon(scrape: Samples) -> None:
    assert scrape["nsqd_healthy",] == 1
    assert scrape["nsqd_connections", "TCP"] == 1
    assert scrape["nsqd_http_errors_total", "TOPIC_NOT_FOUND"] == 1
    assert scrape["nsqd_errors_total", "E_BAD_TOPIC"] == 0
    assert scrape["nsqd_channel_in_flight", "c", "t"] == 1
    assert scrape["nsqd_topic_messages_total", "t"] == 1
    assert scrape["nsqd_channel_e2e_latency_seconds", "c", "0.99", "t"] == 0
    assert scrape["nsqd_client_ready", "c", 'a"b\\c\nd', "t"] == 5
    assert scrape["nsqd_loop_lag_seconds_count",] >= 0
    assert scrape["nsqd_fsync_seconds_count",] >= 0
    for port in ("TCP", "HTTP"):
        for reason in REFUSALS:
            assert scrape["nsqd_connections_refused_total", port, reason] == 0


async def test_the_page_has_every_metric_and_no_other(scrape: Samples) -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    told = set(re.findall(r"`((?:nsqd|process)_[a-z0-9_]+)`", text))
    found = {re.sub(r"_(bucket|sum|count)$", "", name) for name, *_ in scrape}
    assert found == told


async def test_the_page_has_the_right_bounds(scrape: Samples) -> None:
    """There are one topic, one channel with two percentiles, and one client."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    bounds = re.search(r"(\d+) series a topic, (\d+)\s+a channel .*, (\d+)\s+a client", text)
    assert bounds is not None
    found = [
        sum(name.startswith(f"nsqd_{what}_") for name, *_ in scrape)
        for what in ("topic", "channel", "client")
    ]
    assert found == [int(bounds[1]), int(bounds[2]) + 2, int(bounds[3])]


async def test_everything_that_the_dashboard_and_the_rules_name_exists(scrape: Samples) -> None:
    names = {name for name, *_ in scrape}
    dashboard = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked += [one["query"] for one in dashboard["templating"]["list"]]
    rules = (ROOT / "deploy" / "prometheus-rules.yml").read_text()
    alerts = re.findall(r"^ +expr: (.*)$", rules, re.MULTILINE)
    assert len(alerts) == rules.count("- alert: ")
    named = {
        name for text in (*asked, *alerts) for name in re.findall(r"\b(?:nsqd|process)_\w+", text)
    }
    assert len(named) > 25
    assert named <= names


async def page_of(node: Node) -> Samples:
    return samples(await Metrics(node.broker).page(node.clock.now().wall_ns))


async def test_ages_and_drops() -> None:
    node = Node(mem_queue_size=2)
    node.broker.topic("t#ephemeral")
    node.publish("t#ephemeral", b"a", b"b", b"c", b"d")
    node.publish("t", b"a")
    node.clock.advance(5_000_000_000)
    node.broker.create_channel("t", "c#ephemeral")
    node.settle()
    node.publish("t", b"b", b"c", b"d")
    found = await page_of(node)
    assert found["nsqd_topic_dropped_total", "overflow", "t#ephemeral"] == 2
    assert found["nsqd_topic_oldest_seconds", "t#ephemeral"] == pytest.approx(5, abs=0.1)
    assert found["nsqd_topic_oldest_seconds", "t"] == 0
    assert found["nsqd_channel_oldest_seconds", "c#ephemeral", "t"] == pytest.approx(5, abs=0.1)
    assert found["nsqd_channel_dropped_total", "c#ephemeral", "overflow", "t"] == 2
    consumer = node.subscribe("t", "c#ephemeral", ready_count=9, sample_rate=1)
    node.settle()
    found = await page_of(node)
    sampled = 2 - len(consumer.take())
    assert found["nsqd_channel_dropped_total", "c#ephemeral", "sample", "t"] == sampled


async def test_an_age_that_is_not_known() -> None:
    node = Node()
    node.broker.topic("t")
    node.broker.create_channel("t", "c")
    node.publish("t", b"a")
    node.restart()
    found = await page_of(node)
    assert math.isnan(found["nsqd_channel_oldest_seconds", "c", "t"])


async def test_errors_and_dead_letters_by_reason() -> None:
    node = Node()
    for command in (b"PUB $\n", b"PUB $\n", b"NONSENSE\n"):
        Client(node).send(command)
    client = Client(node)
    client.subscribe("t", "c")
    node.broker.set_channel_config("t", "c", DeadLetterPolicy(max_attempts=1))
    node.publish("t", b"a")
    (message,) = client.take()
    assert not isinstance(message, bytes)
    client.send(b"REQ %s 0\n" % message.id)
    node.settle()
    found = await page_of(node)
    assert found["nsqd_errors_total", "E_BAD_TOPIC"] == 2
    assert found["nsqd_errors_total", "E_INVALID"] == 1
    assert found["nsqd_channel_dead_letters_total", "c", "requeue", "t"] == 1
    assert found["nsqd_channel_dead_letters_total", "c", "timeout", "t"] == 0


async def test_dead_letters_of_leases() -> None:
    node = Node()
    node.broker.topic("t")
    node.broker.create_channel("t", "c")
    node.broker.set_channel_config("t", "c", DeadLetterPolicy(max_attempts=1))
    node.publish("t", b"a", b"b", b"c")
    tenant = Tenant(node)
    tenant.take("r", 2)
    tenant.release("r")
    tenant.take("x", 1, ttl_ns=SECOND)
    node.advance(2 * SECOND)
    node.settle()
    found = await page_of(node)
    by_reason = {
        reason: found["nsqd_channel_dead_letters_total", "c", reason, "t"] for reason in FAILURES
    }
    assert {reason: count for reason, count in by_reason.items() if count} == {
        "lease released": 2,
        "lease expired": 1,
    }
    letters = node.channel("t", "c").dead_letters
    assert letters is not None
    assert sum(by_reason.values()) == letters.count


async def test_what_is_beyond_the_bounds_is_counted() -> None:
    node = Node()
    clients = []
    for number in range(5):
        client = Client(node)
        body = b'{"client_id":"c%d"}' % number
        client.send(b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
        client.take()
        client.subscribe(f"t{number}", "c")
        clients.append(client)
    node.broker.config = replace(node.broker.config, metrics_max_channels=3, metrics_max_clients=2)
    found = await page_of(node)
    assert found["nsqd_left_out", "topics"] == 2
    assert found["nsqd_left_out", "channels"] == 0
    assert found["nsqd_left_out", "clients"] == 3
    assert [name for name in found if name[0] == "nsqd_topic_depth"] == [
        ("nsqd_topic_depth", f"t{number}") for number in range(3)
    ]
    assert len([name for name in found if name[0] == "nsqd_client_in_flight"]) == 2
    assert {type(session) for session in node.broker.sessions} == {Session}


async def test_the_loop_goes_on_during_a_scrape() -> None:
    node = Node()
    for number in range(40):
        node.broker.topic(f"t{number}")
        for channel in range(10):
            node.broker.create_channel(f"t{number}", f"c{channel}")
    scrape = asyncio.ensure_future(Metrics(node.broker).page(SystemClock().now().wall_ns))
    rounds = 0
    while not scrape.done():
        await asyncio.sleep(0)
        rounds += 1
    assert rounds > 8
    assert len(samples(scrape.result())) > 400 * 21
