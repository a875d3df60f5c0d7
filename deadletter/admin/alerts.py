"""Alerts: what is wrong now, what was, and when was it told? Only shown; rules decide."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db import router
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..alerts.current import left_of
from ..alerts.links import page_of
from ..alerts.wording import quiet
from ..models import Alert
from .base import ReadOnlyAdmin
from .counts import IN_A_LIST, Capped
from .error_text import hidden_text
from .render import show_text
from .urls import link


class StateFilter(admin.SimpleListFilter):
    """Open, or ended: over, or quiet with dead letters left."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("open", _("open")), ("over", _("over or quiet"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        wanted = {"open": True, "over": False}.get(self.value() or "")
        return queryset if wanted is None else queryset.filter(closed_at__isnull=wanted)


def _left(alert: Alert) -> Capped | None:
    """Count the dead letters of an alert that are there, once for a page."""
    if not hasattr(alert, "_left"):
        using = alert._state.db or router.db_for_write(Alert)
        n = left_of(alert.rule, alert.subject, using=using, limit=IN_A_LIST)
        found = None if n is None else Capped(min(n, IN_A_LIST), n > IN_A_LIST)
        alert._left = found  # type: ignore[attr-defined]
    return alert._left  # type: ignore[attr-defined, no-any-return]


def _state(alert: Alert, left: Capped | None) -> tuple[str, str]:
    if alert.closed_at is None:
        return "halted", gettext("open")
    # Over is only what has nothing left.
    return ("failed", quiet(str(left))) if left else ("due", gettext("over"))


@admin.register(Alert)
class AlertAdmin(ReadOnlyAdmin):
    list_display = (
        "what",
        "state",
        "subject_shown",
        "counted",
        "still_there",
        "since",
        "told_at",
        "closed_at",
    )
    list_filter = (StateFilter, "rule")
    ordering = ("-id",)
    search_fields = ("key",)
    search_help_text = _("The whole of a queue's, worker's or message's name, or a fingerprint.")
    fields = (
        "what",
        "state",
        "subject_shown",
        "counted",
        "still_there",
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

    @admin.display(description=_("count"))
    def counted(self, alert: Alert) -> str:
        """Say how many; what is there has died, though no notice has counted it yet."""
        left = _left(alert) or Capped(0)
        if left.n <= alert.count:
            return str(Capped(alert.count))
        return str(left)

    @admin.display(description=_("state"))
    def state(self, alert: Alert) -> Any:
        kind, word = _state(alert, _left(alert))
        return format_html('<span class="dl-state dl-state-{}">{}</span>', kind, word)

    @admin.display(description=_("still there"))
    def still_there(self, alert: Alert) -> Any:
        left = _left(alert)
        page, query = page_of(alert)
        address = link(self.admin_site.name, page)
        if left is None or not left.n or not address:
            return "-" if left is None else str(left)
        return format_html('<a href="{}?{}">{}</a>', address, urlencode(query), left)

    @admin.display(description=_("sample error"))
    def sample(self, alert: Alert) -> str:
        return show_text(alert.error) if alert.error else "-"

    @admin.display(description=_("sample error"))
    def hidden_sample(self, alert: Alert) -> str:
        return hidden_text(alert.error) or "-"
