"""Which counters? Of this time, queue, name and reason, and those that counted this."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import label_for_field
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.formats import date_format
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import clock
from ..models import NO_REASON, Count, Span, primary_alias
from ..operations.series import HOUR, WINDOWS
from ..status import FailureReason
from .base import QueueFilter
from .render import reason_name

#: Columns that count something.
COUNTED = ("sent", "completed", "failed", "deferred", "poisoned", "retried", "removed")
#: Newest counters among which names are looked for; no others are offered to choose.
RECENT = 1_000
_ENDS = ("since", "until")


class TimeFilter(admin.ListFilter):
    """
    The last hour, unless told otherwise: a window of the dashboard, all, or `since` and `until`.

    A counter belongs to the time in which its span begins.
    """

    title = _("time")

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any
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
            yield {"selected": True, "query_string": "?", "display": self._told()}
        for name, label in labels.items():
            query = changelist.get_query_string({"time": name}, _ENDS)
            yield {"selected": name == self.time, "query_string": query, "display": label}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        # Naming the spans lets the index, which begins with them, lead to the time.
        rows = queryset.filter(span__in=Span.values)
        since = self.since
        if self.time in WINDOWS:
            since = WINDOWS[self.time].starts(clock.now(queryset.db))[0]
        elif self.time not in ("", "ever"):
            raise IncorrectLookupParameters
        if since is not None:
            rows = rows.filter(at__gte=since)
        return rows if self.until is None else rows.filter(at__lt=self.until)

    def _told(self) -> str:
        ends = (
            date_format(timezone.localtime(at), "SHORT_DATETIME_FORMAT") if at else ""
            for at in (self.since, self.until)
        )
        return " – ".join(ends).strip()  # noqa: RUF001 - a range


class WhatFilter(admin.SimpleListFilter):
    """Counters that counted at least one of something."""

    title = _("what was counted")
    parameter_name = "what"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [(name, label_for_field(name, Count)) for name in COUNTED]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        return queryset.filter(**{f"{value}__gt": 0}) if value in COUNTED else queryset.none()


class CountedQueueFilter(QueueFilter):
    """By queue; one that was deleted since may be asked for as well."""

    column = "queue"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else queryset.filter(queue=value)


class NameFilter(admin.SimpleListFilter):
    """By name; those of late are offered, any may be asked for."""

    title = _("name")
    parameter_name = "name"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        rows = Count.objects.using(primary_alias()).filter(span=Span.MINUTE)
        newest = rows.order_by("-span", "-at").values_list("name", flat=True)[:RECENT]
        names = {self.value(), *newest} - {None}
        return [(name, name) for name in sorted(map(str, names))]

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else queryset.filter(name=value)


class ReasonFilter(admin.SimpleListFilter):
    """By the reason of failed attempts: one, or several with commas between."""

    title = _("reason")
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(reason.name.lower(), reason_name(reason)) for reason in FailureReason]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        known = {reason.name.lower(): reason for reason in FailureReason}
        wanted = {known[name] for name in value.split(",") if name in known}
        if FailureReason.UNKNOWN in wanted:
            # As it is read: a number from the future is unknown as well.
            others = {reason.value for reason in FailureReason} - {int(r) for r in wanted}
            return queryset.exclude(reason__in=[*others, NO_REASON])
        return queryset.filter(reason__in=[int(reason) for reason in wanted])


def _moment(text: Any) -> datetime | None:
    """Read a time; without a zone it is the operator's own."""
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
