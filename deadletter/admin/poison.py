"""Poison: what could not be handled, why, and what it was."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import flatten_fieldsets
from django.db import router
from django.db.models import Q, QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import operations
from ..models import PoisonRecord, Queue
from ..status import FailureReason
from .readonly import QueueFilter, ReadOnlyAdmin, as_id
from .showing import reason_name, show_history, show_json, show_text

#: Characters of the last error in a list; the whole text may have 64 KiB.
ERROR_START = 120


class PoisonQueueFilter(QueueFilter):
    column = "queue"


class ReasonFilter(admin.SimpleListFilter):
    """Why it was quarantined; other reasons are those of single failures."""

    title = _("reason")
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        reasons = (FailureReason.POISON_MESSAGE, FailureReason.EXPIRED, FailureReason.OPERATOR)
        return [(str(int(reason)), reason_name(reason)) for reason in reasons]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        known = {choice for choice, _ in self.lookup_choices}
        return queryset.filter(reason=value) if value in known else queryset.none()


@admin.register(PoisonRecord)
class PoisonRecordAdmin(ReadOnlyAdmin):
    list_display = (
        "message_id",
        "name",
        "queue",
        "cause",
        "tried",
        "error_start",
        "poisoned_at",
    )
    list_display_links = ("message_id", "name")
    list_filter = (PoisonQueueFilter, ReasonFilter)
    ordering = ("-id",)
    search_fields = ("message_id", "fingerprint", "instance", "stream")
    search_help_text = _(
        "The whole of a message id, a fingerprint, an instance or a stream that stands still."
    )
    actions = ("retry",)
    fieldsets = (
        (None, {"fields": ("message_id", "name", "queue", "poisoned_at", "poisoned_by")}),
        (
            _("Why"),
            {
                "fields": (
                    "reason",
                    "shown_verdict",
                    "tried",
                    "last_failure_reason",
                    "shown_error",
                    "shown_history",
                    "fingerprint",
                    "poison_count",
                )
            },
        ),
        (_("Content"), {"fields": ("shown_payload", "shown_headers")}),
        (_("Order"), {"fields": ("stream", "halts", "priority", "key")}),
        (
            _("Origin"),
            {
                "fields": (
                    "original_created_at",
                    "expires_at",
                    "kind",
                    "instance",
                    "execution_id",
                    "activity_id",
                    "source_id",
                    "fence",
                )
            },
        ),
    )
    readonly_fields = flatten_fieldsets(fieldsets)

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request).light().defer("last_error", "verdict")
        # `defer` adds to what `light` left out; a list shows the beginning of the error only.
        return rows.annotate(start=Left("last_error", ERROR_START + 1))

    def matches(self, term: str) -> Q:
        queues = Queue.objects.using(router.db_for_write(Queue)).values_list("name", flat=True)
        # Only halted streams are indexed, and the index begins with the queue.
        halted = Q(halts=True, queue__in=list(queues), stream=term)
        found = Q(fingerprint=term) | Q(instance=term) | halted
        id = as_id(term)
        return found if id is None else found | Q(message_id=id)

    @admin.action(description=_("Retry selected poison records"), permissions=["retry"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Put the messages back into their queues, each under its own id with a fresh count."""
        ids = list(queryset.order_by().values_list("pk", flat=True)[: self.list_per_page + 1])
        if len(ids) > self.list_per_page:
            too_many = gettext("Retry at most one page of poison records at a time.")
            self.message_user(request, too_many, messages.ERROR)
            return
        records = {record.pk: record for record in queryset}
        outcome = operations.retry_poison(ids, by=request.user.get_username())
        for id in outcome.retried:
            self.log_change(request, records[id], gettext("Retried."))
        self._tell(request, outcome)

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("deadletter.retry_poison")

    def _tell(self, request: HttpRequest, outcome: operations.Retrial) -> None:
        if retried := len(outcome.retried):
            text = ngettext("Retried %(n)s message.", "Retried %(n)s messages.", retried)
            self.message_user(request, text % {"n": retried}, messages.SUCCESS)
        if missing := len(outcome.missing):
            text = ngettext(
                "%(n)s record was already gone.", "%(n)s records were already gone.", missing
            )
            self.message_user(request, text % {"n": missing}, messages.WARNING)
        for id, why in outcome.refused.items():
            text = gettext("Poison record %(id)s was not retried: %(why)s.")
            self.message_user(request, text % {"id": id, "why": why}, messages.ERROR)

    @admin.display(description=_("cause"))
    def cause(self, record: PoisonRecord) -> str:
        """Name what an operator would act on: the last failure, unless no failure was the cause."""
        if record.reason == FailureReason.POISON_MESSAGE and record.last_failure_reason:
            return reason_name(record.last_failure_reason)
        return reason_name(record.reason)

    @admin.display(description=_("attempts"))
    def tried(self, record: PoisonRecord) -> str:
        if record.max_attempts is None:
            return str(record.attempts)
        return gettext("%(n)s of %(max)s") % {
            "n": record.attempts,
            "max": max(record.max_attempts, 1),
        }

    @admin.display(description=_("last error"))
    def error_start(self, record: Any) -> str:
        start: str = record.start or ""
        return start[:ERROR_START] + "…" if len(start) > ERROR_START else start

    @admin.display(description=_("verdict"))
    def shown_verdict(self, record: PoisonRecord) -> str:
        return show_text(record.verdict)

    @admin.display(description=_("last error"))
    def shown_error(self, record: PoisonRecord) -> str:
        return show_text(record.last_error)

    @admin.display(description=_("failed attempts"))
    def shown_history(self, record: PoisonRecord) -> str:
        return show_history(record)

    @admin.display(description=_("payload"))
    def shown_payload(self, record: PoisonRecord) -> str:
        return show_json(record, "payload")

    @admin.display(description=_("headers"))
    def shown_headers(self, record: PoisonRecord) -> str:
        return show_json(record, "headers")
