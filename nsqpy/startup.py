"""How the command line and a file of ``nsqpy nsqd`` become one configuration.

``python -m nsqpy.startup`` prints ``docs/configuration.md``; ``nsqpy nsqd --sample-config``
prints ``deploy/nsqd.toml``. Source: apps/nsqd/main.go, options.go.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from nsqpy.config import (
    AUTO_ADDRESS,
    CLIENT_CERTIFICATE_POLICIES,
    COMPATIBILITY,
    NsqdConfig,
    TLSRequired,
    default_node_id,
    split_address,
)
from nsqpy.errors import ConfigError
from nsqpy.options import ConfigFileError, FlagError, Given, markdown_table, option, values
from nsqpy.settings import CommandLine, Loaded, Program, check_address

__all__ = ["NSQD", "exposure_warnings", "load", "markdown_page", "startup_failure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommandLine(CommandLine):
    worker_id: bool = option(False, key="", group=COMPATIBILITY, help="see node-id")


NSQD = Program(
    "nsqd",
    NsqdConfig,
    _CommandLine,
    intro="""\
{program}: receives, queues and delivers messages

examples:
  {program} --data-path=/var/lib/nsq
  {program} --data-path=/var/lib/nsq --tcp-address=0.0.0.0:4150 --http-address=0.0.0.0:4151
  {program} --config=nsqd.toml --log-level=debug     (a flag beats the file)
  {program} --sample-config > nsqd.toml""",
    idle_keys=("verbose", "worker_id", "version", "config"),
)

_DOCS_HEADING = """\
# Configuration of nsqpy nsqd

Generated from `nsqpy/config.py` by `python -m nsqpy.startup`; do not edit.

A setting is a flag (`--msg-timeout=90s`; one dash or two) or a key of the TOML file that
`--config` names (`msg_timeout = "90s"`). A flag beats the file, the file beats the default; a list
given by flags replaces the file's list. Durations are written `250ms`, `60s`, `1h30m`; in the file
an integer means milliseconds. Lists are repeated flags, or an array in the file. A wrong name or
value ends the start with one line that names it, before anything is opened: status 2 for the form
of the command line, 1 for a value.

*Not supported yet*: accepted for the sake of existing configurations, with a warning at the
start."""


_PERCENTILES = "e2e_processing_latency_percentiles"


def load(
    arguments: Sequence[str],
    read_file: Callable[[Path], bytes],
    hostname: str,
    program: str = "nsqpy nsqd",
) -> Loaded[NsqdConfig]:
    """Settle the configuration: flag beats file beats default. Opens nothing but the file.

    Raises:
        FlagError: the command line cannot be understood. Status 2, by ``options.refuse``.
        ConfigError: a value that cannot be used, named as the user wrote it. Status 1, and
            ``startup_failure`` in the log.
    """
    settings = NSQD.read(arguments, read_file, program)
    if settings.answer is not None:
        return Loaded(config=NsqdConfig(), answer=settings.answer)
    given = settings.given
    percentiles = given.get(_PERCENTILES)
    if percentiles is not None and percentiles.written.startswith("-"):  # a file keeps its order
        value = tuple(sorted(percentiles.value, reverse=True))
        given[_PERCENTILES] = replace(percentiles, value=value)
    node_id = Given(default_node_id(hostname), "the host name")
    config = NsqdConfig(**values({"node_id": node_id}, given))
    if config.tls_client_auth_policy and config.tls_required is TLSRequired.NO:
        config = replace(config, tls_required=TLSRequired.ALL)
    _check_values(config, given)
    warnings = (*settings.warnings, *_pending(given), *_tls_warnings(config, given))
    return Loaded(config=config, warnings=warnings)


def _pending(given: Mapping[str, Given]) -> list[str]:
    """A line for each setting whose feature is not built.

    A default, or an empty or false value, asks for nothing.
    """
    warnings = []
    for known in NSQD.options:
        setting = given.get(known.name)
        if (
            known.pending
            and setting is not None
            and setting.value not in (known.default, "", False)
        ):
            warnings.append(f"not supported yet: {setting.written} has no effect")
    return warnings


# Those that may be the path of a Unix socket, and those that may not.
_ADDRESSES = {
    "tcp_address": True,
    "http_address": True,
    "https_address": False,
    "statsd_address": False,
    "nsqlookupd_tcp_addresses": False,
}


def _check_values(config: NsqdConfig, given: Mapping[str, Given]) -> None:
    """What bounds cannot say. Texts as nsqd's, where it has one."""
    if config.auth_http_request_method not in ("get", "post"):
        reason = "--auth-http-request-method must be post or get"
        raise ConfigError("--auth-http-request-method", config.auth_http_request_method, reason)
    for percentile in config.e2e_processing_latency_percentiles:
        if not 0 < percentile <= 1:
            reason = f"invalid E2E processing latency percentile: {percentile:g}"
            raise ConfigError("--e2e-processing-latency-percentile", percentile, reason)
    for name, path in _ADDRESSES.items():
        if name in given and (given[name].value or name == "tcp_address"):
            check_address(given[name], path=path)
    if config.broadcast_address == AUTO_ADDRESS and not config.nsqlookupd_tcp_addresses:
        written = given["broadcast_address"].written
        reason = f"{written} auto is the address towards an nsqlookupd: needs lookupd-tcp-address"
        raise ConfigError(written, AUTO_ADDRESS, reason)
    _check_tls(config, given)


