"""What nsqd's settings are called, and what ``/config`` shows and changes."""

import json
import re

import pytest

from nsqpy.config import (
    Durability,
    NsqdConfig,
    TLSRequired,
    change_config,
    config_value,
    default_node_id,
    split_address,
)
from nsqpy.options import options_of

# Of nsqd 1.3.0: flag, key, default as --help shows it.
REFERENCE = """
log-level log_level info
log-prefix log_prefix [nsqd]_
node-id id 0
broadcast-address broadcast_address -
broadcast-tcp-port broadcast_tcp_port 0
broadcast-http-port broadcast_http_port 0
lookupd-tcp-address nsqlookupd_tcp_addresses -
http-client-connect-timeout http_client_connect_timeout 2s
http-client-request-timeout http_client_request_timeout 5s
auth-http-address auth_http_addresses -
auth-http-request-method auth_http_request_method get
topology-region topology_region -
topology-zone topology_zone -
data-path data_path -
mem-queue-size mem_queue_size 10000
max-bytes-per-file max_bytes_per_file 104857600
sync-every sync_every 2500
sync-timeout sync_timeout 2s
queue-scan-worker-pool-max queue_scan_worker_pool_max 4
queue-scan-selection-count queue_scan_selection_count 20
msg-timeout msg_timeout 1m0s
max-msg-timeout max_msg_timeout 15m0s
max-msg-size max_msg_size 1048576
max-req-timeout max_req_timeout 1h0m0s
max-defer-timeout max_defer_timeout 8760h0m0s
max-body-size max_body_size 5242880
max-heartbeat-interval max_heartbeat_interval 1m0s
max-rdy-count max_rdy_count 2500
max-output-buffer-size max_output_buffer_size 65536
max-output-buffer-timeout max_output_buffer_timeout 30s
min-output-buffer-timeout min_output_buffer_timeout 25ms
output-buffer-timeout output_buffer_timeout 250ms
max-channel-consumers max_channel_consumers 0
statsd-address statsd_address -
statsd-interval statsd_interval 1m0s
statsd-mem-stats statsd_mem_stats true
statsd-prefix statsd_prefix nsq.%s
statsd-udp-packet-size statsd_udp_packet_size 508
statsd-exclude-ephemeral statsd_exclude_ephemeral false
e2e-processing-latency-percentile e2e_processing_latency_percentiles -
e2e-processing-latency-window-time e2e_processing_latency_window_time 10m0s
tls-cert tls_cert -
tls-key tls_key -
tls-root-ca-file tls_root_ca_file -
tls-client-auth-policy tls_client_auth_policy -
tls-required tls_required false
tls-min-version tls_min_version tls1.2
deflate deflate true
snappy snappy true
max-deflate-level max_deflate_level 6
enable-experiment enable_experiment -
"""

# Ours, or different on purpose: we do not listen beyond loopback unless told to.
OWN = """
tcp-address tcp_address 127.0.0.1:4150
http-address http_address 127.0.0.1:4151
https-address https_address 127.0.0.1:4152
durability durability disk
drain-timeout drain_timeout 0s
ephemeral-overflow ephemeral_overflow drop-newest
max-connections max_connections 0
max-unsent-size max_unsent_size 1048576
write-timeout write_timeout 0s
log-format log_format text
auth-token-file auth_token_file -
metrics-max-channels metrics_max_channels 20000
metrics-max-clients metrics_max_clients 1000
"""


def test_flags_keys_and_defaults() -> None:
    known = {
        (one.flag, one.key, one.show(one.default).replace(" ", "_") or "-")
        for one in options_of(NsqdConfig)
    }
    assert known == {tuple(line.split()) for line in (REFERENCE + OWN).split("\n") if line}


def test_every_default_is_within_its_limits_and_every_option_is_explained() -> None:
    for known in options_of(NsqdConfig):
        assert known.repeat or not known.limits_error(known.default)
        assert known.help
        assert known.group


def test_default_node_id() -> None:
    assert default_node_id("vm") == 617


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:4150", ("127.0.0.1", 4150)),
        (":0", ("", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("bücher.example:1", ("bücher.example", 1)),
        ("/run/nsqd.sock", None),
        ("/run/a:b", None),
        ("nsqd.sock", None),
    ],
)
def test_addresses(address: str, parts: tuple[str, int] | None) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address",
    ["", "4150", "127.0.0.1", "localhost", "host:", "host:http", "host:65536", "::1:4150"],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match=r"^must (be host:port|end in a port)"):
        split_address(address)


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "a\0b", "\ud800"])
def test_what_no_resolver_takes(host: str) -> None:
    with pytest.raises(ValueError, match=r"^must begin with a host name or an address$"):
        split_address(f"{host}:4150")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("msg_timeout", "60000000000"),
        ("tcp_address", "127.0.0.1:4150"),
        ("log_level", "2"),
        ("tls_min_version", "771"),
        ("tls_required", "1"),
        ("snappy", "true"),
        ("nsqlookupd_tcp_addresses", '["a:1","b:2"]'),
        ("e2e_processing_latency_percentiles", "[0.5,1]"),
        ("id", "5"),
        ("durability", "fsync"),
        ("topology_zone", ""),
        ("node_id", None),
        ("verbose", None),
        ("", None),
    ],
)
def test_config_value(name: str, shown: str | None) -> None:
    config = NsqdConfig(
        node_id=5,
        tls_required=TLSRequired.TCP_HTTPS,
        durability=Durability.FSYNC,
        nsqlookupd_tcp_addresses=("a:1", "b:2"),
        e2e_processing_latency_percentiles=(0.5, 1.0),
    )
    assert config_value(config, name) == shown


def test_change_config() -> None:
    config = NsqdConfig()
    assert change_config(config, "log_level", b"ERROR").log_level == "error"
    changed = change_config(config, "nsqlookupd_tcp_addresses", b'["a:4160"]')
    assert changed.nsqlookupd_tcp_addresses == ("a:4160",)
    assert change_config(changed, "nsqlookupd_tcp_addresses", b"null") == config


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("log_level", b"warning"),
        ("log_level", b'"info"'),
        ("log_level", b"\xff"),
        ("nsqlookupd_tcp_addresses", b"a:4160"),
        ("nsqlookupd_tcp_addresses", b'"a:4160"'),
        ("nsqlookupd_tcp_addresses", b"[1]"),
        ("nsqlookupd_tcp_addresses", b'["\\ud800:4160"]'),
        ("nsqlookupd_tcp_addresses", b'["/a/socket"]'),
        ("nsqlookupd_tcp_addresses", b"[" * 100_000),
    ],
)
def test_change_config_refuses_a_bad_value(name: str, body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        change_config(NsqdConfig(), name, body)


def test_exactly_the_live_options_can_be_changed() -> None:
    for known in options_of(NsqdConfig):
        if known.live:
            change_config(NsqdConfig(), known.key, b"info" if known.key == "log_level" else b"null")
        else:
            with pytest.raises(KeyError, match=re.escape(known.key)):
                change_config(NsqdConfig(), known.key, json.dumps("x").encode())
