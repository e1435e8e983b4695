"""Every setting of ``nsqpy nsqlookupd``, and how command line and file become one configuration.

Names and defaults are the original's, but for loopback addresses. Source: nsqlookupd/options.go.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsqpy.logs import parse_level
from nsqpy.options import duration_ns, option, values
from nsqpy.settings import Loaded, Program, check_address

__all__ = ["NSQLOOKUPD", "LookupdConfig", "load"]

_NETWORK = "network"
_NODES = "nodes"
_LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupdConfig:
    """The daemon's settings. Durations are nanoseconds."""

    tcp_address: str = option(
        "127.0.0.1:4160",
        group=_NETWORK,
        metavar="ADDRESS",
        help="where daemons announce themselves: host:port; 0.0.0.0:4160 lets other machines in",
    )
    http_address: str = option(
        "127.0.0.1:4161",
        group=_NETWORK,
        metavar="ADDRESS",
        help="where the HTTP API listens: host:port",
    )
    broadcast_address: str = option(
        "",
        group=_NETWORK,
        metavar="HOST",
        default_text="the host name",
        help="the name by which daemons reach this one's HTTP API",
    )

    inactive_producer_timeout_ns: int = option(
        "5m",
        parse=duration_ns,
        group=_NODES,
        minimum=0,
        help="a daemon that was silent for longer is hidden",
    )
    tombstone_lifetime_ns: int = option(
        "45s",
        parse=duration_ns,
        group=_NODES,
        minimum=0,
        help="how long a tombstone hides a daemon from a topic",
    )

    log_level: str = option(
        "info",
        parse=parse_level,
        group=_LOG,
        metavar="LEVEL",
        help="debug, info, warn, error or fatal",
    )
    log_prefix: str = option("[nsqlookupd] ", group=_LOG, help="what every log line begins with")


NSQLOOKUPD = Program(
    "nsqlookupd",
    LookupdConfig,
    intro="""\
{program}: knows which daemon has which topic

examples:
  {program}
  {program} --tcp-address=0.0.0.0:4160 --http-address=0.0.0.0:4161
  {program} --config=nsqlookupd.toml --log-level=debug     (a flag beats the file)""",
    idle_keys=("verbose", "version", "config"),
)


def load(
    arguments: Sequence[str],
    read_file: Callable[[Path], bytes],
    program: str = "nsqpy nsqlookupd",
) -> Loaded[LookupdConfig]:
    """Settle the configuration: flag beats file beats default. Opens nothing but the file.

    Raises:
        FlagError: the command line cannot be understood. Status 2, by ``options.refuse``.
        ConfigError: a value that cannot be used, named as the user wrote it. Status 1.
    """
    settings = NSQLOOKUPD.read(arguments, read_file, program)
    for name in ("tcp_address", "http_address"):
        if name in settings.given:
            check_address(settings.given[name], path=False)
    return Loaded(
        config=LookupdConfig(**values(settings.given)),
        warnings=settings.warnings,
        answer=settings.answer,
    )
