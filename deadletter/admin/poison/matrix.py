"""When did it start? Names or exceptions against time, every number a link to its records."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext

from ... import clock
from ...operations import groups as operations
from ..pages import alias, need, render, url
from .query import Counted

#: Lines of the matrix; each is a statement with six counts.
LINES = 25


def matrix(model_admin: Any, request: HttpRequest) -> HttpResponse:
    need(model_admin, request)
    by = "exception" if request.GET.get("by") == "exception" else "name"
    now = clock.now(alias())
    found = operations.matrix(by, limit=LINES + 1)
    return render(
        model_admin,
        request,
        "matrix",
        gettext("Poison over time"),
        tab="matrix",
        by=by,
        windows=[_label(label) for label, _ in operations.WINDOWS],
        lines=[_line(model_admin, by, row, now) for row in found[:LINES]],
        more=len(found) > LINES,
    )


def _line(model_admin: Any, by: str, row: operations.Row, now: datetime) -> dict[str, Any]:
    cells = []
    for (label, window), n in zip(operations.WINDOWS, row.counts, strict=True):
        query = {by: row.value}
        if window is not None:
            query["since"] = (now - window).isoformat()
        cells.append(
            {
                "count": Counted(min(n, operations.CELL), n > operations.CELL),
                "url": url(model_admin, "records", query=query),
                "window": _label(label),
            }
        )
    return {"value": row.value, "cells": cells}


def _label(label: str) -> str:
    return {
        "1 h": gettext("1 h"),
        "3 h": gettext("3 h"),
        "24 h": gettext("24 h"),
        "3 d": gettext("3 d"),
        "7 d": gettext("7 d"),
        "all": gettext("all"),
    }.get(label, label)
