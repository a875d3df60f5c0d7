"""How is text from outside shown on a terminal? As text, one line, aligned, whatever it is."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

#: Categories a terminal acts on or hides: control, format (right-to-left marks, zero width),
#: surrogates, private, unassigned, line and paragraph separators.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
#: Accents on one letter; more of them would grow into the lines above.
_ACCENTS = 2
_CUT = "…"


def plain(value: object, *, width: int | None = None) -> str:
    """Return one line in which nothing is an instruction: `\\x1b[2J` is shown, not obeyed."""
    text = "" if value is None else str(value)
    if width is None:
        return "".join(_visible(text))
    # A character is at most ten columns when spelled out: the rest need not be looked at.
    return cut("".join(_visible(text[: width + 1])), width, longer=len(text) > width + 1)


def paragraph(value: object, *, indent: str = "", limit: int) -> list[str]:
    """Return the lines of a longer text, each harmless, at most `limit` characters in all."""
    text = "" if value is None else str(value)
    lines = [indent + plain(line.expandtabs(4)) for line in text[:limit].split("\n")]
    if len(text) > limit:
        lines.append(f"{indent}[{len(text) - limit:,} more characters]")
    return lines


def cut(text: str, width: int, *, longer: bool = False) -> str:
    """Shorten to so many columns, with a sign that something is missing."""
    if not longer and columns(text) <= width:
        return text
    found, room = "", width - 1
    for character in text:
        room -= columns(character)
        if room < 0:
            break
        found += character
    return found + _CUT


def columns(text: str) -> int:
    """Count the columns a terminal needs."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, width: int) -> list[str]:
    """Align columns. Numbers to the right; the last column gets the room that is left."""
    cells = [[plain(value, width=60) for value in row[:-1]] for row in rows]
    widths = [
        max([columns(heading), *(columns(row[n]) for row in cells)])
        for n, heading in enumerate(headings[:-1])
    ]
    room = max(20, width - sum(widths) - 2 * len(widths))
    right = [
        bool(rows) and all(isinstance(row[n], int | None) for row in rows)
        for n in range(len(widths))
    ]
    lines = [list(headings)]
    lines += [[*row, plain(given[-1], width=room)] for row, given in zip(cells, rows, strict=True)]
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


def ago(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return "-"
    return f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"


_UNITS = {86_400: "d", 3_600: "h", 60: "min"}


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - columns(text))
    return space + text if right else text + space


def _visible(text: str) -> Iterator[str]:
    accents = 0
    for character in text:
        accents = accents + 1 if unicodedata.combining(character) else 0
        if character == "\n":
            yield " ⏎ "
        elif character == "\t":
            yield " "
        elif unicodedata.category(character) in _HIDDEN:
            yield character.encode("unicode_escape").decode()
        elif accents <= _ACCENTS:
            yield character
