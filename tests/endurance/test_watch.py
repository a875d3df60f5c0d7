"""The judge of a long run: flat is flat, and what grows is named."""

from __future__ import annotations

from .picture import PANELS, draw
from .watch import grown


def run_of(**ends: float) -> list[dict[str, float]]:
    """A hundred samples in which each quantity goes from 100 to its end in a straight line."""
    flat = {"worker 1 MB": 100.0, "worker 1 files": 100.0, "connections": 100.0}
    return [
        {
            "second": float(n),
            "messages": 0.0,
            "poison": float(n),
            **{
                name: value + (ends.get(name, 100.0) - 100.0) * n / 99
                for name, value in flat.items()
            },
        }
        for n in range(100)
    ]


def test_a_run_that_stays_the_same_has_nothing_to_say():
    assert grown(run_of()) == []


def test_memory_files_and_connections_that_grow_are_named_with_their_figures():
    samples = run_of(**{"worker 1 MB": 120.0, "connections": 110.0, "worker 1 files": 104.0})

    assert grown(samples) == [
        "worker 1 MB grew from 105.96 to 118.081",
        "connections grew from 102.98 to 109.04",
    ]


def test_the_picture_has_a_line_for_each_quantity():
    text = draw(run_of())

    assert text.count("<polyline") == len(PANELS)
    assert text.startswith("<svg ")
