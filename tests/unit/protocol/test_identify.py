"""IDENTIFY: what is decoded, what is granted, what is refused and in which words."""

import json
from dataclasses import replace

import pytest

from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.errors import ProtocolError
from nsqpy.protocol.identify import Features, Identify, Limits, negotiate, parse_identify

LIMITS = Limits(
    max_heartbeat_interval_ns=60 * SECOND,
    min_output_buffer_timeout_ns=25 * MILLISECOND,
    max_output_buffer_timeout_ns=30 * SECOND,
    output_buffer_timeout_ns=250 * MILLISECOND,
    max_output_buffer_size=65536,
    msg_timeout_ns=60 * SECOND,
    max_msg_timeout_ns=900 * SECOND,
    max_rdy_count=2500,
    max_deflate_level=6,
    topology_region="",
    topology_zone="",
    version="1.3.0",
)
BEFORE = Features(client_id="127.0.0.1", hostname="127.0.0.1")
REFERENCE_REPLY = (
    b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,"msg_timeout":60000,'
    b'"tls_v1":false,"deflate":false,"deflate_level":6,"max_deflate_level":6,"snappy":false,'
    b'"sample_rate":0,"auth_required":false,"output_buffer_size":16384,'
    b'"output_buffer_timeout":250,"topology_region":"","topology_zone":""}'
)


def granted(**fields: object) -> tuple[Features, dict[str, object]]:
    body = json.dumps({"feature_negotiation": True} | fields).encode()
    features, reply = negotiate(parse_identify(body), LIMITS, BEFORE)
    assert reply is not None
    return features, json.loads(reply)


class TestParse:
    @pytest.mark.parametrize(
        "body",
        [
            b"{}",
            b"null",
            b" \r\n\t{ } \n",
            b'{"short_id":"x","long_id":{"a":[1.5]},"unheard_of":null}',
            b'{"client_id":null,"sample_rate":null,"tls_v1":null,"user_agent":null}',
            b'{"sample_rate":0,"heartbeat_interval":-0,"deflate":false,"topology_zone":""}',
        ],
    )
    def test_absent_and_null_are_zero(self, body: bytes) -> None:
        assert parse_identify(body) == Identify()

    def test_every_field(self) -> None:
        fields: dict[str, object] = {
            "client_id": "c",
            "hostname": "h",
            "user_agent": "ua/1",
            "feature_negotiation": True,
            "heartbeat_interval": 1000,
            "output_buffer_size": 64,
            "output_buffer_timeout": 25,
            "sample_rate": 99,
            "msg_timeout": 1000,
            "tls_v1": True,
            "snappy": True,
            "deflate": True,
            "deflate_level": 3,
            "topology_region": "r",
            "topology_zone": "z",
        }
        expected = Identify(**fields)  # type: ignore[arg-type]
        assert parse_identify(json.dumps(fields).encode()) == expected
        shouted = {key.upper(): value for key, value in fields.items()}
        assert parse_identify(json.dumps(shouted).encode()) == expected

    def test_text_is_unicode_whatever_the_bytes(self) -> None:
        assert parse_identify('{"client_id":"é😀"}'.encode()).client_id == "é😀"
        assert parse_identify(b'{"client_id":"a\xffb"}').client_id == "a\ufffdb"

    def test_half_a_surrogate_pair_is_replaced(self) -> None:
        identify = parse_identify(rb'{"client_id":"\ud800","user_agent":"\ud83d\ude00 \udc00"}')
        assert (identify.client_id, identify.user_agent) == ("\ufffd", "😀 \ufffd")

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b" ",
            b"{",
            b"nonsense",
            b"{}{}",
            b"{} x",
            b"[]",
            b'"text"',
            b"1",
            b"true",
            b"{'client_id':'x'}",
            b'{"client_id":"x",}',
            b'{"client_id":"new\nline"}',
            b'{"client_id":1}',
            b'{"hostname":{}}',
            b'{"user_agent":[]}',
            b'{"topology_zone":false}',
            b'{"feature_negotiation":1}',
            b'{"feature_negotiation":"true"}',
            b'{"snappy":0}',
            b'{"sample_rate":true}',
            b'{"sample_rate":"1"}',
            b'{"heartbeat_interval":1000.0}',
            b'{"heartbeat_interval":1e3}',
            b'{"msg_timeout":9223372036854775808}',
            b'{"msg_timeout":-9223372036854775809}',
            b'{"sample_rate":2147483648}',
            b'{"msg_timeout":' + b"9" * 5000 + b"}",
            b'{"heartbeat_interval":NaN}',
            b'{"unheard_of":Infinity}',
            b'{"unheard_of":-Infinity}',
            b'{"a":' + b"[" * 100_000,
            b"\xef\xbb\xbf{}",
            b"\xff\xfe{\0}\0",
        ],
    )
    def test_anything_else_is_refused(self, body: bytes) -> None:
        with pytest.raises(ProtocolError) as caught:
            parse_identify(body)
        assert str(caught.value) == "E_BAD_BODY IDENTIFY failed to decode JSON body"
        assert caught.value.fatal


