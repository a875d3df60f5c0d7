"""Which characters would deceive the eye? They are shown by their numbers."""

from __future__ import annotations

from typing import Any

from .error_details import ERROR_LIMIT, printable

#: Marks, embeddings, overrides and isolates that change the direction of what follows, and blanks
#: that nobody sees: "invoice\u202Efdp.exe" must not read as "invoiceexe.pdf".
_HIDDEN = (0x61C, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF)
_SHOWN = {number: f"[U+{number:04X}]" for number in _HIDDEN}


def escaped(text: str) -> str:
    """Write such characters in JSON text by their numbers: the same value, and it can be edited."""
    return text.translate({number: f"\\u{number:04x}" for number in _HIDDEN})


def visible(value: Any, *, limit: int | None = None) -> str:
    """Return text for a page, at most `limit` characters of it (None: 64 KiB)."""
    if value is None:
        return ""
    if limit is None:
        return printable(value, limit=ERROR_LIMIT).translate(_SHOWN)
    text = printable(str(value)[: limit + 1], limit=8 * limit + 8)
    return (text if len(text) <= limit else text[:limit] + "…").translate(_SHOWN)
