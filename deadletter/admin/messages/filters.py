"""Filters of the list of messages; each is bounded by an index or by a number of rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...lifecycle.levels import read_levels
from ...models import Message, Queue, State, primary_alias
from ...operations.filters import as_reason
from ...status import FailureReason, Status
from ...text import page_text
from ..base import COUNT_LIMIT, NAMES, as_id
from ..render import reason_name
from ..urls import GROUP

#: The newest failed messages looked at, and one more to know whether there are others.
REACH = 5_001


class MessageStateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, Any]]:
        # A dead message is a poison record, in a table and on a page of its own.
        return [choice for choice in State.choices if choice[0] != State.DEAD]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet[Message]:
        value = self.value()
        if value is None:
            return queryset  # type: ignore[no-any-return]
        known = {choice for choice, _ in self.lookup_choices}
        if value not in known:
            return queryset.none()  # type: ignore[no-any-return]
        rows = queryset.in_state(value)
        if value in (State.PENDING, State.SCHEDULED, State.ACTIVE):
            # Where few of many rows are in this state, the index of the claim leads to them.
            levels = read_levels(queryset.db)
            rows = rows.filter(priority__in=sorted({level.priority for level in levels}))
        if value == State.FAILED:
            # Implied by the bit, and unlike the bit part of an index.
            return rows.filter(status__gte=int(Status.FAILED))  # type: ignore[no-any-return]
        if value == State.ACTIVE:
            # No index finds these: search once, not again for the count and for every page.
            ids = rows.order_by().values_list("pk", flat=True)[: COUNT_LIMIT + 1]
            return queryset.filter(pk__in=list(ids))  # type: ignore[no-any-return]
        return rows  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Band:
    """A range of attempts; `high` None: no upper end."""

    low: int
    high: int | None

    @property
    def key(self) -> str:
        """The value of the parameter in an address."""
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
    """Return the newest REACH messages that failed, in any state."""
    # Implied by the bit, and unlike the bit part of an index.
    rows = Message.objects.using(using).filter(status__gte=int(Status.FAILED))
    return rows.order_by("-id")[:REACH]


class AttemptsFilter(admin.SimpleListFilter):
    """Searches the newest failed messages: no index has the number of attempts."""

    title = _("attempts of failed messages")
    parameter_name = "attempts"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, str]]:
        return [(band.key, band.label) for band in BANDS]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() is None:
            return queryset
        band = next((band for band in BANDS if band.key == self.value()), None)
        if band is None:
            return queryset.none()
        return _of_late(queryset.filter(band.where))


class FailureReasonFilter(admin.SimpleListFilter):
    """
    Filters by the reason of the last failure, among the newest failed messages.

    Together with a state it searches all messages in that state: the other filter is the narrow
    one.
    """

    title = _("reason of failed messages")
    parameter_name = "reason"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, str]]:
        return [(reason.name.lower(), reason_name(reason)) for reason in FailureReason]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if (value := self.value()) is None:
            return queryset
        try:
            rows = queryset.filter(failure_reason=as_reason(value))
        except ValueError:
            return queryset.none()
        return rows if "state" in request.GET else _of_late(rows)


class MessageNameFilter(admin.SimpleListFilter):
    """
    Filters by name, among the newest and the oldest messages: no index has the names.

    The choices are the most frequent names of the newest. An address may have any other name.
    """

    title = _("name")
    parameter_name = "name"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, str]]:
        names = Counter(name for _id, name in self._newest)
        return [(name, page_text(name, limit=80)) for name, _n in names.most_common(NAMES)]

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        rows = Message.objects.using(primary_alias()).order_by("id").values_list("pk", "name")
        looked_at = {*self._newest, *rows[:REACH]}
        return queryset.filter(pk__in=[id for id, name in looked_at if name == value])

    @cached_property
    def _newest(self) -> list[tuple[int, str]]:
        rows = Message.objects.using(primary_alias()).order_by("-id")
        return list(rows.values_list("pk", "name")[:REACH])


class FingerprintFilter(admin.SimpleListFilter):
    """Filters dead queues by cause of death. Links lead to it; it offers no choices."""

    title = _("cause of death")
    parameter_name = GROUP

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, str]]:
        value = request.GET.get(GROUP, "")
        return [(value, page_text(value, limit=20))] if value else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        # A fingerprint has sixteen characters; skip the query for anything else.
        if len(value) > 16 or "\x00" in value:
            return queryset.none()
        return queryset.filter(fingerprint=value)


def is_dead_list(request: HttpRequest) -> bool:
    """True if the list shows dead letters: a group, or a queue that is another's dead queue."""
    if request.GET.get(GROUP):
        return True
    id = as_id(request.GET.get("queue", ""))
    rows = Queue.objects.using(primary_alias())
    return id is not None and rows.filter(dead_queue=id).exists()


def with_deaths(rows: Any) -> Any:
    """Read the deaths of a list with its rows, instead of one by one."""
    return rows.defer(None).defer("payload", "headers", "history", "error")


def _of_late(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Narrow to the newest failed messages."""
    rows = rows.filter(status__gte=int(Status.FAILED))
    oldest = list(failed_of_late(rows.db).values_list("pk", flat=True)[REACH - 1 :])
    return rows.filter(pk__gte=oldest[0]) if oldest else rows
