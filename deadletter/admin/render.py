"""How is stored text shown, whatever it is? Read as text, decoded here, escaped by the template."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError, models
from django.db.models.functions import Cast
from django.template.loader import render_to_string
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext

from ..exceptions import Undecodable
from ..payload import SIZE_LIMIT, decode
from ..status import FailureReason
from ..text import storable_text

#: Bytes of a value on a page; indentation can make it many times its stored size.
SHOWN_LIMIT = 2 * SIZE_LIMIT


def show_text(text: str | None, problem: str = "") -> str:
    """Render text as it is, line breaks and all."""
    shown = None if text is None else storable_text(text, limit=SHOWN_LIMIT)
    return render_to_string("admin/deadletter/text.html", {"text": shown, "problem": problem})


def stored_text(row: models.Model, column: str) -> tuple[str | None, str]:
    """
    Read one column as text, and what was wrong with it.

    Not through the model: a JSONField raises for a damaged value and takes the page with it, and
    SQLite can hold bytes that are no text at all.
    """
    rows = type(row)._default_manager.using(row._state.db).filter(pk=row.pk)
    as_text = Cast(column, models.TextField())
    try:
        return rows.values_list(as_text, flat=True).first(), ""
    except (DatabaseError, UnicodeError) as error:
        unreadable = gettext("This value cannot be read.")
        return None, f"{unreadable} {storable_text(error, limit=500)}"


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


def moment(value: Any) -> Any:
    try:
        return parse_datetime(value) or storable_text(value)
    except (TypeError, ValueError):
        return storable_text(value)
