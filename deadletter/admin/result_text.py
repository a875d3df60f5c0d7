"""The result of a message for a page: its own, and the permanent address of the message."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext

from .. import clock
from ..models import Kind, Result, ResultOutcome, primary_alias
from ..operations.task_calls import show_call
from ..text import page_text
from .confirm import command
from .history import Timeline, show_duration, timeline
from .render import ShownProgress, ShownValue, Stored, read_json, show_json, show_progress
from .urls import link, to_message

#: Workers named on a page: one for each attempt.
_WORKERS = 10


@dataclass(frozen=True, kw_only=True)
class ShownResult:
    """A result as a page shows it; payloads are None without the permission to see them."""

    row: Result
    said: str
    #: It did not succeed.
    failed: bool
    #: "" for a message that is no task, and without the permission.
    call: str
    value: ShownValue | None
    payload: ShownValue | None
    headers: ShownValue | None
    timeline: Timeline
    duration: str
    attempts: int
    workers: list[str]
    more_workers: int
    progress: ShownProgress | None
    now: datetime
    #: "" on that page itself.
    message_url: str
    #: The list of the results of the same name.
    others_url: str
    command: str


def find_result(id: int | None) -> Result | None:
    """Read the result of a message without its large columns."""
    rows = Result.objects.using(primary_alias()).without_bodies()
    return None if id is None else rows.filter(pk=id).first()


def show_result(site_name: str, request: HttpRequest, row: Result) -> ShownResult:
    """Read everything that a page shows of a result; damaged columns are problems in words."""
    allowed = request.user.has_perm("deadletter.view_payload")
    payload = read_json(row, "payload") if allowed else None
    message_url = to_message(site_name, request, row.pk)
    workers = _listed(read_json(row, "workers"))
    names = list(dict.fromkeys(page_text(name, limit=200) for name in workers))
    return ShownResult(
        row=row,
        said=said_of_result(row),
        failed=row.outcome != ResultOutcome.SUCCESSFUL,
        call=call_of(row, payload),
        value=show_json(read_json(row, "value")) if allowed else None,
        payload=None if payload is None else show_json(payload),
        headers=show_json(read_json(row, "headers")) if allowed else None,
        timeline=timeline(row, payloads=allowed),
        duration=duration_of(row),
        attempts=len(workers),
        workers=names[:_WORKERS],
        more_workers=len(names) - len(names[:_WORKERS]),
        progress=show_progress(row, texts=allowed),
        now=clock.now(primary_alias()),
        message_url="" if message_url == request.path else message_url,
        others_url=link(site_name, "result_changelist", name=row.name),
        command=command("results", row.pk),
    )


def call_of(row: Any, payload: Stored | None) -> str:
    """Return the call of a task; "" for other messages, and for a payload that may not be seen."""
    if payload is None or row.kind != Kind.TASK:
        return ""
    return page_text(show_call(row.name, payload.value), limit=1_000)


def duration_of(row: Result) -> str:
    """Return how long the last attempt took, or "" if it is not known."""
    if row.attempted_at is None:
        return ""
    return show_duration((row.finished_at - row.attempted_at).total_seconds())


def said_of_result(row: Result) -> str:
    """Say in one sentence what became of it."""
    texts = {
        ResultOutcome.SUCCESSFUL: gettext("It succeeded."),
        ResultOutcome.REMOVED: gettext("It died, and its poison record was removed or discarded."),
        ResultOutcome.CANCELLED: gettext(
            "It was cancelled: it was removed from its queue before it succeeded."
        ),
    }
    known = next((text for outcome, text in texts.items() if outcome == row.outcome), "")
    return known or gettext("It ended: %(outcome)s.") % {
        "outcome": page_text(row.outcome, limit=50)
    }


def _listed(stored: Stored) -> list[Any]:
    return stored.value if isinstance(stored.value, list) else []
