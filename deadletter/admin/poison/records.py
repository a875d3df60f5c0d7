"""Which records match? Newest first, a page at a time, without counting and without payloads."""

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

from ...models import Alert, Kind, PoisonRecord, Queue
from ...operations import find_moved, get_group
from ...status import FailureReason
from ..base import as_id
from ..messages.dead import group_url
from ..pages import alias, need, render, tell, url
from ..render import reason_name
from ..urls import link
from .query import FIELDS, Asked, Window, jump, read_filter, window
from .record import page_of_message

PER_PAGE = 50
#: Characters of the last error in a list; the whole text may have 64 KiB.
ERROR_START = 200
#: Parameters of the page that are not part of the filter.
_OWN = frozenset({"older", "newer", "q"})


def records(model_admin: Any, request: HttpRequest) -> HttpResponse:
    allowed = need(model_admin, request)
    if term := request.GET.get("q", "").strip():
        return _jump(model_admin, request, term)
    asked = read_filter(request.GET, texts=allowed.payload, besides=_OWN)
    page = Page() if asked.problem else read_page(asked, request.GET)
    return render(
        model_admin,
        request,
        "records",
        gettext("Poison records"),
        tab="records",
        asked=asked,
        page=page,
        group=_group(asked),
        emptied=None if page.records or page.further else _emptied(model_admin, request, asked),
        buried_url=group_url(model_admin.admin_site.name, asked.wanted.fingerprint or ""),
        fields=[f for f in _form(asked) if f["name"] != "text" or allowed.payload],
        status=400 if asked.problem else 200,
    )


@dataclass(frozen=True, kw_only=True)
class Page:
    """Records, and the addresses of the pages beside this one."""

    records: tuple[Any, ...] = ()
    older: str = ""
    newer: str = ""
    #: Where the search for what has no index stopped.
    further: str = ""
    looked_at: int = 0


def read_page(asked: Asked, given: QueryDict) -> Page:
    """Read one page. A place that cannot be read is the newest."""
    older, newer = _place(given.get("older", "")), _place(given.get("newer", ""))
    backwards = newer is not None and older is None
    after = _beyond(older, "lt") if older else None
    found = window(asked.wanted, alias(), after=after)
    rows = _light(found)
    if backwards and newer is not None:
        rows = rows.filter(_beyond(newer, "gt")).order_by("poisoned_at", "pk")
    read = list(rows[: PER_PAGE + 1])
    more = len(read) > PER_PAGE
    read = read[:PER_PAGE]
    if backwards:
        read.reverse()
    # Everything of that time was looked at: 1 stands for the place before its first record.
    end = (found.end, 1) if found.end and not more and not backwards else None

    def link(key: str, place: tuple[datetime, int]) -> str:
        text = f"{place[0].isoformat()}_{place[1]}"
        return "?" + _encode({**asked.query, key: text})

    has_older = more or backwards
    has_newer = older is not None or (backwards and more)
    return Page(
        records=tuple(read),
        older=link("older", _at(read[-1])) if read and has_older else "",
        newer=link("newer", _at(read[0])) if read and has_newer else "",
        further=link("older", end) if end else "",
        looked_at=found.reach,
    )


def _light(found: Window) -> Any:
    # A list shows the beginning of the error only.
    return found.rows.short_columns().annotate(
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
    """Older or newer than a place. The first condition is one an index can use."""
    at, id = place
    edge = Q(**{f"poisoned_at__{side}e": at})
    return edge & (Q(**{f"poisoned_at__{side}": at}) | Q(**{f"pk__{side}": id}))


def _encode(values: dict[str, str]) -> str:
    query = QueryDict(mutable=True)
    for key, value in values.items():
        query[key] = value
    return query.urlencode()


def _jump(model_admin: Any, request: HttpRequest, term: str) -> HttpResponse:
    """Go where a term leads; GET, and nothing is changed by it."""
    what, value = jump(term, alias()) if "\x00" not in term else ("", None)
    if what == "record":
        return HttpResponseRedirect(url(model_admin, "change", value))
    if what:
        return HttpResponseRedirect(url(model_admin, "records", query={what: value}))
    number = as_id(term)
    moved = None if number is None else find_moved(number, using=alias())
    if isinstance(moved, PoisonRecord):
        return HttpResponseRedirect(url(model_admin, "change", moved.pk))
    if moved is not None and (page := page_of_message(model_admin, request, moved.pk)):
        return HttpResponseRedirect(page)
    text = gettext("No poison has exactly “%(term)s” as its id, group, name, stream or instance.")
    tell(request, text % {"term": term[:100]}, messages.WARNING)
    return HttpResponseRedirect(url(model_admin, "records"))


def _group(asked: Asked) -> Any:
    found = asked.wanted.fingerprint
    return get_group(found) if found and not asked.problem else None


def _emptied(model_admin: Any, request: HttpRequest, asked: Asked) -> dict[str, Any] | None:
    """
    Say what is known of a group that has no record here any more.

    Alerts link to the list of their group: whoever opens it later, after everything was retried or
    removed, reads what there was instead of an empty page.
    """
    group = asked.wanted.fingerprint
    if not group or asked.problem or set(asked.query) != {"fingerprint"}:
        return None
    site, may = model_admin.admin_site.name, request.user.has_perm
    told = Alert.objects.using(alias()).filter(key=f"{Alert.Rule.NEW_GROUP}:{group}")
    alert = told.order_by("-pk").first() if may("deadletter.view_alert") else None
    return {
        "alert": alert,
        "alert_url": link(site, "alert_change", alert.pk) if alert else "",
        "audit_url": link(site, "auditentry_changelist")
        if may("deadletter.view_auditentry")
        else "",
    }


def _form(asked: Asked) -> list[dict[str, Any]]:
    """Describe the fields of the filter; choices come from short tables, never from poison."""
    queues = list(Queue.objects.using(alias()).order_by("name").values_list("name", flat=True))
    choices: dict[str, list[tuple[str, str]]] = {
        "kind": [(value, str(label)) for value, label in Kind.choices],
        "reason": [(reason.name, reason_name(reason)) for reason in FailureReason],
    }
    labels = {
        "queue": gettext("Queue"),
        "name": gettext("Name"),
        "kind": gettext("Kind"),
        "reason": gettext("Reason"),
        "exception": gettext("Exception"),
        "fingerprint": gettext("Group"),
        "stream": gettext("Stream"),
        "instance": gettext("Instance"),
        "text": gettext("Text of the error"),
        "since": gettext("Died since"),
        "until": gettext("Died before"),
    }
    return [
        {
            "name": key,
            "label": labels[key],
            "value": asked.query.get(key, ""),
            "choices": choices.get(key),
            "hints": queues if key == "queue" else None,
        }
        for key in FIELDS
    ]
