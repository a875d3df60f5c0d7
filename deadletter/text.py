"""
Text from outside, made safe for the place where it is stored or shown.

Names, payloads and error texts come from anywhere. Each place has one function:

- a column of the database: `storable_text`
- the text of an exception: `short_repr`
- a page of the admin: `page_text`, and `escape_hidden` for JSON that can be edited
- a log line: `log_line`
- a notice (mail, webhook): `notice_line`, `notice_block`, `notice_value`
- a terminal: `terminal_line`, `terminal_paragraph`
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

#: Bytes of error text kept per message.
ERROR_LIMIT = 64 * 1024

#: Characters that change the direction of the text after them, and blanks without a width:
#: "invoice\u202Efdp.exe" must not read as "invoiceexe.pdf".
_HIDDEN = (0x61C, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x206A))
#: On a page also the byte order mark.
_HIDDEN_ON_PAGES = (*_HIDDEN, 0xFEFF)
#: On a log line also joiners, line and paragraph separators, and deprecated format characters.
_HIDDEN_IN_LOGS = (*_HIDDEN, 0x200C, 0x200D, 0x2028, 0x2029, *range(0x206A, 0x2070))
#: Unicode categories that a reader cannot see or a program acts on: control, format (direction
#: marks, zero width), surrogate, private, unassigned, line and paragraph separators.
_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def storable_text(value: object, *, limit: int = ERROR_LIMIT) -> str:
    """
    Return any object as text that every database and terminal accepts, at most `limit` bytes.

    Recording a failure must not fail: PostgreSQL refuses NUL, both databases refuse lone
    surrogates, and `__str__` itself may raise.
    """
    try:
        text = str(value)
    except BaseException as error:  # noqa: BLE001 - any class may raise anything here
        text = f"<unprintable {type(error).__name__}>"
    if len(text) <= limit and _PLAIN.fullmatch(text):
        return text
    head = text[: limit + 1]  # a character has one byte at least: no need to encode 50 MB
    clean = head.encode("utf-8", "replace").decode("utf-8").translate(_UNPRINTABLE)
    data = clean.encode()
    if len(data) <= limit and len(head) == len(text):
        return clean
    return data[: limit - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT


_CUT = "[…]"
#: Almost all text: ASCII, so one byte per character, and nothing to replace.
_PLAIN = re.compile(r"[\t\n -~]*")
#: Control characters other than tab and newline become the replacement character.
_UNPRINTABLE = dict.fromkeys((*range(32), *range(127, 160)), "�")
del _UNPRINTABLE[ord("\t")], _UNPRINTABLE[ord("\n")]


def short_repr(value: object) -> str:
    """
    Return the first 100 characters of a value's repr, to be quoted in an error text.

    Never raises: an integer of 5,000 digits has no repr.
    """
    try:
        return f"{value!r:.100}"
    except Exception as error:  # noqa: BLE001 - any class may raise anything here
        return f"<{type(value).__name__}: {type(error).__name__}>"


def page_text(value: Any, *, limit: int | None = None) -> str:
    """Return text for a page, at most `limit` characters (None: 64 KiB). None becomes ""."""
    if value is None:
        return ""
    if limit is None:
        return storable_text(value, limit=ERROR_LIMIT).translate(_NAMED)
    text = storable_text(str(value)[: limit + 1], limit=8 * limit + 8)
    return (text if len(text) <= limit else text[:limit] + "…").translate(_NAMED)


_NAMED = {number: f"[U+{number:04X}]" for number in _HIDDEN_ON_PAGES}


def escape_hidden(text: str) -> str:
    r"""Write hidden characters in JSON text as \uXXXX: the same value, and it can be edited."""
    return text.translate(_ESCAPED_ON_PAGES)


_ESCAPED_ON_PAGES = {number: f"\\u{number:04x}" for number in _HIDDEN_ON_PAGES}


def log_line(text: str) -> str:
    """Return text as one log line that cannot reorder, hide or colour the rest of the line."""
    if text.isascii() and text.isprintable():
        return text
    return text.replace("\n", " ⏎ ").replace("\t", " ").translate(_ESCAPED_IN_LOGS)


_ESCAPED_IN_LOGS = {number: f"\\u{number:04x}" for number in _HIDDEN_IN_LOGS}


def notice_line(value: object, limit: int = 120) -> str:
    """Return one visible line of at most `limit` characters, for a subject or a title."""
    text = _replace_hidden(" ".join(storable_text(value, limit=limit * 4).split()))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def notice_block(value: object, limit: int = 2_000) -> str:
    """Return visible text of several lines, at most `limit` bytes before tabs are expanded."""
    lines = storable_text(value, limit=limit).expandtabs(4).split("\n")
    return "\n".join(_replace_hidden(line) for line in lines)


def notice_value(value: Any) -> Any:
    """Return a value of an alert's detail: numbers as they are, lists item by item, else a line."""
    if isinstance(value, list):
        return [notice_value(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return notice_line(value, 200)


def _replace_hidden(text: str) -> str:
    return "".join("�" if unicodedata.category(c) in _HIDDEN_CATEGORIES else c for c in text)


def terminal_line(value: object, *, width: int | None = None) -> str:
    r"""Return one line of at most `width` columns; `\x1b[2J` is shown, not obeyed."""
    text = "" if value is None else str(value)
    if width is None:
        return "".join(_escape_for_terminal(text))
    # More than `width` characters are never shown: no need to escape 10 MB.
    escaped = "".join(_escape_for_terminal(text[: width + 1]))
    return fit_columns(escaped, width, longer=len(text) > width + 1)


def terminal_paragraph(value: object, *, indent: str = "", limit: int) -> list[str]:
    """Return the lines of a longer text, each safe, from at most `limit` characters in all."""
    text = "" if value is None else str(value)
    lines = [indent + terminal_line(line.expandtabs(4)) for line in text[:limit].split("\n")]
    if len(text) > limit:
        lines.append(f"{indent}[{len(text) - limit:,} more characters]")
    return lines


def fit_columns(text: str, width: int, *, longer: bool = False) -> str:
    """Shorten text to `width` columns; `longer`: the text was cut before, so mark it anyway."""
    if not longer and count_columns(text) <= width:
        return text
    found, room = "", width - 1
    for character in text:
        room -= count_columns(character)
        if room < 0:
            break
        found += character
    return found + "…"


def count_columns(text: str) -> int:
    """Return how many columns of a terminal the text needs."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


#: Accents kept on one letter; more of them would grow into the lines above.
_ACCENTS = 2


def _escape_for_terminal(text: str) -> Iterator[str]:
    accents = 0
    for character in text:
        accents = accents + 1 if unicodedata.combining(character) else 0
        if character == "\n":
            yield " ⏎ "
        elif character == "\t":
            yield " "
        elif unicodedata.category(character) in _HIDDEN_CATEGORIES:
            yield character.encode("unicode_escape").decode()
        elif accents <= _ACCENTS:
            yield character
