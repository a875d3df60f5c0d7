"""The page of one message: what it waits for, its facts, its attempts; or what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext

from ... import operations
from ...lifecycle.internal_queue import PREFIX
from ...models import (
    Breaker,
    Message,
    PoisonRecord,
    Queue,
    State,
    WorkerProcess,
    is_moved,
    primary_alias,
)
from ...operations import trail
from ...operations.breakers import ASIDE
from ...status import FailureReason
from ...text import page_text
from ...times import ahead, lasting, moment
from ..base import AdminView, as_id, may
from ..dead_queue import show_death
from ..error_text import hidden_text
from ..history import timeline
from ..outside_links import links_of_message
from ..render import (
    last_traceback,
    read_json,
    reason_name,
    show_json,
    show_progress,
    stage_names,
    stored_text,
)
from ..result_text import call_of, find_result, said_of_result, show_result
from ..streams import show_holder
from ..urls import link, to_act, to_failure_group, to_instance
from .actions import ACTS


@dataclass(frozen=True)
class Wait:
    """What a message waits for: a sentence, more about it, and where to look."""

    text: str
    about: str = ""
    url: str = ""
    #: A person has to act.
    stuck: bool = False


class MessageView(AdminView):
    """Shows a message; of one that is no longer there, what is known of its end."""

    def prepare(self) -> HttpResponse | None:
        id = as_id(self.kwargs["object_id"])
        rows = self.model_admin.get_queryset(self.request)
        self.message: Any = None if id is None else rows.filter(pk=id).first()
        return None if self.message is not None else self.ended(id)

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        message, site = self.message, self.site_name
        allowed = request.user.has_perm("deadletter.view_payload")
        state = message.state(message.seen_at)
        title = page_text(str(message), limit=250)
        payload = read_json(message, "payload") if allowed else None
        queue = _queue(message)
        return self.page(
            "message/page",
            title,
            # Some themes take the last crumb from the original.
            original=title,
            message=message,
            queue=queue,
            state=State(state),
            wait=_wait(site, request, message, state),
            progress=show_progress(message, texts=allowed),
            progress_label=gettext("Progress")
            if state == State.ACTIVE
            else gettext("Last progress"),
            holder=_holder(site, message, state),
            acts=self.buttons(state),
            failure=reason_name(message.failure_reason) if message.failure_reason else "",
            error=_error(message, texts=allowed),
            stages=stage_names(message.status),
            group_url=to_failure_group(self.site_name, request, message.fingerprint),
            death=show_death(message, message.seen_at, texts=allowed) if is_moved(message) else "",
            call=call_of(message, payload),
            payload=None if payload is None else show_json(payload),
            headers=show_json(read_json(message, "headers")) if allowed else None,
            outside=links_of_message(message, queue.name if queue else "", headers=allowed),
            instance_url=to_instance(site, request, message.instance),
            timeline=timeline(message, payloads=allowed),
            trail=trail(message.pk, using=primary_alias()),
            now=message.seen_at,
            rights_payload=allowed,
        )

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        raise PermissionDenied  # every act has an address of its own

    def buttons(self, state: str) -> list[dict[str, Any]]:
        """Return a button for each act that is allowed and would not be refused."""
        message, request = self.message, self.request
        return [
            {
                "label": act.label,
                "url": to_act(self.site_name, slug, [message.pk], back=request.path),
                "danger": act.danger,
                # The key that follows it, see keyboard.js.
                "press": "r" if slug in ("retry-now", "retry-dead") else "",
            }
            for slug, act in ACTS.items()
            if may(self.model_admin, request, act.permission) and not act.refusal(message, state)
        ]

    def ended(self, id: int | None) -> HttpResponse:
        """Say what became of a message that is in no queue, as far as it is recorded."""
        acts = [] if id is None else trail(id, using=primary_alias())
        dead, copy = (None, None) if id is None else _remains_of(id)
        may_see = self.request.user.has_perm("deadletter.view_poisonrecord")
        title = gettext("Message %(id)s") % {"id": id if id is not None else "?"}
        row = None if dead or copy else find_result(id)
        result = None
        if row is not None and self.request.user.has_perm("deadletter.view_result"):
            title = page_text(str(row), limit=250)
            result = show_result(self.site_name, self.request, row)
        return self.page(
            "message/ended",
            title,
            status=200 if acts or dead or copy or row else 404,
            original=title,
            id=id,
            said=said_of_result(row) if row is not None else _said(id, acts, dead, copy),
            result=result,
            dead=dead,
            dead_url=self.link("poisonrecord_change", dead.pk) if dead and may_see else "",
            copy=copy,
            copy_url=self.link("message_change", copy.pk) if copy else "",
            trail=acts,
        )


def _queue(message: Any) -> Queue | None:
    """Return its queue; None where it was deleted by hand."""
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
    return show_holder(site_name, held, message)


def _wait(site_name: str, request: HttpRequest, message: Any, state: str) -> Wait | None:
    """Say what the message waits for; for a blocked message see `_holder`."""
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
        # Messages of a held name are put aside for half a minute at a time.
        held = _held(site_name, request, message, "") if at - now <= ASIDE else None
        return held or _until(message, state)
    return _due(site_name, request, message)


def _until(message: Any, state: str) -> Wait:
    now, at = message.seen_at, message.available_at
    when = {"ahead": ahead(at, now), "at": moment(at)}
    if message.failure_reason == FailureReason.UNREGISTERED:
        text = gettext("It waits for a worker that knows its name.")
        return Wait(text, gettext("The next try is %(ahead)s (%(at)s).") % when)
    if state == State.FAILED or message.failure_reason:
        text = gettext("It waits for its retry, %(ahead)s (%(at)s).") % when
        return Wait(text, _attempts(message))
    return Wait(gettext("It is scheduled, %(ahead)s (%(at)s).") % when)


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
        text = gettext("Its queue was deleted. The next sweep creates a paused queue for it.")
        return Wait(text, since, stuck=True)
    if queue.paused and is_moved(message):
        text = gettext("It died and is in this dead queue until an operator acts.")
        return Wait(text, stuck=True)
    if queue.paused:
        url = link(site_name, "queue_change", queue.pk)
        seen = request.user.has_perm("deadletter.view_queue")
        return Wait(gettext("Its queue is paused."), since, url if seen else "", stuck=True)
    if (held := _held(site_name, request, message, since)) is not None:
        return held
    if not WorkerProcess.objects.using(primary_alias()).alive(now).exists():
        return Wait(gettext("It waits for a worker: none is alive."), since, stuck=True)
    return Wait(gettext("It waits for a worker to take it."), since)


def _held(site_name: str, request: HttpRequest, message: Any, since: str) -> Wait | None:
    """Return the breaker that holds its name, if one is open."""
    now = message.seen_at
    breaker = Breaker.objects.using(primary_alias()).open(now).filter(name=message.name).first()
    if breaker is None or message.name.startswith(PREFIX):
        return None
    if breaker.held_until is None:
        text = gettext("Its name is held until the circuit breaker is reset.")
    else:
        text = gettext("A circuit breaker holds its name, until %(at)s.") % {
            "at": moment(breaker.until)
        }
    seen = request.user.has_perm("deadletter.view_breaker")
    url = link(site_name, "breaker_change", breaker.pk) if seen else ""
    return Wait(text, since, url, stuck=breaker.is_held)


def _remains_of(id: int) -> tuple[PoisonRecord | None, Message | None]:
    """Find its poison record, or its copy in a dead queue, which may be dead too."""
    dead = (
        PoisonRecord.objects.using(primary_alias()).without_bodies().filter(message_id=id).first()
    )
    if dead is not None:
        return dead, None
    moved = operations.find_moved(id, using=primary_alias())
    return (moved, None) if isinstance(moved, PoisonRecord) else (None, moved)


def _said(id: int | None, acts: Sequence[Any], dead: Any, copy: Any) -> str:
    """Say in one sentence what became of it."""
    if dead is not None and is_moved(dead) and dead.message_id != id:
        return gettext(
            "It died, was moved to the dead queue %(queue)s and died there again: it is stored as "
            "a poison record."
        ) % {"queue": page_text(dead.queue, limit=200)}
    if dead is not None:
        return gettext("It is dead: it is stored as a poison record.")
    if copy is not None:
        return gettext("It died and is in the dead queue %(queue)s under another id.") % {
            "queue": page_text(copy.queue.name, limit=200)
        }
    if not acts:
        return gettext(
            "No message has this id. It was completed, or never existed: completed messages leave "
            "no record unless they keep their results or an operator acted on them. A message "
            "retried from a dead queue has its original id."
        )
    last = acts[0]
    if last.outcome:
        return gettext("It ended: %(outcome)s.") % {"outcome": last.get_outcome_display()}
    return gettext("It is in no queue any more. The last recorded act on it is below.")
