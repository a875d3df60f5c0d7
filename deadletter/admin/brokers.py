"""The brokers of the outbox: whether they accept messages, what waits, and who publishes it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote, unquote
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q
from django.http import HttpRequest
from django.urls import URLPattern, path
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import clock
from ..models import BrokerStatus, primary_alias
from ..operations import BrokerReport, list_brokers, list_pauses
from ..operations.brokers import COUNTED
from ..text import page_text
from ..times import age, moment
from .base import ReadOnlyAdmin, may
from .error_text import hidden_text
from .outbox_pause import PERMISSION, PauseOutboxView, ResumeOutboxView
from .render import show_text
from .urls import link


class BrokerList(ChangeList):
    """Adds to each row what is known of the broker now."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        using = primary_alias()
        now = clock.now(using)
        reports = {report.name: report for report in list_brokers(using=using)}
        rows: list[Any] = list(self.result_list)
        for row in rows:
            row.report, row.now = reports.get(row.name), now
        self.result_list = rows


@admin.register(BrokerStatus)
class BrokerStatusAdmin(ReadOnlyAdmin):
    list_display = (
        "name",
        "state",
        "waiting",
        "held",
        "paused",
        "oldest",
        "rate",
        "relays",
        "last_confirm",
        "error_start",
    )
    ordering = ("name",)
    search_fields = ("name",)
    search_help_text = _("The exact name of a broker.")
    fields = ("name", "unavailable_since", "shown_error", "confirmed_at")
    readonly_fields = fields
    actions = None
    without_payload = dict.fromkeys(("error_start", "shown_error", "error"), "hidden_error")

    def matches(self, term: str) -> Q:
        return Q(name=term)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return BrokerList

    @admin.display(description=_("state"))
    def state(self, row: Any) -> str:
        return _state(row.report, row.now)

    @admin.display(description=_("waiting"))
    def waiting(self, row: Any) -> str:
        return _counted(row.report.waiting) if row.report else "-"

    @admin.display(description=_("held"))
    def held(self, row: Any) -> str:
        return _counted(row.report.held) if row.report else "-"

    @admin.display(description=_("paused"))
    def paused(self, row: Any) -> str:
        report: BrokerReport | None = row.report
        if report is None or not report.pauses:
            return "-"
        topics = ", ".join(page_text(topic, limit=80) for topic in report.pauses if topic)
        return format_html('<span title="{}">{}</span>', topics, _counted(report.paused))

    @admin.display(description=_("oldest"))
    def oldest(self, row: Any) -> str:
        return _age(row.report.oldest_at if row.report else None, row.now)

    @admin.display(description=_("rate"))
    def rate(self, row: Any) -> str:
        return _rate(row.report)

    @admin.display(description=_("relays"))
    def relays(self, row: Any) -> str:
        return str(row.report.relays) if row.report else "-"

    @admin.display(description=_("last confirm"))
    def last_confirm(self, row: Any) -> str:
        return _age(row.confirmed_at, row.now)

    @admin.display(description=_("error"))
    def error_start(self, row: BrokerStatus) -> str:
        return row.error[:120] or "-"

    @admin.display(description=_("error"))
    def shown_error(self, row: BrokerStatus) -> str:
        return show_text(row.error or None)

    @admin.display(description=_("error"))
    def hidden_error(self, row: BrokerStatus) -> str:
        return hidden_text(row.error or None)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path(
                "<path:object_id>/pause/",
                view(PauseOutboxView.as_view(model_admin=self)),
                name="deadletter_brokerstatus_pause",
            ),
            path(
                "<path:object_id>/resume/",
                view(ResumeOutboxView.as_view(model_admin=self)),
                name="deadletter_brokerstatus_resume",
            ),
        ]
        return own + super().get_urls()

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> Any:
        extra = self._about(request, unquote(object_id))
        return super().change_view(request, object_id, form_url, {**extra, **(extra_context or {})})

    def _about(self, request: HttpRequest, name: str) -> dict[str, Any]:
        """Return the counts, the pauses and the buttons for the top of the page."""
        if not may(self, request):
            return {}
        using = primary_alias()
        site, now = self.admin_site.name, clock.now(using)
        report = next((found for found in list_brokers(using=using) if found.name == name), None)
        pauses: list[Any] = [row for row in list_pauses(using=using) if row.broker == name]
        allowed = may(self, request, PERMISSION)
        for pause in pauses:
            key = quote(name)
            pause.url = link(site, "brokerstatus_resume", key, topic=pause.topic) if allowed else ""
        seen = request.user.has_perm("deadletter.view_publishedmessage")
        return {
            "report": report,
            "now": now,
            "counts": [] if report is None else _figures(report, now),
            "pauses": pauses,
            "pause_url": link(site, "brokerstatus_pause", quote(name)) if allowed else "",
            "archive_url": link(site, "publishedmessage_changelist") if seen else "",
        }


def _state(report: BrokerReport | None, now: datetime) -> str:
    if report is None or not report.is_configured:
        return _badge("halted", gettext("not in the settings"))
    if report.is_paused:
        return _badge("waiting", gettext("paused"))
    if report.unavailable_since is not None:
        since = age(report.unavailable_since, now)
        return _badge("halted", gettext("accepts nothing for %(time)s") % {"time": since})
    if not report.relays and report.to_publish:
        return _badge("halted", gettext("no relay"))
    return _badge("due", gettext("available"))


def _figures(report: BrokerReport, now: datetime) -> list[dict[str, Any]]:
    """Return what a page says of a broker in numbers."""
    return [
        {"label": gettext("state"), "n": _state(report, now)},
        {"label": gettext("waiting"), "n": _counted(report.waiting)},
        {"label": gettext("held"), "n": _counted(report.held)},
        {"label": gettext("paused"), "n": _counted(report.paused)},
        {"label": gettext("oldest"), "n": _age(report.oldest_at, now)},
        {"label": gettext("rate"), "n": _rate(report)},
        {"label": gettext("relays"), "n": report.relays},
        {"label": gettext("lanes"), "n": report.lanes},
        {"label": gettext("last confirm"), "n": _age(report.confirmed_at, now)},
    ]


def _rate(report: BrokerReport | None) -> str:
    if report is None or report.rate is None:
        return "-"
    shown = number_format(report.rate, 1, use_l10n=True, force_grouping=True)
    return gettext("%(n)s a second") % {"n": shown}


def _badge(kind: str, word: str) -> str:
    return format_html('<span class="dl-state dl-state-{}">{}</span>', kind, word)


def _counted(n: int) -> str:
    if n > COUNTED:
        return gettext("more than %(n)s") % {"n": number_format(COUNTED, force_grouping=True)}
    return number_format(n, force_grouping=True)


def _age(at: Any, now: Any) -> str:
    if at is None:
        return "-"
    return format_html('<span title="{}">{}</span>', moment(at), age(at, now))
