"""What is a chart made of? Numbers rounded for SVG, in the units of its view box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .scale import compact, ticks


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The view box and the room for labels; as wide as a phone, so that text is never tiny."""

    width: int = 360
    height: int = 150
    left: int = 32
    right: int = 6
    top: int = 8
    bottom: int = 18

    @property
    def floor(self) -> int:
        """Where 0 is."""
        return self.height - self.bottom

    @property
    def end(self) -> int:
        return self.width - self.right

    @property
    def label_at(self) -> int:
        """The baseline of the labels below."""
        return self.height - 4

    def x(self, place: float, of: int) -> float:
        """The left edge of slot `place` of `of`."""
        return self.left + (self.end - self.left) * place / max(of, 1)

    def y(self, value: float, top: float) -> float:
        return self.floor - (self.floor - self.top) * min(value, top) / top


@dataclass(frozen=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Bars:
    """All bars of one series: one path, which draws as fast as one of them."""

    series: int
    bars: tuple[Bar, ...]

    @property
    def path(self) -> str:
        return "".join(f"M{b.x} {b.y}h{b.width}v{b.height}h-{b.width}z" for b in self.bars)


@dataclass(frozen=True)
class Line:
    """A line of one series, as the `points` of a polyline."""

    series: int
    points: str


@dataclass(frozen=True)
class Slot:
    """The room above one step of time."""

    index: int
    x: float
    width: float


@dataclass(frozen=True, kw_only=True)
class Chart:
    frame: Frame
    bars: tuple[Bars, ...] = ()
    lines: tuple[Line, ...] = ()
    slots: tuple[Slot, ...] = ()
    #: Labels of the values, and of the time.
    values: tuple[Tick, ...] = ()
    times: tuple[Tick, ...] = ()

    def area(self, step: int) -> str:
        """The whole height above one step, as a path."""
        slot, frame = self.slots[step], self.frame
        width = slot.width
        return f"M{slot.x} {frame.top}h{width}v{frame.floor - frame.top}h-{width}z"


def slots(frame: Frame, count: int) -> tuple[Slot, ...]:
    edges = [frame.x(n, count) for n in range(count + 1)]
    return tuple(
        Slot(n, round(edges[n], 1), round(edges[n + 1] - edges[n], 1)) for n in range(count)
    )


def value_axis(frame: Frame, highest: int) -> tuple[int, tuple[Tick, ...]]:
    """Return the value at the top of the frame, and the labels up to it."""
    found = ticks(highest)
    return found[-1], tuple(Tick(round(frame.y(n, found[-1]), 1), compact(n)) for n in found)


def time_axis(frame: Frame, labels: Sequence[str]) -> tuple[Tick, ...]:
    """Place a label at the left edge of its slot; an empty one is none."""
    return tuple(
        Tick(round(frame.x(n, len(labels)), 1), label) for n, label in enumerate(labels) if label
    )
