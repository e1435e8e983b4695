"""The options of a producer or consumer, by the names that go-nsq gave them.

Each is stated once, as a field of ``ClientOptions``. A user sets them by name (``-`` and ``_``
are equal), with a unit-free value: ``max_in_flight=200``, ``msg_timeout="90s"``. A duration is
text, a ``timedelta``, or an integer of milliseconds. Source: go-nsq, Config.
"""

import dataclasses
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from nsqpy.client.rdy import BackoffStrategy, ReadyOptions
from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.config import TLSVersion, parse_tls_version
from nsqpy.errors import ConfigError
from nsqpy.net.tls import ClientTLS
from nsqpy.options import duration_ns, format_duration
from nsqpy.version import RELEASE

__all__ = ["ClientOptions", "Setting", "client_options", "settings_from_flags"]

Setting = bool | int | float | str | timedelta | BackoffStrategy

_MINUTE = 60 * SECOND
_HOUR = 60 * _MINUTE

# Known by name, so that asking for one gives a clear answer.
_NOT_SUPPORTED_YET = frozenset(
    {
        "skip_lookupd_authorization",
    }
)
_TRUTHS: dict[object, bool] = {
    True: True, False: False,
    "true": True, "1": True, "t": True, "false": False, "0": False, "f": False, "": False
}  # fmt: skip


def _duration(value: object) -> int:
    """Nanoseconds. Raises ValueError or TypeError."""
    if isinstance(value, timedelta):
        return (value // timedelta(microseconds=1)) * 1000
    if isinstance(value, str) and not value.lstrip("-").isdigit():
        return duration_ns(value)
    return _integer(value) * MILLISECOND


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r} is not an integer")
    return int(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _text(value: object) -> str:
    return str(value)


def _truth(value: object) -> bool:
    truth = _TRUTHS.get(value.lower() if isinstance(value, str) else value)
    if truth is None:
        raise TypeError(f"{value!r} is not true or false")
    return truth


def _strategy(value: object) -> BackoffStrategy:
    return value if isinstance(value, BackoffStrategy) else BackoffStrategy(str(value))


def _tls_version(value: object) -> TLSVersion:
    return value if isinstance(value, TLSVersion) else parse_tls_version(str(value))


def _option(
    default: object,
    parse: Callable[[object], object],
    minimum: float | None = None,
    maximum: float | None = None,
    *,
    shown: bool = True,
) -> Any:  # noqa: ANN401 - as dataclasses.field: the type is the annotation's
    metadata = {"parse": parse, "minimum": minimum, "maximum": maximum}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata, repr=shown)
    return dataclasses.field(default=default, metadata=metadata, repr=shown)


