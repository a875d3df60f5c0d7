"""What was measured: one JSON file, written after every measurement, so that nothing is lost."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Key = tuple[int, str, str]


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, with the lowest and the highest."""

    median: float
    low: float
    high: float
    rounds: int

    @staticmethod
    def of(values: list[float]) -> Spread | None:
        if not values:
            return None
        return Spread(statistics.median(values), min(values), max(values), len(values))


@dataclass
class Results:
    file: Path
    about: dict[str, Any] = field(default_factory=dict)
    #: Why a system, or one measurement of it, is not there.
    skipped: dict[str, str] = field(default_factory=dict)
    figures: dict[Key, dict[str, float]] = field(default_factory=dict)

    @staticmethod
    def read(file: Path) -> Results:
        stored = json.loads(file.read_text())
        figures = {
            (row["round"], row["measurement"], row["system"]): row["figures"]
            for row in stored["measured"]
        }
        return Results(file, stored["about"], stored["skipped"], figures)

    def add(self, key: Key, figures: dict[str, float]) -> None:
        self.skipped.pop(f"{key[2]} {key[1]}", None)
        self.figures[key] = {name: round(value, 3) for name, value in figures.items()}
        self.write()

    def write(self) -> None:
        measured = [
            {"round": number, "measurement": measurement, "system": system, "figures": figures}
            for (number, measurement, system), figures in self.figures.items()
        ]
        stored = {"about": self.about, "skipped": self.skipped, "measured": measured}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        # Complete or not at all: an interrupted run is read again by --resume.
        draft = self.file.with_suffix(".draft")
        draft.write_text(json.dumps(stored, indent=1) + "\n")
        draft.replace(self.file)

    def each(self, measurement: str, system: str, figure: str = "rate") -> dict[int, float]:
        """Return a figure by round."""
        return {
            number: figures[figure]
            for (number, measured, of), figures in sorted(self.figures.items())
            if (measured, of) == (measurement, system) and figure in figures
        }

    def spread(self, measurement: str, system: str, figure: str = "rate") -> Spread | None:
        return Spread.of(list(self.each(measurement, system, figure).values()))

    def ratio(self, above: tuple[str, ...], below: tuple[str, ...]) -> Spread | None:
        """Divide what was measured in the same round: (measurement, system[, figure]) each."""
        over, under = self.each(*above), self.each(*below)
        return Spread.of([over[n] / under[n] for n in over if under.get(n)])

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(system for _, _, system in self.figures))

    @property
    def measurements(self) -> list[str]:
        return list(dict.fromkeys(measurement for _, measurement, _ in self.figures))