class TestReply:
    def test_it_is_the_reference_reply(self) -> None:
        identify = Identify(feature_negotiation=True)
        assert negotiate(identify, LIMITS, BEFORE)[1] == REFERENCE_REPLY

    def test_without_negotiation_there_is_none_but_the_fields_count(self) -> None:
        identify = Identify(client_id="c", sample_rate=5, msg_timeout=2000, snappy=True)
        features, reply = negotiate(identify, LIMITS, BEFORE)
        assert reply is None
        assert (features.client_id, features.sample_rate) == ("c", 5)
        assert features.msg_timeout_ns == 2 * SECOND

    def test_values_are_the_resolved_ones_in_milliseconds(self) -> None:
        features, reply = granted(
            msg_timeout=5000, output_buffer_size=64, output_buffer_timeout=25, sample_rate=42
        )
        assert reply["msg_timeout"] == 5000
        assert reply["output_buffer_size"] == 64
        assert reply["output_buffer_timeout"] == 25
        assert reply["sample_rate"] == 42
        assert features.msg_timeout_ns == 5 * SECOND
        assert features.output_buffer_timeout_ns == 25 * MILLISECOND

    @pytest.mark.parametrize("feature", ["tls", "snappy", "deflate"])
    def test_a_layer_is_granted_if_asked_for_and_there(self, feature: str) -> None:
        asked = {"feature_negotiation": True, "tls_v1" if feature == "tls" else feature: True}
        identify = parse_identify(json.dumps(asked).encode())
        for has_it in (True, False):
            limits = replace(
                LIMITS,
                tls=has_it or feature != "tls",
                snappy=has_it or feature != "snappy",
                deflate=has_it or feature != "deflate",
            )
            features, reply = negotiate(identify, limits, BEFORE)
            assert reply is not None
            found = json.loads(reply)
            assert (features.tls, features.layered) == (has_it and feature == "tls", has_it)
            replied = {name: found[name] for name in ("tls_v1", "snappy", "deflate")}
            assert replied == {
                "tls_v1": features.tls,
                "snappy": has_it and feature == "snappy",
                "deflate": has_it and feature == "deflate",
            }

    def test_nothing_is_granted_without_negotiation(self) -> None:
        limits = replace(LIMITS, tls=True, snappy=True, deflate=True)
        identify = Identify(tls_v1=True, snappy=True, deflate=True)
        assert not negotiate(identify, limits, BEFORE)[0].layered

    def test_two_compressions_are_too_many(self) -> None:
        both = Identify(feature_negotiation=True, snappy=True, deflate=True)
        limits = replace(LIMITS, snappy=True, deflate=True)
        with pytest.raises(ProtocolError) as caught:
            negotiate(both, limits, BEFORE)
        assert str(caught.value) == (
            "E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
        )
        assert caught.value.fatal
        features, _ = negotiate(both, replace(limits, deflate=False), BEFORE)
        assert (features.snappy, features.deflate) == (True, False)

    @pytest.mark.parametrize(
        ("asked", "got"), [(None, 6), (0, 6), (-1, 6), (1, 1), (6, 6), (7, 6), (1 << 40, 6)]
    )
    def test_deflate_level(self, asked: int | None, got: int) -> None:
        assert granted(deflate_level=asked)[1]["deflate_level"] == got

    def test_deflate_level_is_capped_by_the_limit(self) -> None:
        limits = replace(LIMITS, max_deflate_level=3)
        _, reply = negotiate(Identify(feature_negotiation=True), limits, BEFORE)
        assert reply is not None
        found = json.loads(reply)
        assert (found["deflate_level"], found["max_deflate_level"]) == (3, 3)

    def test_topology_is_the_servers_in_the_reply_and_the_clients_in_the_features(self) -> None:
        limits = replace(LIMITS, topology_region="eu", topology_zone="é")
        identify = Identify(feature_negotiation=True, topology_region="us", topology_zone="b")
        features, reply = negotiate(identify, limits, BEFORE)
        assert reply is not None
        assert reply.endswith('"topology_region":"eu","topology_zone":"é"}'.encode())
        assert (features.topology_region, features.topology_zone) == ("us", "b")