def _short_hostname() -> str:
    return socket.gethostname().partition(".")[0]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Everything that can be set on a client, checked at construction.

    Fields carry their unit; the name of the option is the field's without it.

    Raises:
        ConfigError: a value is out of its range, or a file of TLS will not do.
    """

    dial_timeout_ns: int = _option(SECOND, _duration)
    read_timeout_ns: int = _option(_MINUTE, _duration, 100 * MILLISECOND, 5 * _MINUTE)
    write_timeout_ns: int = _option(SECOND, _duration, 100 * MILLISECOND, 5 * _MINUTE)
    local_addr: str = _option("", _text)
    lookupd_poll_interval_ns: int = _option(_MINUTE, _duration, 10 * MILLISECOND, 5 * _MINUTE)
    lookupd_poll_jitter: float = _option(0.3, _number, 0, 1)
    lookupd_poll_timeout_ns: int = _option(_MINUTE, _duration, MILLISECOND)
    # How long a producer waits for a node when lookupd knows none that answers.
    discovery_timeout_ns: int = _option(10 * SECOND, _duration, 0)
    max_requeue_delay_ns: int = _option(15 * _MINUTE, _duration, 0, _HOUR)
    default_requeue_delay_ns: int = _option(90 * SECOND, _duration, 0, _HOUR)
    backoff_strategy: BackoffStrategy = _option(BackoffStrategy.EXPONENTIAL, _strategy)  # noqa: RUF009
    max_backoff_duration_ns: int = _option(2 * _MINUTE, _duration, 0, _HOUR)
    backoff_multiplier_ns: int = _option(SECOND, _duration, 0, _HOUR)
    max_attempts: int = _option(5, _integer, 0, 65535)
    low_rdy_idle_timeout_ns: int = _option(10 * SECOND, _duration, SECOND, 5 * _MINUTE)
    low_rdy_timeout_ns: int = _option(30 * SECOND, _duration, SECOND, 5 * _MINUTE)
    rdy_redistribute_interval_ns: int = _option(5 * SECOND, _duration, MILLISECOND, 5 * SECOND)
    client_id: str = _option(_short_hostname, _text)
    hostname: str = _option(socket.gethostname, _text)
    user_agent: str = _option(f"nsqpy/{RELEASE}", _text)
    topology_region: str = _option("", _text)
    topology_zone: str = _option("", _text)
    # Below 0: no heartbeats; nsqd then refuses SUB.
    heartbeat_interval_ns: int = _option(30 * SECOND, _duration)
    sample_rate: int = _option(0, _integer, 0, 99)
    # Asked for; what nsqd does not have, snappy and deflate, is done without.
    deflate: bool = _option(False, _truth)
    deflate_level: int = _option(6, _integer, 1, 9)
    snappy: bool = _option(False, _truth)
    # Asked for, and insisted on.
    tls_v1: bool = _option(False, _truth)
    tls_root_ca_file: str = _option("", _text)  # empty: the system's authorities
    tls_cert: str = _option("", _text)
    tls_key: str = _option("", _text)
    tls_insecure_skip_verify: bool = _option(False, _truth)
    tls_min_version: TLSVersion = _option(TLSVersion.TLS1_2, _tls_version)  # noqa: RUF009
    # Below 0: no buffering.
    auth_secret: str = _option("", _text, shown=False)

    output_buffer_size_bytes: int = _option(16384, _integer)
    output_buffer_timeout_ns: int = _option(250 * MILLISECOND, _duration)
    max_in_flight: int = _option(1, _integer, 0)
    # 0: what nsqd has as its default.
    msg_timeout_ns: int = _option(0, _duration, 0)
    # 0: any size.
    max_msg_size_bytes: int = _option(0, _integer, 0)

    def __post_init__(self) -> None:
        for option, field in _FIELDS.items():
            value = getattr(self, field.name)
            minimum, maximum = field.metadata["minimum"], field.metadata["maximum"]
            if minimum is not None and value < minimum:
                limit = f"below the minimum of {_shown(field, minimum)}"
            elif maximum is not None and value > maximum:
                limit = f"above the maximum of {_shown(field, maximum)}"
            else:
                continue
            raise ConfigError(option, value, f"{option}: {_shown(field, value)} is {limit}")
        if self.snappy and self.deflate:
            reason = "snappy and deflate exclude each other"
            raise ConfigError("snappy", self.snappy, reason)
        if self.tls_v1:
            self.tls.context()  # whether the files will do
        if self.heartbeat_interval_ns > self.read_timeout_ns:
            reason = "heartbeat_interval must not exceed read_timeout"
            raise ConfigError("heartbeat_interval", self.heartbeat_interval_ns, reason)

    def identify_fields(self) -> dict[str, object]:
        """What IDENTIFY says of this client. Units are the wire's."""
        fields: dict[str, object] = {
            "client_id": self.client_id,
            "hostname": self.hostname,
            # Obsolete names of the two above, still read by old daemons.
            "short_id": self.client_id,
            "long_id": self.hostname,
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": _wire_ms(self.heartbeat_interval_ns),
            "tls_v1": self.tls_v1,
            "snappy": self.snappy,
            "deflate": self.deflate,
            "deflate_level": self.deflate_level,
            "sample_rate": self.sample_rate,
            "output_buffer_size": max(-1, self.output_buffer_size_bytes),
            "output_buffer_timeout": _wire_ms(self.output_buffer_timeout_ns),
            "msg_timeout": _wire_ms(self.msg_timeout_ns),
        }
        if self.topology_region or self.topology_zone:
            fields["topology_region"] = self.topology_region
            fields["topology_zone"] = self.topology_zone
        return fields

    @property
    def tls(self) -> ClientTLS:
        return ClientTLS(
            cert=self.tls_cert,
            key=self.tls_key,
            root_ca_file=self.tls_root_ca_file,
            verify=not self.tls_insecure_skip_verify,
            min_version=self.tls_min_version,
        )

    def ready_options(self) -> ReadyOptions:
        return ReadyOptions(
            backoff_strategy=self.backoff_strategy,
            backoff_multiplier_ns=self.backoff_multiplier_ns,
            max_backoff_duration_ns=self.max_backoff_duration_ns,
            low_rdy_idle_timeout_ns=self.low_rdy_idle_timeout_ns,
            low_rdy_timeout_ns=self.low_rdy_timeout_ns,
            rdy_redistribute_interval_ns=self.rdy_redistribute_interval_ns,
        )

    def requeue_delay_ms(self, attempts: int) -> int:
        """How long a message waits that failed for the ``attempts``-th time."""
        delay_ns = min(self.default_requeue_delay_ns * attempts, self.max_requeue_delay_ns)
        return delay_ns // MILLISECOND


def _option_name(field_name: str) -> str:
    return field_name.removesuffix("_ns").removesuffix("_bytes")


_FIELDS: dict[str, dataclasses.Field[Any]] = {
    _option_name(field.name): field for field in dataclasses.fields(ClientOptions)
}


def _wire_ms(duration: int) -> int:
    """Milliseconds; -1 for every negative duration, which means "off"."""
    return duration // MILLISECOND if duration >= 0 else -1


def _shown(field: dataclasses.Field[Any], value: float) -> str:
    return format_duration(int(value)) if field.name.endswith("_ns") else f"{value}"


def client_options(
    settings: Mapping[str, Setting], base: ClientOptions | None = None
) -> ClientOptions:
    """``base``, or the defaults, with the options named in ``settings`` changed.

    Raises:
        ConfigError: an unknown name, a value that is none, or one out of range.
    """
    changes: dict[str, Any] = {}
    for name, value in settings.items():
        option = name.replace("-", "_")
        if option in _NOT_SUPPORTED_YET:
            _refuse_if_wanted(option, value)
            continue
        field = _FIELDS.get(option)
        if field is None:
            raise ConfigError(name, value, f"unknown client option {name}")
        try:
            changes[field.name] = field.metadata["parse"](value)
        except (ValueError, TypeError) as error:
            raise ConfigError(name, value, f"{name}: {error}") from error
    return dataclasses.replace(base or ClientOptions(), **changes)


def settings_from_flags(given: Sequence[str]) -> dict[str, Setting]:
    """What ``name,value`` flags of the tools set; a name alone means ``true``."""
    pairs = [item.partition(",") for item in given]
    return {name: value if separator else "true" for name, separator, value in pairs}


def _refuse_if_wanted(option: str, value: Setting) -> None:
    wanted = _TRUTHS.get(value.lower() if isinstance(value, str) else value, True)
    if wanted:
        raise ConfigError(option, value, f"{option} is not supported yet")
