"""Who is shown, where and when. Each test is a row of the original's tables."""

import pytest

from nsqpy.clock import SECOND, ManualClock
from nsqpy.protocol.lookup import PeerInfo
from nsqpy_lookupd.registry import Category, Node, Registration, Registry, Totals

INACTIVE_NS = 300 * SECOND
TOMBSTONE_NS = 45 * SECOND
CLIENT = Registration(Category.CLIENT)


def of_topic(topic: str) -> Registration:
    return Registration(Category.TOPIC, topic)


def of_channel(topic: str, channel: str) -> Registration:
    return Registration(Category.CHANNEL, topic, channel)


class Cluster:
    """A registry, its clock, and nodes by name."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = Registry(
            inactive_timeout_ns=INACTIVE_NS, tombstone_lifetime_ns=TOMBSTONE_NS
        )

    def node(self, name: str, *topics: str, host: str = "host") -> Node:
        """One that has joined, and registered ``topic`` or ``topic/channel``."""
        info = PeerInfo(broadcast_address=host, tcp_port=4150, http_port=4151, version="1.3.0")
        node = Node(name, info, self.clock.now())
        assert self.registry.join(node) == CLIENT
        for topic in topics:
            self.registry.register(node, *(f"{topic}/".split("/")[:2]))
        return node

    def found(self, topic: str) -> tuple[list[str], list[str]] | None:
        """Channels and node names of a lookup."""
        lookup = self.registry.lookup(topic, self.clock.now())
        return lookup and (lookup.channels, [node.remote_address for node in lookup.nodes])

    def nodes(self) -> dict[str, dict[str, bool]]:
        """Topics of each node, and whether they are tombstoned."""
        return {
            found.node.remote_address: dict(zip(found.topics, found.tombstones, strict=True))
            for found in self.registry.nodes(self.clock.now())
        }

    def all(self) -> dict[str, set[str]]:
        return {
            ":".join(registration): {node.remote_address for node in nodes}
            for registration, nodes in self.registry.registrations()
            if nodes
        }


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


# --- registering ---


def test_a_channel_is_registered_with_its_topic(cluster: Cluster) -> None:
    node = cluster.node("a")
    assert cluster.registry.register(node, "t", "c") == [of_channel("t", "c"), of_topic("t")]
    assert cluster.registry.register(node, "t", "d") == [of_channel("t", "d")]
    assert cluster.registry.register(node, "t", "c") == []
    assert cluster.registry.register(node, "u", "") == [of_topic("u")]
    assert cluster.registry.topics() == ["t", "u"]
    assert cluster.registry.channels("t") == ["c", "d"]
    assert cluster.registry.channels("u") == []
    assert cluster.found("t") == (["c", "d"], ["a"])
    assert cluster.nodes() == {"a": {"t": False, "u": False}}
    assert cluster.registry.totals() == Totals(topics=2, channels=2, nodes=1, registrations=4)


def test_two_connections_of_one_daemon_are_two_nodes(cluster: Cluster) -> None:
    cluster.node("a", "t")
    cluster.node("b", "t")
    assert cluster.found("t") == ([], ["a", "b"])


def test_a_node_without_topics_is_listed(cluster: Cluster) -> None:
    cluster.node("a")
    assert cluster.nodes() == {"a": {}}


@pytest.mark.parametrize("topic", ["unknown", "", "*", "$"])
def test_an_unknown_topic(cluster: Cluster, topic: str) -> None:
    cluster.node("a", "t/c")
    assert cluster.found(topic) is None
    assert cluster.registry.channels(topic) == []
    cluster.registry.delete_topic(topic)
    assert not cluster.registry.delete_channel(topic, "c")
    assert cluster.registry.tombstone(topic, "host:4151", cluster.clock.now()) == []
    assert cluster.found("t") == (["c"], ["a"])


# --- unregistering ---


def test_a_channel_stays_when_its_last_node_leaves_it(cluster: Cluster) -> None:
    node = cluster.node("a", "t#ephemeral/c")
    removed = cluster.registry.unregister(node, "t#ephemeral", "c")
    assert removed == [of_channel("t#ephemeral", "c")]
    assert cluster.found("t#ephemeral") == (["c"], ["a"])
    assert cluster.all() == {"client::": {"a"}, "topic:t#ephemeral:": {"a"}}


def test_an_ephemeral_channel_goes_with_its_last_node(cluster: Cluster) -> None:
    first, second = cluster.node("a", "t/c#ephemeral"), cluster.node("b", "t/c#ephemeral")
    cluster.registry.unregister(first, "t", "c#ephemeral")
    assert cluster.registry.channels("t") == ["c#ephemeral"]
    cluster.registry.unregister(second, "t", "c#ephemeral")
    assert cluster.registry.channels("t") == []
    assert cluster.found("t") == ([], ["a", "b"])


def test_a_lingering_ephemeral_channel_goes_with_anybodys_unregister(cluster: Cluster) -> None:
    cluster.registry.leave(cluster.node("a", "t/c#ephemeral"))
    assert cluster.registry.channels("t") == ["c#ephemeral"]
    assert cluster.registry.unregister(cluster.node("b"), "t", "c#ephemeral") == []
    assert cluster.registry.channels("t") == []


def test_leaving_a_topic_leaves_its_channels_which_stay(cluster: Cluster) -> None:
    node = cluster.node("a", "t/c", "t/d#ephemeral", "u/c")
    other = cluster.node("b", "t/c")
    removed = cluster.registry.unregister(node, "t", "")
    assert removed == [of_channel("t", "c"), of_channel("t", "d#ephemeral"), of_topic("t")]
    assert cluster.found("t") == (["c", "d#ephemeral"], ["b"])
    assert cluster.nodes() == {"a": {"u": False}, "b": {"t": False}}
    cluster.registry.unregister(other, "t", "")
    assert cluster.found("t") == (["c", "d#ephemeral"], [])
    assert cluster.registry.totals().registrations == 2


def test_an_ephemeral_topic_goes_with_its_last_node_but_its_channels_stay(
    cluster: Cluster,
) -> None:
    node = cluster.node("a", "t#ephemeral/c")
    cluster.registry.unregister(node, "t#ephemeral", "")
    assert cluster.found("t#ephemeral") is None
    assert cluster.registry.channels("t#ephemeral") == ["c"]
    assert cluster.registry.topics() == []


@pytest.mark.parametrize("channel", ["", "c", "c#ephemeral"])
def test_unregistering_what_is_not_known(cluster: Cluster, channel: str) -> None:
    node = cluster.node("a", "t")
    assert cluster.registry.unregister(node, "u#ephemeral", channel) == []
    assert cluster.registry.topics() == ["t"]


# --- leaving ---


def test_a_node_that_goes_leaves_nothing_of_itself_but_names(cluster: Cluster) -> None:
    node = cluster.node("a", "t/c", "t/c#ephemeral", "u#ephemeral")
    cluster.node("b", "t/c")
    assert cluster.registry.leave(node) == 4
    for max_count, expected in (
        (0, []),
        (1, [of_channel("t", "c#ephemeral")]),
        (2, [of_channel("t", "c"), of_topic("u#ephemeral")]),
        (9, [of_topic("t")]),
        (9, []),
    ):
        assert cluster.registry.needs_sweep == (max_count < 9 or expected != [])
        assert cluster.registry.sweep(max_count) == [(node, one) for one in expected]
        check_that_only_b_is_left(cluster)


def check_that_only_b_is_left(cluster: Cluster) -> None:
    assert cluster.all() == {"client::": {"b"}, "topic:t:": {"b"}, "channel:t:c": {"b"}}
    assert cluster.nodes() == {"b": {"t": False}}
    assert cluster.found("t") == (["c", "c#ephemeral"], ["b"])
    assert cluster.found("u#ephemeral") == ([], [])
    assert cluster.registry.totals() == Totals(topics=2, channels=2, nodes=1, registrations=2)
    assert cluster.registry.tombstone("u#ephemeral", "host:4151", cluster.clock.now()) == []


def test_one_that_has_gone_keeps_nothing_ephemeral_alive(cluster: Cluster) -> None:
    gone, last = cluster.node("a", "t#ephemeral/c#ephemeral"), cluster.node("b")
    cluster.registry.register(last, "t#ephemeral", "c#ephemeral")
    cluster.registry.leave(gone)
    cluster.registry.unregister(last, "t#ephemeral", "c#ephemeral")
    assert cluster.registry.channels("t#ephemeral") == []
    cluster.registry.unregister(last, "t#ephemeral", "")
    assert cluster.registry.topics() == []
    assert cluster.registry.sweep(9) == []
    assert not cluster.registry.needs_sweep


def test_one_that_comes_back_is_another(cluster: Cluster) -> None:
    cluster.registry.leave(cluster.node("a", "t/c"))
    cluster.node("a", "t/c")
    cluster.registry.sweep(9)
    assert cluster.found("t") == (["c"], ["a"])
    assert cluster.registry.totals().registrations == 2


# --- what an operator creates and deletes ---


def test_what_is_created_has_no_nodes(cluster: Cluster) -> None:
    cluster.registry.create_topic("t")
    cluster.registry.create_channel("u", "c")
    cluster.registry.create_channel("u", "c")
    assert cluster.found("t") == ([], [])
    assert cluster.found("u") == (["c"], [])
    assert cluster.all() == {}


def test_creating_what_is_there_changes_nothing(cluster: Cluster) -> None:
    cluster.node("a", "t/c")
    cluster.registry.create_channel("t", "c")
    assert cluster.all() == {"client::": {"a"}, "topic:t:": {"a"}, "channel:t:c": {"a"}}


def test_a_deleted_topic_is_gone_until_it_is_registered_again(cluster: Cluster) -> None:
    node = cluster.node("a", "t/c", "t/d", "u/c")
    cluster.registry.create_channel("t", "e")
    cluster.registry.delete_topic("t")
    assert cluster.found("t") is None
    assert cluster.registry.channels("t") == []
    assert cluster.nodes() == {"a": {"u": False}}
    assert cluster.registry.totals() == Totals(topics=1, channels=1, nodes=1, registrations=2)
    assert cluster.registry.unregister(node, "t", "c") == []
    cluster.registry.register(node, "t", "c")
    assert cluster.found("t") == (["c"], ["a"])


def test_a_deleted_channel_leaves_its_topic(cluster: Cluster) -> None:
    node = cluster.node("a", "t/c", "t/d")
    assert cluster.registry.delete_channel("t", "c")
    assert not cluster.registry.delete_channel("t", "c")
    assert cluster.found("t") == (["d"], ["a"])
    assert cluster.registry.leave(node) == 2
    assert cluster.registry.sweep(9) == [(node, of_channel("t", "d")), (node, of_topic("t"))]


def test_channels_that_outlived_their_topic_can_be_deleted(cluster: Cluster) -> None:
    node = cluster.node("a", "t#ephemeral/c", "t#ephemeral/d")
    cluster.registry.unregister(node, "t#ephemeral", "")
    assert cluster.registry.delete_channel("t#ephemeral", "c")
    cluster.registry.delete_topic("t#ephemeral")
    assert cluster.registry.channels("t#ephemeral") == []
    assert cluster.registry.totals() == Totals(topics=0, channels=0, nodes=1, registrations=0)


def test_things_may_change_while_they_are_told(cluster: Cluster) -> None:
    first, second = cluster.node("a", "t/c", "u/c"), cluster.node("b", "t/c", "u/d")
    nodes = cluster.registry.nodes(cluster.clock.now())
    registrations = cluster.registry.registrations()
    assert next(nodes).node is first
    assert next(registrations)[0] == CLIENT
    assert next(registrations) == (of_topic("t"), {first: None, second: None})
    cluster.registry.leave(second)
    cluster.registry.delete_topic("u")
    cluster.node("c", "v")
    assert list(nodes) == []
    assert dict(registrations) == {of_topic("u"): {}, of_channel("t", "c"): {first: None}}


# --- time ---


def test_a_silent_node_is_hidden_and_comes_back(cluster: Cluster) -> None:
    node = cluster.node("a", "t/c")
    cluster.clock.advance(INACTIVE_NS)
    assert cluster.found("t") == (["c"], ["a"])
    cluster.clock.advance(1)
    assert cluster.found("t") == (["c"], [])
    assert cluster.nodes() == {}
    assert cluster.all()["topic:t:"] == {"a"}
    cluster.registry.register(node, "t", "d")
    assert cluster.nodes() == {}
    node.seen = cluster.clock.now()
    assert cluster.found("t") == (["c", "d"], ["a"])
    assert cluster.nodes() == {"a": {"t": False}}


def test_a_tombstone_hides_a_node_from_one_topic_for_a_while(cluster: Cluster) -> None:
    cluster.node("a", "t/c", "u", host="here")
    cluster.node("b", "t", host="there")
    set_at = cluster.clock.now()
    (hidden,) = cluster.registry.tombstone("t", "here:4151", set_at)
    cluster.clock.advance(TOMBSTONE_NS - 1)
    assert cluster.found("t") == (["c"], ["b"])
    assert cluster.found("u") == ([], ["a"])
    assert cluster.nodes() == {"a": {"t": True, "u": False}, "b": {"t": False}}
    cluster.clock.advance(1)
    assert cluster.found("t") == (["c"], ["a", "b"])
    assert cluster.nodes()["a"] == {"t": False, "u": False}
    # It can still be seen that there was one.
    assert dict(cluster.registry.registrations())[of_topic("t")][hidden] == set_at


def test_all_nodes_of_an_address_are_tombstoned(cluster: Cluster) -> None:
    cluster.node("a", "t")
    cluster.node("b", "t")
    assert len(cluster.registry.tombstone("t", "host:4151", cluster.clock.now())) == 2
    assert cluster.found("t") == ([], [])


def test_a_tombstone_outlasts_a_register_but_not_a_fresh_one(cluster: Cluster) -> None:
    node = cluster.node("a", "t")
    cluster.registry.tombstone("t", "host:4151", cluster.clock.now())
    cluster.registry.register(node, "t", "")
    assert cluster.found("t") == ([], [])
    cluster.registry.unregister(node, "t", "")
    cluster.registry.register(node, "t", "")
    assert cluster.found("t") == ([], ["a"])


@pytest.mark.parametrize("spelling", ["fd00::1:4151", "[fd00::1]:4151"])
def test_an_ipv6_node_is_tombstoned_by_either_spelling(cluster: Cluster, spelling: str) -> None:
    cluster.node("a", "t", host="fd00::1")
    assert len(cluster.registry.tombstone("t", spelling, cluster.clock.now())) == 1


@pytest.mark.parametrize("address", ["host:4150", "host", "HOST:4151", "[host]:4151", "", ":4151"])
def test_another_address_is_not_tombstoned(cluster: Cluster, address: str) -> None:
    cluster.node("a", "t")
    assert cluster.registry.tombstone("t", address, cluster.clock.now()) == []
