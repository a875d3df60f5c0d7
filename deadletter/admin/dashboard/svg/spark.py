"""How does a number look over time, in the height of a line of text?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .marks import Bar, Bars

#: Units of a bar and the room after it, and the height of the highest.
_BAR, _ROOM, _HEIGHT = 3, 1, 20


@dataclass(frozen=True)
class Spark:
    width: int
    height: int
    bars: Bars


def sparkline(values: Sequence[int]) -> Spark:
    """Draw one bar a value, the highest as high as the line; what is not 0 is always seen."""
    highest = max(values, default=0)
    each = _BAR + _ROOM
    found = []
    for place, value in enumerate(values):
        if value > 0:
            height = round(max(_HEIGHT * value / highest, 1.5), 1)
            found.append(Bar(place * each, round(_HEIGHT - height, 1), _BAR, height))
    return Spark(max(each * len(values) - _ROOM, 1), _HEIGHT, Bars(0, tuple(found)))
