"""What a driver and its test say to each other.

A driver is a small program around one client library that somebody else wrote. It gets its
options as one JSON argument and reports what the library did as JSON lines on standard output.
It runs until its standard input ends; a line ``release`` there answers the parked messages.

The body of a message tells the consumer what to do with it; its first word is the order:

``finish``                  FIN it.
``requeue MS``              REQ it with that delay, the first time; FIN it after that.
``hold``                    never answer the first time, so that it times out; FIN it after that.
``touch COUNT EVERY_MS``    TOUCH it that often, then FIN it.
``park``                    keep it in flight until ``release``, then FIN it.

The driver for Node, ``nsqjs_driver.js``, keeps to the same words.
"""

import json
import sys
import time
from dataclasses import dataclass

__all__ = ["Options", "Order", "order_for", "say", "say_message"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The JSON argument. Bodies travel as Latin-1, so that every byte has its character.

    A consumer with ``lookupd_http_addresses`` (``host:port``) finds its nsqd there, and has no
    ``tcp_address``.
    """

    mode: str
    topic: str
    tcp_address: str = ""
    lookupd_http_addresses: tuple[str, ...] = ()
    channel: str = ""
    max_in_flight: int = 1
    heartbeat_interval_ms: int = 30_000
    msg_timeout_ms: int = 60_000
    single: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()
    defer_ms: int = 0
    tls_ca_file: str = ""  # with TLS, trusting this authority
    compression: str = ""  # snappy or deflate
    auth_secret: str = ""

    @property
    def host(self) -> str:
        return self.tcp_address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.tcp_address.rpartition(":")[2])

    @staticmethod
    def from_arguments() -> "Options":
        return Options(**json.loads(sys.argv[1]))


@dataclass(frozen=True, slots=True)
class Order:
    """What to do with a message: a verb, and its numbers."""

    verb: str
    numbers: tuple[int, ...] = ()


def order_for(body: bytes, attempts: int) -> Order:
    words = body.decode("latin-1").split(" ")
    verb = words[0]
    if verb == "park" or (attempts == 1 and verb in {"requeue", "hold", "touch"}):
        return Order(verb, tuple(int(word) for word in words[1:] if word.isdecimal()))
    return Order("finish")


def say(event: str, **fields: str | int) -> None:
    """Report one event to the test, with the time ``at`` it on the driver's clock, in seconds."""
    sys.stdout.write(json.dumps({"event": event, "at": time.monotonic(), **fields}) + "\n")
    sys.stdout.flush()


def say_message(body: bytes, attempts: int) -> None:
    say("message", body=body.decode("latin-1"), attempts=attempts)
