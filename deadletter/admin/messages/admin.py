"""Messages that wait in a queue: what is each doing, and until when?"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import DateTimeField, Prefetch, Q, QuerySet, Value
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ... import clock
from ...lifecycle.levels import read_levels
from ...models import Message, Queue, State, primary_alias
from ...status import FailureReason, Status
from ...text import page_text
from ...times import lasting
from .. import streams
from ..base import COUNT_LIMIT, QueueFilter, ReadOnlyAdmin, as_id
from ..cli_hint import command
from ..error_text import exception_of
from ..render import reason_name
from . import page
from .act_view import AT_ONCE, act_url, act_view, may
from .actions import ACTS
from .dead import GROUP, GroupFilter, is_dead_list, show_death, with_deaths
from .filters import AttemptsFilter, ReasonFilter

#: Characters of an error in the list.
IN_A_LIST = 120


class StateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        # A dead message is a poison record, in a table and on a page of its own.
        return [choice for choice in State.choices if choice[0] != State.DEAD]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Message]:
        value = self.value()
        if value is None:
            return queryset  # type: ignore[no-any-return]
        known = {choice for choice, _ in self.lookup_choices}
        if value not in known:
            return queryset.none()  # type: ignore[no-any-return]
        rows = queryset.in_state(value)
        if value in (State.PENDING, State.SCHEDULED, State.ACTIVE):
            # Where few of many are in this state, these lead to them by the index of the claim.
            levels = read_levels(queryset.db)
            rows = rows.filter(priority__in=sorted({level.priority for level in levels}))
        if value == State.FAILED:
            # Implied by the bit, and unlike it known to an index.
            return rows.filter(status__gte=int(Status.FAILED))  # type: ignore[no-any-return]
        if value == State.ACTIVE:
            # No index knows these: look once, not again for the count and for every page.
            ids = rows.order_by().values_list("pk", flat=True)[: COUNT_LIMIT + 1]
            return queryset.filter(pk__in=list(ids))  # type: ignore[no-any-return]
        return rows  # type: ignore[no-any-return]


def _action(slug: str) -> Any:
    """Make the action of a list: it only leads to the page that asks."""
    act = ACTS[slug]

    @admin.action(description=act.label, permissions=[slug.replace("-", "_")])
    def lead(self: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
        ids = list(queryset.order_by("pk").values_list("pk", flat=True)[:AT_ONCE])
        back = request.get_full_path()
        return HttpResponseRedirect(act_url(self.admin_site.name, slug, ids, back=back))

    return lead


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "name",
        "queue_name",
        "state",
        "when",
        "attempts",
        "reason",
        "error_start",
        "stream",
        "source",
    )
    list_display_links = ("id", "name")
    list_filter = (StateFilter, QueueFilter, ReasonFilter, AttemptsFilter, GroupFilter)
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
        # For a project that names the columns themselves in a class of its own.
        "payload": "hidden_text",
        "headers": "",
        "error": "hidden_text",
        "history": "hidden_text",
        "death": "hidden_death",
        "shown_death": "hidden_death",
    }

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request).without_bodies().with_error_start()
        # Prefetched, not joined: a message whose queue was deleted by hand must still be seen.
        # From the same database: a replica may show an old policy, or no queue at all.
        if is_dead_list(request):
            rows = with_deaths(rows)
        queues = Prefetch("queue", Queue.objects.using(rows.db))
        return rows.prefetch_related(queues).annotate(
            seen_at=Value(clock.now(rows.db), DateTimeField())
        )

    def matches(self, term: str) -> Q:
        # The indexes of these columns begin with the queue.
        queues = Queue.objects.using(primary_alias()).values_list("pk", flat=True)
        here = Q(queue_id__in=list(queues))
        found = here & (Q(stream=term) | Q(key=term)) | Q(instance=term)
        id = as_id(term)
        # What was moved to a dead queue is found by the id it had before, too.
        return found if id is None else found | Q(pk=id) | here & Q(source_id=id, origin=None)

    def get_list_display(self, request: HttpRequest) -> Any:
        """Where the list is of what died, say where and why."""
        found = tuple(self.list_display)
        if is_dead_list(request):
            found = (*found, "shown_death")
        return self._allowed(request, found)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Name the command for all that is listed: an action takes one page of it."""
        may = request.user.has_perm("deadletter.retry_poison")
        own = {"all_command": _command_for_all(request) if may else ""}
        return super().changelist_view(request, {**own, **(extra_context or {})})

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path("act/<slug:slug>/", view(self.act), name="deadletter_message_act"),
            path("streams/", view(self.streams), name="deadletter_streams"),
            path(
                "streams/<slug:slug>/<int:poison_id>/",
                view(self.stream_act),
                name="deadletter_stream_act",
            ),
        ]
        return own + super().get_urls()

    def act(self, request: HttpRequest, slug: str) -> HttpResponse:
        return act_view(self, request, slug)

    def streams(self, request: HttpRequest) -> HttpResponse:
        return streams.list_view(self, request)

    def stream_act(self, request: HttpRequest, slug: str, poison_id: int) -> HttpResponse:
        return streams.act_view(self, request, slug, poison_id)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        return page.page(self, request, object_id)

    def has_retry_now_permission(self, request: HttpRequest) -> bool:
        return may(self, request, ACTS["retry-now"])

    def has_retry_dead_permission(self, request: HttpRequest) -> bool:
        # Where nothing has died it is no choice: the list of actions asks here.
        return may(self, request, ACTS["retry-dead"]) and is_dead_list(request)

    def has_release_permission(self, request: HttpRequest) -> bool:
        return may(self, request, ACTS["release"])

    def has_poison_permission(self, request: HttpRequest) -> bool:
        return may(self, request, ACTS["poison"])

    def has_remove_permission(self, request: HttpRequest) -> bool:
        return may(self, request, ACTS["remove"])

    @admin.display(description=_("queue"))
    def queue_name(self, message: Message) -> str:
        return message.queue.name

    @admin.display(description=_("state"))
    def state(self, message: Any) -> str:
        return str(State(message.state(message.seen_at)).label)

    @admin.display(description=_("when"))
    def when(self, message: Any) -> str:
        """Say how long it is until something happens, or since it could have."""
        at, now = message.available_at, message.seen_at
        if at is None:
            return "-"
        if at <= now:
            return gettext("due for %(time)s") % {"time": lasting(at, now)}
        texts = {
            State.ACTIVE: gettext("leased for %(time)s"),
            State.FAILED: gettext("retry in %(time)s"),
        }
        text = texts.get(message.state(now), gettext("in %(time)s"))
        return text % {"time": lasting(now, at)}

    @admin.display(description=_("source"))
    def source(self, message: Message) -> str:
        """Say what it was elsewhere: in its origin, or in the queue where it died."""
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
    """Return what retries everything of a list that failed or lies in a dead queue; else ""."""
    group, id = request.GET.get(GROUP, ""), as_id(request.GET.get("queue", ""))
    if any(request.GET.get(key) for key in ("q", "attempts")):
        return ""
    if group and id is None:
        id = _dead_queue_of(group)
    rows = Queue.objects.using(primary_alias())
    queue = None if id is None else rows.filter(pk=id).first()
    if queue is None:
        return ""
    if is_dead_list(request):
        return command("retry", dead_queue=queue.name, fingerprint=group, why="…")
    if request.GET.get("state") != State.FAILED:
        return ""
    reason = request.GET.get("reason", "")
    known = reason.upper() in FailureReason.__members__
    if reason and not known:
        return ""
    return command("retry", failed=True, queue=queue.name, reason=reason, why="…")


def _dead_queue_of(fingerprint: str) -> int | None:
    """Return the queue in which something of a group lies; None when there is none."""
    if len(fingerprint) > 16 or "\x00" in fingerprint:
        return None
    rows = Message.objects.using(primary_alias()).filter(fingerprint=fingerprint)
    return rows.order_by("fingerprint", "died_at", "id").values_list("queue_id", flat=True).first()
