"""The page of one value of a tag: everything that failed for one customer."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from ... import clock, operations
from ...models import primary_alias
from ...operations.group_tags import COUNTED, GROUPS
from ...text import page_text
from ..counts import Capped
from ..lookups import refuse_others
from .frame import GroupPageView
from .group_texts import group_label, group_state


class TagView(GroupPageView):
    """Tags are values of payloads, so their page needs the permission to see payloads."""

    permission = "deadletter.view_payload"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        refuse_others(request, ("key", "value"))
        key, value = request.GET.get("key", ""), request.GET.get("value", "")
        if not key and not value:
            return HttpResponseRedirect(self.url("changelist"))
        now = clock.now(primary_alias())
        try:
            found, problem = operations.tag_page(key, value, using=primary_alias()), ""
        except ValueError as error:
            found, problem = None, page_text(str(error), limit=500)
        tag = f"{key}={value}"
        return self.page(
            "poison/tag",
            page_text(tag, limit=250),
            tab="tag",
            found=found,
            problem=problem,
            lines=[
                {
                    "failures": one.failures,
                    "last_at": one.last_at,
                    "group": one.group,
                    "label": group_label(one.group),
                    "state": group_state(one.group, now),
                    "url": self.url("group", one.group.fingerprint),
                }
                for one in (found.groups if found else ())
            ],
            records=found and Capped(min(found.records, COUNTED), found.records > COUNTED),
            records_url=self.url("records", tag=tag),
            limit=GROUPS,
            now=now,
            status=400 if problem else 200,
        )
