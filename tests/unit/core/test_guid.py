"""Message ids."""

from itertools import pairwise

import pytest

from nsqpy.clock import MILLISECOND
from nsqpy.core.guid import GUIDFactory

# From a daemon's log: node 617 gave this id to a message with this timestamp, drawn just before.
RECORDED_ID = b"18a2c1afb3669000"
RECORDED_NS = 1795239962876387448
TICK_NS = 1 << 20


def ids(drawn: bytes) -> list[bytes]:
    assert len(drawn) % 16 == 0
    return [drawn[at : at + 16] for at in range(0, len(drawn), 16)]


def test_an_id_is_the_originals() -> None:
    assert GUIDFactory(617).draw(1, RECORDED_NS) == RECORDED_ID
    assert GUIDFactory(617).draw(3, RECORDED_NS)[:16] == RECORDED_ID


def test_the_parts_are_time_node_and_sequence() -> None:
    number = int(ids(GUIDFactory(1023).draw(3, RECORDED_NS))[2], 16)
    assert number & 0xFFF == 2
    assert number >> 12 & 0x3FF == 1023
    assert number >> 22 == (RECORDED_NS >> 20) - 1288834974288


@pytest.mark.parametrize("sizes", [[1] * 10000, [3, 1, 5000, 1, 4096, 4096, 2], [20000]])
def test_ids_rise_strictly_whatever_the_batches(sizes: list[int]) -> None:
    factory = GUIDFactory(5)
    drawn: list[bytes] = []
    for step, size in enumerate(sizes):
        drawn += ids(factory.draw(size, RECORDED_NS + step // 100 * TICK_NS))
    assert len(drawn) == sum(sizes)
    assert all(first < second for first, second in pairwise(drawn))
    assert all(int(drawn_id, 16) >> 12 & 0x3FF == 5 for drawn_id in drawn)


def test_a_clock_that_goes_back_does_not_bring_ids_back() -> None:
    factory = GUIDFactory(0)
    before = factory.draw(1, RECORDED_NS)
    after = factory.draw(1, RECORDED_NS - 60_000 * MILLISECOND)
    assert before < after
    assert int(after, 16) - int(before, 16) == 1


def test_the_sequence_begins_again_with_the_next_tick() -> None:
    factory = GUIDFactory(0)
    factory.draw(4000, RECORDED_NS)
    (drawn,) = ids(factory.draw(1, RECORDED_NS + TICK_NS))
    assert int(drawn, 16) & 0xFFF == 0


@pytest.mark.parametrize("node_id", [-1, 1024])
def test_node_ids_have_ten_bits(node_id: int) -> None:
    with pytest.raises(AssertionError):
        GUIDFactory(node_id)
