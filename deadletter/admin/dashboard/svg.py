"""
Geometry of the charts: where each mark goes, in the units of the SVG view box.

Templates draw the marks and style sheets colour them. Numbers are rounded for SVG.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil

#: Share of a time slot that its bar leaves free.
_GAP = 0.2
#: Width of a sparkline's bar, the space after it, and the height of the highest bar.
_SPARK_BAR, _SPARK_SPACE, _SPARK_HEIGHT = 3, 1, 20
#: Width of a character of a label, a little more than the average.
_LABEL_CHARACTER = 6
#: An axis is cut where its highest value is this many times the value that nine of ten steps with
#: any value do not exceed, and ends at a nice number above that value. Fewer steps have no rule.
_SPIKE, _USUAL, _FEWEST = 5, 0.9, 5
#: Steps between two labels of an axis, times a power of ten.
_NICE = (1, 2, 5)
_UNITS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


@dataclass(frozen=True, kw_only=True)
class ChartFrame:
    """The view box and its margins for labels; as wide as a phone, so that text is never tiny."""

    width: int = 360
    height: int = 150
    left: int = 32
    right: int = 6
    top: int = 8
    bottom: int = 18

    @property
    def floor(self) -> int:
        """The y of value 0."""
        return self.height - self.bottom

    @property
    def end(self) -> int:
        return self.width - self.right

    @property
    def label_at(self) -> int:
        """The baseline of the time labels."""
        return self.height - 4

    def x(self, place: float, of: int) -> float:
        """Return the left edge of slot `place` of `of`."""
        return self.left + (self.end - self.left) * place / max(of, 1)

    def y(self, value: float, top: float) -> float:
        return self.floor - (self.floor - self.top) * min(value, top) / top


@dataclass(frozen=True)
class AxisTick:
    at: float
    label: str


@dataclass(frozen=True)
class BarMark:
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class BarSeries:
    """All bars of one series as one path: it renders as fast as a single bar."""

    series: int
    bars: tuple[BarMark, ...]

    @property
    def path(self) -> str:
        return "".join(f"M{b.x} {b.y}h{b.width}v{b.height}h-{b.width}z" for b in self.bars)


@dataclass(frozen=True)
class LineSeries:
    """One series as the `points` of a polyline."""

    series: int
    points: str


@dataclass(frozen=True)
class TimeSlot:
    """The horizontal range of one time step."""

    index: int
    x: float
    width: float


@dataclass(frozen=True)
class TimeMark:
    """A vertical line where something began; the label is "" where it would cover another."""

    x: float
    label: str
    #: The middle of the label, which stays inside the plot.
    label_x: float
    title: str


@dataclass(frozen=True)
class CutMark:
    """A gap in a bar or line that goes on above the axis; the label "": no room for its value."""

    x: float
    width: float
    y: int
    label: str

    @property
    def path(self) -> str:
        half = self.width / 2
        return f"M{self.x - half:.1f} {self.y + 2}l{half:.1f} -4 {half:.1f} 4"

    @property
    def label_at(self) -> int:
        """The baseline of the label, above the frame."""
        return self.y - 8


@dataclass(frozen=True)
class Sparkline:
    width: int
    height: int
    bars: BarSeries


@dataclass(frozen=True, kw_only=True)
class Chart:
    frame: ChartFrame
    bars: tuple[BarSeries, ...] = ()
    lines: tuple[LineSeries, ...] = ()
    slots: tuple[TimeSlot, ...] = ()
    #: Labels of the value axis and of the time axis.
    values: tuple[AxisTick, ...] = ()
    times: tuple[AxisTick, ...] = ()
    marks: tuple[TimeMark, ...] = ()
    #: Where the axis was cut, and the steps above it with their values.
    cuts: tuple[CutMark, ...] = ()
    above: tuple[tuple[int, int], ...] = ()

    def area(self, step: int) -> str:
        """Return the full height of one time step as a path."""
        slot, frame = self.slots[step], self.frame
        width = slot.width
        return f"M{slot.x} {frame.top}h{width}v{frame.floor - frame.top}h-{width}z"


def lines(
    series: Sequence[Sequence[int]],
    *,
    labels: Sequence[str],
    whole: int | None = None,
    frame: ChartFrame | None = None,
) -> Chart:
    """
    Draw each series as a line through the middles of its time steps; one scale for all.

    Only the first `whole` steps are drawn: the step that is not over would look like a fall.
    """
    frame = frame or ChartFrame()
    slots = _slots(frame, len(labels))
    drawn = [of_one[:whole] for of_one in series]
    highest = [max(step) for step in zip(*drawn, strict=True)]
    top, values = _value_axis(frame, _end(highest))
    above = _above(highest, top)
    return Chart(
        frame=frame,
        lines=tuple(
            LineSeries(number, _points(frame, slots, of_one, top))
            for number, of_one in enumerate(drawn)
        ),
        slots=slots,
        values=values,
        times=_time_axis(frame, labels),
        cuts=_cuts(frame, slots, above),
        above=above,
    )


def stacked_bars(
    series: Sequence[Sequence[int]], *, labels: Sequence[str], frame: ChartFrame | None = None
) -> Chart:
    """
    Stack the values of each time step, the first series at the bottom.

    `labels` has one text per step, "" where there is none. The bar of a value above 0 is at least
    half a unit high, so that one failure beside a thousand is visible.
    """
    frame = frame or ChartFrame()
    sums = [sum(step) for step in zip(*series, strict=True)]
    top, values = _value_axis(frame, _end(sums))
    above = _above(sums, top)
    slots = _slots(frame, len(labels))
    below = [0] * len(labels)
    stacked = []
    for number, of_series in enumerate(series):
        found = []
        for slot, value in zip(slots, of_series, strict=True):
            if value > 0:
                found.append(_bar(frame, slot, below[slot.index], value, top))
                below[slot.index] += value
        stacked.append(BarSeries(number, tuple(found)))
    return Chart(
        frame=frame,
        bars=tuple(stacked),
        slots=slots,
        values=values,
        times=_time_axis(frame, labels),
        cuts=_cuts(frame, slots, above),
        above=above,
    )


def time_marks(chart: Chart, found: Sequence[tuple[float, str, str]]) -> tuple[TimeMark, ...]:
    """
    Place marks, given as (place in time steps, label, title), the oldest first.

    A label that would cover the one before it is left out; the title remains.
    """
    frame = chart.frame
    free: float = frame.left
    marks: list[TimeMark] = []
    for place, label, title in found:
        x = round(frame.x(place, len(chart.slots)), 1)
        half = len(label) * _LABEL_CHARACTER / 2
        middle = min(max(x, frame.left + half), frame.end - half)
        fits = middle - half >= free
        free = middle + half if fits else free
        marks.append(TimeMark(x, label if fits else "", round(middle, 1), title))
    return tuple(marks)


def sparkline(values: Sequence[int]) -> Sparkline:
    """Draw one bar per value in the height of a line of text; values above 0 are visible."""
    highest = max(values, default=0)
    each = _SPARK_BAR + _SPARK_SPACE
    found = []
    for place, value in enumerate(values):
        if value > 0:
            height = round(max(_SPARK_HEIGHT * value / highest, 1.5), 1)
            y = round(_SPARK_HEIGHT - height, 1)
            found.append(BarMark(place * each, y, _SPARK_BAR, height))
    width = max(each * len(values) - _SPARK_SPACE, 1)
    return Sparkline(width, _SPARK_HEIGHT, BarSeries(0, tuple(found)))


def ticks(top: int, *, about: int = 4) -> tuple[int, ...]:
    """
    Return labels from 0 to the first nice number not below `top`, at most `about` steps.

    ticks(0) is (0, 1), ticks(7) is (0, 2, 4, 6, 8), ticks(130) is (0, 50, 100, 150).
    """
    step = next(step for step in _nice_steps() if step * about >= top)
    last = max(-(-top // step), 1)
    return tuple(step * n for n in range(last + 1))


def compact(number: int) -> str:
    """Write a number short enough for an axis: 950, 1.5k, 12k, 3M."""
    for size, unit in _UNITS:
        if abs(number) >= size:
            whole = f"{number / size:.1f}".removesuffix(".0")
            return f"{whole}{unit}"
    return str(number)


def _points(frame: ChartFrame, slots: Sequence[TimeSlot], values: Sequence[int], top: int) -> str:
    return " ".join(
        f"{slot.x + slot.width / 2:.1f},{frame.y(value, top):.1f}"
        for slot, value in zip(slots, values, strict=False)
    )


def _bar(frame: ChartFrame, slot: TimeSlot, below: int, value: int, top: int) -> BarMark:
    bottom = frame.y(below, top)
    height = max(bottom - frame.y(below + value, top), 0.5)
    return BarMark(
        round(slot.x + slot.width * _GAP / 2, 2),
        round(bottom - height, 2),
        round(slot.width * (1 - _GAP), 2),
        round(height, 2),
    )


def _slots(frame: ChartFrame, count: int) -> tuple[TimeSlot, ...]:
    edges = [frame.x(n, count) for n in range(count + 1)]
    return tuple(
        TimeSlot(n, round(edges[n], 1), round(edges[n + 1] - edges[n], 1)) for n in range(count)
    )


def _value_axis(frame: ChartFrame, highest: int) -> tuple[int, tuple[AxisTick, ...]]:
    """Return the value at the top of the frame, and the labels up to it."""
    found = ticks(highest)
    return found[-1], tuple(AxisTick(round(frame.y(n, found[-1]), 1), compact(n)) for n in found)


def _end(highest: Sequence[int]) -> int:
    """Return the value up to which the axis must reach: not to that of a spike."""
    usual = sorted(n for n in highest if n > 0)
    if len(usual) < _FEWEST:
        return usual[-1] if usual else 0
    most = usual[ceil(len(usual) * _USUAL) - 1]
    return most if usual[-1] >= _SPIKE * most else usual[-1]


def _above(highest: Sequence[int], top: int) -> tuple[tuple[int, int], ...]:
    return tuple((step, n) for step, n in enumerate(highest) if n > top)


def _cuts(
    frame: ChartFrame, slots: Sequence[TimeSlot], above: Sequence[tuple[int, int]]
) -> tuple[CutMark, ...]:
    """Mark what goes on above the axis; a value whose label would cover another is left out."""
    found, free = [], 0.0
    for step, n in above:
        slot, label = slots[step], compact(n)
        x, half = slot.x + slot.width / 2, len(label) * _LABEL_CHARACTER / 2
        fits = x - half >= free
        free = x + half if fits else free
        found.append(CutMark(round(x, 1), slot.width, frame.top + 6, label if fits else ""))
    return tuple(found)


def _time_axis(frame: ChartFrame, labels: Sequence[str]) -> tuple[AxisTick, ...]:
    """Place each label that is not empty at the left edge of its slot."""
    return tuple(
        AxisTick(round(frame.x(n, len(labels)), 1), label)
        for n, label in enumerate(labels)
        if label
    )


def _nice_steps() -> Iterator[int]:
    return (nice * 10**power for power in count() for nice in _NICE)
