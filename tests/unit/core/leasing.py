"""Somebody who leases messages of a node, as the HTTP API would."""

from nsqpy.clock import SECOND
from nsqpy.core.lease import Lease, LeaseGoneError, LeaseRequest, LeaseTerms
from nsqpy.core.lease_desk import LeaseDesk, Outcome
from nsqpy.message import FRAME_HEADER_BYTES
from nsqpy.storage.block import BLOCK_HEADER_BYTES, decode_block, parse_block_header
from tests.unit.core.node import Node

__all__ = ["HOUR_NS", "Tenant", "messages_of"]

HOUR_NS = 3600 * SECOND


def messages_of(stream: bytes) -> list[tuple[bytes, int]]:
    """Bodies and attempts of what stands in blocks; checksums are checked."""
    found = []
    at = 0
    while at < len(stream):
        header = parse_block_header(stream, at, "stream", at)
        at += BLOCK_HEADER_BYTES
        batch = decode_block(header, stream[at : at + header.length], "stream", at)
        at += header.length
        for index in range(len(batch)):
            body = batch.frames(index, index + 1)[FRAME_HEADER_BYTES:]
            found.append((body, batch.attempts(index)))
    return found


class Tenant:
    """Leases of the channel ``c`` of the topic ``t``."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def desk(self) -> LeaseDesk:
        return LeaseDesk(self.node.broker)

    def ask(
        self,
        lease_id: str,
        max_messages: int = 1000,
        *,
        max_bytes: int = 1 << 40,
        ttl_ns: int = HOUR_NS,
        patient: bool = False,
        channel: str = "c",
    ) -> LeaseRequest:
        """Ask, and take no turn."""
        terms = LeaseTerms(max_messages, max_bytes, ttl_ns)
        request = LeaseRequest(lease_id, terms, patient=patient)
        self.desk.create("t", channel, request, self.node.clock.now())
        return request

    def settle(self) -> None:
        """Until nothing moves any more, with every sync that is due."""
        for _ in range(100):
            self.node.settle()
            if not self.node.broker.sync_due(self.node.clock.now()):
                return
            self.node.sync()

    def take(self, lease_id: str, max_messages: int = 1000, *, ttl_ns: int = HOUR_NS) -> Lease:
        """A lease of what there is."""
        request = self.ask(lease_id, max_messages, ttl_ns=ttl_ns)
        self.settle()
        assert request.done
        assert request.error is None
        assert request.lease is not None
        return request.lease

    def stream(self, lease_id: str) -> bytes:
        book, lease = self.desk.find(lease_id)
        return b"".join(
            bytes(self.node.files.content(path)[offset : offset + length])
            for path, offset, length in book.regions(lease)
        )

    def read(self, lease_id: str) -> list[tuple[bytes, int]]:
        return messages_of(self.stream(lease_id))

    def bodies(self, lease_id: str) -> list[bytes]:
        return [body for body, _ in self.read(lease_id)]

    def extend(self, *ids: str, ttl_ns: int = HOUR_NS) -> list[Outcome]:
        return self.desk.extend(ids, ttl_ns, self.node.clock.now())

    def commit(self, *ids: str) -> list[Outcome]:
        outcomes = self.desk.commit(ids, self.node.clock.now())
        self.settle()
        return outcomes

    def release(self, *ids: str) -> list[Outcome]:
        outcomes = self.desk.release(ids, self.node.clock.now())
        self.settle()
        return outcomes

    def state(self, lease_id: str) -> str:
        try:
            _, lease = self.desk.find(lease_id)
        except LeaseGoneError as gone:
            return gone.state
        return lease.state
