"""IDENTIFY: what a client asks for, checked and resolved into what it gets.

Source: reference nsqd 1.4; nsqd/client_v2.go, Identify.
"""

import json
import re
from dataclasses import dataclass
from typing import TypeVar

from nsqpy.clock import MILLISECOND
from nsqpy.errors import ErrorCode, ProtocolError

__all__ = ["DEFAULT_HEARTBEAT_NS", "Features", "Identify", "Limits", "negotiate", "parse_identify"]

DEFAULT_HEARTBEAT_NS = 30_000 * MILLISECOND
DEFAULT_OUTPUT_BUFFER_SIZE = 16 * 1024
_INT64_MAX = (1 << 63) - 1
_INT32_MAX = (1 << 31) - 1

# JSON can say half a surrogate pair, UTF-8 cannot: Go's decoder takes the replacement character.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T", str, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identify:
    """The fields as the client sent them; absent and null are the zero value."""

    client_id: str | None = None
    hostname: str | None = None
    user_agent: str = ""
    feature_negotiation: bool = False
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    sample_rate: int = 0
    msg_timeout: int = 0
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = 0
    topology_region: str = ""
    topology_zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What this daemon allows and what it falls back to."""

    max_heartbeat_interval_ns: int
    min_output_buffer_timeout_ns: int
    max_output_buffer_timeout_ns: int
    output_buffer_timeout_ns: int
    max_output_buffer_size: int
    msg_timeout_ns: int
    max_msg_timeout_ns: int
    max_rdy_count: int
    max_deflate_level: int
    topology_region: str
    topology_zone: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a connection has been granted. 0 for an interval or timeout means: none."""

    client_id: str
    hostname: str
    user_agent: str = ""
    heartbeat_interval_ns: int = DEFAULT_HEARTBEAT_NS
    output_buffer_size: int = DEFAULT_OUTPUT_BUFFER_SIZE
    output_buffer_timeout_ns: int = 0
    sample_rate: int = 0
    msg_timeout_ns: int = 0
    topology_region: str = ""
    topology_zone: str = ""


def parse_identify(body: bytes) -> Identify:
    """Decode the JSON body; unknown keys are ignored, keys match in any case.

    Raises:
        ProtocolError: E_BAD_BODY: no JSON object, or a field of a wrong type.
    """
    try:
        document = json.loads(body.decode("utf-8", "replace"), parse_constant=_refuse_constant)
        if document is None:
            return Identify()
        if not isinstance(document, dict):
            raise TypeError("not an object")
        given = {key.lower(): value for key, value in document.items() if value is not None}
        return Identify(
            client_id=_optional_text(given, "client_id"),
            hostname=_optional_text(given, "hostname"),
            user_agent=_text(given, "user_agent"),
            feature_negotiation=_typed(given, "feature_negotiation", bool, False),
            heartbeat_interval=_integer(given, "heartbeat_interval"),
            output_buffer_size=_integer(given, "output_buffer_size"),
            output_buffer_timeout=_integer(given, "output_buffer_timeout"),
            sample_rate=_integer(given, "sample_rate", _INT32_MAX),
            msg_timeout=_integer(given, "msg_timeout"),
            tls_v1=_typed(given, "tls_v1", bool, False),
            snappy=_typed(given, "snappy", bool, False),
            deflate=_typed(given, "deflate", bool, False),
            deflate_level=_integer(given, "deflate_level"),
            topology_region=_text(given, "topology_region"),
            topology_zone=_text(given, "topology_zone"),
        )
    except (ValueError, TypeError, RecursionError) as error:
        reason = "IDENTIFY failed to decode JSON body"
        raise ProtocolError(ErrorCode.BAD_BODY, reason) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _typed(given: dict[str, object], key: str, kind: type[T], default: T) -> T:
    value = given.get(key, default)
    if not isinstance(value, kind):
        raise TypeError(f"{key} is not {kind.__name__}")
    return value


def _text(given: dict[str, object], key: str) -> str:
    return _LONE_SURROGATE.sub("\ufffd", _typed(given, key, str, ""))


def _optional_text(given: dict[str, object], key: str) -> str | None:
    return _text(given, key) if key in given else None


