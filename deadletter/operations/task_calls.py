"""Calls of tasks for people: `welcome(user_id=7)`, redacted like every payload."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from reprlib import Repr
from typing import Any

from django.db import DatabaseError, models
from django.db.models import Case, When
from django.db.models.functions import Length

from ..models import Kind
from ..models.fields import JSONTextField
from ..redaction import HIDDEN, redact
from ..tasks.calls import format_call
from ..text import short_repr

#: Characters of a stored payload that a list decodes; of a longer one it shows only the name.
_SHORT = 2_000
#: Characters of a call.
LIMIT = 500


def show_call(name: str, payload: Any, *, reveal: bool = False) -> str:
    """
    Return the call that a payload stands for, at most LIMIT characters; long values are shortened.

    A payload that is no call, or that a rule of the site hides, is shown as `welcome(…)`.
    """
    text = format_call(name, payload if reveal else redact(payload), show=_show_value)
    return text if len(text) <= LIMIT else f"{text[: LIMIT - 2]}…)"


def list_calls(model: type[models.Model], ids: Iterable[int], *, using: str) -> dict[int, str]:
    """Return the calls of those rows of a list that are tasks, in one statement."""
    rows = model._default_manager.using(using).filter(kind=Kind.TASK)
    wanted = list(ids)
    try:
        return _read(rows.filter(pk__in=wanted))
    except (DatabaseError, UnicodeError):
        return _read_singly(rows, wanted)


def _read_singly(rows: Any, ids: list[int]) -> dict[int, str]:
    """Read the calls one by one: on SQLite a payload that is no text breaks the statement."""
    found: dict[int, str] = {}
    for id in ids:
        with suppress(DatabaseError, UnicodeError):
            found |= _read(rows.filter(pk=id))
    return found


def _read(rows: Any) -> dict[int, str]:
    # The database cuts: a page of payloads of the largest size would be 100 MB.
    short = Case(When(size__lte=_SHORT, then="payload"), output_field=JSONTextField())
    found = rows.alias(size=Length("payload")).annotate(short=short)
    return {
        pk: format_call(name, ..., show=str) if payload is None else show_call(name, payload)
        for pk, name, payload in found.values_list("pk", "name", "short")
    }


def _show_value(value: Any) -> str:
    if isinstance(value, str) and value == HIDDEN:
        return HIDDEN
    try:
        return _repr.repr(value)
    except Exception:  # noqa: BLE001 - a rule of the site may return an object of any class
        return short_repr(value)


_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 80
_repr.maxlist = _repr.maxtuple = _repr.maxdict = 5
_repr.maxlevel = 3
