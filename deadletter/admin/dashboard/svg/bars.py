"""How are several series stacked?"""

from __future__ import annotations

from collections.abc import Sequence

from .marks import Bar, Bars, Chart, Frame, Slot, slots, time_axis, value_axis

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
    places = slots(frame, count)
    below = [0] * count
    stacked = []
    for number, of_series in enumerate(series):
        found = []
        for slot, value in zip(places, of_series, strict=True):
            if value > 0:
                found.append(_bar(frame, slot, below[slot.index], value, top))
                below[slot.index] += value
        stacked.append(Bars(number, tuple(found)))
    return Chart(
        frame=frame,
        bars=tuple(stacked),
        slots=places,
        values=values,
        times=time_axis(frame, labels),
    )


def _bar(frame: Frame, slot: Slot, below: int, value: int, top: int) -> Bar:
    bottom = frame.y(below, top)
    height = max(bottom - frame.y(below + value, top), 0.5)
    return Bar(
        round(slot.x + slot.width * _GAP / 2, 2),
        round(bottom - height, 2),
        round(slot.width * (1 - _GAP), 2),
        round(height, 2),
    )
