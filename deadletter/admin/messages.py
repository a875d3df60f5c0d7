"""Messages that wait in a queue: what is each doing, and until when?"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.db import router
from django.db.models import DateTimeField, Q, QuerySet, Value
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from .. import clock
from ..models import Message, Queue, State
from ..status import Status
from .readonly import QueueFilter, ReadOnlyAdmin, as_id
from .showing import show_history, show_json, show_text


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
        return queryset.in_state(value) if value in known else queryset.none()  # type: ignore[no-any-return]


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "name",
        "queue_name",
        "state",
        "attempts",
        "stream",
        "available_at",
    )
    list_display_links = ("id", "name")
    list_filter = (StateFilter, QueueFilter)
    ordering = ("-id",)
    search_fields = ("id", "stream", "key")
    search_help_text = _("The whole of a message id, a stream or a key.")
    fieldsets = (
        (None, {"fields": ("id", "name", "queue_name", "state", "attempts", "stages")}),
        (_("Content"), {"fields": ("shown_payload", "shown_headers")}),
        (_("Failures"), {"fields": ("failure_reason", "shown_error", "shown_history")}),
        (_("Order"), {"fields": ("stream", "released_at", "priority", "key")}),
        (_("Lease"), {"fields": ("worker", "lease_token", "fence")}),
        (_("Time"), {"fields": ("created_at", "available_at", "expires_at")}),
        (
            _("Origin"),
            {"fields": ("kind", "instance", "execution_id", "activity_id", "source_id")},
        ),
    )
    readonly_fields = flatten_fieldsets(fieldsets)

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request).light()
        # Prefetched, not joined: a message whose queue was deleted by hand must still be seen.
        return rows.prefetch_related("queue").annotate(
            seen_at=Value(clock.now(rows.db), DateTimeField())
        )

    def matches(self, term: str) -> Q:
        # The indexes of these columns begin with the queue.
        queues = Queue.objects.using(router.db_for_write(Queue)).values_list("pk", flat=True)
        found = Q(queue_id__in=list(queues)) & (Q(stream=term) | Q(key=term))
        id = as_id(term)
        return found if id is None else found | Q(pk=id)

    @admin.display(description=_("queue"))
    def queue_name(self, message: Message) -> str:
        return message.queue.name

    @admin.display(description=_("state"))
    def state(self, message: Any) -> str:
        return str(State(message.state(message.seen_at)).label)

    @admin.display(description=_("stages reached"))
    def stages(self, message: Message) -> str:
        return _stages(message.status)

    @admin.display(description=_("payload"))
    def shown_payload(self, message: Message) -> str:
        return show_json(message, "payload")

    @admin.display(description=_("headers"))
    def shown_headers(self, message: Message) -> str:
        return show_json(message, "headers")

    @admin.display(description=_("last error"))
    def shown_error(self, message: Message) -> str:
        return show_text(message.error)

    @admin.display(description=_("failed attempts"))
    def shown_history(self, message: Message) -> str:
        return show_history(message)


def _stages(status: int) -> str:
    """Name the bits: STORED, FAILED; the application's own as numbers."""
    bits = [1 << place for place in range(status.bit_length()) if status >> place & 1]
    return ", ".join(Status(bit).name or str(bit) for bit in bits)
