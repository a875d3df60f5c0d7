"""How much is measured? The whole, a few minutes of it, or just enough to see that it works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    rounds: int
    #: Seconds a measurement of sending or draining should take, roughly.
    seconds: float
    #: Messages drained in the scenarios of growth, and what their large numbers are multiplied by.
    measured: int
    scale: float
    #: Messages whose pickup is measured, at 50 a second.
    picked: int
    #: Seconds a worker is watched having nothing to do.
    idle: float
    #: Messages in all, and the backlog kept, of the steady state.
    passing: int
    backlog: int
    #: Seconds for which a broker is away.
    away: float

    def of(self, large: int) -> int:
        return max(1, round(large * self.scale))


SIZES = {
    "full": Sizes(5, 4.0, 100_000, 1.0, 500, 5.0, 1_000_000, 10_000, 600.0),
    "quick": Sizes(3, 1.5, 20_000, 0.05, 100, 3.0, 50_000, 5_000, 120.0),
    "tiny": Sizes(1, 0.02, 200, 0.0005, 10, 0.2, 2_000, 1_000, 1.0),
}
PICKUP_RATE = 50
