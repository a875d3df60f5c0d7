"""Messages in dead queues on the pages: where and why each died, and which lists show them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...lifecycle.dead_queues import OriginalDeath, read_original_death
from ...models import Message, PoisonRecord, Queue, primary_alias
from ...text import page_text
from ...times import age
from ..base import as_id
from ..error_text import hidden_text
from ..render import reason_name
from ..urls import link

#: Characters of an error in a list.
_SHOWN = 200
#: The parameter of a list that asks for a group.
GROUP = "group"


class GroupFilter(admin.SimpleListFilter):
    """What died of one cause and lies in dead queues. Links lead to it; it offers no choice."""

    title = _("cause of death")
    parameter_name = GROUP

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        value = request.GET.get(GROUP, "")
        return [(value, page_text(value, limit=20))] if value else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        # A fingerprint has sixteen characters; nothing else is asked of the database.
        if len(value) > 16 or "\x00" in value:
            return queryset.none()
        return queryset.filter(fingerprint=value)


def is_dead_list(request: HttpRequest) -> bool:
    """Whether a list is of what died: a group, or a queue that is the dead queue of another."""
    if request.GET.get(GROUP):
        return True
    id = as_id(request.GET.get("queue", ""))
    rows = Queue.objects.using(primary_alias())
    return id is not None and rows.filter(dead_queue=id).exists()


def with_deaths(rows: Any) -> Any:
    """Read the deaths of a list with its rows, instead of one by one."""
    return rows.defer(None).without_bodies(keep_death=True)


def show_death(row: Message | PoisonRecord, now: Any, *, texts: bool) -> str:
    """Say of a message that was moved to a dead queue where it died, of what, and when."""
    if "death" in row.get_deferred_fields():
        # From where the row was read: by itself Django asks the router, which may name a replica.
        row.refresh_from_db(using=row._state.db, fields=["death"])
    burial = read_original_death(row)
    if burial is None:
        return "-"
    return str(
        format_html("<bdi>{}</bdi>", page_text(_sentence(burial, now, texts=texts), limit=1_000))
    )


def _sentence(burial: OriginalDeath, now: Any, *, texts: bool) -> str:
    cause = reason_name(burial.cause) if burial.cause is not None else gettext("unknown")
    values = {"queue": burial.queue or "?", "reason": cause, "id": burial.message_id}
    text = gettext("died in %(queue)s of %(reason)s") % values
    error = burial.error or "" if texts else hidden_text(burial.error)
    said = (error or burial.verdict)[:_SHOWN]
    parts = [text, *([said] if said else [])]
    if burial.at is not None:
        parts.append(gettext("%(time)s ago") % {"time": age(burial.at, now)})
    parts.append(gettext("as message %(id)s") % values)
    return ", ".join(parts)


def group_url(site_name: str, fingerprint: str) -> str:
    """Return the list of what died of one cause and lies in dead queues."""
    return link(site_name, "message_changelist", **{GROUP: fingerprint})
