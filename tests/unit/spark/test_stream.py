"""The rules that make the stream source sound, against nodes in memory.

``Query`` does what Spark does with a source, in Spark's order, and keeps the checkpoint.
"""

from typing import Any

import pytest

from nsqpy.errors import ConfigError
from nsqpy.spark.options import ReadOptions
from nsqpy.spark.stream import DataLoss, LeaseRun, StreamOffset
from tests.unit.spark.fake_leases import FakeCluster, FakeKeeper, FakeNode, read_options

Offset = dict[str, Any]


class Query:
    """A query's checkpoint and sink, and one run of it at a time."""

    def __init__(self, *nodes: FakeNode, options: ReadOptions | None = None) -> None:
        self.nodes = {node.host: node for node in nodes}
        self.options = options or read_options(pollTimeoutMs="0")
        self.offsets: list[Offset] = [
            StreamOffset(self.options.topic, self.options.channel).as_json()
        ]
        self.committed = 0
        self.sink: list[int] = []
        self.restart()

    def restart(self) -> None:
        """A crash, as far as the source is concerned, and a new run."""
        self.keeper = FakeKeeper()
        self.cluster = FakeCluster(self.options, *self.nodes.values())
        self.run = LeaseRun(self.options, self.cluster, self.keeper)

    def plan_batch(self, max_messages: int = 100) -> bool:
        """latestOffset, and the offset log."""
        end = self.run.next_offset(self.offsets[-1], max_messages)
        if end is self.offsets[-1]:
            return False
        self.offsets.append(end)
        return True

    def read_batch(self) -> list[int]:
        """partitions and read, of the last planned batch."""
        partitions = self.run.plan(self.offsets[-1])
        found: list[int] = []
        for partition in partitions:
            node = self.nodes[partition.address.host]
            found += node.leases_by_id[partition.lease_id].messages
        return found

    def batch(self, max_messages: int = 100) -> bool:
        """A whole micro-batch, from the offset to the commit log; False if there is nothing."""
        if not self.plan_batch(max_messages):
            return False
        self.sink += self.read_batch()
        self.committed = len(self.offsets) - 1
        return True

    @property
    def leases(self) -> list[str]:
        return [lease["id"] for lease in self.offsets[-1]["leases"]]


@pytest.fixture
def one() -> FakeNode:
    return FakeNode("one", list(range(10)))


@pytest.fixture
def two() -> FakeNode:
    return FakeNode("two", list(range(10, 20)))


def test_the_leases_of_a_batch_are_committed_by_the_next_question(one: FakeNode) -> None:
    query = Query(one)
    assert query.batch(6)
    assert one.acknowledged == []
    assert query.batch(6)
    assert one.acknowledged == list(range(6))
    assert not query.batch()
    assert one.acknowledged == query.sink == list(range(10))


def test_an_idle_query_does_not_commit_again(one: FakeNode) -> None:
    query = Query(one)
    query.batch()
    for _ in range(3):
        assert not query.plan_batch()
    assert len(one.calls("commit")) == 1
    assert query.keeper.held == set()


def test_a_batch_is_spread_over_the_nodes(one: FakeNode, two: FakeNode) -> None:
    query = Query(one, two)
    assert query.batch(8)
    assert sorted(query.sink) == [*range(4), *range(10, 14)]


def test_a_node_with_little_leaves_room_for_the_others(one: FakeNode, two: FakeNode) -> None:
    del one.waiting[2:]
    query = Query(one, two)
    assert query.batch(8)
    assert sorted(query.sink) == [0, 1, *range(10, 16)]


def test_bytes_bound_a_batch_too(one: FakeNode) -> None:
    options = read_options(maxBytesPerTrigger="300", pollTimeoutMs="0")
    query = Query(one, options=options)
    assert query.batch()
    assert query.sink == [0, 1, 2]


def test_a_crash_before_the_offset_was_logged_finds_the_same_leases(one: FakeNode) -> None:
    query = Query(one)
    query.batch(3)
    query.plan_batch(3)
    lost = query.leases
    del query.offsets[-1]
    query.restart()
    assert query.batch(3)
    assert query.leases == lost
    assert query.sink == list(range(6))


@pytest.mark.parametrize("available_now", [False, True])
def test_they_are_found_where_they_hold_all_that_a_node_had(
    one: FakeNode, two: FakeNode, available_now: bool
) -> None:
    query = Query(one, two)
    query.batch(2)
    query.plan_batch(100)
    del query.offsets[-1]
    two.waiting.append(99)
    query.restart()
    if available_now:
        query.run.prepare_available_now()
    while query.batch():
        pass
    assert sorted(query.sink) in ([*range(20)], [*range(20), 99])
    assert sorted(one.acknowledged + two.acknowledged) == sorted(query.sink)


def test_a_lease_that_expired_before_its_offset_was_logged_is_taken_anew(one: FakeNode) -> None:
    query = Query(one)
    query.batch(3)
    query.plan_batch(3)
    one.expire(query.leases[0])
    del query.offsets[-1]
    query.restart()
    while query.batch(3):
        pass
    assert sorted(query.sink) == list(range(10))
    assert sorted(one.acknowledged) == list(range(10))


def test_a_crash_before_the_sinks_commit_reads_the_same_rows_again(one: FakeNode) -> None:
    query = Query(one)
    query.plan_batch(4)
    before = query.read_batch()
    query.restart()
    assert query.read_batch() == before
    assert query.keeper.held == set(query.leases)
    assert one.calls("extend")


def test_a_crash_after_the_last_commit_is_made_up_for_by_the_first_question(one: FakeNode) -> None:
    query = Query(one)
    query.batch()
    query.restart()
    assert not query.plan_batch()
    assert one.acknowledged == list(range(10))


