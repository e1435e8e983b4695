"""Go's durations and integers, in and out."""

import pytest

from nsqpy.clock import SECOND
from nsqpy.scalars import duration_ns, format_duration, integer, number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("-0", 0), ("1h30m", 5400 * SECOND), ("-1.5s", -1_500_000_000),
        ("+5s", 5 * SECOND), (".5s", 500_000_000), ("1.s", SECOND),
        ("2us", 2000), ("2µs", 2000), ("2μs", 2000),
        ("1h2m3s4ms5us6ns", 3_723_004_005_006), ("1.0000000001s", SECOND),
    ],
)  # fmt: skip
def test_durations(text: str, expected: int) -> None:
    assert duration_ns(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "60", "-", "s", ".s", "1d", "1 s", " 1s", "1s ", "1e3s", "\u0661s", "--1s", "9999999h"],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="parse error"):
        duration_ns(text)


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (0, "0s"), (1, "1ns"), (1500, "1.5µs"), (94_915, "94.915µs"), (250_000_000, "250ms"),
        (SECOND, "1s"), (1_500_000_000, "1.5s"), (60 * SECOND, "1m0s"), (5400 * SECOND, "1h30m0s"),
        (-2 * SECOND, "-2s"), (1_000_000_001, "1.000000001s"),
    ],
)  # fmt: skip
def test_durations_are_shown_as_go_shows_them(value_ns: int, text: str) -> None:
    assert format_duration(value_ns) == text
    assert duration_ns(text) == value_ns


@pytest.mark.parametrize(
    ("text", "expected"),
    [("010", 8), ("0o10", 8), ("0b11", 3), ("1_000", 1000), ("-0x_1F", -31), ("+7", 7), ("0", 0)],
)
def test_integers(text: str, expected: int) -> None:
    assert integer(text) == expected


@pytest.mark.parametrize(
    "text", ["", "1.0", " 1", "1__0", "08", "0x", "1e3", "\u0663", "abc", "_1"]
)
def test_what_is_no_integer(text: str) -> None:
    with pytest.raises(ValueError, match="parse error"):
        integer(text)


def test_numbers() -> None:
    assert [number(text) for text in ("1", "-.5", "1e-3", "1.")] == [1.0, -0.5, 0.001, 1.0]
    for wrong, reason in (("nan", "parse error"), ("1_0", "parse error"), ("1e999", "range")):
        with pytest.raises(ValueError, match=reason):
            number(wrong)
