"""The two faces of ``/stats``, against the samples in the reference."""

import json
import time
from dataclasses import replace

import pytest

from nsqpy.clock import SECOND
from nsqpy.core.stats import (
    BrokerStats,
    ChannelStats,
    ClientStats,
    LatencyStats,
    MemoryStats,
    Percentile,
    PubCount,
    TopicStats,
    select,
    stats_json,
    stats_text,
)

CONNECTED_S = 1795239851
CONSUMER = ClientStats(
    client_id="cons1",
    hostname="cons.host",
    remote_address="127.0.0.1:40826",
    state=3,
    ready_count=2,
    in_flight_count=2,
    message_count=2,
    connect_ts=CONNECTED_S,
    user_agent="uac",
)
PRODUCER = ClientStats(
    client_id="prod1",
    hostname="prod.host",
    remote_address="127.0.0.1:40818",
    state=0,
    connect_ts=CONNECTED_S,
    user_agent="ua/1 <x>&",
    pub_counts=(PubCount("s1", 3),),
)
CHANNEL = ChannelStats(
    channel_name="ch",
    depth=1,
    in_flight_count=2,
    message_count=3,
    global_msg_count=2,
    client_count=1,
    clients=(CONSUMER,),
)
TOPIC = TopicStats(topic_name="s1", channels=(CHANNEL,), message_count=3, message_bytes=18)
STATS = BrokerStats(health="OK", start_time=1795239640, topics=(TOPIC,), producers=(PRODUCER,))
MEMORY = MemoryStats(
    heap_objects=7808,
    heap_idle_bytes=9428992,
    heap_in_use_bytes=15114240,
    heap_released_bytes=9240576,
    gc_pause_usec_100=197,
    gc_pause_usec_99=197,
    gc_pause_usec_95=197,
    next_gc_bytes=22958872,
    gc_total_runs=15,
)

# As recorded from the original, but for the producer, of which the reference shows a part.
RECORDED_JSON = (
    '{"version":"1.3.0","health":"OK","start_time":1795239640,"topics":[{"topic_name":"s1",'
    '"channels":[{"channel_name":"ch","depth":1,"backend_depth":0,"in_flight_count":2,'
    '"deferred_count":0,"message_count":3,"global_msg_count":2,"requeue_count":0,'
    '"timeout_count":0,"client_count":1,"clients":[{"client_id":"cons1","hostname":"cons.host",'
    '"version":"V2","remote_address":"127.0.0.1:40826","state":3,"ready_count":2,'
    '"in_flight_count":2,"message_count":2,"finish_count":0,"requeue_count":0,'
    '"connect_ts":1795239851,"sample_rate":0,"deflate":false,"snappy":false,"user_agent":"uac",'
    '"topology_zone":"","topology_region":"","tls":false,"tls_cipher_suite":"","tls_version":"",'
    '"tls_negotiated_protocol":"","tls_negotiated_protocol_is_mutual":false}],"paused":false,'
    '"e2e_processing_latency":{"count":0,"percentiles":null}}],"depth":0,"backend_depth":0,'
    '"message_count":3,"message_bytes":18,"paused":false,'
    '"e2e_processing_latency":{"count":0,"percentiles":null}}],"producers":null}'
)

RECORDED_TEXT = """\
uptime 3m31.720161297s

Health: OK

Memory:
   heap_objects             \t7808
   heap_idle_bytes          \t9428992
   heap_in_use_bytes        \t15114240
   heap_released_bytes      \t9240576
   gc_pause_usec_100        \t197
   gc_pause_usec_99         \t197
   gc_pause_usec_95         \t197
   next_gc_bytes            \t22958872
   gc_total_runs            \t15

Topics:
   [s1             ] depth: 0     be-depth: 0     msgs: 3        e2e%:\x20
      [ch                       ] depth: 1     be-depth: 0     inflt: 2    def: 0    re-q: 0     \
timeout: 0     msgs: 3        e2e%:\x20
        [V2 cons.host:40826 uac  ] state: 3 inflt: 2    rdy: 2    fin: 0        re-q: 0        \
msgs: 2        connected: 0s

Producers:
   [V2 prod.host:40818 ua/1 <x>&] msgs: 3        topics: s1=3 connected: 0s
"""


