"""Poison by cause, which is the first page of poison, and poison over time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from ... import clock
from ...models import primary_alias
from ...operations import groups as operations
from ..counts import Capped
from ..lookups import refuse_others
from ..urls import to_group
from .frame import PoisonPageView
from .query import FIELDS

#: Groups on a page.
PER_PAGE = 25
#: Lines of the matrix; each is a statement with six counts.
LINES = 25


class GroupsView(PoisonPageView):
    """Lists groups; an address that asks for records leads to them."""

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        refuse_others(request, (*FIELDS, "q", "p"))
        if request.GET.get("q") or any(key in request.GET for key in FIELDS):
            return HttpResponseRedirect(f"{self.url('records')}?{request.GET.urlencode()}")
        page = _number(request.GET.get("p", ""))
        found = operations.list_groups(limit=PER_PAGE + 1, offset=(page - 1) * PER_PAGE)
        return self.page(
            "poison/groups",
            gettext("Poison by cause"),
            tab="groups",
            groups=[GroupRow(group, self.site_name) for group in found[:PER_PAGE]],
            older=page + 1 if len(found) > PER_PAGE else None,
            newer=page - 1 if page > 1 else None,
        )


class GroupRow:
    """A group with its capped numbers and its links."""

    def __init__(self, group: operations.Group, site_name: str) -> None:
        self.group = group
        self.count = _capped(group.count, operations.COUNTED)
        self.held = _capped(group.halted, operations.CELL)
        self.in_dead_queues = _capped(group.buried, operations.COUNTED)
        #: Its messages in dead queues; "" where the site does not show messages.
        self.dead_queues_url = to_group(site_name, group.fingerprint)
        #: Where its count leads; "": to its records.
        self.list_url = "" if group.sample_id else self.dead_queues_url


class MatrixView(PoisonPageView):
    """Shows names or exceptions against time; every number leads to its records."""

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        by = "exception" if request.GET.get("by") == "exception" else "name"
        now = clock.now(primary_alias())
        found = operations.matrix(by, limit=LINES + 1)
        return self.page(
            "poison/matrix",
            gettext("Poison over time"),
            tab="matrix",
            by=by,
            windows=[_label(label) for label, _ in operations.WINDOWS],
            lines=[self.line(by, row, now) for row in found[:LINES]],
            more=len(found) > LINES,
        )

    def line(self, by: str, row: operations.Row, now: datetime) -> dict[str, Any]:
        cells = []
        for (label, window), n in zip(operations.WINDOWS, row.counts, strict=True):
            query = {by: row.value}
            if window is not None:
                query["since"] = (now - window).isoformat()
            cells.append(
                {
                    "count": _capped(n, operations.CELL),
                    "url": self.url("records", **query),
                    "window": _label(label),
                }
            )
        return {"value": row.value, "cells": cells}


def _capped(n: int, limit: int) -> Capped:
    return Capped(min(n, limit), n > limit)


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
