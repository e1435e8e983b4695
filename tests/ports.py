"""Ports of the loopback for a process that has to be told where to listen."""

import random
import socket

__all__ = ["free_port", "free_ports"]

# Below every system's ephemeral ports: while nobody listens, a client that tries to connect to
# an ephemeral port may be given that port as its own, and then talk to itself.
_PORTS = range(20_000, 30_000)
_TRIES = 200


def free_port() -> int:
    """A port that nobody has now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now."""
    found: list[int] = []
    for port in random.sample(_PORTS, _TRIES):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports among {_TRIES}")
