"""Poison by cause, which is the first page of poison, and poison over time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from ... import clock, operations
from ...models import primary_alias
from ...models.group import OPEN_STATES
from ...operations import FailureGroupRow
from ...operations import groups as record_groups
from ...operations.failure_groups import COUNTED, OPEN, STREAMS_COUNTED
from ..counts import Capped
from ..lookups import refuse_others
from ..urls import to_group
from .frame import PoisonPageView
from .group_filter import GROUP_FIELDS, GroupFilterForm, state_choices
from .group_texts import group_label, group_state, uncounted
from .query import FIELDS

#: Groups on a page.
PER_PAGE = 25
#: Lines of the matrix; each is a statement with six counts.
LINES = 25
#: Parameters of the list that are not part of the filter.
_OWN = frozenset({"p", "q"})
#: Parameters that only the page of records knows.
_OF_RECORDS = ("q", *(key for key in FIELDS if key not in GROUP_FIELDS))


class GroupsView(PoisonPageView):
    """Lists groups; an address that asks for records leads to them."""

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        refuse_others(request, (*FIELDS, *GROUP_FIELDS, *_OWN))
        if any(key in request.GET for key in _OF_RECORDS):
            return HttpResponseRedirect(f"{self.url('records')}?{request.GET.urlencode()}")
        form = GroupFilterForm(request.GET, texts=self.rights.payload, besides=_OWN)
        page, alias = _number(request.GET.get("p", "")), primary_alias()
        found: list[FailureGroupRow] = []
        counts: dict[str, int] = {}
        if not form.problem:
            found = operations.list_failure_groups(
                form.wanted, limit=PER_PAGE + 1, offset=(page - 1) * PER_PAGE, using=alias
            )
            counts = operations.count_failure_groups(form.wanted, using=alias)
        now = clock.now(alias)
        return self.page(
            "poison/groups",
            gettext("Poison by cause"),
            tab="groups",
            filter=form.with_choices(),
            states=_state_links(form, counts),
            groups=[GroupLine(group, self, now) for group in found[:PER_PAGE]],
            older=form.address(p=str(page + 1)) if len(found) > PER_PAGE else "",
            newer=form.address(p=str(page - 1)) if page > 1 else "",
            acts=self.acts() if found else [],
            behind="" if form.problem else uncounted(now, empty=not (found or form.query)),
            now=now,
            status=400 if form.problem else 200,
        )

    def acts(self) -> list[tuple[str, str]]:
        """Return the acts on selected groups that this person may do: address and label."""
        rights = self.rights
        labels = {
            "acknowledge": gettext("Acknowledge…"),
            "mute": gettext("Mute…"),
            "resolve": gettext("Resolve…"),
            "assign": gettext("Assign…"),
        }
        found = list(labels.items()) if rights.triage else []
        found += [("merge", gettext("Merge…"))] if rights.merge else []
        return [(self.url(f"group_{act}"), label) for act, label in found]


class GroupLine:
    """A group with its capped numbers and its links."""

    def __init__(self, group: FailureGroupRow, page: PoisonPageView, now: datetime) -> None:
        self.group = group
        limit = COUNTED
        self.count = _capped(group.records + group.in_dead_queues, limit)
        self.held = _capped(group.halted, STREAMS_COUNTED)
        self.in_dead_queues = _capped(group.in_dead_queues, limit)
        self.state = group_state(group, now)
        self.title = group_label(group)
        #: Its messages in dead queues; "" where the site does not show messages.
        self.dead_queues_url = to_group(page.site_name, group.fingerprint)
        self.records_url = page.url("records", fingerprint=group.fingerprint)
        if not group.records and group.in_dead_queues and self.dead_queues_url:
            self.records_url = self.dead_queues_url
        self.url = page.group_url(group.fingerprint) or self.records_url
        if not self.count.n:
            self.records_url = self.url


class MatrixView(PoisonPageView):
    """Shows names or exceptions against time; every number leads to its records."""

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        by = "exception" if request.GET.get("by") == "exception" else "name"
        now = clock.now(primary_alias())
        found = record_groups.matrix(by, limit=LINES + 1)
        return self.page(
            "poison/matrix",
            gettext("Poison over time"),
            tab="matrix",
            by=by,
            windows=[_label(label) for label, _ in record_groups.WINDOWS],
            lines=[self.line(by, row, now) for row in found[:LINES]],
            more=len(found) > LINES,
        )

    def line(self, by: str, row: record_groups.Row, now: datetime) -> dict[str, Any]:
        cells = []
        for (label, window), n in zip(record_groups.WINDOWS, row.counts, strict=True):
            query = {by: row.value}
            if window is not None:
                query["since"] = (now - window).isoformat()
            cells.append(
                {
                    "count": _capped(n, record_groups.CELL),
                    "url": self.url("records", **query),
                    "window": _label(label),
                }
            )
        return {"value": row.value, "cells": cells}


def _capped(n: int, limit: int) -> Capped:
    return Capped(min(n, limit), n > limit)


def _state_links(form: GroupFilterForm, counts: dict[str, int]) -> list[dict[str, Any]]:
    """Return a link for each state with the number of its groups; the filter stays."""
    here = form.query.get("state", "")
    numbers = {"": sum(counts.values()), OPEN: sum(counts.get(state, 0) for state in OPEN_STATES)}
    links = [("", gettext("all")), *state_choices()]
    return [
        {
            "label": label,
            "n": numbers.get(key, counts.get(key, 0)),
            "url": form.address(state=key),
            "here": key == here,
        }
        for key, label in links
    ]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 4 else 1


def _label(label: str) -> str:
    return {
        "1 h": gettext("1 h"),
        "3 h": gettext("3 h"),
        "24 h": gettext("24 h"),
        "3 d": gettext("3 d"),
        "7 d": gettext("7 d"),
        "all": gettext("all"),
    }.get(label, label)
