"""Counters: the rows behind what was sent, completed and failed. Only shown; workers count."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import label_for_field
from django.contrib.admin.views.main import ChangeList
from django.db import models
from django.db.models import Q, Sum
from django.http import HttpRequest
from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext_lazy as _

from ..models import NO_REASON, Count, Span
from ..text import page_text
from .base import ReadOnlyAdmin
from .counter_filters import (
    COUNTED,
    CountedQueueFilter,
    NameFilter,
    ReasonFilter,
    TimeFilter,
    WhatFilter,
)
from .render import reason_name

#: Rows added up; of more than these there is no sum. A week of 250 busy names has fewer.
SUMMED = 200_000


class CountList(ChangeList):
    """Adds up what is listed, on all pages; `sums` is None when that would be too many rows."""

    sums: dict[str, int] | None = None

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = self.queryset.order_by().values("pk", *COUNTED)[: SUMMED + 1]
        found = rows.aggregate(
            rows=models.Count("pk"), **{f"n_{name}": Sum(name) for name in COUNTED}
        )
        if found["rows"] <= SUMMED:
            self.sums = {name: found[f"n_{name}"] or 0 for name in COUNTED}

    @property
    def shown_sums(self) -> list[tuple[str, str]]:
        """What there is any of, with its name."""
        return [
            (
                str(label_for_field(name, Count)),
                number_format(n, use_l10n=True, force_grouping=True),
            )
            for name, n in (self.sums or {}).items()
            if n
        ]


@admin.register(Count)
class CountAdmin(ReadOnlyAdmin):
    list_display = (
        "when",
        "span",
        "queue_shown",
        "name_shown",
        "why",
        *COUNTED,
        "mean",
        "longest_shown",
    )
    list_display_links = ("when",)
    list_filter = (TimeFilter, WhatFilter, CountedQueueFilter, NameFilter, ReasonFilter)
    list_per_page = 50
    ordering = ("-at",)
    search_fields = ("name",)
    search_help_text = _("The whole of a message name.")
    fields = (
        "when",
        "span",
        "queue_shown",
        "name_shown",
        "kind",
        "why",
        *COUNTED,
        "mean",
        "longest_shown",
        "writer",
    )
    readonly_fields = fields

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return CountList

    def matches(self, term: str) -> Q:
        return Q(name=term)

    @admin.display(description=_("from"))
    def when(self, row: Count) -> str:
        if row.span == Span.EVER:
            return "-"
        return date_format(timezone.localtime(row.at), "SHORT_DATETIME_FORMAT")

    @admin.display(description=_("queue"))
    def queue_shown(self, row: Count) -> str:
        return page_text(row.queue, limit=80)

    @admin.display(description=_("name"))
    def name_shown(self, row: Count) -> str:
        return page_text(row.name, limit=80)

    @admin.display(description=_("reason"))
    def why(self, row: Count) -> str:
        return "-" if row.reason == NO_REASON else reason_name(row.reason)

    @admin.display(description=_("seconds each"))
    def mean(self, row: Count) -> str:
        """Of completed and failed attempts."""
        done = row.completed + row.failed
        return number_format(row.seconds / done, 3) if done and row.seconds else "-"

    @admin.display(description=_("longest"))
    def longest_shown(self, row: Count) -> str:
        return number_format(row.longest, 3) if row.longest else "-"
