"""One message: what it waits for, what it is, what was tried; or what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext

from ... import operations
from ...lifecycle.dead_queues import is_moved
from ...lifecycle.internal_queue import PREFIX
from ...models import Breaker, Message, PoisonRecord, Queue, State, WorkerProcess
from ...operations import trail
from ...status import FailureReason, Status
from ...text import page_text
from ...times import ahead, lasting, moment
from .. import streams
from ..base import as_id
from ..error_text import hidden_text
from ..pages import alias
from ..payloads import read, show
from ..poison.history import timeline
from ..render import last_traceback, reason_name, stored_text
from ..urls import link, to_instance
from .act_view import act_url, may
from .actions import ACTS
from .dead import show_death


@dataclass(frozen=True)
class Wait:
    """What a message waits for: a sentence, more about it, and where to look."""

    text: str
    about: str = ""
    url: str = ""
    #: Nothing will happen by itself.
    stuck: bool = False


def page(model_admin: Any, request: HttpRequest, object_id: str) -> HttpResponse:
    """Show a message; of one that is no longer there, what is known of its end."""
    if not model_admin.has_view_permission(request) or request.method == "POST":
        raise PermissionDenied
    id = as_id(object_id)
    rows = model_admin.get_queryset(request)
    message = None if id is None else rows.filter(pk=id).first()
    if message is None:
        return _ended(model_admin, request, id)
    site = model_admin.admin_site
    allowed = request.user.has_perm("deadletter.view_payload")
    state = message.state(message.seen_at)
    return _render(
        model_admin,
        request,
        "page",
        page_text(str(message), limit=250),
        message=message,
        queue=_queue(message),
        state=State(state),
        wait=_wait(site.name, request, message, state),
        holder=_holder(site.name, message, state),
        acts=buttons(model_admin, request, message),
        failure=reason_name(message.failure_reason) if message.failure_reason else "",
        error=_error(message, texts=allowed),
        stages=", ".join(Status.names(message.status)),
        death=show_death(message, message.seen_at, texts=allowed) if is_moved(message) else "",
        payload=show(read(message, "payload")) if allowed else None,
        headers=show(read(message, "headers")) if allowed else None,
        instance_url=to_instance(site.name, request, message.instance),
        timeline=timeline(message, payloads=allowed),
        trail=trail(message.pk, using=alias()),
        now=message.seen_at,
        rights_payload=allowed,
    )


def buttons(model_admin: Any, request: HttpRequest, message: Any) -> list[dict[str, Any]]:
    """Return a button for each act that is allowed and would not be refused."""
    state = message.state(message.seen_at)
    return [
        {
            "label": act.label,
            "url": act_url(model_admin.admin_site.name, slug, [message.pk], back=request.path),
            "danger": act.danger,
        }
        for slug, act in ACTS.items()
        if may(model_admin, request, act) and not act.refuses(message, state)
    ]


def _queue(message: Any) -> Queue | None:
    """Return its queue; None where somebody deleted it by hand."""
    try:
        return message.queue  # type: ignore[no-any-return]
    except Queue.DoesNotExist:
        return None


def _error(message: Any, *, texts: bool) -> str:
    text = stored_text(message, "error")[0] or ""
    return text if texts else hidden_text(text, last_traceback(message)) if text else ""


def _holder(site_name: str, message: Any, state: str) -> str:
    queue = _queue(message)
    if state != State.BLOCKED or message.stream is None or queue is None:
        return ""
    held = operations.get_stream(queue.name, message.stream)
    return streams.show_holder(site_name, held, message)


def _wait(site_name: str, request: HttpRequest, message: Any, state: str) -> Wait | None:
    """Say what has to happen before this message is handled. Of a blocked one: see `_holder`."""
    now, at = message.seen_at, message.available_at
    if state == State.BLOCKED:
        return None
    if state == State.ACTIVE:
        text = gettext("Worker %(worker)s is handling it.") % {
            "worker": page_text(message.worker or "?", limit=200)
        }
        lease = gettext("Its lease ends %(ahead)s (%(at)s) unless it is renewed.")
        return Wait(text, lease % {"ahead": ahead(at, now), "at": moment(at)})
    if state in (State.FAILED, State.SCHEDULED):
        return _until(message, state)
    return _due(site_name, request, message)


def _until(message: Any, state: str) -> Wait:
    now, at = message.seen_at, message.available_at
    when = {"ahead": ahead(at, now), "at": moment(at)}
    if message.failure_reason == FailureReason.UNREGISTERED:
        text = gettext("It waits for a worker that knows its name.")
        return Wait(text, gettext("It is looked at again %(ahead)s (%(at)s).") % when)
    if state == State.FAILED or message.failure_reason:
        text = gettext("It waits for its retry, %(ahead)s (%(at)s).") % when
        return Wait(text, _attempts(message))
    return Wait(gettext("It waits for its time, %(ahead)s (%(at)s).") % when)


def _attempts(message: Any) -> str:
    queue = _queue(message)
    limit = None if queue is None else queue.max_attempts
    if limit is None:
        return gettext("It was tried %(n)s times; no limit is set.") % {"n": message.attempts}
    return gettext("It was tried %(n)s of %(max)s times.") % {
        "n": message.attempts,
        "max": max(limit, 1),
    }


def _due(site_name: str, request: HttpRequest, message: Any) -> Wait:
    now, at = message.seen_at, message.available_at
    since = gettext("It has been due for %(time)s.") % {"time": lasting(at, now)}
    queue = _queue(message)
    if queue is None:
        text = gettext("Its queue is gone. The next sweep gives it a paused one.")
        return Wait(text, since, stuck=True)
    if queue.paused and is_moved(message):
        text = gettext("It died, and lies in this dead queue until somebody acts.")
        return Wait(text, stuck=True)
    if queue.paused:
        url = link(site_name, "queue_change", queue.pk)
        seen = request.user.has_perm("deadletter.view_queue")
        return Wait(gettext("Its queue is paused."), since, url if seen else "", stuck=True)
    breaker = Breaker.objects.using(alias()).open(now).filter(name=message.name).first()
    if breaker is not None and not message.name.startswith(PREFIX):
        text = gettext("A circuit breaker holds its name, until %(at)s.") % {
            "at": moment(breaker.until)
        }
        seen = request.user.has_perm("deadletter.view_breaker")
        return Wait(text, since, link(site_name, "breaker_change", breaker.pk) if seen else "")
    if not WorkerProcess.objects.using(alias()).alive(now).exists():
        return Wait(gettext("It waits for a worker: none is alive."), since, stuck=True)
    return Wait(gettext("It waits for a worker to take it."), since)


def _ended(model_admin: Any, request: HttpRequest, id: int | None) -> HttpResponse:
    """Say what became of a message that is in no queue: as far as anybody wrote it down."""
    site = model_admin.admin_site.name
    acts = [] if id is None else trail(id, using=alias())
    dead, copy = (None, None) if id is None else _remains_of(id)
    may_see = request.user.has_perm("deadletter.view_poisonrecord")
    known = bool(acts or dead or copy)
    return _render(
        model_admin,
        request,
        "ended",
        gettext("Message %(id)s") % {"id": id if id is not None else "?"},
        status=200 if known else 404,
        id=id,
        said=_said(id, acts, dead, copy),
        dead=dead,
        dead_url=link(site, "poisonrecord_change", dead.pk) if dead and may_see else "",
        copy=copy,
        copy_url=link(site, "message_change", copy.pk) if copy else "",
        trail=acts,
    )


def _remains_of(id: int) -> tuple[PoisonRecord | None, Message | None]:
    """Find its poison record, or the message it became in a dead queue; that may be dead too."""
    dead = PoisonRecord.objects.using(alias()).without_bodies().filter(message_id=id).first()
    if dead is not None:
        return dead, None
    moved = operations.find_moved(id, using=alias())
    return (moved, None) if isinstance(moved, PoisonRecord) else (None, moved)


def _said(id: int | None, acts: Sequence[Any], dead: Any, copy: Any) -> str:
    """Say in one sentence what became of it."""
    if dead is not None and is_moved(dead) and dead.message_id != id:
        return gettext(
            "It died, was moved to the dead queue %(queue)s and died there again: a poison record "
            "has it."
        ) % {"queue": page_text(dead.queue, limit=200)}
    if dead is not None:
        return gettext("It is dead: its poison record has it.")
    if copy is not None:
        return gettext("It died, and lies in the dead queue %(queue)s under another id.") % {
            "queue": page_text(copy.queue.name, limit=200)
        }
    if not acts:
        return gettext(
            "No message has this id. It was finished, or never existed: of a message that nobody "
            "touched nothing is kept. One that went back from a dead queue has the id that it had "
            "before."
        )
    last = acts[0]
    if last.outcome:
        return gettext("It ended: %(outcome)s.") % {"outcome": last.get_outcome_display()}
    return gettext("It is in no queue any more. The last that is known of it is below.")


def _render(
    model_admin: Any,
    request: HttpRequest,
    template: str,
    title: str,
    *,
    status: int = 200,
    **context: Any,
) -> HttpResponse:
    site = model_admin.admin_site
    request.current_app = site.name
    # Some themes take the last crumb from the original.
    frame = {
        "title": title,
        "original": title,
        "opts": model_admin.opts,
        "media": model_admin.media,
    }
    return TemplateResponse(
        request,
        f"admin/deadletter/message/{template}.html",
        {**site.each_context(request), **frame, **context},
        status=status,
    )
