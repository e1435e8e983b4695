"""Every setting of ``nsqpy nsqd``, stated once, and what ``/config`` shows and changes of it.

Names and defaults are nsqd's, but for loopback addresses and the settings that are ours.
``nsqpy.startup`` makes the value from a command line and a file. Source: nsqd/options.go.
"""

import json
import zlib
from dataclasses import dataclass, replace
from enum import Enum, IntEnum, StrEnum
from hashlib import md5
from ipaddress import ip_address

from nsqpy.clock import SECOND
from nsqpy.logs import LogFormat, level_number, parse_level
from nsqpy.options import boolean, duration_ns, number, one_of, option, options_of

__all__ = [
    "AUTO_ADDRESS",
    "CLIENT_CERTIFICATE_POLICIES",
    "COMPATIBILITY",
    "Durability",
    "EphemeralOverflow",
    "NsqdConfig",
    "TLSRequired",
    "TLSVersion",
    "change_config",
    "config_value",
    "default_node_id",
    "parse_tls_version",
    "split_address",
]

# As ``--broadcast-address``: to each nsqlookupd, this end of the connection to it.
AUTO_ADDRESS = "auto"

_DELAY_MAX_NS = 100 * 365 * 24 * 3600 * SECOND  # times due are stored as 64-bit nanoseconds
_INT32_MAX = 2**31 - 1
_PORT_MAX = 65535


class Durability(StrEnum):
    """What an OK to a publisher means."""

    MEMORY = "memory"
    DISK = "disk"
    FSYNC = "fsync"


class EphemeralOverflow(StrEnum):
    """Which message an ``#ephemeral`` channel drops when it is full."""

    DROP_NEWEST = "drop-newest"
    DROP_OLDEST = "drop-oldest"


class TLSRequired(IntEnum):
    """Numbered as ``/config/tls_required`` shows it."""

    NO = 0
    TCP_HTTPS = 1
    ALL = 2


class TLSVersion(IntEnum):
    """The protocol's own numbers."""

    TLS1_0 = 769
    TLS1_1 = 770
    TLS1_2 = 771
    TLS1_3 = 772


def _parse_tls_required(raw: str) -> TLSRequired:
    if raw.lower() == "tcp-https":
        return TLSRequired.TCP_HTTPS
    try:
        return TLSRequired.ALL if boolean(raw) else TLSRequired.NO
    except ValueError:
        raise ValueError("must be true, false or tcp-https") from None


def _show_tls_required(value: TLSRequired) -> str:
    return ("false", "tcp-https", "true")[value]


def parse_tls_version(raw: str) -> TLSVersion:
    """``tls1.2`` and so on; empty is the default. Raises: ValueError."""
    if not raw:
        return TLSVersion.TLS1_2
    for version in TLSVersion:
        if _show_tls_version(version) == raw:
            return version
    raise ValueError("must be one of tls1.0, tls1.1, tls1.2, tls1.3")


def _show_tls_version(value: TLSVersion) -> str:
    return value.name.lower().replace("_", ".")


_NETWORK = "network"
_STORAGE = "storage and durability"
_MESSAGES = "messages"
_CLIENTS = "clients"
_NODE = "node and log"
_LATENCY = "latency figures"
_DISCOVERY = "discovery (nsqlookupd)"
_COMPRESSION = "compression"
_TLS = "TLS and AUTH"
_METRICS = "metrics"
_STATSD = "statsd"
COMPATIBILITY = "accepted for compatibility, without effect"
CLIENT_CERTIFICATE_POLICIES = ("require", "require-verify")


