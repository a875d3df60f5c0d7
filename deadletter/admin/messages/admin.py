"""The list of messages that wait in a queue: the state of each, and until when."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import DateTimeField, OuterRef, Prefetch, Q, QuerySet, Subquery, Value
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ... import clock
from ...models import Breaker, Message, Queue, State, primary_alias
from ...operations.breakers import ASIDE
from ...status import FailureReason
from ...text import page_text
from ...times import lasting
from ..base import QueueFilter, ReadOnlyAdmin, as_id, may
from ..confirm import command
from ..dead_queue import show_death
from ..error_text import exception_of
from ..render import reason_name
from ..streams import StreamActView, StreamsView, StreamView
from ..urls import GROUP, link, to_act, to_failure_group
from .actions import ACTS, AT_ONCE
from .bulk_retry import RetryFailedView, retry_failed_url
from .filters import (
    AttemptsFilter,
    FailureReasonFilter,
    FingerprintFilter,
    MessageNameFilter,
    MessageStateFilter,
    is_dead_list,
    with_deaths,
)
from .page import MessageView

#: Characters of an error in the list.
IN_A_LIST = 120


def _action(slug: str) -> Any:
    """Return an action of the list; it only leads to the page that asks."""
    act = ACTS[slug]

    @admin.action(description=act.label, permissions=[slug.replace("-", "_")])
    def lead(self: MessageAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
        ids = list(queryset.order_by("pk").values_list("pk", flat=True)[:AT_ONCE])
        back = request.get_full_path()
        return HttpResponseRedirect(to_act(self.admin_site.name, slug, ids, back=back))

    return lead


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    # The error early: on most screens the last columns are reached by scrolling.
    list_display = (
        "id",
        "name",
        "error_start",
        "state",
        "when",
        "queue_name",
        "attempts",
        "reason",
        "stream",
        "source",
    )
    list_display_links = ("id", "name")
    list_filter = (
        MessageStateFilter,
        QueueFilter,
        MessageNameFilter,
        FailureReasonFilter,
        AttemptsFilter,
        FingerprintFilter,
    )
    ordering = ("-id",)
    search_fields = ("id", "stream", "key", "instance")
    search_help_text = _("The whole of a message id, a stream, a key or an instance.")
    list_per_page = 50
    actions = ("retry_dead", "retry_now", "release", "poison", "remove")
    retry_dead = _action("retry-dead")
    retry_now = _action("retry-now")
    release = _action("release")
    poison = _action("poison")
    remove = _action("remove")
    without_payload = {
        "error_start": "hidden_error_start",
        # For a project whose own class lists these columns.
        "payload": "hidden_text",
        "headers": "",
        "error": "hidden_text",
        "history": "hidden_text",
        "progress": "hidden_text",
        "death": "hidden_death",
        "shown_death": "hidden_death",
    }

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request).without_bodies().with_error_start()
        # Prefetched, not joined: a message whose queue was deleted by hand is still listed.
        # From the same database: a replica may show an old policy, or no queue at all.
        if is_dead_list(request):
            rows = with_deaths(rows)
        queues = Prefetch("queue", Queue.objects.using(rows.db))
        now = clock.now(rows.db)
        breakers = Breaker.objects.using(rows.db).open(now).filter(name=OuterRef("name"))
        return rows.prefetch_related(queues).annotate(
            seen_at=Value(now, DateTimeField()),
            # One index probe a row; the count of the list leaves it out.
            breaker_id=Subquery(breakers.values("pk")[:1]),
        )

    def matches(self, term: str) -> Q:
        # The indexes of these columns begin with the queue.
        queues = Queue.objects.using(primary_alias()).values_list("pk", flat=True)
        here = Q(queue_id__in=list(queues))
        found = here & (Q(stream=term) | Q(key=term)) | Q(instance=term)
        id = as_id(term)
        # A message in a dead queue is also found by the id that it had before.
        return found if id is None else found | Q(pk=id) | here & Q(source_id=id, origin=None)

    def get_list_display(self, request: HttpRequest) -> Any:
        """Show in a list of dead letters where and why each died."""
        found = tuple(self.list_display)
        if is_dead_list(request):
            found = (*found, "shown_death")
        return self._allowed(request, found)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Name the command for the whole list: an action takes one page of it."""
        may_retry = request.user.has_perm("deadletter.retry_poison")
        site = self.admin_site.name
        own = {
            "all_command": _command_for_all(request) if may_retry else "",
            "all_url": retry_failed_url(site, request) if may_retry else "",
            "group_url": to_failure_group(site, request, request.GET.get(GROUP, "")),
        }
        return super().changelist_view(request, {**own, **(extra_context or {})})

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path("act/<slug:slug>/", view(self.act_view), name="deadletter_message_act"),
            path(
                "streams/",
                view(StreamsView.as_view(model_admin=self)),
                name="deadletter_streams",
            ),
            path(
                "retry-failed/",
                view(RetryFailedView.as_view(model_admin=self)),
                name="deadletter_message_retry_failed",
            ),
            path(
                "stream/",
                view(StreamView.as_view(model_admin=self)),
                name="deadletter_stream",
            ),
            path(
                "streams/<slug:slug>/<int:poison_id>/",
                view(StreamActView.as_view(model_admin=self)),
                name="deadletter_stream_act",
            ),
        ]
        return own + super().get_urls()

    def act_view(self, request: HttpRequest, slug: str) -> HttpResponseBase:
        if slug not in ACTS:
            raise Http404
        return ACTS[slug].as_view(model_admin=self)(request)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        return MessageView.as_view(model_admin=self)(request, object_id=object_id)

    def has_retry_now_permission(self, request: HttpRequest) -> bool:
        return may(self, request, ACTS["retry-now"].permission)

    def has_retry_dead_permission(self, request: HttpRequest) -> bool:
        # Only lists of dead letters offer the action.
        return may(self, request, ACTS["retry-dead"].permission) and is_dead_list(request)

    def has_release_permission(self, request: HttpRequest) -> bool:
        return may(self, request, ACTS["release"].permission)

    def has_poison_permission(self, request: HttpRequest) -> bool:
        return may(self, request, ACTS["poison"].permission)

    def has_remove_permission(self, request: HttpRequest) -> bool:
        return may(self, request, ACTS["remove"].permission)

    @admin.display(description=_("queue"))
    def queue_name(self, message: Message) -> str:
        return message.queue.name

    @admin.display(description=_("state"))
    def state(self, message: Any) -> str:
        return str(State(message.state(message.seen_at)).label)

    @admin.display(description=_("when"))
    def when(self, message: Any) -> str:
        """Say how long until the message is due, or since when it is."""
        at, now = message.available_at, message.seen_at
        if at is None:
            return "-"
        if message.breaker_id and not message.lease_token and at <= now + ASIDE:
            return self.held(message.breaker_id)
        if at <= now:
            return gettext("due for %(time)s") % {"time": lasting(at, now)}
        texts = {
            State.ACTIVE: gettext("leased for %(time)s"),
            State.FAILED: gettext("retry in %(time)s"),
        }
        text = texts.get(message.state(now), gettext("in %(time)s"))
        return text % {"time": lasting(now, at)}

    def held(self, breaker_id: int) -> str:
        """Say that a circuit breaker holds a message that is due, or put aside by it."""
        url = link(self.admin_site.name, "breaker_change", breaker_id)
        return format_html('<a href="{}">{}</a>', url, gettext("held by its circuit breaker"))

    @admin.display(description=_("source"))
    def source(self, message: Message) -> str:
        """Return the id that it had before: in its origin, or in the queue where it died."""
        if message.source_id is None:
            return "-"
        return f"{page_text(message.origin or '', limit=80)}#{message.source_id}"

    @admin.display(description=_("hidden"))
    def hidden_text(self, message: Message) -> str:
        return gettext("You have no permission to see payloads.")

    @admin.display(description=_("reason"))
    def reason(self, message: Message) -> str:
        return "-" if message.failure_reason is None else reason_name(message.failure_reason)

    @admin.display(description=_("last error"))
    def error_start(self, message: Any) -> str:
        return page_text(message.error_start, limit=IN_A_LIST) or "-"

    @admin.display(description=_("last error"))
    def hidden_error_start(self, message: Any) -> str:
        return exception_of(page_text(message.error_start, limit=IN_A_LIST)) or "-"

    @admin.display(description=_("death"))
    def shown_death(self, message: Any) -> str:
        return show_death(message, message.seen_at, texts=True)

    @admin.display(description=_("death"))
    def hidden_death(self, message: Any) -> str:
        return show_death(message, message.seen_at, texts=False)


