"""How is stored text shown, whatever it is? Read as text, decoded here, escaped by the template."""

from __future__ import annotations

import json
from typing import Any

from django.db import DatabaseError, models
from django.db.models.functions import Cast
from django.template.loader import render_to_string
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..exceptions import Undecodable
from ..failures import printable
from ..models import Damaged
from ..operations import redact
from ..payload import SIZE_LIMIT, decode
from ..status import FailureReason
from .error_text import hidden_text
from .tracebacks import places

#: Bytes of a value on a page; indentation can make it many times its stored size.
SHOWN_LIMIT = 2 * SIZE_LIMIT

_REASONS = {
    FailureReason.TRANSPORT_UNAVAILABLE: _("transport unavailable"),
    FailureReason.HANDLER_EXCEPTION: _("handler exception"),
    FailureReason.VALIDATION_FAILURE: _("validation failure"),
    FailureReason.TIMEOUT_EXCEEDED: _("timeout exceeded"),
    FailureReason.SERIALIZATION_ERROR: _("serialization error"),
    FailureReason.DEPENDENCY_FAILURE: _("dependency failure"),
    FailureReason.POISON_MESSAGE: _("poison message"),
    FailureReason.EXPIRED: _("expired"),
    FailureReason.UNREGISTERED: _("unregistered"),
    FailureReason.WORKER_LOST: _("worker lost"),
    FailureReason.OPERATOR: _("operator"),
    FailureReason.UNKNOWN: _("unknown"),
}


def show_json(row: models.Model, column: str) -> str:
    """Render a stored JSON value: indented, redacted; or as it is, if it cannot be decoded."""
    text, problem = stored_text(row, column)
    if text is None and not problem:
        return show_text(None)
    try:
        text = json.dumps(redact(decode(text)), indent=2, ensure_ascii=False, default=str)
    except (Undecodable, RecursionError) as error:
        undecodable = gettext("This value cannot be decoded.")
        problem = problem or f"{undecodable} {error}"
        shown = redact(Damaged(text or "", str(error)))
        text = shown if isinstance(shown, str) else text
    return show_text(text, problem)


def show_text(text: str | None, problem: str = "") -> str:
    """Render text as it is, line breaks and all."""
    shown = None if text is None else printable(text, limit=SHOWN_LIMIT)
    return render_to_string("admin/deadletter/text.html", {"text": shown, "problem": problem})


def show_history(row: models.Model, *, texts: bool = True) -> str:
    """Render the failed attempts, the latest first; without `texts` only classes and places."""
    text, problem = stored_text(row, "history")
    whole = (text or "") if texts else None
    try:
        entries = decode(text)
    except Undecodable as error:
        return show_text(whole, str(error) if texts else gettext("This value cannot be decoded."))
    if problem or not isinstance(entries, list):
        return show_text(whole, problem or gettext("This value is not a list of attempts."))
    shown = [_entry(entry, texts=texts) for entry in reversed(entries)]
    return render_to_string("admin/deadletter/history.html", {"entries": shown})


def show_trail(rows: Any) -> str:
    """Render what people did to a message, as `operations.trail` returns it."""
    return render_to_string("admin/deadletter/trail.html", {"rows": rows})


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
        return None, f"{unreadable} {printable(error, limit=500)}"


def last_traceback(row: models.Model) -> str:
    """Return the traceback of the latest failed attempt, or nothing."""
    try:
        entries = decode(stored_text(row, "history")[0])
    except Undecodable:
        return ""
    last = entries[-1] if isinstance(entries, list) and entries else None
    return str(last.get("traceback") or "") if isinstance(last, dict) else ""


def _entry(entry: Any, *, texts: bool) -> dict[str, Any]:
    if not isinstance(entry, dict):
        return {"error": printable(entry) if texts else hidden_text(str(entry))}
    shown = {key: printable(entry.get(key, "")) for key in ("attempt", "worker", "error")}
    traceback = printable(entry.get("traceback") or "")
    if not texts:
        shown["error"] = hidden_text(shown["error"], traceback)
    number = entry.get("reason")
    return shown | {
        "at": moment(entry.get("at")),
        "reason": reason_name(number if isinstance(number, int) else None),
        "traceback": traceback if texts else "",
        "places": [] if texts else places(traceback),
    }


def reason_name(number: int | None) -> str:
    return str(_REASONS[FailureReason.read(number)])


def moment(value: Any) -> Any:
    try:
        return parse_datetime(value) or printable(value)
    except (TypeError, ValueError):
        return printable(value)
