"""The counters: the rows behind what was sent, completed and failed. Workers write them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import label_for_field
from django.contrib.admin.views.main import ChangeList
from django.db import models
from django.db.models import Q, QuerySet, Sum
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import clock
from ..models import NO_REASON, Count, Span, primary_alias
from ..operations.series import HOUR, WINDOWS
from ..status import FailureReason
from ..text import page_text
from .base import QueueFilter, ReadOnlyAdmin
from .render import reason_name

#: Columns that count something.
COUNTED = ("sent", "completed", "failed", "deferred", "poisoned", "retried", "removed")
#: Newest counters from which the name filter takes its choices.
RECENT = 1_000
#: Rows summed; a longer list has no sums. A week of 250 busy names has fewer.
SUMMED = 200_000
_ENDS = ("since", "until")


class CountedTimeFilter(admin.ListFilter):
    """
    Filters by time: a window of the dashboard, all, or `since` and `until`. Default: the last hour.

    A counter belongs to the time at which its span begins.
    """

    title = _("time")

    def __init__(
        self,
        request: HttpRequest,
        params: dict[str, Any],
        model: Any,
        model_admin: admin.ModelAdmin[Any],
    ) -> None:
        super().__init__(request, params, model, model_admin)
        for name in ("time", *_ENDS):
            if name in params:
                self.used_parameters[name] = params.pop(name)[-1]
        self.since, self.until = (_moment(self.used_parameters.get(name)) for name in _ENDS)
        self.given = self.since is not None or self.until is not None
        self.time = "" if self.given else str(self.used_parameters.get("time") or HOUR.name)

    def expected_parameters(self) -> list[str | None]:
        return ["time", *_ENDS]

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: Any) -> Iterator[Any]:
        labels = {
            "hour": gettext("Last hour"),
            "day": gettext("Last day"),
            "week": gettext("Last week"),
            "ever": gettext("All"),
        }
        if self.given:
            yield {"selected": True, "query_string": "?", "display": self._range()}
        for name, label in labels.items():
            query = changelist.get_query_string({"time": name}, _ENDS)
            yield {"selected": name == self.time, "query_string": query, "display": label}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        # The index begins with the span: with all spans named it is used for the time.
        rows = queryset.filter(span__in=Span.values)
        since = self.since
        if self.time in WINDOWS:
            since = WINDOWS[self.time].starts(clock.now(queryset.db))[0]
        elif self.time not in ("", "ever"):
            raise IncorrectLookupParameters
        if since is not None:
            rows = rows.filter(at__gte=since)
        return rows if self.until is None else rows.filter(at__lt=self.until)

    def _range(self) -> str:
        ends = (
            date_format(timezone.localtime(at), "SHORT_DATETIME_FORMAT") if at else ""
            for at in (self.since, self.until)
        )
        return " – ".join(ends).strip()  # noqa: RUF001 - a range


class CountedColumnFilter(admin.SimpleListFilter):
    """Filters the counters in which a column is above 0."""

    title = _("what was counted")
    parameter_name = "what"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, Any]]:
        return [(name, label_for_field(name, Count)) for name in COUNTED]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        return queryset.filter(**{f"{value}__gt": 0}) if value in COUNTED else queryset.none()


class CountedQueueFilter(QueueFilter):
    """Filters by queue. A deleted queue can be given in the URL."""

    column = "queue"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else queryset.filter(queue=value)


class CountedNameFilter(admin.SimpleListFilter):
    """Filters by name. Recent names are choices; any name can be given in the URL."""

    title = _("name")
    parameter_name = "name"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, str]]:
        rows = Count.objects.using(primary_alias()).filter(span=Span.MINUTE)
        newest = rows.order_by("-span", "-at").values_list("name", flat=True)[:RECENT]
        names = {self.value(), *newest} - {None}
        return [(name, name) for name in sorted(map(str, names))]

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else queryset.filter(name=value)


class CountedReasonFilter(admin.SimpleListFilter):
    """Filters by the reason of failed attempts: one, or several separated by commas."""

    title = _("reason")
    parameter_name = "reason"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, str]]:
        return [(reason.name.lower(), reason_name(reason)) for reason in FailureReason]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        known = {reason.name.lower(): reason for reason in FailureReason}
        wanted = {known[name] for name in value.split(",") if name in known}
        if FailureReason.UNKNOWN in wanted:
            # A number that this version does not know is read as unknown.
            others = {reason.value for reason in FailureReason} - {int(r) for r in wanted}
            return queryset.exclude(reason__in=[*others, NO_REASON])
        return queryset.filter(reason__in=[int(reason) for reason in wanted])


class CountList(ChangeList):
    """Sums the counters of all pages; `sums` is None if there are more than SUMMED rows."""

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
        """The sums above 0, with their labels."""
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
    list_filter = (
        CountedTimeFilter,
        CountedColumnFilter,
        CountedQueueFilter,
        CountedNameFilter,
        CountedReasonFilter,
    )
    list_per_page = 50
    ordering = ("-at",)
    search_fields = ("name",)
    search_help_text = _("The exact name of a message.")
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

    @admin.display(description=_("mean seconds"))
    def mean(self, row: Count) -> str:
        """Return the mean duration of completed and failed attempts."""
        done = row.completed + row.failed
        return number_format(row.seconds / done, 3) if done and row.seconds else "-"

    @admin.display(description=_("longest"))
    def longest_shown(self, row: Count) -> str:
        return number_format(row.longest, 3) if row.longest else "-"


def _moment(text: Any) -> datetime | None:
    """Read a time; without a zone it is in the user's time zone."""
    if not text:
        return None
    try:
        moment = parse_datetime(str(text))
        if moment is None:
            raise IncorrectLookupParameters
        if timezone.is_naive(moment):
            moment = timezone.make_aware(moment)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise IncorrectLookupParameters from error
