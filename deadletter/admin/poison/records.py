"""The page of records: newest first, one page at a time, without a count and without payloads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.db.models import Q
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext

from ...models import Alert, FailureGroup, PoisonRecord, primary_alias
from ...operations import find_moved, get_group
from ..base import as_id, tell
from ..urls import to_group, to_message
from .frame import PoisonPageView
from .query import PoisonFilterForm, SearchWindow, jump, window

#: Records on a page.
PER_PAGE = 50
#: Characters of the last error in a list; the whole text may have 64 KiB.
ERROR_START = 200
#: Parameters of the page that are not part of the filter.
_OWN = frozenset({"older", "newer", "q"})


class RecordsView(PoisonPageView):
    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if term := request.GET.get("q", "").strip():
            return HttpResponseRedirect(self.find(term))
        filter = PoisonFilterForm(request.GET, texts=self.rights.payload, besides=_OWN)
        page = RecordsPage() if filter.problem else read_page(filter, request.GET)
        return self.page(
            "poison/records",
            gettext("Poison records"),
            tab="records",
            filter=filter.with_choices(),
            page=page,
            group=_group(filter),
            group_url=self.group_page(filter.wanted.fingerprint or ""),
            emptied=None if page.records or page.further else self.emptied(filter),
            dead_queues_url=to_group(self.site_name, filter.wanted.fingerprint or ""),
            status=400 if filter.problem else 200,
        )

    def find(self, term: str) -> str:
        """Return the page that a search term leads to."""
        if "\x00" not in term and (page := self.group_page(term)):
            return page
        what, value = jump(term, primary_alias()) if "\x00" not in term else ("", None)
        if what == "record":
            return self.url("change", value)
        if what:
            return self.url("records", **{what: value})
        number = as_id(term)
        moved = None if number is None else find_moved(number, using=primary_alias())
        if isinstance(moved, PoisonRecord):
            return self.url("change", moved.pk)
        if moved is not None and (page := to_message(self.site_name, self.request, moved.pk)):
            return page
        text = gettext(
            "No poison has exactly “%(term)s” as its id, group, name, stream or instance."
        )
        tell(self.request, text % {"term": term[:100]}, messages.WARNING)
        return self.url("records")

    def group_page(self, fingerprint: str) -> str:
        """Return the page of a group; "" if there is none, or this person may not see it."""
        if not self.rights.groups:
            return ""
        rows = FailureGroup.objects.using(primary_alias()).filter(fingerprint=fingerprint)
        return self.group_url(fingerprint) if rows.values("pk")[:1] else ""

    def emptied(self, filter: PoisonFilterForm) -> dict[str, Any] | None:
        """
        Return the last alert and the audit trail for a group that has no records any more.

        Alerts link to the list of their group. If everything was retried or removed since, the page
        still explains the alert.
        """
        group = filter.wanted.fingerprint
        if not group or filter.problem or set(filter.query) != {"fingerprint"}:
            return None
        may = self.request.user.has_perm
        told = Alert.objects.using(primary_alias()).filter(key=f"{Alert.Rule.NEW_GROUP}:{group}")
        alert = told.order_by("-pk").first() if may("deadletter.view_alert") else None
        audit_url = self.link("auditentry_changelist")
        return {
            "alert": alert,
            "alert_url": self.link("alert_change", alert.pk) if alert else "",
            "audit_url": audit_url if may("deadletter.view_auditentry") else "",
        }


@dataclass(frozen=True, kw_only=True)
class RecordsPage:
    """Records, and the addresses of the pages before and after."""

    records: tuple[Any, ...] = ()
    older: str = ""
    newer: str = ""
    newest: str = "?"
    #: Where a search without an index stopped.
    further: str = ""
    looked_at: int = 0


def read_page(filter: PoisonFilterForm, given: QueryDict) -> RecordsPage:
    """Read one page. A place that cannot be read stands for the newest."""
    older, newer = _place(given.get("older", "")), _place(given.get("newer", ""))
    backwards = newer is not None and older is None
    after = _beyond(older, "lt") if older else None
    found = window(filter.wanted, primary_alias(), after=after)
    rows = _light(found)
    if backwards and newer is not None:
        rows = rows.filter(_beyond(newer, "gt")).order_by("poisoned_at", "pk")
    read = list(rows[: PER_PAGE + 1])
    more = len(read) > PER_PAGE
    read = read[:PER_PAGE]
    if backwards:
        read.reverse()
    # Everything of that time was searched: 1 stands for the place before its first record.
    end = (found.end, 1) if found.end and not more and not backwards else None

    def link(key: str, place: tuple[datetime, int]) -> str:
        text = f"{place[0].isoformat()}_{place[1]}"
        return "?" + _encode({**filter.query, key: text})

    has_older = more or backwards
    has_newer = older is not None or (backwards and more)
    return RecordsPage(
        records=tuple(read),
        newest=f"?{_encode(filter.query)}",
        older=link("older", _at(read[-1])) if read and has_older else "",
        newer=link("newer", _at(read[0])) if read and has_newer else "",
        further=link("older", end) if end else "",
        looked_at=found.reach,
    )


def _light(found: SearchWindow) -> Any:
    # `defer` adds to what `light` leaves out; the list shows only the beginning of the error.
    return found.rows.defer("payload", "headers", "history", "last_error", "verdict").annotate(
        start=Left("last_error", ERROR_START + 1), said=Left("verdict", ERROR_START + 1)
    )


def _at(record: PoisonRecord) -> tuple[datetime, int]:
    return record.poisoned_at, record.pk


def _place(text: str) -> tuple[datetime, int] | None:
    time, _, number = text.rpartition("_")
    try:
        at, id = parse_datetime(time), as_id(number)
        return (at, id) if at is not None and at.utcoffset() is not None and id else None
    except (ValueError, OverflowError):
        return None


def _beyond(place: tuple[datetime, int], side: str) -> Q:
    """Return rows older or newer than a place; the first condition can use an index."""
    at, id = place
    edge = Q(**{f"poisoned_at__{side}e": at})
    return edge & (Q(**{f"poisoned_at__{side}": at}) | Q(**{f"pk__{side}": id}))


def _encode(values: dict[str, str]) -> str:
    query = QueryDict(mutable=True)
    for key, value in values.items():
        query[key] = value
    return query.urlencode()


def _group(filter: PoisonFilterForm) -> Any:
    found = filter.wanted.fingerprint
    return get_group(found) if found and not filter.problem else None