def test_an_expired_lease_is_left_out_of_the_repeated_batch_and_comes_later(
    one: FakeNode, two: FakeNode
) -> None:
    query = Query(one, two)
    query.plan_batch(8)
    one.expire(next(lease for lease in query.leases if lease.endswith("one")))
    query.restart()
    query.sink += query.read_batch()
    assert sorted(query.sink) == list(range(10, 14))
    while query.batch():
        pass
    assert sorted(query.sink) == list(range(20))
    assert sorted(one.acknowledged + two.acknowledged) == list(range(20))


def test_a_lease_that_was_left_out_is_not_committed_late_by_the_next_run(one: FakeNode) -> None:
    query = Query(one)
    query.plan_batch(4)
    one.expire(query.leases[0])
    query.restart()
    assert query.read_batch() == []  # batch 0 runs without it, and reaches the commit log
    query.restart()
    assert query.batch()
    assert sorted(query.sink) == list(range(10))
    assert not query.plan_batch()
    assert sorted(one.acknowledged) == list(range(10))


def test_a_lease_read_in_this_run_is_committed_even_after_it_expired(one: FakeNode) -> None:
    query = Query(one)
    query.batch()
    one.expire(query.leases[0])
    assert not query.plan_batch()
    assert one.waiting == []
    assert one.acknowledged == query.sink


def test_an_expired_lease_found_by_commit_is_no_error(one: FakeNode) -> None:
    query = Query(one)
    query.batch()
    one.expire(query.leases[0])
    query.restart()
    assert query.plan_batch()
    assert query.run.report()["expired"] == 1


def test_a_committed_lease_of_an_unfinished_batch_means_a_checkpoint_set_back(
    one: FakeNode,
) -> None:
    query = Query(one)
    query.batch(5)
    query.batch(5)
    del query.offsets[-1]
    query.restart()
    with pytest.raises(DataLoss, match=r"committed already.*failOnDataLoss=false"):
        query.run.plan(query.offsets[1])


def test_a_committed_id_is_not_replaced_by_new_messages_unseen(one: FakeNode) -> None:
    query = Query(one)
    query.batch(3)
    query.batch(3)
    query.batch(3)
    del query.offsets[-2:]
    query.restart()
    # The sink may know batch 1 already, and would drop whatever comes under its number.
    with pytest.raises(DataLoss):
        query.plan_batch(3)


def test_data_loss_may_be_allowed(one: FakeNode) -> None:
    query = Query(one, options=read_options(failOnDataLoss="false", pollTimeoutMs="0"))
    query.batch(5)
    query.batch(5)
    del query.offsets[-1]
    query.restart()
    assert query.read_batch() == []


def test_a_lease_that_its_node_forgot_is_data_loss(one: FakeNode) -> None:
    query = Query(one)
    query.plan_batch()
    one.forget(query.leases[0])
    query.restart()
    with pytest.raises(DataLoss, match="does not know it"):
        query.read_batch()


def test_a_node_that_is_away_is_told_later(one: FakeNode, two: FakeNode) -> None:
    query = Query(one, two)
    query.batch()
    del query.cluster.by_id["one"]
    away = FakeNode("one", away=True)
    query.cluster.by_id = {"two": two, "one": away}
    start = StreamOffset.of(query.offsets[-1], query.options)
    left = query.run.settle(start)
    assert [node for node, _ in left] == ["one"]
    assert two.acknowledged == list(range(10, 20))
    query.cluster.by_id["one"] = one
    two.waiting.append(99)
    assert query.batch()
    assert one.acknowledged == list(range(10))


def test_a_pending_lease_travels_in_the_offset() -> None:
    offset = StreamOffset("orders", "lake", "abc", 7, (), (("one", "abc-6-one"),))
    assert StreamOffset.of(offset.as_json(), read_options()) == offset
    assert offset.owed() == [("one", "abc-6-one")]


def test_available_now_takes_what_waited_and_ends(one: FakeNode) -> None:
    query = Query(one)
    query.run.prepare_available_now()
    while query.batch(4):
        one.waiting.append(100 + len(query.sink))
    assert len(query.sink) == 10
    assert one.acknowledged == query.sink


def test_available_now_again_commits_nothing_twice_and_takes_the_rest(one: FakeNode) -> None:
    query = Query(one)
    for _ in range(3):
        query.run.prepare_available_now()
        while query.batch(4):
            pass
        query.restart()
    assert query.sink == one.acknowledged == list(range(10))


def test_preparing_takes_nothing(one: FakeNode) -> None:
    query = Query(one)
    query.run.prepare_available_now()
    assert one.calls("create") == []


def test_leases_of_the_first_batch_come_back_soon_if_the_crash_forgets_their_name(
    one: FakeNode,
) -> None:
    query = Query(one)
    query.plan_batch(3)
    (lease,) = query.leases
    assert one.leases_by_id[lease].ttl_ns == 60_000_000_000
    query.read_batch()
    assert one.leases_by_id[lease].ttl_ns == 3600_000_000_000
    query.plan_batch(3)
    assert one.leases_by_id[query.leases[0]].ttl_ns == 3600_000_000_000


def test_a_checkpoint_of_another_topic_is_refused(one: FakeNode) -> None:
    query = Query(one)
    query.batch()
    query.options = read_options(topic="returns")
    query.restart()
    with pytest.raises(ConfigError, match=r"option topic is 'returns'.*'orders'"):
        query.plan_batch()


def test_a_long_run_remembers_only_what_is_under_way(one: FakeNode) -> None:
    query = Query(one)
    for number in range(50):
        one.waiting.append(1000 + number)
        assert query.batch(100)
    remembered = (query.run._planned, query.run._done, query.run._expired)
    assert max(map(len, remembered)) <= 2