def _integer(given: dict[str, object], key: str, maximum: int = _INT64_MAX) -> int:
    value = given.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{key} is not an integer")
    if not -maximum - 1 <= value <= maximum:
        raise ValueError(f"{key} is out of range")
    return value


def negotiate(
    identify: Identify, limits: Limits, current: Features
) -> tuple[Features, bytes | None]:
    """What the client gets, and the JSON reply; None where it did not negotiate: reply ``OK``.

    Checks run in the original's order and the first failure counts. ``current`` is what the
    connection had before: a later IDENTIFY replaces all of it, and takes effect.

    Raises:
        ProtocolError: E_BAD_BODY, a value out of range.
    """
    heartbeat_ns = _heartbeat_ns(identify.heartbeat_interval, limits)
    timeout_ns = _output_timeout_ns(identify.output_buffer_timeout, limits)
    size = _output_size(identify.output_buffer_size, limits)
    if identify.output_buffer_size == -1:
        timeout_ns = 0
    if not 0 <= identify.sample_rate <= 99:
        raise _invalid("sample rate", identify.sample_rate)
    msg_timeout_ns = _msg_timeout_ns(identify.msg_timeout, limits)
    client_id = identify.client_id if identify.client_id is not None else ""
    features = Features(
        client_id=client_id,
        hostname=identify.hostname if identify.hostname is not None else client_id,
        user_agent=identify.user_agent,
        heartbeat_interval_ns=heartbeat_ns,
        output_buffer_size=size,
        output_buffer_timeout_ns=timeout_ns,
        sample_rate=identify.sample_rate,
        msg_timeout_ns=msg_timeout_ns,
        topology_region=identify.topology_region,
        topology_zone=identify.topology_zone,
    )
    if not identify.feature_negotiation:
        return features, None
    level = identify.deflate_level if identify.deflate_level > 0 else 6
    reply = {
        "max_rdy_count": limits.max_rdy_count,
        "version": limits.version,
        "max_msg_timeout": limits.max_msg_timeout_ns // MILLISECOND,
        "msg_timeout": msg_timeout_ns // MILLISECOND,
        "tls_v1": False,
        "deflate": False,
        "deflate_level": min(level, limits.max_deflate_level),
        "max_deflate_level": limits.max_deflate_level,
        "snappy": False,
        "sample_rate": identify.sample_rate,
        "auth_required": False,
        "output_buffer_size": size,
        "output_buffer_timeout": timeout_ns // MILLISECOND,
        "topology_region": limits.topology_region,
        "topology_zone": limits.topology_zone,
    }
    return features, json.dumps(reply, separators=(",", ":"), ensure_ascii=False).encode()


def _invalid(what: str, value: int) -> ProtocolError:
    return ProtocolError(ErrorCode.BAD_BODY, f"IDENTIFY {what} ({value}) is invalid")


def _heartbeat_ns(asked: int, limits: Limits) -> int:
    if asked == -1:
        return 0
    if asked == 0:
        return DEFAULT_HEARTBEAT_NS
    if not 1000 <= asked <= limits.max_heartbeat_interval_ns // MILLISECOND:
        raise _invalid("heartbeat interval", asked)
    return asked * MILLISECOND


def _output_timeout_ns(asked: int, limits: Limits) -> int:
    if asked == -1:
        return 0
    if asked == 0:
        return limits.output_buffer_timeout_ns
    low, high = limits.min_output_buffer_timeout_ns, limits.max_output_buffer_timeout_ns
    if not low <= asked * MILLISECOND <= high:
        raise _invalid("output buffer timeout", asked)
    return asked * MILLISECOND


def _output_size(asked: int, limits: Limits) -> int:
    if asked == -1:
        return 1
    if asked == 0:
        return DEFAULT_OUTPUT_BUFFER_SIZE
    if not 64 <= asked <= limits.max_output_buffer_size:
        raise _invalid("output buffer size", asked)
    return asked


def _msg_timeout_ns(asked: int, limits: Limits) -> int:
    if asked == 0:
        return limits.msg_timeout_ns
    if not 1000 <= asked <= limits.max_msg_timeout_ns // MILLISECOND:
        raise _invalid("msg timeout", asked)
    return asked * MILLISECOND
