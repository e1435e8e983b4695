"""The heap of deadlines."""

from random import Random

import pytest

from nsqpy.core.deadlines import NEVER, DeadlineHeap


class Item:
    def __init__(self, name: str = "") -> None:
        self.name = name
        self.deadline_ns = NEVER


@pytest.fixture
def heap() -> DeadlineHeap[Item]:
    return DeadlineHeap()


def due(heap: DeadlineHeap[Item], now_ns: int) -> list[str]:
    found = []
    while (item := heap.pop_due(now_ns)) is not None:
        assert item.deadline_ns == NEVER
        found.append(item.name)
    return found


def filled(heap: DeadlineHeap[Item], **deadlines: int) -> dict[str, Item]:
    items = {name: Item(name) for name in deadlines}
    for name, deadline_ns in deadlines.items():
        heap.add(items[name], deadline_ns)
    return items


def test_an_empty_heap_is_never_due(heap: DeadlineHeap[Item]) -> None:
    assert (heap.soonest_ns(), heap.pop_due(1 << 62), len(heap)) == (NEVER, None, 0)


def test_items_come_at_their_deadline_and_not_before(heap: DeadlineHeap[Item]) -> None:
    filled(heap, b=20, a=10, c=30)
    assert heap.soonest_ns() == 10
    assert due(heap, 9) == []
    assert due(heap, 20) == ["a", "b"]
    assert (heap.soonest_ns(), len(heap)) == (30, 1)


def test_ties_come_in_the_order_of_adding(heap: DeadlineHeap[Item]) -> None:
    filled(heap, x=5, a=5, m=5)
    assert due(heap, 5) == ["x", "a", "m"]


def test_moving_in_both_directions(heap: DeadlineHeap[Item]) -> None:
    items = filled(heap, a=10, b=20)
    heap.move(items["a"], 30)
    assert heap.soonest_ns() == 20
    heap.move(items["a"], 5)
    assert items["a"].deadline_ns == 5
    assert due(heap, 100) == ["a", "b"]


def test_what_is_discarded_does_not_come(heap: DeadlineHeap[Item]) -> None:
    items = filled(heap, a=10, b=20)
    heap.discard(items["a"])
    assert (len(heap), heap.soonest_ns()) == (1, 20)
    assert due(heap, 100) == ["b"]


def test_an_item_may_come_back(heap: DeadlineHeap[Item]) -> None:
    items = filled(heap, a=10)
    heap.discard(items["a"])
    heap.add(items["a"], 10)
    assert due(heap, 10) == ["a"]
    heap.add(items["a"], 10)
    assert due(heap, 10) == ["a"]


def test_adding_twice_is_a_bug_of_ours(heap: DeadlineHeap[Item]) -> None:
    items = filled(heap, a=10)
    with pytest.raises(AssertionError):
        heap.add(items["a"], 20)
    heap.discard(items["a"])
    with pytest.raises(AssertionError):
        heap.discard(items["a"])


def test_an_item_moved_there_and_back_is_listed_once(heap: DeadlineHeap[Item]) -> None:
    items = filled(heap, a=10, b=15)
    heap.move(items["a"], 20)
    heap.move(items["a"], 10)
    assert [item.name for item in heap.items()] == ["a", "b"]
    assert [item.name for item in heap.clear()] == ["a", "b"]
    assert (len(heap), heap.soonest_ns()) == (0, NEVER)
    assert {item.deadline_ns for item in items.values()} == {NEVER}


@pytest.mark.parametrize("deadlines", [[10], [10, 20], [10, 20, 30]])
def test_moving_for_ever_does_not_grow_the_heap(
    heap: DeadlineHeap[Item], deadlines: list[int]
) -> None:
    """A client that sends TOUCH without end moves its message between few deadlines."""
    items = filled(heap, a=10, b=1 << 40)
    for turn in range(10_000):
        heap.move(items["a"], deadlines[turn % len(deadlines)])
    assert len(heap._entries) <= 130


def test_against_a_plain_dict() -> None:
    for seed in range(5):
        random = Random(seed)
        heap: DeadlineHeap[Item] = DeadlineHeap()
        live: dict[Item, int] = {}
        now_ns = 0
        for _ in range(2000):
            action = random.random()
            if action < 0.4 or not live:
                item = Item()
                live[item] = now_ns + random.randrange(50)
                heap.add(item, live[item])
            elif action < 0.6:
                item = random.choice(list(live))
                live[item] = now_ns + random.randrange(50)
                heap.move(item, live[item])
            elif action < 0.75:
                item = random.choice(list(live))
                del live[item]
                heap.discard(item)
            else:
                now_ns += random.randrange(10)
                while (popped := heap.pop_due(now_ns)) is not None:
                    assert live.pop(popped) <= now_ns
                assert all(deadline_ns > now_ns for deadline_ns in live.values())
            assert len(heap) == len(live)
            assert heap.soonest_ns() == min(live.values(), default=NEVER)
        assert {item: item.deadline_ns for item in heap.items()} == live