def text_of(stats: BrokerStats, memory: MemoryStats | None = None, age_s: int = 0) -> str:
    now_ns = (CONNECTED_S + age_s) * SECOND + SECOND - 1
    return stats_text(stats, memory, now_ns=now_ns, uptime_ns=211720161297).decode()


class TestJSON:
    def test_is_what_was_recorded(self) -> None:
        assert stats_json(replace(STATS, producers=())).decode() == RECORDED_JSON

    def test_a_producer_lists_what_it_published_between_region_and_tls(self) -> None:
        text = stats_json(replace(STATS, topics=())).decode()
        assert '"user_agent":"ua/1 \\u003cx\\u003e\\u0026"' in text
        assert '"topology_region":"","pub_counts":[{"topic":"s1","count":3}],"tls":false' in text

    def test_memory_stands_before_producers_with_nine_keys(self) -> None:
        document = json.loads(stats_json(STATS, MEMORY))
        assert list(document)[-2:] == ["memory", "producers"]
        assert list(document["memory"].values()) == [
            *(7808, 9428992, 15114240, 9240576, 197, 197, 197, 22958872, 15),
        ]

    def test_no_topic_at_all_is_an_empty_list_and_an_unknown_one_null(self) -> None:
        nothing = BrokerStats(health="OK", start_time=1)
        assert b'"topics":[],"producers":null' in stats_json(nothing)
        assert b'"topics":null,"producers":null' in stats_json(replace(nothing, topics=None))

    def test_clients_not_asked_for_are_null_but_counted(self) -> None:
        channel = replace(CHANNEL, clients=None)
        text = stats_json(replace(STATS, topics=(replace(TOPIC, channels=(channel,)),)))
        assert b'"client_count":1,"clients":null,"paused"' in text

    def test_latency_percentiles_have_go_numbers(self) -> None:
        latency = LatencyStats(7, (Percentile(1.0, 206850186.0), Percentile(0.99, 0.5)))
        topic = replace(TOPIC, channels=(), e2e_processing_latency=latency)
        assert (
            b'"e2e_processing_latency":{"count":7,"percentiles":'
            b'[{"quantile":1,"value":206850186},{"quantile":0.99,"value":0.5}]}'
        ) in stats_json(replace(STATS, topics=(topic,)))

    def test_what_was_dropped_comes_last_and_only_if_anything_was(self) -> None:
        channel = replace(CHANNEL, dropped_count=9)
        document = json.loads(
            stats_json(replace(STATS, topics=(replace(TOPIC, channels=(channel,)),)))
        )
        shown = document["topics"][0]["channels"][0]
        assert list(shown)[-2:] == ["e2e_processing_latency", "dropped_count"]
        assert shown["dropped_count"] == 9

    def test_dead_letters_are_shown_only_if_there_are_any(self) -> None:
        reasons = {"max_attempts exceeded by timeout": 2}
        channel = replace(CHANNEL, dead_letter_count=2, dead_letter_reasons=reasons)
        topic = replace(TOPIC, channels=(CHANNEL, channel))
        document = json.loads(stats_json(replace(STATS, topics=(topic,))))
        without, shown = document["topics"][0]["channels"]
        assert shown.keys() - without.keys() == {"dead_letter_count", "dead_letter_reasons"}
        assert (shown["dead_letter_count"], shown["dead_letter_reasons"]) == (2, reasons)

    def test_auth_is_shown_only_if_there_was_any(self) -> None:
        client = replace(PRODUCER, authed=True, auth_identity="ann", auth_identity_url="http://a")
        text = stats_json(replace(STATS, topics=(), producers=(client,)))
        assert b'"authed":true,"auth_identity":"ann","auth_identity_url":"http://a",' in text


