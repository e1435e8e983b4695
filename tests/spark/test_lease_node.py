"""The lease calls against a real daemon, as an executor makes them."""

import http.client

import pytest

from nsqpy.client.leases import LeaseGone, LeaseNode, LeaseState, Split
from nsqpy.client.node_tls import NodeTLS
from nsqpy.client.nodes import NodeAddress, NodeUnavailable
from nsqpy.clock import SECOND
from tests.certificates import Certificates
from tests.conftest import StartDaemon
from tests.e2e.daemon import Daemon
from tests.ports import free_port
from tests.spark.messages import CHANNEL, TOPIC, publish, waiting

MINUTE = 60 * SECOND


@pytest.fixture
def node(nsqd: Daemon) -> LeaseNode:
    return LeaseNode(NodeAddress.parse(nsqd.http_address), patience_s=5)


def create(node: LeaseNode, lease_id: str, max_messages: int = 1000) -> list[Split]:
    lease = node.create(
        TOPIC, CHANNEL, lease_id, max_messages=max_messages, max_bytes=1 << 40, ttl_ns=MINUTE
    )
    return list(lease.splits) if lease is not None else []


def test_the_life_of_a_lease(node: LeaseNode, nsqd: Daemon) -> None:
    publish(nsqd, 100)
    with node:
        (split,) = create(node, "one", 60)
        assert create(node, "one", 5) == [split]
        first = b"".join(node.read("one", split))
        assert b"".join(node.read("one", split)) == first
        (told,) = node.leases(TOPIC, CHANNEL)
        assert (told.id, told.count, told.node) == ("one", 60, node.node_id())
        assert told.reads >= 1
        assert node.extend(["one", "two"], MINUTE) == {
            "one": LeaseState.LEASED,
            "two": LeaseState.UNKNOWN,
        }
        for _ in range(2):
            assert node.commit(["one"]) == {"one": LeaseState.COMMITTED}
        for lease_id, state in (("one", "committed"), ("two", "unknown")):
            with pytest.raises(LeaseGone, match=f"lease {lease_id} at node .* is gone: {state}"):
                list(node.read(lease_id, split))
        with pytest.raises(LeaseGone):
            create(node, "one")
        create(node, "three")
        assert node.release(["three"]) == {"three": LeaseState.RELEASED}
        node.create_channel(TOPIC, "empty")
        nothing = node.create(
            TOPIC, "empty", "four", max_messages=1, max_bytes=1, ttl_ns=MINUTE, wait_ns=SECOND // 10
        )
        assert nothing is None
    nsqd.wait_channel(TOPIC, CHANNEL, depth=40)


def test_reading_goes_on_where_a_killed_node_left_off(start_nsqd: StartDaemon) -> None:
    nsqd = start_nsqd(f"--http-address=127.0.0.1:{free_port()}")
    publish(nsqd, 50_000, size=400)
    with LeaseNode(NodeAddress.parse(nsqd.http_address), patience_s=20) as node:
        splits = create(node, "large", 50_000)
        whole = Split(0, sum(split.length for split in splits), 50_000)
        expected = b"".join(node.read("large", whole))
        pieces = node.read("large", whole)
        found = [next(pieces)]
        nsqd.kill()
        nsqd.start()
        found += pieces
    assert b"".join(found) == expected
    assert waiting(nsqd) == (0, 50_000)


def test_reading_over_https(start_nsqd: StartDaemon, certificates: Certificates) -> None:
    """More than any buffer takes, in parts and whole; and the same bytes as in clear."""
    nsqd = start_nsqd(*certificates.server.flags, "--https-address=127.0.0.1:0")
    publish(nsqd, 20_000, size=400)
    tls = NodeTLS.read(str(certificates.ca), "", "", verify=True)
    secure = NodeAddress.parse(f"https://{nsqd.https_address}")
    with (
        LeaseNode(secure, patience_s=5, tls=tls) as node,
        LeaseNode(NodeAddress.parse(nsqd.http_address)) as plain,
    ):
        splits = create(node, "large", 20_000)
        whole = Split(0, sum(split.length for split in splits), 20_000)
        expected = b"".join(plain.read("large", whole))
        assert b"".join(node.read("large", whole)) == expected
        parts = [frames for split in splits for frames in node.read("large", split)]
        assert b"".join(parts) == expected
        assert node.commit(["large"]) == {"large": LeaseState.COMMITTED}


def test_a_connection_that_the_node_closed_is_made_again(node: LeaseNode, nsqd: Daemon) -> None:
    with node:
        node.info()
        assert isinstance(node._connection, http.client.HTTPConnection)
        node._connection.sock.shutdown(2)
        assert node.info()["version"]


def test_nobody_there(node: LeaseNode) -> None:
    with (
        LeaseNode(NodeAddress("127.0.0.1", free_port()), patience_s=0.2) as nobody,
        pytest.raises(NodeUnavailable, match=r"node 127.0.0.1:\d+ does not answer: .*refused"),
    ):
        nobody.info()