class TestFeatures:
    @pytest.mark.parametrize(
        ("fields", "client_id", "hostname"),
        [
            ({}, "", ""),
            ({"client_id": "c"}, "c", "c"),
            ({"hostname": "h"}, "", "h"),
            ({"client_id": "c", "hostname": ""}, "c", ""),
        ],
    )
    def test_names(self, fields: dict[str, str], client_id: str, hostname: str) -> None:
        features, _ = granted(**fields)
        assert (features.client_id, features.hostname) == (client_id, hostname)

    @pytest.mark.parametrize(
        ("asked", "milliseconds"), [(-1, 0), (0, 30_000), (1000, 1000), (60_000, 60_000)]
    )
    def test_heartbeat(self, asked: int, milliseconds: int) -> None:
        features, _ = granted(heartbeat_interval=asked)
        assert features.heartbeat_interval_ns == milliseconds * MILLISECOND

    @pytest.mark.parametrize(
        ("size", "timeout", "got_size", "got_timeout"),
        [
            (0, 0, 16384, 250),
            (-1, 0, 1, 0),
            (-1, 500, 1, 0),
            (64, -1, 64, 0),
            (65536, 30_000, 65536, 30_000),
        ],
    )
    def test_output_buffer(self, size: int, timeout: int, got_size: int, got_timeout: int) -> None:
        features, reply = granted(output_buffer_size=size, output_buffer_timeout=timeout)
        assert features.output_buffer_size == reply["output_buffer_size"] == got_size
        assert features.output_buffer_timeout_ns == got_timeout * MILLISECOND
        assert reply["output_buffer_timeout"] == got_timeout

    def test_the_servers_own_timeout_is_not_held_to_its_limits(self) -> None:
        limits = replace(LIMITS, output_buffer_timeout_ns=MILLISECOND)
        features, _ = negotiate(Identify(), limits, BEFORE)
        assert features.output_buffer_timeout_ns == MILLISECOND

    def test_a_later_identify_replaces_the_earlier(self) -> None:
        first, _ = granted(client_id="a", sample_rate=9, heartbeat_interval=1000, msg_timeout=1000)
        second, _ = negotiate(Identify(client_id="b"), LIMITS, first)
        assert second == negotiate(Identify(client_id="b"), LIMITS, BEFORE)[0]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        *(
            ({field: value}, f"E_BAD_BODY IDENTIFY {words} ({value}) is invalid")
            for field, words, values in [
                ("heartbeat_interval", "heartbeat interval", [-2, 1, 999, 60_001, (1 << 63) - 1]),
                ("output_buffer_timeout", "output buffer timeout", [-2, 1, 24, 30_001, 1 << 62]),
                ("output_buffer_size", "output buffer size", [-2, 1, 63, 65_537, 1 << 62]),
                ("sample_rate", "sample rate", [-1, 100, (1 << 31) - 1, -(1 << 31)]),
                ("msg_timeout", "msg timeout", [-1, 1, 999, 900_001, -(1 << 63)]),
            ]
            for value in values
        ),
        # The first in the original's order counts.
        (
            {"msg_timeout": 1, "sample_rate": 100, "heartbeat_interval": 1},
            "E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid",
        ),
        (
            {"output_buffer_size": 1, "output_buffer_timeout": 1},
            "E_BAD_BODY IDENTIFY output buffer timeout (1) is invalid",
        ),
        (
            {"output_buffer_size": 1, "sample_rate": 100},
            "E_BAD_BODY IDENTIFY output buffer size (1) is invalid",
        ),
        (
            {"msg_timeout": 1, "sample_rate": 100},
            "E_BAD_BODY IDENTIFY sample rate (100) is invalid",
        ),
    ],
)
def test_what_is_out_of_range_is_refused(fields: dict[str, int], text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        granted(**fields)
    assert str(caught.value) == text
    assert caught.value.fatal
