"""Server side of one V1 connection: commands in, reply bytes out. Sans-I/O.

Whether a command is allowed in the connection's state was decided with its first word, by the
parser (``nsqpy.protocol.lookup.ALLOWED_STATES``). Source: docs/nsqlookupd.md.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from nsqpy.clock import Instant
from nsqpy.errors import ErrorCode, ProtocolError
from nsqpy.protocol.commands import Malformed
from nsqpy.protocol.lookup import (
    OK_FRAME,
    Identify,
    LookupCommand,
    Ping,
    Register,
    Unregister,
    reply_frame,
)
from nsqpy_lookupd.registry import Node, Registry

__all__ = ["Directory", "LookupSession", "printable"]

log = logging.getLogger(__name__)

# More than can be registered in one turn of the connections, so that what is gone cannot pile up.
_SWEEP_COUNT = 64


class Directory:
    """What all sessions share: the registry, what a daemon is told of us, and counts.

    ``identity`` is the JSON of the IDENTIFY reply; it is known when both listeners are open.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.identity = b""
        self.registered_count = 0
        self.error_counts: Counter[str] = Counter()

    def sweep(self) -> None:
        """Take away a piece of what nodes that have gone had registered."""
        for node, registration in self.registry.sweep(_SWEEP_COUNT):
            log.debug("DB: client(%s) UNREGISTER %s", node.remote_address, registration)


class LookupSession:
    """One connection's part in the registry; ``node`` is None until it has identified itself.

    ``out`` is what is to be written; ``finished`` tells to close after that.
    """

    __slots__ = ("_directory", "finished", "node", "out", "remote_address")

    def __init__(self, directory: Directory, remote_address: str) -> None:
        self._directory = directory
        self.remote_address = remote_address
        self.node: Node | None = None
        self.out: list[bytes] = []
        self.finished = False

    def receive(self, commands: Iterable[LookupCommand], now: Instant) -> None:
        """Act on each command in turn; every one gets its reply."""
        for command in commands:
            self.out.append(_HANDLERS[type(command)](self, command, now))

    def disconnected(self) -> None:
        """Leave the registry. One line tells of it: a node may have had thousands of topics."""
        node, self.node = self.node, None
        if node is None:
            return
        count = self._directory.registry.leave(node)
        log.info("DB: client(%s) gone, UNREGISTER of all %d", self.remote_address, count)

    def _identify(self, command: Identify, now: Instant) -> bytes:
        info = command.info
        self.node = Node(self.remote_address, info, now)
        log.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            *(self.remote_address, printable(info.broadcast_address)),
            *(info.tcp_port, info.http_port, printable(info.version)),
        )
        registration = self._directory.registry.join(self.node)
        log.info("DB: client(%s) REGISTER %s", self.remote_address, registration)
        return reply_frame(self._directory.identity)

    def _register(self, command: Register, now: Instant) -> bytes:
        assert self.node is not None
        added = self._directory.registry.register(self.node, command.topic, command.channel)
        self._directory.registered_count += len(added)
        for registration in added:
            log.info("DB: client(%s) REGISTER %s", self.remote_address, registration)
        return OK_FRAME

    def _unregister(self, command: Unregister, now: Instant) -> bytes:
        assert self.node is not None
        removed = self._directory.registry.unregister(self.node, command.topic, command.channel)
        for registration in removed:
            log.info("DB: client(%s) UNREGISTER %s", self.remote_address, registration)
        return OK_FRAME

    def _ping(self, command: Ping, now: Instant) -> bytes:
        if self.node is not None:
            self.node.seen = now
        return OK_FRAME

    def _malformed(self, command: Malformed, now: Instant) -> bytes:
        code = command.code
        assert isinstance(code, ErrorCode)  # V1 never closes without a word
        error = ProtocolError(code, command.reason)
        self._directory.error_counts[code] += 1
        log.warning("PROTOCOL(V1): [%s] - %s", self.remote_address, printable(str(error)))
        self.finished = True
        return reply_frame(str(error).encode(errors="surrogateescape"))


_SHOWN_MAX = 200


def printable(text: str) -> str:
    """Text of a peer's choice, as it may stand in a log line."""
    text = text[:_SHOWN_MAX]
    return text if text.isprintable() else ascii(text)


_HANDLERS: Mapping[type, Callable[..., bytes]] = {
    Identify: LookupSession._identify,
    Register: LookupSession._register,
    Unregister: LookupSession._unregister,
    Ping: LookupSession._ping,
    Malformed: LookupSession._malformed,
}
