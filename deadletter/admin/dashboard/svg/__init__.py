"""Where does each mark of a chart go? Geometry only: templates draw it, style sheets colour it."""

from __future__ import annotations

from .bars import stacked_bars
from .lines import lines
from .marks import Bar, Bars, Chart, Frame, Line, Slot, Tick
from .scale import compact, ticks
from .spark import Spark, sparkline

__all__ = [
    "Bar",
    "Bars",
    "Chart",
    "Frame",
    "Line",
    "Slot",
    "Spark",
    "Tick",
    "compact",
    "lines",
    "sparkline",
    "stacked_bars",
    "ticks",
]
