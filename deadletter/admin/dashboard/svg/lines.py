"""How do several series run beside each other?"""

from __future__ import annotations

from collections.abc import Sequence

from .marks import Chart, Frame, Line, Slot, slots, time_axis, value_axis


def lines(
    series: Sequence[Sequence[int]],
    *,
    labels: Sequence[str],
    whole: int | None = None,
    frame: Frame | None = None,
) -> Chart:
    """
    Draw each series as a line through the middles of its steps; one scale for all.

    A step that is still under way would look like a fall: only the first `whole` are drawn.
    """
    frame = frame or Frame()
    places = slots(frame, len(labels))
    top, values = value_axis(frame, max((n for of_one in series for n in of_one), default=0))
    return Chart(
        frame=frame,
        lines=tuple(
            Line(number, _points(frame, places, of_one[:whole], top))
            for number, of_one in enumerate(series)
        ),
        slots=places,
        values=values,
        times=time_axis(frame, labels),
    )


def _points(frame: Frame, places: Sequence[Slot], values: Sequence[int], top: int) -> str:
    return " ".join(
        f"{slot.x + slot.width / 2:.1f},{frame.y(value, top):.1f}"
        for slot, value in zip(places, values, strict=False)
    )
