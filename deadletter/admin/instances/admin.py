"""The list of instances, the latest activity first; a page reads a bounded number of rows."""

from __future__ import annotations

import json
import re
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import DateTimeField, Q, Value
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ... import clock
from ...models import Instance, InstanceStatus
from ...operations.instances import STUCK, narrowed
from ...text import page_text
from ...times import ago
from ..base import NameFilter, ReadOnlyAdmin
from ..error_text import said_of
from .cancel import CancelView
from .instance_page import find, gone, page_context

#: Characters of the stored error that the list reads, and of its text that it shows.
ERROR_READ, ERROR_SHOWN = 1_000, 160


class InstanceStatusFilter(admin.SimpleListFilter):
    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> Any:
        return [*InstanceStatus.choices, (STUCK, _("stuck"))]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if value is None:
            return queryset
        if value not in (*InstanceStatus.values, STUCK):
            return queryset.none()
        return narrowed(queryset, status=value, name=request.GET.get("name"))


@admin.register(Instance)
class InstanceAdmin(ReadOnlyAdmin):
    list_display = (
        "shown_id",
        "shown_name",
        "shown_status",
        "active",
        "why",
    )
    list_display_links = ("shown_id",)
    list_filter = (InstanceStatusFilter, NameFilter)
    #: The page of an instance links to the list of its children.
    other_lookups = ("parent",)
    without_payload = {
        "why": "hidden_why",
        "error": "hidden_why",
        **dict.fromkeys(("input", "state", "output", "pending", "inbox", "history"), ""),
    }
    sortable_by = ()  # type: ignore[assignment]
    # The indexes have this order: read backwards, no sort is needed.
    ordering = ("-updated_at", "-id")
    search_fields = ("id",)
    search_help_text = _("The exact id.")
    list_per_page = 50
    actions = None

    class Media:
        css = {"all": ("deadletter/instance.css",)}

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request).short_columns()
        now = Value(clock.now(rows.db), DateTimeField())
        return rows.annotate(start=Left("error", ERROR_READ), seen_at=now)

    def matches(self, term: str) -> Q:
        return Q(pk=term)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        name = "deadletter_instance_cancel"
        cancel = CancelView.as_view(model_admin=self)
        own = [path("<path:object_id>/cancel/", view(cancel), name=name)]
        return own + super().get_urls()

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show one instance. The page has no form: POST is refused."""
        if not self.has_view_permission(request) or request.method == "POST":
            raise PermissionDenied
        found = find(object_id)
        if found is None:
            return gone(self, request)
        site = self.admin_site
        request.current_app = site.name
        context = {
            **site.each_context(request),
            "opts": self.opts,
            **page_context(site.name, request, found),
        }
        return TemplateResponse(request, "admin/deadletter/instance/page.html", context)

    @admin.display(description=_("id"))
    def shown_id(self, instance: Instance) -> str:
        return page_text(instance.pk, limit=200)

    @admin.display(description=_("name"))
    def shown_name(self, instance: Instance) -> str:
        version = f" {instance.version}" if instance.version else ""
        return page_text(f"{instance.name}{version}", limit=200)

    @admin.display(description=_("status"))
    def shown_status(self, instance: Instance) -> str:
        known = instance.status if instance.status in InstanceStatus.values else "unknown"
        label = page_text(instance.get_status_display(), limit=40)
        if instance.is_stuck:
            known, label = STUCK, gettext("stuck")
        return format_html('<span class="dl-status is-{}">{}</span>', known, label)

    @admin.display(description=_("error"))
    def why(self, instance: Any) -> str:
        return page_text(text_of(instance.start), limit=ERROR_SHOWN) or "-"

    @admin.display(description=_("error"))
    def hidden_why(self, instance: Any) -> str:
        stored = instance.start or ""
        return page_text(said_of(text_of(stored), category_of(stored)), limit=ERROR_SHOWN) or "-"

    @admin.display(description=_("Last activity"))
    def active(self, instance: Any) -> str:
        return ago(instance.updated_at, instance.seen_at)


_CATEGORY = re.compile(r'"category": ?"(\w+)"')


def category_of(stored: str) -> str:
    found = _CATEGORY.search(stored)
    return found[1] if found else ""


_TEXT = re.compile(r'"text": ?"((?:[^"\\]|\\.)*)')


def text_of(stored: str | None) -> str:
    """Read the text of an error from the beginning of its JSON, which may be cut anywhere."""
    found = _TEXT.search(stored or "")
    if found is None:
        return stored or ""
    try:
        return str(json.loads(f'"{found[1]}"'))
    except ValueError:
        return found[1]
