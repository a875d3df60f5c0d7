"""What happened to an instance? Its log in words, the latest first, a page at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError
from django.db.models.functions import Left
from django.http import HttpRequest
from django.utils.translation import gettext

from ...exceptions import Undecodable
from ...models import Damaged, Instance, InstanceEvent, InstanceLogKind
from ...operations import redact
from ...payload import decode
from ...text import visible
from ..base import alias, as_id
from ..error_text import said_of
from ..render import pretty
from ..urls import to_instance, to_messages

#: Lines of a page, and characters of what one of them carries.
PER_PAGE, DATA_SHOWN = 50, 6_000
#: How a line is coloured.
_BAD = {"failed", "activity_failed", "child_failed", "cancelled"}
_GOOD = {"completed", "activity_completed", "child_completed", "reopened"}
#: Words that are no payload: shown to everybody.
_SAID = {"failed": "text", "cancelled": "text", "ignored": "why"}

#: Those whose words are the text of an error; the others are words of people and of deadletter.
_ERRORS = {"failed", "activity_failed", "child_failed", "reopened"}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One event. `said` is for everybody, `data` for who may see payloads."""

    event: Any
    look: str
    said: str = ""
    data: str = ""
    child: str = ""
    child_url: str = ""
    message_url: str = ""


@dataclass(frozen=True, kw_only=True)
class Log:
    lines: list[Line]
    older: str = ""
    #: Whether this is a page of older lines.
    is_older: bool = False
    problem: str = ""


def read_log(site: str, request: HttpRequest, found: Instance, *, payloads: bool) -> Log:
    """Read one page of the log. A place that cannot be read is the latest."""
    before = as_id(request.GET.get("before", ""))
    rows = InstanceEvent.objects.using(alias()).filter(instance=found.pk).order_by("-id")
    if before is not None:
        rows = rows.filter(pk__lt=before)
    light: Any = rows.defer("data")
    problem = ""
    try:
        events = list(light.annotate(text=Left("data", DATA_SHOWN + 1))[: PER_PAGE + 1])
    except (DatabaseError, UnicodeError):
        # SQLite can hold bytes that are no text: what happened is still told.
        problem = gettext("What these events carry cannot be read.")
        events = list(light[: PER_PAGE + 1])
    shown = events[:PER_PAGE]
    urls = to_messages(site, request, {e.message_id for e in shown if e.message_id is not None})
    return Log(
        lines=[_line(site, request, event, urls, payloads=payloads) for event in shown],
        older=f"?before={shown[-1].pk}" if len(events) > PER_PAGE else "",
        is_older=before is not None,
        problem=problem,
    )


def _line(
    site: str, request: HttpRequest, event: Any, urls: dict[int, str], *, payloads: bool
) -> Line:
    value = _value(getattr(event, "text", None))
    about = value if isinstance(value, dict) and event.event != InstanceLogKind.COMPLETED else {}
    child = about.get("instance")
    child = child if isinstance(child, str) and event.event.startswith("child") else ""
    key = _SAID.get(event.event)
    error = about.get("error")
    if key is not None:
        said = about.get(key, "")
    else:
        said = error.get("text", "") if isinstance(error, dict) else ""
    if not payloads and event.event in _ERRORS:
        category = error.get("category") if isinstance(error, dict) else None
        said = said_of(str(said), category)
    rest = _rest(event.event, value, about)
    return Line(
        event=event,
        look="bad" if event.event in _BAD else "good" if event.event in _GOOD else "plain",
        said=visible(said, limit=1_000),
        data=_shown(rest) if payloads and rest is not None else "",
        child=child,
        child_url=to_instance(site, request, child),
        message_url=urls.get(event.message_id, ""),
    )


def _value(text: str | None) -> Any:
    """What is cut in the middle is no JSON any more, and is treated as damaged text."""
    if text is None:
        return None
    try:
        value = decode(text)
    except Undecodable as problem:
        return Damaged(text, str(problem))
    if isinstance(value, dict) and set(value) == {"cut"} and isinstance(value["cut"], str):
        return Damaged(value["cut"], "cut")  # the log keeps the beginning of what is too long
    return value


def _rest(event: str, value: Any, about: dict[str, Any]) -> Any:
    """Return what a line carries beside its words; one value alone goes without its key."""
    if event == InstanceLogKind.COMPLETED or isinstance(value, Damaged):
        return value
    if not isinstance(value, dict):
        return value
    told = {"error", "instance", _SAID.get(event), "event" if event == "ignored" else None}
    rest = {key: item for key, item in about.items() if key not in told and item is not None}
    return rest or None


def _shown(value: Any) -> str:
    found = redact(value)
    if isinstance(found, Damaged):
        found = found.text
    text = found if isinstance(value, Damaged) and isinstance(found, str) else pretty(found)
    return visible(text, limit=DATA_SHOWN)
