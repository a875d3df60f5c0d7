"""The audit trail: the acts of operators with their reasons, results and outcomes."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..models import Act, AuditedMessage, AuditEntry, primary_alias
from ..operations.retry_outcomes import attach_outcomes, outcomes_of, settle_rows
from ..text import storable_text
from .base import ReadOnlyAdmin, as_id
from .render import show_edit, show_text
from .urls import link

#: Latest entries from which the person filter takes its choices.
RECENT = 1_000
#: Messages listed on the page of an entry.
NAMED = 100


class ActFilter(admin.SimpleListFilter):
    title = _("act")
    parameter_name = "act"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, Any]]:
        return list(Act.choices)

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() is None:
            return queryset
        return queryset.filter(act=self.value())


class PersonFilter(admin.SimpleListFilter):
    title = _("person")
    parameter_name = "by"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, str]]:
        rows = AuditEntry.objects.using(primary_alias()).order_by("-pk")
        names = sorted({name for name in rows.values_list("by", flat=True)[:RECENT] if name})
        return [(name, name) for name in names]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() is None:
            return queryset
        return queryset.filter(by=self.value())


class AuditList(ChangeList):
    """Reads the outcomes of all entries of the page at once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        entries: list[Any] = list(self.result_list)
        attach_outcomes(entries)
        self.result_list = entries


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    list_display = ("at", "person", "act", "what", "why_start", "came_of_it")
    list_filter = (ActFilter, PersonFilter)
    ordering = ("-id",)
    search_fields = ("by", "id")
    search_help_text = _("The exact name of a person, or a message id.")
    fields = (
        "at",
        "person",
        "act",
        "why",
        "shown_selection",
        "shown_detail",
        "edit",
        "result",
        "became",
        "touched",
    )
    readonly_fields = fields
    without_payload = {
        "what": "what_without_text",
        "shown_selection": "selection_without_text",
        "selection": "selection_without_text",
        "edit": "edit_hidden",
        "payload_before": "edit_hidden",
        "payload_after": "edit_hidden",
    }

    class Media:
        css = {"all": ("deadletter/admin.css", "deadletter/poison.css")}

    def get_queryset(self, request: HttpRequest) -> Any:
        # The page of an entry reads the large columns where it shows them.
        return super().get_queryset(request).defer(*AuditEntry.LARGE)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return AuditList

    def matches(self, term: str) -> Q:
        id = as_id(term)
        if id is None:
            return Q(by=term)
        rows = AuditedMessage.objects.using(primary_alias())
        entries = rows.filter(message_id=id).order_by("-pk").values_list("entry_id", flat=True)
        return Q(by=term) | Q(pk__in=list(entries[:RECENT]))

    @admin.display(description=_("person"))
    def person(self, entry: AuditEntry) -> str:
        return entry.by or "-"

    @admin.display(description=_("what"))
    def what(self, entry: AuditEntry) -> str:
        """Return the selection in short."""
        return _in_short(entry.selection if isinstance(entry.selection, dict) else {})

    @admin.display(description=_("what"))
    def what_without_text(self, entry: AuditEntry) -> str:
        return _in_short(_without_text(entry))

    @admin.display(description=_("why"))
    def why_start(self, entry: AuditEntry) -> str:
        return entry.why[:120] + "…" if len(entry.why) > 120 else entry.why

    @admin.display(description=_("result and outcome"))
    def came_of_it(self, entry: AuditEntry) -> str:
        became = self.became(entry)
        return self.result(entry) if became == "-" else f"{self.result(entry)}: {became}"

    @admin.display(description=_("result"))
    def result(self, entry: AuditEntry) -> str:
        parts = [gettext("%(n)s done") % {"n": entry.done}]
        if entry.refused:
            parts.append(gettext("%(n)s refused") % {"n": entry.refused})
        if entry.missing:
            parts.append(gettext("%(n)s no longer existed") % {"n": entry.missing})
        return ", ".join(parts)

    @admin.display(description=_("outcomes"))
    def became(self, entry: AuditEntry) -> str:
        if entry.act != Act.RETRY:
            return "-"
        now = outcomes_of(entry)
        known = (
            (gettext("%(n)s succeeded"), now.succeeded),
            (gettext("%(n)s died again of the same cause"), now.died_same),
            (gettext("%(n)s died of another cause"), now.died_other),
            (gettext("%(n)s removed before they were handled"), now.removed),
            (gettext("%(n)s wait or run"), now.open),
        )
        return ", ".join(text % {"n": n} for text, n in known if n) or "-"

    @admin.display(description=_("selection"))
    def shown_selection(self, entry: AuditEntry) -> str:
        return _text(entry.selection)

    @admin.display(description=_("selection"))
    def selection_without_text(self, entry: AuditEntry) -> str:
        return _text(_without_text(entry))

    @admin.display(description=_("detail"))
    def shown_detail(self, entry: AuditEntry) -> str:
        return _text(entry.detail)

    @admin.display(description=_("edit of the payload"))
    def edit(self, entry: AuditEntry) -> str:
        if not _is_edit(entry):
            return "-"
        if entry.payload_after is None:
            return gettext("The payloads are no longer stored.")
        return show_edit(entry.payload_before, entry.payload_after)

    @admin.display(description=_("edit of the payload"))
    def edit_hidden(self, entry: AuditEntry) -> str:
        return gettext("You may not see payloads.") if _is_edit(entry) else "-"

    @admin.display(description=_("messages"))
    def touched(self, entry: AuditEntry) -> str:
        rows = entry.messages.using(entry._state.db).order_by("pk")[: NAMED + 1]
        found = list(rows)
        settle_rows(found, using=entry._state.db)
        site = self.admin_site.name
        context = {
            # Also for a message that is gone: its page shows what became of it.
            "rows": [(row, link(site, "message_change", row.message_id)) for row in found[:NAMED]],
            "more": len(found) > NAMED,
            "limit": NAMED,
        }
        return render_to_string("admin/deadletter/touched.html", context)


def _in_short(selection: dict[str, Any]) -> str:
    ids = selection.get("ids")
    if isinstance(ids, list):
        shown = ", ".join(str(id) for id in ids[:5])
        more = max(0, int(selection.get("count") or len(ids)) - 5)
        return gettext("%(ids)s and %(n)s more") % {"ids": shown, "n": more} if more else shown
    return storable_text(", ".join(f"{key}={value}" for key, value in selection.items()), limit=200)


def _is_edit(entry: AuditEntry) -> bool:
    return isinstance(entry.detail, dict) and bool(entry.detail.get("edited"))


def _without_text(entry: AuditEntry) -> dict[str, Any]:
    """Return the selection without a filter by error text: it quotes the errors."""
    selection = entry.selection if isinstance(entry.selection, dict) else {}
    return {key: value for key, value in selection.items() if key != "text"}


def _text(value: Any) -> str:
    return show_text(
        json.dumps(value, indent=2, ensure_ascii=False, default=str) if value else None
    )
