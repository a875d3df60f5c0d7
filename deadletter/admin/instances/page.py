"""The page of one instance: its failure, contents, messages, children, history and log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ... import clock
from ...error_details import ErrorDetails
from ...models import Instance, InstanceStatus, Message, PoisonRecord, State
from ...text import page_text
from ..base import alias, tell
from ..cli_hint import command
from ..error_text import hidden_text, said_of
from ..render import moment, read_json, show_json
from ..urls import link, to_instance, to_messages
from .log import read_log

#: Rows of each list beside the log; a link leads to the others if there is a page for them.
LISTED = 20
_CATEGORIES = {
    "poison": _("One of its messages died"),
    "application": _("The application ended it"),
    "infrastructure": _("The infrastructure failed"),
    "configuration": _("Something is configured wrongly"),
}
_WAITED = {"activity": _("activity"), "child": _("child"), "timer": _("timer")}


def find(object_id: str) -> Instance | None:
    """Read an instance by the id in its URL, without the columns that may be large or damaged."""
    id = unquote(object_id)
    if "\x00" in id:
        return None
    return Instance.objects.using(alias()).short_columns().filter(pk=id).first()


def gone(model_admin: admin.ModelAdmin[Any], request: HttpRequest) -> HttpResponse:
    """Redirect to the list when the instance does not exist."""
    tell(request, gettext("There is no such instance."), messages.WARNING)
    return HttpResponseRedirect(link(model_admin.admin_site.name, "instance_changelist"))


def page_context(site: str, request: HttpRequest, found: Instance) -> dict[str, Any]:
    """Return what the page shows, as far as the user may see it."""
    may_read = request.user.has_perm("deadletter.view_payload")
    may_cancel = found.is_running and request.user.has_perm("deadletter.cancel_instance")
    return {
        "title": page_text(str(found), limit=250),
        "instance": found,
        # Themes take the last part of their heading from `original`.
        "original": found,
        "known_status": found.status if found.status in InstanceStatus.values else "unknown",
        "failure": _failure(site, request, found, texts=may_read),
        "contents": _contents(found) if may_read else None,
        "waiting": _waiting(site, request, found),
        "queued": _queued(site, request, found),
        "poison": _poison(site, request, found, texts=may_read),
        "parent_url": to_instance(site, request, found.parent),
        "children": _children(site, request, found),
        "past": _past(found, texts=may_read),
        "log": read_log(site, request, found, payloads=may_read),
        "cancel_url": _cancel_url(site, found) if may_cancel else "",
        "commands": _commands(found, may_cancel),
    }


@dataclass(frozen=True, kw_only=True)
class InstanceFailure:
    """Why the instance failed, and whether a retry reopens it."""

    category: str
    text: str
    last_error: str
    advice: str
    url: str = ""
    retry_url: str = ""


def _failure(
    site: str, request: HttpRequest, found: Instance, *, texts: bool
) -> InstanceFailure | None:
    if found.status != InstanceStatus.FAILED:
        return None
    stored = read_json(found, "error")
    try:
        error = ErrorDetails.from_dict(stored.value)
    except ValueError as problem:
        error = ErrorDetails.Application(stored.problem or problem)
    record = None
    if found.failed_by is not None:
        by, rows = found.failed_by, PoisonRecord.objects.using(alias())
        # A message that was moved to a dead queue has a new id; its `source_id` is the old one.
        # The filter by instance uses an index and finds few records.
        moved = rows.filter(instance=error.instance or found.id, source_id=by)
        ids = rows.filter(message_id=by).values_list("pk", flat=True)
        record = ids.first() or moved.values_list("pk", flat=True).first()
    may_look = request.user.has_perm("deadletter.view_poisonrecord")
    may_retry = may_look and request.user.has_perm("deadletter.retry_poison")
    return InstanceFailure(
        category=str(_CATEGORIES[error.category]),
        text=page_text(error.text if texts else said_of(error.text, error.category), limit=2_000),
        last_error=page_text(
            (error.last_error or "") if texts else hidden_text(error.last_error), limit=4_000
        ),
        advice=_advice(found, error, record),
        url=link(site, "poisonrecord_change", record) if record and may_look else "",
        retry_url=link(site, "poisonrecord_retry", record) if record and may_retry else "",
    )


def _advice(found: Instance, error: ErrorDetails, record: int | None) -> str:
    if found.failed_by is None:
        return gettext(
            "It cannot be reopened: no message failed it. The application may start the same id "
            "again."
        )
    if record is None:
        text = gettext(
            "The poison record of message %(id)s no longer exists, so the instance cannot be "
            "reopened. The application may start the same id again."
        )
    elif error.instance not in (None, found.id):
        text = gettext(
            "Message %(id)s of its descendant instance %(child)s died. When that message is "
            "retried, both instances are reopened and continue."
        )
    else:
        text = gettext("When message %(id)s is retried, the instance is reopened and continues.")
    return text % {"id": found.failed_by, "child": page_text(error.instance, limit=200)}


def _contents(found: Instance) -> list[tuple[str, Any]]:
    labels = {"input": gettext("Input"), "state": gettext("State"), "output": gettext("Output")}
    return [(label, show_json(read_json(found, column))) for column, label in labels.items()]


def _waiting(site: str, request: HttpRequest, found: Instance) -> dict[str, Any]:
    """Return what it waits for: activities, children, timers."""
    stored = read_json(found, "pending")
    value = stored.value if isinstance(stored.value, dict) else {}
    rows = []
    for id, what in list(value.items())[:LISTED]:
        about = what if isinstance(what, dict) else {}
        child = about.get("instance") if isinstance(about.get("instance"), str) else None
        kind = str(about.get("kind", "?"))
        rows.append(
            {
                "id": id,
                "kind": _WAITED.get(kind, kind),
                "name": about.get("name", ""),
                "child": child,
                "url": to_instance(site, request, child),
            }
        )
    return {"rows": rows, "more": len(value) - len(rows), "problem": stored.problem}


def _queued(site: str, request: HttpRequest, found: Instance) -> dict[str, Any]:
    """Return its messages that are in a queue."""
    rows = Message.objects.using(alias()).without_bodies().filter(instance=found.pk).order_by("pk")
    there = list(rows[: LISTED + 1])
    now = clock.now(alias())
    urls = to_messages(site, request, [message.pk for message in there])
    shown = [
        {
            "message": message,
            "state": State(message.state(now)).label,
            "due": message.available_at,
            "url": urls.get(message.pk, ""),
        }
        for message in there[:LISTED]
    ]
    return {"rows": shown, "more": len(there) > LISTED}


def _poison(site: str, request: HttpRequest, found: Instance, *, texts: bool) -> dict[str, Any]:
    """Return the poison records of the instance."""
    rows = PoisonRecord.objects.using(alias()).filter(instance=found.pk).order_by("-pk")
    light = rows.short_columns()
    records: list[Any] = list(light.annotate(start=Left("last_error", 200))[: LISTED + 1])
    may_look = request.user.has_perm("deadletter.view_poisonrecord")
    return {
        "rows": [
            {
                "record": record,
                "said": record.start if texts else f"{record.exception} {record.frame}".strip(),
                "url": link(site, "poisonrecord_change", record.pk) if may_look else "",
                "failed_it": not found.is_running
                and found.failed_by in (record.message_id, record.source_id),
            }
            for record in records[:LISTED]
        ],
        "more": len(records) > LISTED,
        "url": link(site, "poisonrecord_records", instance=found.pk) if may_look else "",
    }


def _children(site: str, request: HttpRequest, found: Instance) -> dict[str, Any]:
    rows = Instance.objects.using(alias()).short_columns().filter(parent=found.pk).order_by("pk")
    children = list(rows[: LISTED + 1])
    shown = [(child, to_instance(site, request, child.pk)) for child in children[:LISTED]]
    more = link(site, "instance_changelist", parent=found.pk) if len(children) > LISTED else ""
    return {"rows": shown, "more_url": more}


def _past(found: Instance, *, texts: bool) -> list[dict[str, Any]]:
    """Return how earlier executions ended and which errors were repaired, the latest first."""
    stored = read_json(found, "history")
    if not isinstance(stored.value, list):
        return [{"error": stored.problem or gettext("The history is damaged.")}]
    labels = {**dict(InstanceStatus.choices), "continued": _("continued as new")}
    shown = []
    for entry in stored.value[-100:]:
        about = entry if isinstance(entry, dict) else {}
        error = about.get("error")
        shown.append(
            {
                "execution_id": about.get("execution_id", "?"),
                "status": labels.get(str(about.get("status")), str(about.get("status"))),
                "at": moment(about.get("at")) if about.get("at") else None,
                "error": _said(error, texts=texts),
                "retried": about.get("retried"),
            }
        )
    return shown[::-1]


def _said(error: Any, *, texts: bool) -> str:
    if not isinstance(error, dict):
        return ""
    text = str(error.get("text", ""))
    return text if texts else said_of(text, error.get("category"))


def _cancel_url(site: str, found: Instance) -> str:
    return link(site, "instance_cancel", quote(found.pk))


def _commands(found: Instance, may_cancel: bool) -> list[str]:
    shown = [command("instance", "show", found.pk)]
    return [*shown, command("instance", "cancel", found.pk, why="…")] if may_cancel else shown
