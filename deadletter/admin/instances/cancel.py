"""Cancel an instance: asked with GET, done with POST, told afterwards."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext, ngettext

from ... import operations
from ...models import Instance, InstanceStatus, Message
from ...text import page_text
from ..confirm import Question, Subject, answered_why, ask, log_act
from ..counts import Capped, capped
from ..pages import alias, tell
from ..urls import to_instance
from .page import find, gone

#: Children named, and rows counted.
NAMED, COUNTED = 20, 1_000


def cancel(model_admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    allowed = request.user.has_perm("deadletter.cancel_instance")
    if not (allowed and model_admin.has_view_permission(request)):
        raise PermissionDenied
    found = find(object_id)
    if found is None:
        return gone(model_admin, request)
    why = answered_why(request)
    if request.method == "POST" and why:
        _carry_out(request, found, why)
        back = to_instance(model_admin.admin_site.name, request, found.pk)
        return HttpResponseRedirect(back)
    return ask(model_admin, request, _question(model_admin, request, found))


def _carry_out(request: HttpRequest, found: Instance, why: str) -> None:
    outcome = operations.cancel_instance(found.pk, by=request.user.get_username(), why=why)
    shown = page_text(found.pk, limit=200)
    if outcome.refused:
        text = gettext("It was not cancelled: %(why)s.")
        tell(request, text % {"why": page_text(outcome.refused, limit=500)}, messages.ERROR)
        return
    log_act(request, [found], gettext("Cancelled: %(why)s") % {"why": why})
    below = len(outcome.cancelled) - 1
    if below:
        text = ngettext(
            "%(id)s was cancelled, and %(n)s instance below it.",
            "%(id)s was cancelled, and %(n)s instances below it.",
            below,
        )
        tell(request, text % {"id": shown, "n": below})
    else:
        tell(request, gettext("%(id)s was cancelled.") % {"id": shown})


def _question(model_admin: Any, request: HttpRequest, found: Instance) -> Question:
    site, shown = model_admin.admin_site.name, page_text(found.pk, limit=200)
    problems = [gettext("Say why: others will ask.")] if request.method == "POST" else []
    if not found.is_running:
        text = gettext("%(id)s is not running any more: it is %(status)s.")
        problems = [text % {"id": shown, "status": found.get_status_display()}]
    rows = Instance.objects.using(alias()).short_columns().filter(parent=found.pk)
    running = rows.filter(status=InstanceStatus.RUNNING).order_by("pk")
    children = list(running[: NAMED + 1]) if found.is_running else []
    return Question(
        title=gettext("Cancel %(id)s?") % {"id": shown},
        button=gettext("Cancel it for good"),
        says=_says(found, len(children)) if found.is_running else [gettext("Nothing to do.")],
        subjects=[_subject(site, request, one) for one in (found, *children[:NAMED])],
        back=to_instance(site, request, found.pk),
        danger=True,
        why_required=True,
        possible=found.is_running,
        problems=problems,
    )


def _says(found: Instance, children: int) -> list[str]:
    waiting: Capped = capped(Message.objects.using(alias()).filter(instance=found.pk), COUNTED)
    said = [
        gettext(
            "It fails with the error “cancelled”, your reason and your name. Nothing brings it "
            "back, but the application may start the same id again."
        ),
        gettext(
            "Its messages in the queues (%(n)s) are removed. What a worker has in hand is "
            "finished, and its result ignored."
        )
        % {"n": waiting},
    ]
    if children:
        said.append(gettext("Its running children are cancelled with it, and what runs below."))
    if found.parent is not None:
        text = gettext("Its parent %(id)s is told, and fails too unless its flow handles that.")
        said.append(text % {"id": page_text(found.parent, limit=200)})
    return said


def _subject(site: str, request: HttpRequest, one: Instance) -> Subject:
    about = [
        str(one.get_status_display()),
        gettext("execution %(n)s") % {"n": one.execution_id},
        gettext("queue %(name)s") % {"name": page_text(one.queue, limit=200)},
    ]
    return Subject(label=str(one), about=about, url=to_instance(site, request, one.pk))
