"""The options of the format ``nsq``, each checked where the driver can still say so.

Spark hands over text with names in any case. What is unknown draws a warning, since Spark adds
options of its own.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from nsqpy.client.node_tls import NodeTLS
from nsqpy.client.nodes import NodeAddress, split_addresses
from nsqpy.clock import MILLISECOND, SECOND
from nsqpy.errors import ConfigError
from nsqpy.names import is_ephemeral, is_valid_name
from nsqpy.scalars import duration_ns

__all__ = ["ReadOptions", "WriteOptions"]

_HOUR = 3600 * SECOND
_GIB = 1 << 30
# What the daemon takes. Source: docs/leases.md.
_TTL_MAX_NS = 720 * _HOUR
_WAIT_MAX_NS = 60 * SECOND
# Spark's own, which reach every source or sink.
_SPARKS_OWN = {"path", "checkpointlocation", "queryname"}


def _option(default: object, name: str, parse: Callable[[str], object]) -> Any:  # noqa: ANN401 - as dataclasses.field
    return field(default=default, metadata={"name": name, "parse": parse})


def _secret(text: str) -> str:
    if not text.isascii() or not text.isprintable():
        raise ValueError("must be printable ASCII")
    return text


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("must be 1 or more")
    return value


def _bytes(text: str) -> int:
    """A size: ``1048576``, ``64m``, ``1g``, as Spark writes them."""
    lowered = text.strip().lower()
    unit = {"k": 10, "m": 20, "g": 30}.get(lowered[-1:], 0)
    return _count(lowered[:-1] if unit else lowered) << unit


def _duration(text: str) -> int:
    """Nanoseconds of ``1h``, ``90s``."""
    value = duration_ns(text)
    if value <= 0:
        raise ValueError("must be longer than 0, such as 90s or 1h30m")
    return value


def _ttl(text: str) -> int:
    value = _duration(text)
    if not SECOND <= value <= _TTL_MAX_NS:
        raise ValueError("must be 1s to 720h")
    return value


def _poll_timeout(text: str) -> int:
    value = int(text) * MILLISECOND
    if not 0 <= value <= _WAIT_MAX_NS:
        raise ValueError("must be 0 to 60000")
    return value


def _boolean(text: str) -> bool:
    truth = {"true": True, "false": False}.get(text.lower())
    if truth is None:
        raise ValueError("must be true or false")
    return truth


def _topic(text: str) -> str:
    if not is_valid_name(text):
        raise ValueError("is not a valid topic name")
    return text


def _channel(text: str) -> str:
    if not is_valid_name(text):
        raise ValueError("is not a valid channel name")
    if is_ephemeral(text):
        raise ValueError("an #ephemeral channel cannot be leased: it keeps nothing")
    return text


def _drain_id(text: str) -> str:
    # Lease ids are made of it, and a topic's name is what they may look like.
    if not is_valid_name(text) or is_ephemeral(text):
        raise ValueError("must be 1 to 64 of the characters a-z A-Z 0-9 . _ -")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    """Which daemons: given, or asked for at lookupds; and how they are spoken with."""

    nsqd: tuple[NodeAddress, ...] = _option((), "nsqdHttpAddresses", split_addresses)
    lookupd: tuple[NodeAddress, ...] = _option((), "lookupdHttpAddresses", split_addresses)
    node_timeout_ns: int = _option(60 * SECOND, "nodeTimeout", _duration)
    auth_secret: str = field(
        default="", repr=False, metadata={"name": "authSecret", "parse": _secret}
    )
    tls_ca_file: str = _option("", "tlsCaFile", str)
    tls_cert_file: str = _option("", "tlsCertFile", str)
    tls_key_file: str = _option("", "tlsKeyFile", str)
    tls_insecure_skip_verify: bool = _option(False, "tlsInsecureSkipVerify", _boolean)
    # What is in the files, for executors do not have them; None: no option asks for TLS.
    tls: NodeTLS | None = field(default=None, repr=False)

    def with_tls(self) -> Self:
        """With what the files have in them, and every nsqd spoken with over HTTPS, if an option
        asks for that. Raises ConfigError."""
        ca, cert, key = self.tls_ca_file, self.tls_cert_file, self.tls_key_file
        insecure = self.tls_insecure_skip_verify
        if not (ca or cert or key or insecure):
            return self
        try:
            tls = NodeTLS.read(ca, cert, key, verify=not insecure)
        except ConfigError as error:
            name = _TLS_FILES.get(error.option, error.option)
            raise ConfigError(name, error.value, f"option {name}: {error.reason}") from error
        nsqd = tuple(address._replace(tls=True) for address in self.nsqd)
        return replace(self, tls=tls, nsqd=nsqd)

    def check_nodes(self) -> None:
        if bool(self.nsqd) == bool(self.lookupd):
            how = "one of the two, not both" if self.nsqd else "one of the two is required"
            raise ConfigError(
                "nsqdHttpAddresses", "", f"options nsqdHttpAddresses, lookupdHttpAddresses: {how}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(_Nodes):
    """How to read a channel.

    ``plan`` is what ``drain`` hands over: the leases it took, which nobody may add to.
    """

    topic: str = _option("", "topic", _topic)
    channel: str = _option("", "channel", _channel)
    max_messages: int = _option(1_000_000, "maxMessagesPerTrigger", _count)
    max_bytes: int = _option(_GIB, "maxBytesPerTrigger", _bytes)
    min_partitions: int = _option(0, "minPartitions", _count)
    lease_ttl_ns: int = _option(_HOUR, "leaseTtl", _ttl)
    poll_timeout_ns: int = _option(1000 * MILLISECOND, "pollTimeoutMs", _poll_timeout)
    fail_on_data_loss: bool = _option(True, "failOnDataLoss", _boolean)
    create_channel: bool = _option(True, "createChannel", _boolean)
    drain_id: str = _option("", "drainId", _drain_id)
    plan: str = _option("", "nsqDrainPlan", str)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "ReadOptions":
        """Raises ConfigError, with a reason that names the option."""
        options = cls(**_parsed(cls, given, "source")).with_tls()
        if not options.plan:
            for name in ("topic", "channel"):
                if not getattr(options, name):
                    raise ConfigError(name, "", f"option {name} is required")
            options.check_nodes()
        return options


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(_Nodes):
    """How to publish. Without ``topic`` the rows name theirs in a column."""

    topic: str = _option("", "topic", _topic)

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "WriteOptions":
        """Raises ConfigError, with a reason that names the option."""
        options = cls(**_parsed(cls, given, "sink")).with_tls()
        options.check_nodes()
        return options


# As the client's TLS calls them.
_TLS_FILES = {
    "tls-root-ca-file": "tlsCaFile",
    "tls-cert": "tlsCertFile",
    "tls-key": "tlsKeyFile",
}


def _parsed(cls: type[_Nodes], given: Mapping[str, str], what: str) -> dict[str, Any]:
    named = [one for one in fields(cls) if "name" in one.metadata]
    known = {one.metadata["name"].lower(): one for one in named}
    values: dict[str, Any] = {}
    unknown = []
    for key, text in given.items():
        name = key.lower()
        if name in known:
            option = known[name]
            shown = option.metadata["name"]
            try:
                values[option.name] = option.metadata["parse"](text)
            except (ValueError, ConfigError) as error:
                given_text = text if option.repr else "***"
                reason = f"option {shown}, {given_text!r}: {error}"
                raise ConfigError(shown, given_text, reason) from error
        elif name not in _SPARKS_OWN:
            unknown.append(key)
    if unknown:
        names = ", ".join(sorted(one.metadata["name"] for one in named if one.name != "plan"))
        warnings.warn(
            f"the nsq {what} knows no option {', '.join(sorted(unknown))}; it has {names}",
            stacklevel=2,
        )
    return values
