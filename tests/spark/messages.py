"""What tests publish, and how they compare what came out: counts, and a hash of all ids."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqpy.client.nodes import HTTPNode, NodeAddress
from tests.e2e.daemon import Daemon, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "CHANNEL",
    "TOPIC",
    "bodies_of",
    "fail_always",
    "fail_once",
    "fingerprint",
    "publish",
    "wait_listed",
    "waiting",
]

TOPIC, CHANNEL = "orders", "lake"


def publish(
    nsqd: Daemon, count: int, *, first: int = 0, size: int = 30, topic: str = TOPIC
) -> list[bytes]:
    """Publish numbered bodies in batches, to a topic that has the channel."""
    bodies = [b"%d|" % number for number in range(first, first + count)]
    bodies = [body.ljust(size, b".") for body in bodies]
    with HTTPNode(NodeAddress.parse(nsqd.http_address)) as node:
        assert node.call("POST", "/topic/create", {"topic": topic}).status == 200
        node.create_channel(topic, CHANNEL)
        for at in range(0, count, 500):
            node.publish(topic, bodies[at : at + 500])
    return bodies


def fingerprint(values: Iterable[object]) -> tuple[int, str]:
    """How many, and a hash that does not depend on their order but on each of them."""
    ordered = sorted(map(str, values))
    return len(ordered), hashlib.sha256("\n".join(ordered).encode()).hexdigest()


def bodies_of(frame: "DataFrame") -> list[bytes]:
    return [bytes(row.body) for row in frame.select("body").collect()]


def waiting(nsqd: Daemon, topic: str = TOPIC) -> tuple[int, int]:
    """Depth, and messages out on leases."""
    stats = nsqd.channel_stats(topic, CHANNEL)
    return int(stats["depth"]), int(stats.get("leased_count", 0))


def wait_listed(lookupd: Daemon, count: int, topic: str = "") -> None:
    """Until the nsqlookupd knows so many nodes, or so many with the topic."""

    def listed() -> bool:
        reply = lookupd.request(f"/lookup?topic={topic}" if topic else "/nodes")
        return reply.status == 200 and len(reply.json["producers"]) == count

    wait_until(listed, f"{count} nodes in nsqlookupd")


def fail_once(directory: Path) -> "Callable[[Iterator[Any]], Iterator[Any]]":
    """For ``mapInArrow``: each partition fails once, after its first batch, and says so there."""
    # A closure, so that it travels by value: executors may not have the tests.
    place = str(directory)

    def pass_on(batches: "Iterator[Any]") -> "Iterator[Any]":
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch
            if context.attemptNumber() == 0:
                (Path(place) / str(context.partitionId())).touch()
                raise RuntimeError("this attempt fails on purpose")

    return pass_on


def fail_always() -> "Callable[[Iterator[Any]], Iterator[Any]]":
    """For ``mapInArrow``: fails after the first batch, however often it is tried."""

    def pass_on(batches: "Iterator[Any]") -> "Iterator[Any]":
        for batch in batches:
            yield batch
            raise RuntimeError("this attempt fails on purpose")

    return pass_on
