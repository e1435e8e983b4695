"""The HTTP API over a broker, without the rest of the daemon."""

from nsqpy.clock import Clock
from nsqpy.core.broker import Broker
from nsqpy.daemon.auth import Gatekeeper
from nsqpy.daemon.drain import Drain
from nsqpy.daemon.http_api import HTTPApi
from nsqpy.daemon.lookup import Lookups
from nsqpy.daemon.metrics import Metrics

__all__ = ["make_api"]


def make_api(
    broker: Broker,
    clock: Clock,
    *,
    lookups: Lookups | None = None,
    gatekeeper: Gatekeeper | None = None,
) -> HTTPApi:
    lookups = lookups or Lookups(broker, "vm")
    return HTTPApi(
        broker,
        clock,
        hostname="vm",
        tcp_port=4150,
        lookups=lookups,
        drain=Drain(broker, clock, lookups.leave),
        gatekeeper=gatekeeper,
        metrics=Metrics(broker),
    )
