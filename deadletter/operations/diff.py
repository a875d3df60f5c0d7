"""Line-by-line difference of two texts, at a bounded cost."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

#: Lines that are compared one by one; the comparison is quadratic in the worst case.
COMPARED = 2_000
#: Unchanged lines around a change.
CONTEXT = 3
#: Lines of a difference on a page.
SHOWN = 1_000


@dataclass(frozen=True)
class DiffLine:
    #: "-" removed, "+" added, " " unchanged, "@" unchanged lines that are left out.
    sign: str
    text: str


def lines(before: str, after: str) -> list[DiffLine]:
    """Compare two texts line by line; return nothing if they are equal."""
    old, new = before.splitlines(), after.splitlines()
    if old == new:
        return []
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    old_middle, new_middle = old[start : len(old) - end], new[start : len(new) - end]
    head = [DiffLine(" ", text) for text in old[max(0, start - CONTEXT) : start]]
    tail = [DiffLine(" ", text) for text in old[len(old) - end :][:CONTEXT]]
    if max(len(old_middle), len(new_middle)) > COMPARED:
        changed = [DiffLine("-", text) for text in old_middle] + [
            DiffLine("+", text) for text in new_middle
        ]
    else:
        changed = _unified(old_middle, new_middle)
    found = [*head, *changed, *tail]
    return found if len(found) <= SHOWN else [*found[:SHOWN], DiffLine("@", "…")]


def _common(one: list[str], other: list[str]) -> int:
    n = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n += 1
    return n


def _unified(old: list[str], new: list[str]) -> list[DiffLine]:
    found = difflib.unified_diff(old, new, n=CONTEXT, lineterm="")
    body = [text for n, text in enumerate(found) if n > 1]  # the first two name files
    shown = [
        DiffLine("@", "…") if text.startswith("@@") else DiffLine(text[0], text[1:])
        for text in body
    ]
    return shown[1:] if shown and shown[0].sign == "@" else shown
