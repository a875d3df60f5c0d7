"""
Stored values on a page: text, JSON, reasons, stages, progress and times.

A stored value is read as text and decoded here, so that a damaged one cannot break the page. It is
redacted and indented for people, and escaped by the template.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import DatabaseError, models
from django.db.models.functions import Cast
from django.template.loader import render_to_string
from django.utils.dateparse import parse_datetime
from django.utils.formats import number_format
from django.utils.translation import gettext

from ..exceptions import Undecodable
from ..lifecycle.refusals import Refusal
from ..models import Damaged
from ..operations import diff
from ..operations.hidden_values import HiddenValueMoved, has_marker, restore, same
from ..payload import SIZE_LIMIT, decode
from ..progress import read_progress, readable
from ..redaction import HIDDEN, redact
from ..status import FailureReason, Status
from ..text import page_text, storable_text

#: Bytes of a JSON value on a page; the rest can be downloaded.
JSON_LIMIT = 64 * 1024
#: Bytes of indented JSON; a larger value is shown on one line.
INDENTED = 1024 * 1024
#: Bytes of a text on a page: indentation can make it larger than it is stored.
SHOWN_LIMIT = 2 * SIZE_LIMIT


def show_text(text: str | None, problem: str = "") -> str:
    """Render text as it is, with its line breaks."""
    shown = None if text is None else storable_text(text, limit=SHOWN_LIMIT)
    return render_to_string("admin/deadletter/text.html", {"text": shown, "problem": problem})


def stored_text(row: models.Model, column: str) -> tuple[str | None, str]:
    """
    Return one column as text, and the problem if it cannot be read.

    Not through the model: a JSONField raises for a damaged value, and SQLite can hold bytes that
    are not text.
    """
    rows = type(row)._default_manager.using(row._state.db).filter(pk=row.pk)
    as_text = Cast(column, models.TextField())
    try:
        return rows.values_list(as_text, flat=True).first(), ""
    except (DatabaseError, UnicodeError) as error:
        unreadable = gettext("This value cannot be read.")
        return None, f"{unreadable} {storable_text(error, limit=500)}"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A JSON value as stored; `value` is Damaged when it cannot be decoded."""

    value: Any
    problem: str = ""

    def text(self) -> str:
        """Return the whole value as text for people: redacted, and indented if it is JSON."""
        found = redact(self.value)
        is_text = isinstance(self.value, Damaged) and isinstance(found, str)
        return found if is_text else pretty(found)


@dataclass(frozen=True, kw_only=True)
class ShownValue:
    """A value as a page shows it."""

    text: str
    problem: str = ""
    cut: bool = False


def read_json(row: models.Model, column: str) -> Stored:
    """Read one JSON column. Never raises, whatever is stored there."""
    text, problem = stored_text(row, column)
    if text is None:
        return Stored(value=None, problem=problem)
    return _decoded(text)


def show_json(stored: Stored) -> ShownValue:
    text = stored.text() if stored.value is not None else ""
    data = text.encode("utf-8", "replace")
    return ShownValue(text=page_text(text), problem=stored.problem, cut=len(data) > JSON_LIMIT)


@dataclass(frozen=True, kw_only=True)
class ShownProgress:
    """The last report of a handler as a page shows it."""

    text: str
    #: None without a total.
    percent: int | None
    note: str
    at: datetime | None


def show_progress(row: models.Model, *, texts: bool) -> ShownProgress | None:
    """Show what a handler reported last, if it did; the note, which is its text, with `texts`."""
    found = read_progress(read_json(row, "progress").value)
    if found is None:
        return None
    numbers = {"done": _number(found.done), "percent": found.percent}
    if found.total is None:
        text = gettext("%(done)s done") % numbers
    else:
        numbers["total"] = _number(found.total)
        text = gettext("%(done)s of %(total)s (%(percent)s %%)") % numbers
    note = found.note if texts else ""
    return ShownProgress(text=text, percent=found.percent, note=note, at=found.at)


def _number(value: float) -> str:
    shown = readable(value)
    if isinstance(shown, str):
        return shown
    return number_format(shown, use_l10n=True, force_grouping=True)


def show_original(text: Any) -> ShownValue:
    """Show a payload that an edit replaced; the history keeps it as text."""
    return show_json(_decoded(text) if isinstance(text, str) else Stored(value=text))


def show_edit(before: str | None, after: str) -> str:
    """Render what an edit changed, from the stored texts: redacted, line by line."""
    # A missing payload is null.
    old, new = _decoded(before or "null"), _decoded(after)
    context = {
        "lines": diff.lines(old.text(), new.text()),
        "hidden_changed": hidden_changed(redact(new.value), old, new.value),
    }
    return render_to_string("admin/deadletter/diff.html", context)


def hidden_changed(shown: Any, before: Stored, after: Any) -> bool:
    """True if hidden values change as well: the difference cannot show them."""
    if isinstance(before.value, Damaged):
        return has_marker(shown)
    try:
        return not same(restore(shown, before.value), after)
    except HiddenValueMoved:
        return True


def pretty(value: Any) -> str:
    try:
        lines = json.dumps(value, indent=2, ensure_ascii=False, default=str)
        lines.encode()
        return lines if len(lines) <= INDENTED else json.dumps(value, ensure_ascii=False)
    except UnicodeEncodeError:  # a lone surrogate: shown, and edited, as its escape
        return json.dumps(value, indent=2)
    except (RecursionError, ValueError, TypeError):
        return HIDDEN  # a redaction rule of the site returned something that is not JSON


def _decoded(text: str) -> Stored:
    try:
        return Stored(value=decode(text))
    except Undecodable as error:
        undecodable = gettext("This value cannot be decoded.")
        problem = f"{undecodable} {error}"
        return Stored(value=Damaged(text, str(error)), problem=problem)


def last_traceback(row: models.Model) -> str:
    """Return the traceback of the latest failed attempt, or nothing."""
    try:
        entries = decode(stored_text(row, "history")[0])
    except Undecodable:
        return ""
    last = entries[-1] if isinstance(entries, list) and entries else None
    return str(last.get("traceback") or "") if isinstance(last, dict) else ""


def reason_name(number: int | None) -> str:
    return str(FailureReason.read(number).label)


def refusal_text(why: str) -> str:
    """Return why an act was refused, in the language of the page."""
    return why.label if isinstance(why, Refusal) else page_text(why, limit=500)


def stage_names(status: int) -> str:
    """Name the bits of a status (STORED, FAILED); the application's own bits are numbers."""
    bits = [1 << place for place in range(status.bit_length()) if status >> place & 1]
    return ", ".join(Status(bit).name or str(bit) for bit in bits)


def moment(value: Any) -> Any:
    try:
        return parse_datetime(value) or storable_text(value)
    except (TypeError, ValueError):
        return storable_text(value)
