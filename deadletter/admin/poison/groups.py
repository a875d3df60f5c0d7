"""What died of the same? The first page of poison."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from ...operations import groups as operations
from ..lookups import refuse_others
from ..messages.dead import group_url
from ..pages import need, render, url
from .query import FIELDS, Counted

PER_PAGE = 25


def groups(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """List groups; an address that asks for records leads to them."""
    need(model_admin, request)
    refuse_others(request, (*FIELDS, "q", "p"))
    if request.GET.get("q") or any(key in request.GET for key in FIELDS):
        return HttpResponseRedirect(f"{url(model_admin, 'records')}?{request.GET.urlencode()}")
    page = _number(request.GET.get("p", ""))
    found = operations.list_groups(limit=PER_PAGE + 1, offset=(page - 1) * PER_PAGE)
    return render(
        model_admin,
        request,
        "groups",
        gettext("Poison by cause"),
        tab="groups",
        groups=[_Line(group, model_admin.admin_site.name) for group in found[:PER_PAGE]],
        older=page + 1 if len(found) > PER_PAGE else None,
        newer=page - 1 if page > 1 else None,
    )


class _Line:
    """A group as a line of the page."""

    def __init__(self, group: operations.Group, site_name: str) -> None:
        self.group = group
        more = group.buried > operations.COUNTED
        self.buried = Counted(min(group.buried, operations.COUNTED), more)
        #: What of it lies in dead queues; "" where the site does not show messages.
        self.buried_url = group_url(site_name, group.fingerprint)
        #: Where its count leads; "": to its records.
        self.list_url = "" if group.sample_id else self.buried_url
        self.count = Counted(min(group.count, operations.COUNTED), group.count > operations.COUNTED)
        self.held = Counted(min(group.halted, operations.CELL), group.halted > operations.CELL)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 4 else 1
