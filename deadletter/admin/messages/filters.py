"""Filters of failed messages: by their number of attempts and by the reason of their failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...models import Message
from ...operations.filters import as_reason
from ...status import FailureReason, Status
from ..render import reason_name

#: The newest failed messages looked at, and one more to know whether there are others.
REACH = 5_001


@dataclass(frozen=True)
class Band:
    """From so many attempts to so many."""

    low: int
    high: int | None

    @property
    def key(self) -> str:
        """How an address asks for it."""
        return f"{self.low}-{'' if self.high is None else self.high}"

    @property
    def label(self) -> str:
        if self.high is None:
            return f"{self.low}+"
        one = self.low in (0, self.high)
        return str(self.high) if one else f"{self.low}–{self.high}"  # noqa: RUF001 - a range

    @property
    def where(self) -> Q:
        above = Q(attempts__gte=self.low)
        return above if self.high is None else above & Q(attempts__lte=self.high)


BANDS = (
    Band(0, 1),
    Band(2, 2),
    Band(3, 3),
    Band(4, 4),
    Band(5, 5),
    Band(6, 9),
    Band(10, None),
)


def failed_of_late(using: str) -> Any:
    """The newest REACH messages that failed, whatever they wait for."""
    # Implied by the bit, and unlike it known to an index.
    rows = Message.objects.using(using).filter(status__gte=int(Status.FAILED))
    return rows.order_by("-id")[:REACH]


class AttemptsFilter(admin.SimpleListFilter):
    """Looks at the newest that failed: how many attempts a message had is known to no index."""

    title = _("attempts of failed messages")
    parameter_name = "attempts"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(band.key, band.label) for band in BANDS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        band = next((band for band in BANDS if band.key == self.value()), None)
        if band is None:
            return queryset.none()
        return _of_late(queryset.filter(band.where))


class ReasonFilter(admin.SimpleListFilter):
    """
    By what the last failure was. Looks at the newest that failed, as AttemptsFilter does; with a
    state it looks at all in that state, which the other filter leads to.
    """

    title = _("reason of failed messages")
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(reason.name.lower(), reason_name(reason)) for reason in FailureReason]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if (value := self.value()) is None:
            return queryset
        try:
            rows = queryset.filter(failure_reason=as_reason(value))
        except ValueError:
            return queryset.none()
        return rows if "state" in request.GET else _of_late(rows)


def _of_late(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Narrow to the newest that failed."""
    rows = rows.filter(status__gte=int(Status.FAILED))
    oldest = list(failed_of_late(rows.db).values_list("pk", flat=True)[REACH - 1 :])
    return rows.filter(pk__gte=oldest[0]) if oldest else rows
