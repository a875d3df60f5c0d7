"""The brokers of the outbox: whether they accept messages, what waits, and who publishes it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import clock
from ..models import BrokerStatus, primary_alias
from ..operations import BrokerReport, list_brokers
from ..operations.brokers import COUNTED
from ..times import age, moment
from .base import ReadOnlyAdmin
from .error_text import hidden_text
from .render import show_text


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
        "oldest",
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
        report: BrokerReport | None = row.report
        if report is None or not report.is_configured:
            return _badge("halted", gettext("not in the settings"))
        if report.unavailable_since is not None:
            since = age(report.unavailable_since, row.now)
            return _badge("halted", gettext("accepts nothing for %(time)s") % {"time": since})
        if not report.relays and report.waiting:
            return _badge("halted", gettext("no relay"))
        return _badge("due", gettext("available"))

    @admin.display(description=_("waiting"))
    def waiting(self, row: Any) -> str:
        return _counted(row.report.waiting) if row.report else "-"

    @admin.display(description=_("held"))
    def held(self, row: Any) -> str:
        return _counted(row.report.held) if row.report else "-"

    @admin.display(description=_("oldest"))
    def oldest(self, row: Any) -> str:
        return _age(row.report.oldest_at if row.report else None, row.now)

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
