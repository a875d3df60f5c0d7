"""
The alerts: open and closed ones, one line each. Rules open and close them.

A line says what it is about first, with a link to the group or to where the subject is listed.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..alerts.current_counts import left_of
from ..alerts.main_groups import RULES as GROUP_RULES
from ..alerts.notice import closed_word, page_of, path_of, quiet_text
from ..models import Alert, primary_alias
from ..text import page_text
from .base import ReadOnlyAdmin
from .counts import IN_A_LIST, Capped
from .error_text import hidden_text
from .render import show_text
from .urls import link


class AlertStateFilter(admin.SimpleListFilter):
    """Filters open or closed alerts. A closed alert is over, or quiet with dead letters left."""

    title = _("state")
    parameter_name = "state"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, Any]]:
        return [("open", _("open")), ("over", _("over or quiet"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        wanted = {"open": True, "over": False}.get(self.value() or "")
        return queryset if wanted is None else queryset.filter(closed_at__isnull=wanted)


def _left(alert: Alert) -> Capped | None:
    """Count the dead letters of an alert that still exist; the result is cached on the row."""
    if not hasattr(alert, "_left"):
        using = primary_alias(alert._state.db)
        n = left_of(alert.rule, alert.subject, using=using, limit=IN_A_LIST)
        found = None if n is None else Capped(min(n, IN_A_LIST), n > IN_A_LIST)
        alert._left = found  # type: ignore[attr-defined]
    return alert._left  # type: ignore[attr-defined, no-any-return]


def _state(alert: Alert, left: Capped | None) -> tuple[str, str]:
    if alert.closed_at is None:
        return "halted", gettext("open")
    detail = alert.detail if isinstance(alert.detail, dict) else {}
    if word := closed_word(detail):
        return "due", word
    # Over is only what has nothing left.
    return ("failed", quiet_text(str(left))) if left else ("due", gettext("over"))


@admin.register(Alert)
class AlertAdmin(ReadOnlyAdmin):
    list_display = ("subject_linked", "what", "since", "counted", "state")
    list_display_links = ("what",)
    list_filter = (AlertStateFilter, "rule")
    ordering = ("-id",)
    search_fields = ("key",)
    search_help_text = _("The exact name of a queue, worker or message, or a fingerprint.")
    fields = (
        "subject_linked",
        "what",
        "state",
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
    def subject_linked(self, alert: Alert) -> Any:
        """Name the group, the queue or the worker, with a link to its page."""
        detail = alert.detail if isinstance(alert.detail, dict) else {}
        text = alert.subject or gettext("all queues")
        if alert.rule in GROUP_RULES and detail.get("name"):
            text = f"{detail['name']}: {detail.get('exception') or '?'}"
        shown = page_text(text, limit=200)
        address = self._address(alert)
        if not address:
            return format_html("<bdi>{}</bdi>", shown)
        return format_html('<a href="{}"><bdi>{}</bdi></a>', address, shown)

    def _address(self, alert: Alert) -> str:
        try:
            return path_of(alert, site_name=self.admin_site.name)
        except NoReverseMatch:
            return ""

    @admin.display(description=_("count"))
    def counted(self, alert: Alert) -> str:
        """Return the count; dead letters that exist count even if no notice included them yet."""
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