@dataclass(frozen=True, slots=True, kw_only=True)
class NsqdConfig:
    """The daemon's settings. Durations are nanoseconds, sizes are bytes."""

    tcp_address: str = option(
        "127.0.0.1:4150",
        group=_NETWORK,
        metavar="ADDRESS",
        help="where clients connect: host:port, or a socket's path; 0.0.0.0:4150 lets other "
        "machines in",
    )
    http_address: str = option(
        "127.0.0.1:4151",
        group=_NETWORK,
        metavar="ADDRESS",
        help="where the HTTP API listens: host:port, or a socket's path; empty = off",
    )
    https_address: str = option(
        "127.0.0.1:4152",
        group=_NETWORK,
        metavar="ADDRESS",
        help="where the HTTP API listens over TLS; empty = off; needs a certificate",
    )
    broadcast_address: str = option(
        "",
        group=_NETWORK,
        metavar="HOST",
        default_text="the host name",
        help="the name or address by which others reach this node; auto = to each nsqlookupd, "
        "the address from which it is reached",
    )
    broadcast_tcp_port: int = option(
        0,
        group=_NETWORK,
        minimum=0,
        maximum=_PORT_MAX,
        help="TCP port to announce; 0 = the real one",
    )
    broadcast_http_port: int = option(
        0,
        group=_NETWORK,
        minimum=0,
        maximum=_PORT_MAX,
        help="HTTP port to announce; 0 = the real one",
    )

    data_path: str = option(
        "",
        group=_STORAGE,
        metavar="DIRECTORY",
        default_text="the current directory",
        help="where queues are kept; must exist",
    )
    durability: Durability = option(  # noqa: RUF009 - it makes a dataclass field
        Durability.DISK,
        parse=one_of(Durability),
        group=_STORAGE,
        metavar="LEVEL",
        help="what an OK to a publisher means: memory (lost by a kill), disk (survives kill -9), "
        "fsync (survives power loss)",
    )
    mem_queue_size: int = option(
        10_000,
        group=_STORAGE,
        minimum=0,
        help="messages kept in memory, for each topic and channel; the rest is on disk only",
    )
    max_bytes_per_file: int = option(
        100 * 1024 * 1024,
        group=_STORAGE,
        minimum=1,
        metavar="BYTES",
        help="a queue's file is closed, and a new one begun, at this size",
    )
    sync_every: int = option(
        2500, group=_STORAGE, minimum=1, help="fsync a queue after this many operations"
    )
    sync_timeout_ns: int = option(
        "2s", parse=duration_ns, group=_STORAGE, above=0, help="fsync a queue at least this often"
    )
    ephemeral_overflow: EphemeralOverflow = option(  # noqa: RUF009 - it makes a dataclass field
        EphemeralOverflow.DROP_NEWEST,
        parse=one_of(EphemeralOverflow),
        group=_STORAGE,
        metavar="RULE",
        help="what a full #ephemeral channel drops: drop-newest or drop-oldest",
    )

    msg_timeout_ns: int = option(
        "60s",
        parse=duration_ns,
        group=_MESSAGES,
        above=0,
        help="a message not finished in this time is queued again",
    )
    max_msg_timeout_ns: int = option(
        "15m",
        parse=duration_ns,
        group=_MESSAGES,
        above=0,
        help="the longest timeout a client may ask for, or reach by touching",
    )
    max_msg_size: int = option(
        1024 * 1024,
        group=_MESSAGES,
        minimum=1,
        maximum=_INT32_MAX,
        metavar="BYTES",
        help="largest message",
    )
    max_body_size: int = option(
        5 * 1024 * 1024,
        group=_MESSAGES,
        minimum=1,
        maximum=_INT32_MAX,
        metavar="BYTES",
        help="largest command body: MPUB, /mpub, IDENTIFY",
    )
    max_req_timeout_ns: int = option(
        "1h",
        parse=duration_ns,
        group=_MESSAGES,
        minimum=0,
        help="longest delay of a requeued message",
    )
    max_defer_timeout_ns: int = option(
        "8760h",
        parse=duration_ns,
        group=_MESSAGES,
        minimum=0,
        maximum=_DELAY_MAX_NS,
        help="longest delay of a deferred publish (DPUB, /pub?defer=)",
    )

    max_connections: int = option(
        0,
        group=_CLIENTS,
        minimum=0,
        help="clients on the TCP port, and as many on HTTP; 0 = what the open-file limit allows",
    )
    max_unsent_size: int = option(
        1024 * 1024,
        group=_CLIENTS,
        minimum=1024,
        maximum=_INT32_MAX,
        metavar="BYTES",
        help="a client for which more than this waits, because it does not read, gets no more "
        "messages until it has",
    )
    write_timeout_ns: int = option(
        "0s",
        parse=duration_ns,
        group=_CLIENTS,
        minimum=0,
        help="a client that takes nothing of that for so long is cut off, and its messages are "
        "queued again; 0 = its heartbeat interval",
    )
    max_rdy_count: int = option(
        2500, group=_CLIENTS, minimum=1, help="largest RDY: messages in flight to one connection"
    )
    max_channel_consumers: int = option(
        0, group=_CLIENTS, minimum=0, help="consumers a channel may have; 0 = no limit"
    )
    max_heartbeat_interval_ns: int = option(
        "60s",
        parse=duration_ns,
        group=_CLIENTS,
        above=0,
        help="the longest heartbeat interval a client may ask for",
    )
    max_output_buffer_size: int = option(
        64 * 1024,
        group=_CLIENTS,
        minimum=64,
        maximum=_INT32_MAX,
        metavar="BYTES",
        help="the largest output buffer a client may ask for",
    )
    max_output_buffer_timeout_ns: int = option(
        "30s",
        parse=duration_ns,
        group=_CLIENTS,
        minimum=0,
        help="the longest output delay a client may ask for",
    )
    min_output_buffer_timeout_ns: int = option(
        "25ms",
        parse=duration_ns,
        group=_CLIENTS,
        minimum=0,
        help="the shortest output delay a client may ask for",
    )
    output_buffer_timeout_ns: int = option(
        "250ms",
        parse=duration_ns,
        group=_CLIENTS,
        minimum=0,
        help="output delay of a client that does not ask",
    )

    node_id: int = option(
        0,
        key="id",
        group=_NODE,
        minimum=0,
        below=1024,
        default_text="from the host name",
        help="this node's part of message ids, 0 to 1023",
    )
    topology_region: str = option("", group=_NODE, help="region to announce")
    topology_zone: str = option("", group=_NODE, help="zone to announce")
    log_level: str = option(
        "info",
        parse=parse_level,
        group=_NODE,
        metavar="LEVEL",
        live=True,
        help="debug, info, warn, error or fatal",
    )
    log_format: LogFormat = option(  # noqa: RUF009 - it makes a dataclass field
        LogFormat.TEXT,
        parse=one_of(LogFormat),
        group=_NODE,
        metavar="FORMAT",
        help="text, as the original's, or json, an object a line",
    )
    log_prefix: str = option("[nsqd] ", group=_NODE, help="what every log line begins with")
    drain_timeout_ns: int = option(
        "0s",
        parse=duration_ns,
        group=_NODE,
        minimum=0,
        help="at SIGTERM or SIGINT: take no more publishes, leave nsqlookupd, and give consumers "
        "this long to empty their channels; a second signal stops at once; 0 = stop at once",
    )
    enable_experiment: tuple[str, ...] = option(
        (),
        group=_NODE,
        metavar="NAME",
        pending=True,
        help="experimental feature to switch on (repeatable): topology-aware-consumption",
    )

    e2e_processing_latency_percentiles: tuple[float, ...] = option(
        (),
        parse=number,
        flag="e2e-processing-latency-percentile",
        key="e2e_processing_latency_percentiles",
        split=True,
        group=_LATENCY,
        help="percentiles of publish-to-finish time to show in /stats, above 0 and up to 1 "
        "(repeatable, or with commas)",
    )
    e2e_processing_latency_window_time_ns: int = option(
        "10m", parse=duration_ns, group=_LATENCY, above=0, help="how far back they look"
    )

    nsqlookupd_tcp_addresses: tuple[str, ...] = option(
        (),
        flag="lookupd-tcp-address",
        key="nsqlookupd_tcp_addresses",
        group=_DISCOVERY,
        metavar="ADDRESS",
        live=True,
        help="an nsqlookupd to register with: host:port of its TCP protocol (repeatable)",
    )
    http_client_connect_timeout_ns: int = option(
        "2s",
        parse=duration_ns,
        group=_DISCOVERY,
        above=0,
        help="time to connect to nsqlookupd's HTTP API or an AUTH server",
    )
    http_client_request_timeout_ns: int = option(
        "5s",
        parse=duration_ns,
        group=_DISCOVERY,
        above=0,
        help="time for a request to them; so long a new topic waits for its channels",
    )

    snappy: bool = option(True, group=_COMPRESSION, help="let clients ask for snappy")
    deflate: bool = option(True, group=_COMPRESSION, help="let clients ask for deflate")
    max_deflate_level: int = option(
        6,
        group=_COMPRESSION,
        minimum=1,
        maximum=9,
        help="the highest deflate level a client may ask for",
    )

    tls_cert: str = option(
        "",
        group=_TLS,
        metavar="FILE",
        help="certificate, PEM; with tls-key it enables TLS; both are read again on SIGHUP",
    )
    tls_key: str = option("", group=_TLS, metavar="FILE", help="its key, PEM")
    tls_client_auth_policy: str = option(
        "",
        group=_TLS,
        metavar="POLICY",
        help="client certificates: require or require-verify, either of which wants one by a "
        "known authority; makes tls-required true",
    )
    tls_root_ca_file: str = option(
        "",
        group=_TLS,
        metavar="FILE",
        help="authorities for client certificates, PEM; empty = the system's",
    )
    tls_required: TLSRequired = option(  # noqa: RUF009 - it makes a dataclass field
        TLSRequired.NO,
        parse=_parse_tls_required,
        show=_show_tls_required,
        bare=True,
        group=_TLS,
        help="refuse clients without TLS; --tls-required=tcp-https leaves plain HTTP open",
    )
    tls_min_version: TLSVersion = option(  # noqa: RUF009 - it makes a dataclass field
        TLSVersion.TLS1_2,
        parse=parse_tls_version,
        show=_show_tls_version,
        group=_TLS,
        metavar="VERSION",
        help="tls1.0, tls1.1, tls1.2 or tls1.3",
    )
    auth_token_file: str = option(
        "",
        group=_TLS,
        metavar="FILE",
        help="tokens that may publish, consume or administer, over TCP and HTTP; see nsqpy token; "
        "read again on SIGHUP",
    )
    auth_http_addresses: tuple[str, ...] = option(
        (),
        flag="auth-http-address",
        key="auth_http_addresses",
        group=_TLS,
        metavar="ADDRESS",
        help="an AUTH server to ask (repeatable)",
    )
    auth_http_request_method: str = option(
        "get", group=_TLS, metavar="METHOD", help="how to ask it: get or post"
    )

    metrics_max_channels: int = option(
        20_000,
        group=_METRICS,
        minimum=0,
        help="channels that /metrics shows one by one, and as many topics; the rest is left out",
    )
    metrics_max_clients: int = option(
        1000,
        group=_METRICS,
        minimum=0,
        help="client ids that /metrics shows one by one; the rest is left out",
    )

    statsd_address: str = option(
        "",
        group=_STATSD,
        metavar="ADDRESS",
        help="host:port of a statsd daemon; empty = off",
    )
    statsd_interval_ns: int = option(
        "60s",
        parse=duration_ns,
        group=_STATSD,
        above=0,
        help="time between two reports",
    )
    statsd_mem_stats: bool = option(True, group=_STATSD, help="report memory figures too")
    statsd_prefix: str = option(
        "nsq.%s",
        group=_STATSD,
        help="what every name begins with; %s becomes this node's address",
    )
    statsd_udp_packet_size: int = option(
        508,
        group=_STATSD,
        minimum=1,
        metavar="BYTES",
        help="largest packet",
    )
    statsd_exclude_ephemeral: bool = option(
        False, group=_STATSD, help="leave #ephemeral topics and channels out"
    )

    queue_scan_worker_pool_max: int = option(
        4, group=COMPATIBILITY, help="deadlines are kept in order here, not scanned for"
    )
    queue_scan_selection_count: int = option(
        20, group=COMPATIBILITY, help="as queue-scan-worker-pool-max"
    )

    @property
    def has_tls(self) -> bool:
        return bool(self.tls_cert or self.tls_key)


