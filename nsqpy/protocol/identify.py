"""IDENTIFY: what a client asks for, checked and resolved into what it gets.

Source: IDENTIFY in docs/protocol.md; nsqd/client_v2.go, Identify.
"""

import json
from dataclasses import dataclass

from nsqpy.clock import MILLISECOND
from nsqpy.errors import ErrorCode, ProtocolError
from nsqpy.gojson import boolean_field, integer_field, parse_object, text_field

__all__ = ["DEFAULT_HEARTBEAT_NS", "Features", "Identify", "Limits", "negotiate", "parse_identify"]

DEFAULT_HEARTBEAT_NS = 30_000 * MILLISECOND
DEFAULT_OUTPUT_BUFFER_SIZE = 16 * 1024
_DEFAULT_DEFLATE_LEVEL = 6
_INT32_MAX = (1 << 31) - 1


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
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    auth_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a connection has been granted. 0 for an interval or timeout means: none.

    Of ``snappy`` and ``deflate`` at most one is true.
    """

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
    tls: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = _DEFAULT_DEFLATE_LEVEL

    @property
    def layered(self) -> bool:
        """Whether the connection goes on over something else than the bare socket."""
        return self.tls or self.snappy or self.deflate


def parse_identify(body: bytes) -> Identify:
    """Decode the JSON body; unknown keys are ignored, keys match in any case.

    Raises:
        ProtocolError: E_BAD_BODY: no JSON object, or a field of a wrong type.
    """
    try:
        given = parse_object(body)
        return Identify(
            client_id=_optional_text(given, "client_id"),
            hostname=_optional_text(given, "hostname"),
            user_agent=text_field(given, "user_agent"),
            feature_negotiation=boolean_field(given, "feature_negotiation"),
            heartbeat_interval=integer_field(given, "heartbeat_interval"),
            output_buffer_size=integer_field(given, "output_buffer_size"),
            output_buffer_timeout=integer_field(given, "output_buffer_timeout"),
            sample_rate=integer_field(given, "sample_rate", _INT32_MAX),
            msg_timeout=integer_field(given, "msg_timeout"),
            tls_v1=boolean_field(given, "tls_v1"),
            snappy=boolean_field(given, "snappy"),
            deflate=boolean_field(given, "deflate"),
            deflate_level=integer_field(given, "deflate_level"),
            topology_region=text_field(given, "topology_region"),
            topology_zone=text_field(given, "topology_zone"),
        )
    except (ValueError, TypeError, RecursionError) as error:
        reason = "IDENTIFY failed to decode JSON body"
        raise ProtocolError(ErrorCode.BAD_BODY, reason) from error


def _optional_text(given: dict[str, object], key: str) -> str | None:
    return text_field(given, key) if key in given else None


def negotiate(
    identify: Identify, limits: Limits, current: Features
) -> tuple[Features, bytes | None]:
    """What the client gets, and the JSON reply; None where it did not negotiate: reply ``OK``.

    Checks run in the original's order and the first failure counts. ``current`` is what the
    connection had before: a later IDENTIFY replaces all of it, and takes effect.

    Raises:
        ProtocolError: E_BAD_BODY, a value out of range; E_IDENTIFY_FAILED, two compressions.
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
    negotiated = identify.feature_negotiation
    level = identify.deflate_level if identify.deflate_level > 0 else _DEFAULT_DEFLATE_LEVEL
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
        tls=negotiated and identify.tls_v1 and limits.tls,
        snappy=negotiated and identify.snappy and limits.snappy,
        deflate=negotiated and identify.deflate and limits.deflate,
        deflate_level=min(level, limits.max_deflate_level),
    )
    if not negotiated:
        return features, None
    if features.snappy and features.deflate:
        reason = "cannot enable both deflate and snappy compression"
        raise ProtocolError(ErrorCode.IDENTIFY_FAILED, reason)
    reply = {
        "max_rdy_count": limits.max_rdy_count,
        "version": limits.version,
        "max_msg_timeout": limits.max_msg_timeout_ns // MILLISECOND,
        "msg_timeout": msg_timeout_ns // MILLISECOND,
        "tls_v1": features.tls,
        "deflate": features.deflate,
        "deflate_level": features.deflate_level,
        "max_deflate_level": limits.max_deflate_level,
        "snappy": features.snappy,
        "sample_rate": identify.sample_rate,
        "auth_required": limits.auth_required,
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