class TestText:
    def test_is_what_was_recorded(self) -> None:
        head, _, rest = text_of(STATS, MEMORY).partition("\nuptime")
        version, started = head.split("\n")
        assert version.startswith("nsqd v1.3.0 (built w/python3.")
        assert started.startswith("start_time 2026-11-2")
        assert "uptime" + rest == RECORDED_TEXT

    def test_start_time_is_rfc_3339_in_the_local_zone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for zone, shown in (
            ("UTC", "2026-11-21T05:40:40Z"),
            ("XYZ-2", "2026-11-21T07:40:40+02:00"),
        ):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert f"start_time {shown}\n" in text_of(STATS)
        monkeypatch.delenv("TZ")
        time.tzset()

    def test_nothing_there_is_said_in_words(self) -> None:
        text = text_of(BrokerStats(health="NOK - disk full", start_time=1))
        assert text.endswith("\nHealth: NOK - disk full\n\nTopics: None\n\nProducers: None\n")

    def test_topics_are_set_apart_and_pauses_marked(self) -> None:
        paused = replace(TOPIC, paused=True, channels=(replace(CHANNEL, paused=True, clients=()),))
        lines = text_of(replace(STATS, topics=(TOPIC, paused), producers=())).splitlines()
        at = lines.index("Topics:")
        assert lines[at + 1].startswith("   [s1  ")
        assert lines[at + 4] == ""
        assert lines[at + 5].startswith("*P [s1  ")
        assert lines[at + 6].startswith("   *P [ch  ")

    def test_a_consumer_that_published_is_shown_as_a_producer(self) -> None:
        both = replace(CONSUMER, pub_counts=(PubCount("a", 1), PubCount("b", 2)))
        topic = replace(TOPIC, channels=(replace(CHANNEL, clients=(both,)),))
        line = (
            "        [V2 cons.host:40826 uac  ] msgs: 3        topics: a=1,b=2 connected: 1h0m5s\n"
        )
        assert line in text_of(replace(STATS, topics=(topic,)), age_s=3605)

    def test_a_peer_on_a_unix_socket_has_no_port(self) -> None:
        client = replace(PRODUCER, remote_address="@", hostname="", user_agent="")
        assert "   [V2 :                    ] msgs: 3 " in text_of(
            replace(STATS, producers=(client,))
        )

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            *((1.5e9, "1.5s"), (1e9, "1000.0ms"), (2_500_000.0, "2.5ms")),
            *((1e3, "1000.0ns"), (1001.0, "1.0us"), (0.0, "0.0ns")),
        ],
    )
    def test_latencies_have_one_decimal_and_a_unit(self, value: float, shown: str) -> None:
        latency = LatencyStats(1, (Percentile(0.99, value), Percentile(0.5, value)))
        topic = replace(TOPIC, channels=(), e2e_processing_latency=latency)
        assert f" e2e%: {shown}, {shown}\n" in text_of(replace(STATS, topics=(topic,)))

    def test_bytes_that_are_no_text_come_out_as_they_came_in(self) -> None:
        client = replace(PRODUCER, user_agent=b"\xff".decode(errors="surrogateescape"))
        stats = replace(STATS, producers=(client,))
        assert b"40818 \xff" in stats_text(stats, now_ns=0, uptime_ns=0)


class TestSelect:
    OTHER = TopicStats(topic_name="s2", channels=(ChannelStats(channel_name="other"),))
    BOTH = replace(
        STATS,
        topics=(TOPIC, OTHER),
        producers=(replace(PRODUCER, pub_counts=(PubCount("s1", 3), PubCount("s2", 4))), PRODUCER),
    )

    def test_no_names_leave_everything(self) -> None:
        assert select(self.BOTH) == self.BOTH

    def test_a_topic_leaves_itself_and_those_who_published_to_it(self) -> None:
        found = select(self.BOTH, "s2")
        assert found.topics == (self.OTHER,)
        assert [client.pub_counts for client in found.producers] == [(PubCount("s2", 4),)]

    def test_an_unknown_topic_leaves_null(self) -> None:
        found = select(self.BOTH, "none", "ch")
        assert (found.topics, found.producers) == (None, ())

    def test_a_channel_leaves_the_topics_that_have_it(self) -> None:
        assert select(self.BOTH, "", "ch").topics == (TOPIC,)
        assert select(self.BOTH, "s2", "ch").topics == ()
        assert select(self.BOTH, "", "ch").producers == self.BOTH.producers