def split_address(address: str) -> tuple[str, int] | None:
    """Host and port; None for the path of a Unix socket. An empty host is every interface.

    What has a slash is a path, and so is what has no colon, unless it is a host or a port whose
    other half was forgotten.

    Raises:
        ValueError: neither. The text fits behind the address.
    """
    host, colon, port = address.rpartition(":")
    if "/" in address or (address and not colon and not _is_half(address)):
        return None
    bare_host = host.removeprefix("[").removesuffix("]")
    if not colon or (":" in host and bare_host == host):
        raise ValueError("must be host:port, or the path of a socket")
    if not _can_be_looked_up(bare_host):
        raise ValueError("must begin with a host name or an address")
    if not (port.isascii() and port.isdecimal() and int(port) <= _PORT_MAX):
        raise ValueError(f"must end in a port, 0 to {_PORT_MAX}")
    return bare_host, int(port)


def _is_half(word: str) -> bool:
    try:
        return word == "localhost" or word.isdecimal() or bool(ip_address(word))
    except ValueError:
        return False


def _can_be_looked_up(host: str) -> bool:
    """What this refuses, resolvers answer with errors that are none of the system's."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return "\0" not in host


def default_node_id(hostname: str) -> int:
    """0 to 1023 from the host's name, as nsqd derives it: CRC-32 of MD5, mod 1024."""
    return zlib.crc32(md5(hostname.encode(), usedforsecurity=False).digest()) % 1024


