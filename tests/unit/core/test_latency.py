"""Percentiles of the time from publish to FIN."""

import json
from random import Random

import pytest

from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.core.latency import LatencyWindow, merged_latency
from nsqpy.core.stats import stats_json, stats_text
from nsqpy.core.window import Run
from nsqpy.message import Batch, encode_batch
from tests.unit.core.node import Node
from tests.unit.fakes import message_id

NOW_NS = 1_800_000_000 * SECOND


def published(at_ns: int, count: int = 1) -> Run:
    return Run(encode_batch([b"x"] * count, message_id(1) * count, at_ns), 0, count)


def values(window: LatencyWindow, now_ns: int = NOW_NS) -> list[float]:
    return [one.value for one in window.stats(now_ns).percentiles or ()]


def test_percentiles_are_right_to_one_percent() -> None:
    quantiles = (1.0, 0.99, 0.95, 0.5, 0.1)
    window = LatencyWindow(600 * SECOND, quantiles)
    random = Random(1)
    latencies = sorted(int(random.lognormvariate(15, 2)) + 1 for _ in range(5000))
    for latency_ns in random.sample(latencies, len(latencies)):
        window.add([published(NOW_NS - latency_ns)], NOW_NS)
    stats = window.stats(NOW_NS)
    assert stats.count == 5000
    for found in stats.percentiles or ():
        exact = latencies[max(-(-int(found.quantile * 5000) // 1), 1) - 1]
        assert found.value == pytest.approx(exact, rel=0.0101)


@pytest.mark.parametrize("latency_ns", [1, 7, 999, MILLISECOND, SECOND, 3600 * SECOND, 10**18])
def test_one_message(latency_ns: int) -> None:
    window = LatencyWindow(600 * SECOND, (0.5, 1.0))
    window.add([published(NOW_NS - latency_ns)], NOW_NS)
    assert values(window) == [pytest.approx(latency_ns, rel=0.011)] * 2


def test_nothing_and_a_clock_that_went_back() -> None:
    window = LatencyWindow(600 * SECOND, (0.5,))
    assert (window.stats(NOW_NS).count, values(window)) == (0, [0])
    window.add([published(NOW_NS + SECOND)], NOW_NS)
    assert values(window) == [1]


def test_a_batch_counts_for_all_its_messages_however_it_was_made() -> None:
    window = LatencyWindow(600 * SECOND, (0.5, 1.0))
    one, two = published(NOW_NS - SECOND, 3), published(NOW_NS - 9 * SECOND)
    mixed = one.batch.data + two.batch.data
    stride = len(two.batch.data)
    window.add([Run(Batch(mixed, range(0, 4 * stride + 1, stride)), 0, 4)], NOW_NS)
    assert window.stats(NOW_NS).count == 4
    assert values(window) == [pytest.approx(SECOND, rel=0.01), pytest.approx(9 * SECOND, rel=0.01)]


def test_the_window_forgets() -> None:
    window = LatencyWindow(10 * SECOND, (1.0,))
    window.add([published(NOW_NS - 100 * SECOND)], NOW_NS)
    assert window.stats(NOW_NS + 5 * SECOND - 1).count == 1
    window.add([published(NOW_NS)], NOW_NS + 5 * SECOND)
    assert window.stats(NOW_NS + 5 * SECOND).count == 2
    assert window.stats(NOW_NS + 10 * SECOND).count == 1
    assert window.stats(NOW_NS + 15 * SECOND).count == 0
    window.add([published(NOW_NS)], NOW_NS)
    assert window.stats(NOW_NS + 3600 * SECOND).count == 0


def test_a_topic_has_those_of_its_channels() -> None:
    windows = [LatencyWindow(10 * SECOND, (0.5,)) for _ in range(2)]
    windows[0].add([published(NOW_NS - SECOND, 3)], NOW_NS)
    windows[1].add([published(NOW_NS - 9 * SECOND)], NOW_NS)
    merged = merged_latency(windows, (0.5, 1.0), NOW_NS)
    assert merged.count == 4
    assert [one.value for one in merged.percentiles or ()] == [
        pytest.approx(SECOND, rel=0.01),
        pytest.approx(9 * SECOND, rel=0.01),
    ]
    assert merged_latency([], (0.5,), NOW_NS).percentiles is None


class TestInStats:
    def test_off_by_default(self) -> None:
        node = Node()
        node.subscribe("t", "c")
        assert node.channel("t", "c").latency is None
        (topic,) = node.broker.stats().topics or ()
        assert topic.e2e_processing_latency.percentiles is None

    def test_from_fin_to_json_and_text(self) -> None:
        node = Node(e2e_processing_latency_percentiles=(0.99, 0.5))
        consumer = node.subscribe("t", "c", ready_count=5)
        node.publish("t", b"a", b"b")
        node.clock.advance(250 * MILLISECOND)
        wall_ns = node.clock.now().wall_ns
        consumer.channel.finish(consumer.subscription, consumer.take_ids(), wall_ns)
        node.turn()
        stats = node.broker.stats(include_clients=False)
        document = json.loads(stats_json(stats))["topics"][0]
        latency = document["channels"][0]["e2e_processing_latency"]
        assert document["e2e_processing_latency"] == latency
        assert latency["count"] == 2
        assert [one["quantile"] for one in latency["percentiles"]] == [0.99, 0.5]
        assert latency["percentiles"][0]["value"] == pytest.approx(250 * MILLISECOND, rel=0.01)
        text = stats_text(stats, now_ns=0, uptime_ns=0).decode()
        shown = [line.partition("e2e%: ")[2] for line in text.splitlines() if "e2e%" in line]
        assert all(line.count("ms") == 2 for line in shown)
