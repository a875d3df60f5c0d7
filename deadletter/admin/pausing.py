"""Pause and resume a queue: where its numbers lead, and the question before the act."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext

from .. import operations
from ..exceptions import UnknownQueue
from ..models import Queue, State
from .confirm import Question, Subject, answered_why, ask, came_from, log_act
from .urls import link


def rows_url(model_admin: Any, queue: Queue, state: str) -> str:
    """Return the list of the messages of a queue that are in this state."""
    site = model_admin.admin_site.name
    if state == State.DEAD:
        return link(site, "poisonrecord_records", queue=queue.name)
    return link(site, "message_changelist", queue=queue.pk, state=str(state))


def pause_url(model_admin: Any, queue: Queue) -> str:
    """Return the page that asks for the opposite of what is."""
    page = "resume" if queue.paused else "pause"
    site = model_admin.admin_site.name
    return reverse(f"admin:deadletter_queue_{page}", args=[queue.pk], current_app=site)


def pause_view(model_admin: Any, request: HttpRequest, pk: int, *, paused: bool) -> HttpResponse:
    """Ask, then pause or resume; either is audited."""
    if not model_admin.has_pause_permission(request):
        raise PermissionDenied
    queue = model_admin.get_object(request, str(pk))
    if queue is None:
        raise Http404
    site = model_admin.admin_site.name
    page = reverse("admin:deadletter_queue_change", args=[pk], current_app=site)
    back = came_from(request, page)
    if request.method == "POST":
        _carry_out(model_admin, request, queue, paused)
        return HttpResponseRedirect(back)
    return ask(model_admin, request, _question(queue, page, back, paused))


def _question(queue: Queue, page: str, back: str, paused: bool) -> Question:
    name = {"name": queue.name}
    if paused:
        title, button = gettext("Pause the queue"), gettext("Pause %(name)s") % name
        says = [
            gettext("No worker takes messages from queue %(name)s until it is resumed.") % name,
            gettext("What is being handled now is finished. New messages are still accepted."),
        ]
    else:
        title, button = gettext("Resume the queue"), gettext("Resume %(name)s") % name
        says = [
            gettext("Workers take messages from queue %(name)s again, from the next second on.")
            % name
        ]
    if queue.paused == paused:
        already = gettext("The queue is already paused.") if paused else ""
        says.append(already or gettext("The queue is not paused."))
    return Question(
        title=title,
        button=button,
        says=says,
        subjects=[Subject(label=queue.name, url=page)],
        hidden=[("next", back)],
        back=back,
        danger=paused,
    )


def _carry_out(model_admin: Any, request: HttpRequest, queue: Queue, paused: bool) -> None:
    verb = operations.pause if paused else operations.resume
    why = answered_why(request)
    try:
        verb(queue.name, by=request.user.get_username(), why=why)
    except UnknownQueue:
        raise Http404 from None
    done = gettext("Paused.") if paused else gettext("Resumed.")
    log_act(request, [queue], f"{done} {why}".strip())
    told = gettext("Queue %(name)s is paused.") if paused else gettext("Queue %(name)s is resumed.")
    model_admin.message_user(request, told % {"name": queue.name}, messages.SUCCESS)
