"""How are several series stacked?"""

from __future__ import annotations

from collections.abc import Sequence

from .marks import Chart, Frame, Mark, slots, time_axis, value_axis

#: Share of a slot that its bar leaves free.
_GAP = 0.2


def stacked_bars(
    series: Sequence[Sequence[int]], *, labels: Sequence[str], frame: Frame | None = None
) -> Chart:
    """
    Stack the series of each step, the first at the bottom.

    `labels` has one text a step, "" where there is none. A value that is not 0 is at least half a
    unit high: one failure beside a thousand must be seen.
    """
    frame = frame or Frame()
    count = len(labels)
    highest = max((sum(step) for step in zip(*series, strict=True)), default=0)
    top, values = value_axis(frame, highest)
    marks = []
    for slot in slots(frame, count):
        below = 0
        for number, of_series in enumerate(series):
            value = of_series[slot.index]
            if value > 0:
                marks.append(_mark(frame, slot.x, slot.width, number, below, value, top))
            below += max(value, 0)
    return Chart(
        frame=frame,
        marks=tuple(marks),
        slots=slots(frame, count),
        values=values,
        times=time_axis(frame, labels),
    )


def _mark(
    frame: Frame, x: float, width: float, series: int, below: int, value: int, top: int
) -> Mark:
    bottom = frame.y(below, top)
    height = max(bottom - frame.y(below + value, top), 0.5)
    return Mark(
        series,
        round(x + width * _GAP / 2, 2),
        round(bottom - height, 2),
        round(width * (1 - _GAP), 2),
        round(height, 2),
    )
