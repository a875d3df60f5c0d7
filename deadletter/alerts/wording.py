"""Text from outside, made safe for a notice. Its place is deadletter/text.py."""

from __future__ import annotations

import unicodedata
from typing import Any

from ..error_details import printable

#: Unicode categories that a reader cannot see or a program acts on: control, format (right-to-left
#: marks), surrogates, private and unassigned characters, line and paragraph separators.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def notice_line(value: object, limit: int = 120) -> str:
    """Return one visible line of at most so many characters."""
    text = " ".join(printable(value, limit=limit * 4).split())
    text = "".join("�" if unicodedata.category(c) in _HIDDEN else c for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def notice_block(value: object, limit: int = 2_000) -> str:
    """Return visible text of several lines."""
    lines = printable(value, limit=limit).expandtabs(4).split("\n")
    return "\n".join(
        "".join("�" if unicodedata.category(c) in _HIDDEN else c for c in text) for text in lines
    )


def notice_value(value: Any) -> Any:
    """Make a value of an alert's detail safe: numbers stay, text becomes a line."""
    if isinstance(value, list):
        return [notice_value(one) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return notice_line(value, 200)