_OPTIONS = options_of(NsqdConfig)


def config_value(config: NsqdConfig, name: str) -> str | None:
    """The body of ``GET /config/<name>``; None if there is no such setting.

    Text is raw, everything else is JSON: durations are nanoseconds, enums their numbers.
    """
    known = next((known for known in _OPTIONS if known.key == name), None)
    if known is None:
        return None
    value = getattr(config, known.name)
    if known.name == "log_level":
        return str(level_number(value))
    match value:
        case str():
            return str(value)
        case Enum():
            return str(value.value)
        case tuple():
            return json.dumps([_go_float(item) for item in value], separators=(",", ":"))
        case _:
            return json.dumps(value)


def _go_float(item: object) -> object:
    return int(item) if isinstance(item, float) and item.is_integer() else item


def change_config(config: NsqdConfig, name: str, body: bytes) -> NsqdConfig:
    """The configuration after ``PUT /config/<name>``; only what is ``live`` can be changed.

    Raises:
        KeyError: no such setting, or not while running. Reported as INVALID_OPTION.
        ValueError: not a value for it. Reported as INVALID_VALUE.
    """
    if name == "log_level":
        return replace(config, log_level=parse_level(body.decode()))
    if name == "nsqlookupd_tcp_addresses":
        try:
            addresses = json.loads(body)
        except RecursionError:
            raise ValueError("is nested too deeply") from None
        if addresses is None:
            addresses = []
        if not isinstance(addresses, list) or not all(isinstance(one, str) for one in addresses):
            raise ValueError("must be an array of strings")
        for address in addresses:
            if split_address(address) is None:
                raise ValueError("must be host:port")
        return replace(config, nsqlookupd_tcp_addresses=tuple(addresses))
    raise KeyError(name)
