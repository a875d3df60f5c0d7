"""Write the tables (and pictures) of what was measured."""

from __future__ import annotations

from .results import Results


def publish(results: Results, *, pictures: bool) -> None:
    for measurement in results.measurements:
        for system in results.systems:
            if spread := results.spread(measurement, system):
                print(
                    f"{measurement:14} {system:18} {spread.median:10,.0f}  "
                    f"({spread.low:,.0f} to {spread.high:,.0f})"
                )
