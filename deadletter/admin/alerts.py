"""Alerts: what is wrong now, what was, and when was it told? Only shown; rules decide."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models import Alert
from .error_text import hidden_text
from .readonly import ReadOnlyAdmin
from .showing import show_text


class StateFilter(admin.SimpleListFilter):
    """Open, or over."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("open", _("open")), ("over", _("over"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        wanted = {"open": True, "over": False}.get(self.value() or "")
        return queryset if wanted is None else queryset.filter(closed_at__isnull=wanted)


@admin.register(Alert)
class AlertAdmin(ReadOnlyAdmin):
    list_display = ("what", "state", "subject_shown", "count", "since", "told_at", "closed_at")
    list_filter = (StateFilter, "rule")
    ordering = ("-id",)
    search_fields = ("key",)
    search_help_text = _("The whole of a queue's, worker's or message's name, or a fingerprint.")
    fields = (
        "what",
        "state",
        "subject_shown",
        "count",
        "since",
        "opened_at",
        "last_at",
        "closed_at",
        "told_at",
        "sample",
    )
    readonly_fields = fields
    without_payload = {"sample": "hidden_sample", "error": "hidden_sample"}

    def matches(self, term: str) -> Q:
        return Q(key__in=[f"{rule}:{term}" for rule in Alert.Rule])

    @admin.display(description=_("rule"))
    def what(self, alert: Alert) -> str:
        return alert.get_rule_display()

    @admin.display(description=_("about"))
    def subject_shown(self, alert: Alert) -> str:
        detail = alert.detail if isinstance(alert.detail, dict) else {}
        if alert.rule == Alert.Rule.NEW_GROUP:
            return f"{detail.get('name', '')}: {detail.get('exception', '')}"
        return alert.subject or gettext("all queues")

    @admin.display(description=_("state"))
    def state(self, alert: Alert) -> Any:
        kind, word = (
            ("halted", gettext("open")) if alert.closed_at is None else ("due", gettext("over"))
        )
        return format_html('<span class="deadletter-state deadletter-{}">{}</span>', kind, word)

    @admin.display(description=_("sample error"))
    def sample(self, alert: Alert) -> str:
        return show_text(alert.error) if alert.error else "-"

    @admin.display(description=_("sample error"))
    def hidden_sample(self, alert: Alert) -> str:
        return hidden_text(alert.error) or "-"