def _check_tls(config: NsqdConfig, given: Mapping[str, Given]) -> None:
    policy = config.tls_client_auth_policy
    if policy not in ("", *CLIENT_CERTIFICATE_POLICIES):
        # The original takes any other word for no policy, which leaves the door open.
        written = given["tls_client_auth_policy"].written
        reason = f"{written} must be one of {', '.join(CLIENT_CERTIFICATE_POLICIES)}"
        raise ConfigError(written, policy, reason)
    if config.tls_required and not config.has_tls:
        reason = "cannot require TLS client connections without TLS key and cert"
        raise ConfigError("--tls-required", config.tls_required, reason)


def _tls_warnings(config: NsqdConfig, given: Mapping[str, Given]) -> list[str]:
    """A line for each setting that does less than it seems to say."""
    warnings = []
    if not config.has_tls:
        # AUTH servers may be asked over HTTPS, by the same authorities.
        needless = {"https_address", "" if config.auth_http_addresses else "tls_root_ca_file"}
        warnings += [
            f"{given[known.name].written} has no effect without --tls-cert and --tls-key"
            for known in NSQD.options
            if known.name in needless
            and known.name in given
            and getattr(config, known.name) not in ("", known.default)
        ]
    if config.tls_client_auth_policy == "require":
        written = given["tls_client_auth_policy"].written
        warnings.append(f"{written}: a certificate has to be good, as with require-verify")
    return warnings


def exposure_warnings(config: NsqdConfig) -> list[str]:
    """What is open to whoever reaches it over the network, said once and loudly at the start."""
    if config.auth_token_file:
        return []
    known = bool(config.tls_client_auth_policy)  # by their certificates
    ports = {
        "TCP": "" if known and config.tls_required else config.tcp_address,
        "HTTP": "" if config.tls_required is TLSRequired.ALL else config.http_address,
        "HTTPS": config.https_address if config.has_tls and not known else "",
    }
    exposed = [f"{name} {address}" for name, address in ports.items() if _is_exposed(address)]
    reason = "NO AUTHENTICATION"
    if config.auth_http_addresses:
        reason = "AUTH SERVERS DO NOT GUARD HTTP"
        exposed = [one for one in exposed if one.startswith("HTTP")]
    if not exposed:
        return []
    return [
        f"{reason}: whoever reaches {' or '.join(exposed)} can publish, read and delete; set "
        "--auth-token-file, or listen on 127.0.0.1"
    ]


def _is_exposed(address: str) -> bool:
    """Whether other machines may reach it; a name is taken for theirs, but ``localhost``."""
    place = split_address(address) if address else None
    if place is None:
        return False
    try:
        return not ip_address(place[0]).is_loopback
    except ValueError:
        return place[0] != "localhost"


def startup_failure(error: ConfigError) -> tuple[str, int]:
    """What a refused start says at FATAL, and the exit status.

    A ``FlagError`` (status 2) is not logged: ``options.refuse`` prints it.
    """
    if isinstance(error, ConfigFileError | FlagError):
        return str(error), 2 if isinstance(error, FlagError) else 1
    return f"failed to instantiate nsqd - {error}", 1


def markdown_page() -> str:
    """``docs/configuration.md``."""
    options = NSQD.all_options
    sections = [_DOCS_HEADING]
    for group in dict.fromkeys(known.group for known in options):
        table = markdown_table(known for known in options if known.group == group)
        sections.append(f"## {group[0].upper()}{group[1:]}\n\n{table.rstrip()}")
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown_page())