def _command_for_all(request: HttpRequest) -> str:
    """Return the command that retries a whole list of failed or dead messages; else ""."""
    group, id = request.GET.get(GROUP, ""), as_id(request.GET.get("queue", ""))
    name = request.GET.get("name", "")
    if any(request.GET.get(key) for key in ("q", "attempts")) or "\x00" in name:
        return ""
    if group and id is None:
        id = _dead_queue_of(group)
    rows = Queue.objects.using(primary_alias())
    queue = None if id is None else rows.filter(pk=id).first()
    if queue is None:
        return ""
    if is_dead_list(request):
        return command("retry", dead_queue=queue.name, name=name, fingerprint=group, why="…")
    if request.GET.get("state") != State.FAILED:
        return ""
    reason = request.GET.get("reason", "")
    known = reason.upper() in FailureReason.__members__
    if reason and not known:
        return ""
    return command("retry", failed=True, queue=queue.name, name=name, reason=reason, why="…")


def _dead_queue_of(fingerprint: str) -> int | None:
    """Return the dead queue that holds messages of a group; None when there is none."""
    if len(fingerprint) > 16 or "\x00" in fingerprint:
        return None
    rows = Message.objects.using(primary_alias()).filter(fingerprint=fingerprint)
    return rows.order_by("fingerprint", "died_at", "id").values_list("queue_id", flat=True).first()
