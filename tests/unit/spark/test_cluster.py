"""How a batch is divided among nodes, and a lease among partitions."""

import pytest

from nsqpy.client.leases import Lease, Split
from nsqpy.spark.cluster import coalesce, parts_of, spread


@pytest.mark.parametrize(
    ("budget", "depths", "expected"),
    [
        (10, {"a": 100}, {"a": 10}),
        (10, {"a": 3}, {"a": 3}),
        (10, {"a": 100, "b": 100}, {"a": 5, "b": 5}),
        (10, {"a": 2, "b": 100}, {"a": 2, "b": 8}),
        (10, {"a": 100, "b": 0, "c": 1}, {"a": 9, "c": 1}),
        (1, {"a": 5, "b": 5}, {"a": 1}),
        (10, {"a": 0}, {}),
        (10, {}, {}),
    ],
)
def test_a_budget_is_spread_as_evenly_as_the_depths_permit(
    budget: int, depths: dict[str, int], expected: dict[str, int]
) -> None:
    assert spread(budget, depths) == expected


def splits(*lengths: int) -> list[Split]:
    return [Split(sum(lengths[:at]), length, length // 10) for at, length in enumerate(lengths)]


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("lengths", [(10,), (10, 10, 10, 10), (100, 10, 10, 10, 100), (10,) * 50])
def test_neighbours_are_joined_and_nothing_is_left_out(
    parts: int, lengths: tuple[int, ...]
) -> None:
    groups = coalesce(splits(*lengths), parts)
    assert 1 <= len(groups) <= min(parts, len(lengths))
    at = 0
    for group in groups:
        assert group.offset == at
        at += group.length
    assert at == sum(lengths)
    assert sum(group.messages for group in groups) == at // 10


def test_even_splits_make_even_partitions() -> None:
    assert [group.length for group in coalesce(splits(*(10,) * 40), 4)] == [100] * 4


def lease(name: str, length: int) -> Lease:
    return Lease(name, "t", "c", "n", 1, length, 0, 0, (Split(0, length, 1),))


def test_the_longer_lease_gets_more_partitions() -> None:
    assert parts_of([lease("a", 300), lease("b", 100)], 4) == {"a": 3, "b": 1}
    assert parts_of([lease("a", 1)], 1) == {"a": 1}


def test_a_partition_does_not_grow_without_bound() -> None:
    assert parts_of([lease("a", 1 << 30)], 1) == {"a": 8}
