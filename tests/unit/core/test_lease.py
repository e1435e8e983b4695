"""What a lease knows: its splits, and what has been read of it."""

import pytest

from nsqpy.core.lease import Lease, Splits, add_range, is_valid_lease_id

MIB = 1024 * 1024


class TestIds:
    @pytest.mark.parametrize("text", ["a", "A.b_c-9", "..", "a" * 128])
    def test_legal(self, text: str) -> None:
        assert is_valid_lease_id(text)

    @pytest.mark.parametrize("text", ["", "a,b", "a/b", "a b", "a\n", "é", "a#b", "a" * 129])
    def test_not(self, text: str) -> None:
        assert not is_valid_lease_id(text)


class TestSplits:
    def test_small_blocks_are_one(self) -> None:
        splits = Splits()
        splits.add(100, 3)
        splits.add(50, 1)
        assert splits.triples() == [(0, 150, 4)]

    def test_a_split_ends_with_the_block_that_fills_it(self) -> None:
        splits = Splits()
        for _ in range(5):
            splits.add(MIB // 2 + 1, 10)
        half = MIB // 2 + 1
        assert splits.triples() == [
            (0, 2 * half, 20),
            (2 * half, 2 * half, 20),
            (4 * half, half, 10),
        ]

    def test_there_are_never_more_than_256(self) -> None:
        splits = Splits()
        for _ in range(5000):
            splits.add(MIB, 7)
        triples = splits.triples()
        assert 128 <= len(triples) <= 256
        assert sum(count for _, _, count in triples) == 5000 * 7
        ends = [offset + length for offset, length, _ in triples]
        assert [offset for offset, _, _ in triples] == [0, *ends[:-1]]
        assert ends[-1] == 5000 * MIB


class TestCover:
    @pytest.fixture
    def lease(self) -> Lease:
        lease = Lease("a", 1, None)
        lease.size = 100
        return lease

    def test_a_whole_read(self, lease: Lease) -> None:
        assert lease.cover(0, 100)
        assert (lease.reads, lease.covered) == (1, [])

    def test_parts_in_any_order(self, lease: Lease) -> None:
        assert [lease.cover(*part) for part in [(50, 50), (0, 20), (10, 30)]] == [True] * 3
        assert (lease.reads, lease.covered) == (0, [(0, 40), (50, 100)])
        assert lease.cover(40, 10)
        assert lease.reads == 1

    def test_what_is_known_is_no_news(self, lease: Lease) -> None:
        lease.cover(0, 50)
        assert not lease.cover(10, 20)
        assert not lease.cover(70, 0)

    def test_many_small_ones_are_bounded(self, lease: Lease) -> None:
        lease.size = 1_000_000
        for number in range(5000):
            lease.cover(2 * number, 1)
        assert len(lease.covered) == 1024


def test_ranges_join_where_they_meet() -> None:
    ranges: list[list[int]] = []
    for first, stop in [(1, 3), (3, 4), (6, 7), (5, 6)]:
        add_range(ranges, first, stop)
    assert ranges == [[1, 4], [6, 7], [5, 6]]
