"""The log of an instance for its page: the events in words, the latest first, in pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError
from django.db.models.functions import Left
from django.http import HttpRequest
from django.utils.translation import gettext

from ...exceptions import Undecodable
from ...models import Damaged, Instance, InstanceEvent, InstanceLogKind, primary_alias
from ...operations import redact
from ...payload import decode
from ...text import page_text
from ..base import as_id
from ..error_text import said_of
from ..render import pretty
from ..urls import to_instance, to_messages

#: Events of a page, and characters of an event's data.
PER_PAGE, DATA_SHOWN = 50, 6_000
#: Events with a colour.
_BAD = {"failed", "activity_failed", "child_failed", "cancelled"}
_GOOD = {"completed", "activity_completed", "child_completed", "reopened"}
#: The key of an event's text that is no payload; it needs no permission.
_SAID = {"failed": "text", "cancelled": "text", "ignored": "why"}

#: Events whose text is an error text; other texts come from operators and from deadletter.
_ERRORS = {"failed", "activity_failed", "child_failed", "reopened"}


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One event. `said` needs no permission; `data` needs the permission to view payloads."""

    event: Any
    look: str
    said: str = ""
    data: str = ""
    child: str = ""
    child_url: str = ""
    message_url: str = ""


@dataclass(frozen=True, kw_only=True)
class LogPage:
    lines: list[LogLine]
    older: str = ""
    #: True if this is not the first page.
    is_older: bool = False
    problem: str = ""


def read_log(site: str, request: HttpRequest, found: Instance, *, payloads: bool) -> LogPage:
    """Read one page of the log; the first one if `before` is not a number."""
    before = as_id(request.GET.get("before", ""))
    rows = InstanceEvent.objects.using(primary_alias()).filter(instance=found.pk).order_by("-id")
    if before is not None:
        rows = rows.filter(pk__lt=before)
    light: Any = rows.defer("data")
    problem = ""
    try:
        events = list(light.annotate(text=Left("data", DATA_SHOWN + 1))[: PER_PAGE + 1])
    except (DatabaseError, UnicodeError):
        # SQLite can store bytes that are no text: show the events without their data.
        problem = gettext("The data of these events cannot be read.")
        events = list(light[: PER_PAGE + 1])
    shown = events[:PER_PAGE]
    urls = to_messages(site, request, {e.message_id for e in shown if e.message_id is not None})
    return LogPage(
        lines=[_line(site, request, event, urls, payloads=payloads) for event in shown],
        older=f"?before={shown[-1].pk}" if len(events) > PER_PAGE else "",
        is_older=before is not None,
        problem=problem,
    )


def _line(
    site: str, request: HttpRequest, event: Any, urls: dict[int, str], *, payloads: bool
) -> LogLine:
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
    return LogLine(
        event=event,
        look="bad" if event.event in _BAD else "good" if event.event in _GOOD else "plain",
        said=page_text(said, limit=1_000),
        data=_shown(rest) if payloads and rest is not None else "",
        child=child,
        child_url=to_instance(site, request, child),
        message_url=urls.get(event.message_id, ""),
    )


def _value(text: str | None) -> Any:
    """Decode the data of an event. Data that was cut is no JSON: it is damaged text."""
    if text is None:
        return None
    try:
        value = decode(text)
    except Undecodable as problem:
        return Damaged(text, str(problem))
    if isinstance(value, dict) and set(value) == {"cut"} and isinstance(value["cut"], str):
        return Damaged(value["cut"], "cut")  # the log stores the beginning of long data
    return value


def _rest(event: str, value: Any, about: dict[str, Any]) -> Any:
    """Return the data of an event without the keys that the line shows already."""
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
    return page_text(text, limit=DATA_SHOWN)
