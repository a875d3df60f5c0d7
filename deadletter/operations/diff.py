"""What was changed? Lines that went, came and stayed, at a bounded price."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

#: Lines that are compared one by one; the comparison is quadratic at its worst.
COMPARED = 2_000
#: Unchanged lines around a change.
CONTEXT = 3
#: Lines of a difference on a page.
SHOWN = 1_000


@dataclass(frozen=True)
class Line:
    #: "-" went, "+" came, " " stayed, "@" leaves out unchanged lines.
    sign: str
    text: str


def lines(before: str, after: str) -> list[Line]:
    """Compare two texts line by line; none when they are equal."""
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return []
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    old_middle, new_middle = old[start : len(old) - end], new[start : len(new) - end]
    head = [Line(" ", text) for text in old[max(0, start - CONTEXT) : start]]
    tail = [Line(" ", text) for text in old[len(old) - end :][:CONTEXT]]
    if max(len(old_middle), len(new_middle)) > COMPARED:
        changed = [Line("-", text) for text in old_middle] + [
            Line("+", text) for text in new_middle
        ]
    else:
        changed = _unified(old_middle, new_middle)
    found = [*head, *changed, *tail]
    return found if len(found) <= SHOWN else [*found[:SHOWN], Line("@", "…")]


def _common(one: list[str], other: list[str]) -> int:
    n = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n += 1
    return n


def _unified(old: list[str], new: list[str]) -> list[Line]:
    found = difflib.unified_diff(old, new, n=CONTEXT, lineterm="")
    body = [text for n, text in enumerate(found) if n > 1]  # the first two name files
    shown = [Line("@", "…") if text.startswith("@@") else Line(text[0], text[1:]) for text in body]
    return shown[1:] if shown and shown[0].sign == "@" else shown
