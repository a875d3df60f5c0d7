"""
The page of blocked and halted streams: what holds each, how many messages wait, the ways out.

The page of one stream has its messages in their order, the head first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models.functions import Left
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseRedirect,
)
from django.template.loader import render_to_string
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import clock, operations
from ..models import Message, PoisonRecord, Queue, State, primary_alias
from ..operations import HeldStream
from ..operations.streams import COUNTED
from ..sql.planner import by_index
from ..text import page_text
from .base import AdminView, may
from .counts import Capped
from .error_text import hidden_text, may_read_errors
from .poison.acts import RECORD_ACTS
from .urls import link, to_act

#: Streams on the page; messages on the page of one stream.
SHOWN, FOLLOWERS = 25, 50
#: Characters of an error.
_ERROR_SHOWN = 300
#: What editing a payload needs, see poison/edit.py.
_EDIT = (
    "deadletter.view_poisonrecord",
    "deadletter.view_payload",
    "deadletter.retry_poison",
    "deadletter.edit_payload",
)
_LABELS = {"retry": _("Retry the poison"), "remove": _("Remove the poison")}


@dataclass(frozen=True)
class StreamAction:
    """A button of a row: an act that may let the stream continue."""

    label: Any
    url: str
    danger: bool = False
    #: The key that follows it, see keyboard.js.
    press: str = ""


@dataclass(frozen=True)
class StreamRow:
    """A held stream with its links, and the ways out that this person may take."""

    held: HeldStream
    waiting: Capped
    holder_url: str
    rows_url: str
    ways: Sequence[StreamAction]
    #: The error of the message in front; without its text for readers who may not see it.
    error: str = ""


@dataclass(frozen=True)
class StreamMessage:
    """A message of a stream, dead or in the queue."""

    id: int
    name: str
    url: str
    #: The label of its state, and the state for the colour.
    state: str
    kind: str
    until: datetime | None
    attempts: int
    error: str
    sent_at: datetime


class StreamPageView(AdminView):
    """What the list of streams and the page of one stream have in common."""

    def rows(self, found: Sequence[HeldStream]) -> list[StreamRow]:
        errors = self.errors_of(found)
        return [
            StreamRow(
                held,
                Capped(min(held.waiting, COUNTED), held.waiting > COUNTED),
                _holder_url(self.site_name, held),
                stream_url(self.site_name, held),
                [*self.ways_of_poison(held), *self.ways_of_messages(held)],
                errors.get(held.message_id or 0, ""),
            )
            for held in found
        ]

    def errors_of(self, found: Sequence[HeldStream]) -> dict[int, str]:
        """Return the errors of the messages in front, by their ids."""
        alias = primary_alias()
        dead = [held.poison_id for held in found if held.poison_id is not None]
        heads = [held.message_id for held in found if held.poison_id is None and held.message_id]
        start = Left("last_error", _ERROR_SHOWN)
        records = PoisonRecord.objects.using(alias).filter(pk__in=dead)
        errors = dict(records.values_list("message_id", start)) if dead else {}
        if heads:
            rows = Message.objects.using(alias).filter(pk__in=heads)
            errors |= dict(rows.values_list("pk", Left("error", _ERROR_SHOWN)))
        return {id: self.shown_error(error) for id, error in errors.items()}

    def shown_error(self, error: str | None) -> str:
        shown = error or ""
        return shown if may_read_errors(self.request) else hidden_text(shown)

    def ways_of_poison(self, held: HeldStream) -> list[StreamAction]:
        if held.poison_id is None:
            return []
        ways = [
            StreamAction(
                _LABELS[slug],
                self.link("stream_act", slug, held.poison_id),
                danger=act.danger,
                press="r" if slug == "retry" else "",
            )
            for slug, act in RECORD_ACTS.items()
            if may(self.model_admin, self.request, act.permission)
        ]
        if self.request.user.has_perms(_EDIT):
            edit = self.link("poisonrecord_edit", held.poison_id)
            ways[1:1] = [StreamAction(_("Edit and retry"), edit, press="e")] if edit else []
        return ways

    def ways_of_messages(self, held: HeldStream) -> list[StreamAction]:
        """Offer acts on the first message that waits, and on the next one behind it."""
        ways, back = [], self.request.path
        if not may(self.model_admin, self.request, "deadletter.retry_poison"):
            return []
        if held.failed and held.message_id:
            url = to_act(self.site_name, "retry-now", [held.message_id], back=back)
            ways.append(StreamAction(_("Retry the first now"), url, press="r"))
        if held.next_id is not None and held.why in ("halted", "waiting"):
            url = to_act(self.site_name, "release", [held.next_id], back=back)
            ways.append(StreamAction(_("Release the next"), url))
        return ways


class StreamsView(StreamPageView):
    """Lists the halted streams, then those that have been blocked the longest."""

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        labels = {
            "": gettext("all"),
            "halted": gettext("halted by poison"),
            "blocked": gettext("blocked"),
        }
        here = request.GET.get("only", "")
        here = here if here in labels else ""
        found = operations.list_streams(limit=SHOWN, only=here or None)
        return self.page(
            "streams",
            gettext("Blocked and halted streams"),
            rows=self.rows(found),
            tabs=[(f"?only={key}" if key else "?", labels[key], key == here) for key in labels],
            limit=SHOWN,
            now=clock.now(primary_alias()),
        )


class StreamView(StreamPageView):
    """Shows one stream: what holds it, and its messages in order, the head first."""

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        alias, name = primary_alias(), request.GET.get("name", "")
        named = request.GET.get("queue", "")
        if not (name and named):
            return HttpResponseRedirect(self.link("streams"))
        if "\x00" in name + named:
            raise Http404
        queue = Queue.objects.using(alias).filter(name=named).first()
        if queue is None:
            raise Http404
        held = operations.get_stream(queue.name, name)
        now = clock.now(alias)
        lines = self.messages(queue, name, now)
        return self.page(
            "stream",
            gettext("Stream %(name)s") % {"name": page_text(name, limit=200)},
            queue=queue,
            row=self.rows([held])[0] if held else None,
            # Not "messages": those are what the person is told.
            lines=lines[:FOLLOWERS],
            more=len(lines) > FOLLOWERS,
            all_url=self.link("message_changelist", q=name, queue=queue.pk),
            now=now,
        )

    def messages(self, queue: Queue, name: str, now: datetime) -> list[StreamMessage]:
        """Return the halting poison records and the messages of the queue, by id."""
        alias = primary_alias()
        with by_index(alias):
            dead = PoisonRecord.objects.using(alias).halting().filter(queue=queue.name, stream=name)
            records = dead.short_columns().annotate(start=Left("last_error", _ERROR_SHOWN))
            # A range with equal ends, in the order of the index, see operations/streams.py.
            rows = Message.objects.using(alias).filter(
                queue=queue, stream__gte=name, stream__lte=name
            )
            waiting = rows.without_bodies().annotate(start=Left("error", _ERROR_SHOWN))
            found = [
                *(self.record(one) for one in records.order_by("message_id")[: FOLLOWERS + 1]),
                *(
                    self.message(one, now)
                    for one in waiting.order_by("queue_id", "stream", "pk")[: FOLLOWERS + 1]
                ),
            ]
        return sorted(found, key=lambda one: one.id)

    def record(self, record: Any) -> StreamMessage:
        return StreamMessage(
            id=record.message_id,
            name=record.name,
            url=self.link("poisonrecord_change", record.pk),
            state=gettext("dead: halts the stream"),
            kind="halted",
            until=None,
            attempts=record.attempts,
            error=self.shown_error(record.start),
            sent_at=record.original_created_at,
        )

    def message(self, message: Any, now: datetime) -> StreamMessage:
        state = State(message.state(now))
        at = message.available_at
        return StreamMessage(
            id=message.pk,
            name=message.name,
            url=self.link("message_change", message.pk),
            state=str(state.label),
            kind=state.value,
            until=at if at and at > now else None,
            attempts=message.attempts,
            error=self.shown_error(message.start),
            sent_at=message.created_at,
        )


class StreamActView(AdminView):
    """
    Retries or removes the poison record that halts a stream.

    The act is the one of the poison pages; here it needs the permission to view messages instead of
    poison, and it returns to the page of streams.
    """

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        act = RECORD_ACTS.get(kwargs["slug"])
        if act is None:
            raise Http404
        home = link(self.model_admin.admin_site.name, "streams")
        view = act.as_view(model_admin=self.model_admin, home=home)
        return view(request, object_id=kwargs["poison_id"])


def show_holder(site_name: str, held: HeldStream | None, message: Message) -> str:
    """Render what a blocked message waits for."""
    context = {
        "held": held,
        "own": message.pk,
        "holder_url": _holder_url(site_name, held) if held else "",
        "streams_url": link(site_name, "streams"),
    }
    return render_to_string("admin/deadletter/holder.html", context)


def stream_url(site_name: str, held: HeldStream) -> str:
    """Return the page of a stream."""
    return link(site_name, "stream", queue=held.queue, name=held.stream)


def _holder_url(site_name: str, held: HeldStream) -> str:
    if held.poison_id is not None:
        return link(site_name, "poisonrecord_change", held.poison_id)
    if held.message_id is None:
        return ""
    return link(site_name, "message_change", held.message_id)
