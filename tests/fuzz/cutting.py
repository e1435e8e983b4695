"""How a stream may arrive: cut at places that hypothesis chooses."""

from itertools import pairwise

from hypothesis import strategies as st

__all__ = ["cut_up", "cuts", "in_bytes"]

cuts = st.lists(st.integers(0, 1000), max_size=12)


def cut_up(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


def in_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]
