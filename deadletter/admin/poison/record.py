"""One poison record: why it died, what it is, what was tried, and what can be done."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext

from ... import clock
from ...lifecycle.dead_queues import is_moved
from ...models import Act, PoisonRecord
from ...operations import trail
from ...status import FailureReason, Status
from ...text import ERROR_LIMIT, page_text
from ...times import moment
from ..base import as_id
from ..cli_hint import command
from ..messages.dead import show_death
from ..pages import alias, need, render, tell, url
from ..payloads import read, show
from ..render import reason_name
from ..urls import to_instance
from .effects import on_instance
from .following import following
from .history import timeline


def find(object_id: object) -> Any:
    """Read a record without what may be large or damaged; the error is cut by the database."""
    id = as_id(str(object_id))
    rows = PoisonRecord.objects.using(alias()).short_columns()
    cut = {"error": Left("last_error", ERROR_LIMIT + 1), "said": Left("verdict", ERROR_LIMIT + 1)}
    return None if id is None else rows.annotate(**cut).filter(pk=id).first()


def record(model_admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    allowed = need(model_admin, request)
    if request.method == "POST":  # every act has an address of its own
        raise PermissionDenied
    found = find(object_id)
    if found is None:
        return gone(model_admin, request, None)
    behind = following(found)
    return render(
        model_admin,
        request,
        "record",
        page_text(str(found), limit=250),
        tab="record",
        record=found,
        cause=cause(found),
        # Of a death without an exception the name of its reason is kept there; it is said already.
        raised="" if found.exception in FailureReason.__members__ else found.exception,
        death=_death(found, texts=allowed.payload),
        instance_said=on_instance(found),
        instance_url=to_instance(model_admin.admin_site.name, request, found.instance),
        stages=", ".join(Status.names(found.status)),
        payload=show(read(found, "payload")) if allowed.payload else None,
        headers=show(read(found, "headers")) if allowed.payload else None,
        behind=behind,
        followers=[
            (message, page_of_message(model_admin, request, message.pk)) for message in behind.first
        ],
        timeline=timeline(found, payloads=allowed.payload),
        trail=trail(found.message_id, using=alias()),
        commands=_commands(found, allowed),
        now=clock.now(alias()),
    )


def payload(model_admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """Download the whole payload, redacted like everything that leaves the system."""
    need(model_admin, request, request.user.has_perm("deadletter.view_payload"))
    found = find(object_id)
    if found is None:
        return gone(model_admin, request, None)
    stored = read(found, "payload")
    response = HttpResponse(
        stored.text().encode("utf-8", "replace"),
        # Never shown by a browser as anything but text, whatever is in it.
        content_type="text/plain; charset=utf-8" if stored.damaged else "application/json",
    )
    response["Content-Disposition"] = f'attachment; filename="message-{found.message_id}.json"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def cause(found: PoisonRecord) -> str:
    """Name what an operator would act on: the last failure, unless no failure was the cause."""
    if found.reason == FailureReason.POISON_MESSAGE and found.last_failure_reason:
        return reason_name(found.last_failure_reason)
    return reason_name(found.reason)


def gone(model_admin: Any, request: HttpRequest, message_id: int | None) -> HttpResponse:
    """Say that a record is not there any more, and who saw to that."""
    last = trail(message_id, using=alias())[:1] if message_id is not None else []
    if last and last[0].entry.act in (Act.RETRY, Act.REMOVE):
        entry = last[0].entry
        texts = {
            Act.RETRY: gettext("Message %(id)s was already retried by %(by)s (%(at)s)."),
            Act.REMOVE: gettext("Message %(id)s was already removed by %(by)s (%(at)s)."),
        }
        at = moment(entry.at)
        by = page_text(entry.by, limit=100) or gettext("somebody")
        text = texts[Act(entry.act)] % {"by": by, "id": message_id, "at": at}
    else:
        text = gettext("This poison record is gone: it has been retried or removed.")
    tell(request, text, messages.WARNING)
    return HttpResponseRedirect(url(model_admin, "records"))


def page_of_message(model_admin: Any, request: HttpRequest, message_id: int) -> str:
    """Return the page of a waiting message, or nothing for who may not see it."""
    if not request.user.has_perm("deadletter.view_message"):
        return ""
    try:
        site = model_admin.admin_site.name
        return reverse("admin:deadletter_message_change", args=[message_id], current_app=site)
    except NoReverseMatch:  # a site that shows poison only
        return ""


def _death(found: PoisonRecord, *, texts: bool) -> str:
    """Say of what died again in a dead queue where it died first; "": it died here."""
    if not is_moved(found):
        return ""
    return show_death(found, clock.now(alias()), texts=texts)


def _commands(found: PoisonRecord, allowed: Any) -> list[str]:
    can = {"retry": allowed.retry, "remove": allowed.remove}
    shown = [command("show", found.pk)]
    return shown + [command(verb, found.pk, why="…") for verb, may in can.items() if may]
