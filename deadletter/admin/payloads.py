"""How does a person see a stored JSON value? Indented, redacted, cut; or why it cannot be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.db import models
from django.template.loader import render_to_string
from django.utils.translation import gettext

from ..exceptions import Undecodable
from ..models import Damaged
from ..operations import diff
from ..operations.hidden_values import HiddenValueMoved, has_marker, restore, same
from ..operations.redaction import HIDDEN, redact
from ..payload import decode
from ..text import page_text
from .render import stored_text

#: Bytes of a value on a page; the rest can be downloaded.
SHOWN = 64 * 1024
#: Bytes of indented text; a value that would need more is shown on one line.
INDENTED = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A value as it lies in the row. `value` is Damaged when it is not the JSON it should be."""

    value: Any
    problem: str = ""

    @property
    def damaged(self) -> bool:
        return isinstance(self.value, Damaged)

    def redacted(self) -> Any:
        found = redact(self.value)
        return found.text if isinstance(found, Damaged) else found

    def text(self) -> str:
        """Return all of it as text for people: redacted, indented where it is JSON."""
        found = self.redacted()
        return found if self.damaged and isinstance(found, str) else pretty(found)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a page shows of a value."""

    text: str
    problem: str = ""
    cut: bool = False


def read(row: models.Model, column: str) -> Stored:
    """Read one JSON column. Never raises for what is stored there."""
    text, problem = stored_text(row, column)
    if text is None:
        return Stored(value=None, problem=problem)
    return _decoded(text)


def show(stored: Stored) -> Shown:
    text = stored.text() if stored.value is not None else ""
    data = text.encode("utf-8", "replace")
    return Shown(text=page_text(text), problem=stored.problem, cut=len(data) > SHOWN)


def show_original(text: Any) -> Shown:
    """Show a payload that an edit replaced; the history keeps it as text."""
    return show(_decoded(text) if isinstance(text, str) else Stored(value=text))


def show_edit(before: str | None, after: str) -> str:
    """Render what an edit changed, from the stored texts: redacted, line by line."""
    # A payload that is not there is null.
    old, new = _decoded(before or "null"), _decoded(after)
    context = {
        "lines": diff.lines(old.text(), new.text()),
        "hidden_changed": hidden_changed(new.redacted(), old, new.value),
    }
    return render_to_string("admin/deadletter/diff.html", context)


def hidden_changed(shown: Any, before: Stored, after: Any) -> bool:
    """Say whether more changes than the difference shows: hidden values look the same."""
    if before.damaged:
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
    except UnicodeEncodeError:  # half a character: shown, and edited, by its number
        return json.dumps(value, indent=2)
    except (RecursionError, ValueError, TypeError):
        return HIDDEN  # what a rule of the site made of it is no JSON


def _decoded(text: str) -> Stored:
    try:
        return Stored(value=decode(text))
    except Undecodable as error:
        undecodable = gettext("This value cannot be decoded.")
        problem = f"{undecodable} {error}"
        return Stored(value=Damaged(text, str(error)), problem=problem)
