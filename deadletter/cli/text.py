"""Text on a terminal: escaped, on one line, in aligned columns, whatever was stored."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from ..text import count_columns, terminal_line


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, width: int) -> list[str]:
    """Align columns. Numbers to the right; the last column gets the room that is left."""
    cells = [[terminal_line(value, width=60) for value in row[:-1]] for row in rows]
    widths = [
        max([count_columns(heading), *(count_columns(row[n]) for row in cells)])
        for n, heading in enumerate(headings[:-1])
    ]
    room = max(20, width - sum(widths) - 2 * len(widths))
    right = [
        bool(rows) and all(isinstance(row[n], int | None) for row in rows)
        for n in range(len(widths))
    ]
    lines = [list(headings)]
    lines += [
        [*row, terminal_line(given[-1], width=room)] for row, given in zip(cells, rows, strict=True)
    ]
    return [
        "  ".join(
            [*(_padded(c, w, r) for c, w, r in zip(line, widths, right, strict=False)), line[-1]]
        ).rstrip()
        for line in lines
    ]


def span(duration: timedelta) -> str:
    """Say how long in a person's unit: 45 s, 12 min, 3 h, 5 d."""
    seconds = abs(duration.total_seconds())
    for size, unit in ((172_800, 86_400), (7_200, 3_600), (120, 60)):
        if seconds >= size:
            return f"{seconds // unit:.0f} {_UNITS[unit]}"
    return f"{seconds:.0f} s"


def lasted(seconds: float) -> str:
    """Say how long an attempt took, without an exponent: under 1 ms, 0.35 s, 45 s, 12 min."""
    if seconds < 0.001:
        return "under 1 ms"
    if seconds < 10:
        return f"{seconds:.2g} s"
    # A stored number may be larger than a timedelta can be.
    return span(timedelta(seconds=min(_LONGEST, seconds)))


def ago(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return "-"
    return f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"


#: Seconds: 1,000 years.
_LONGEST = 1_000 * 365 * 86_400
_UNITS = {86_400: "d", 3_600: "h", 60: "min"}


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - count_columns(text))
    return space + text if right else text + space
