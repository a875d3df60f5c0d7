"""The frame of every page of poison: its record, its rights and its addresses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.contrib import messages
from django.db.models.functions import Left
from django.http import HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from ...models import Act, PoisonRecord, primary_alias
from ...operations import trail
from ...text import ERROR_LIMIT, page_text
from ...times import moment
from ..base import AdminView, as_id, tell
from ..urls import link


@dataclass(frozen=True, kw_only=True)
class Rights:
    """What this person may do. A page shows only these buttons; each act checks again."""

    payload: bool
    retry: bool
    edit: bool
    remove: bool
    #: See the page of a group; triage it; write notes on it; merge it with others.
    groups: bool
    triage: bool
    note: bool
    merge: bool

    def to(self, act: str) -> bool:
        return {Act.RETRY: self.retry, Act.REMOVE: self.remove}.get(Act(act), False)


class PoisonPageView(AdminView):
    """A page of poison; its templates extend `poison/base.html`."""

    #: The record that the page is about, if it is about one.
    record: Any = None
    #: The page that leads to an act and follows it, if it is not the page of records.
    home = ""

    @cached_property
    def rights(self) -> Rights:
        has = self.request.user.has_perm
        payload, retry = has("deadletter.view_payload"), has("deadletter.retry_poison")
        groups = has("deadletter.view_failuregroup")
        return Rights(
            payload=payload,
            retry=retry,
            # Editing shows the payload, and retries the message with it.
            edit=payload and retry and has("deadletter.edit_payload"),
            remove=has("deadletter.remove_poison"),
            groups=groups,
            triage=groups and has("deadletter.triage_group"),
            note=groups and has("deadletter.note_group"),
            merge=groups and has("deadletter.merge_group"),
        )

    def url(self, page: str, *args: object, **query: Any) -> str:
        return link(self.site_name, f"poisonrecord_{page}", *args, **query)

    def group_url(self, fingerprint: str) -> str:
        """Return the page of a group; "" for readers who may not see it."""
        return self.url("group", fingerprint) if self.rights.groups and fingerprint else ""

    def page(self, template: str, title: str, *, status: int = 200, **context: Any) -> HttpResponse:
        # Themes take the last part of their heading from `original`.
        frame = {"original": self.record, "record": self.record, "rights": self.rights}
        return super().page(template, title, status=status, **frame, **context)

    def gone(self, message_id: int | None) -> HttpResponse:
        """Say that a record is gone, and who retried or removed it."""
        last = trail(message_id, using=primary_alias())[:1] if message_id is not None else []
        if last and last[0].entry.act in (Act.RETRY, Act.REMOVE):
            entry = last[0].entry
            texts = {
                Act.RETRY: gettext("Message %(id)s was already retried by %(by)s (%(at)s)."),
                Act.REMOVE: gettext("Message %(id)s was already removed by %(by)s (%(at)s)."),
            }
            by = page_text(entry.by, limit=100) or gettext("another person")
            text = texts[Act(entry.act)] % {"by": by, "id": message_id, "at": moment(entry.at)}
        else:
            text = gettext("This poison record is gone: it has been retried or removed.")
        tell(self.request, text, messages.WARNING)
        return HttpResponseRedirect(self.home or self.url("records"))


class GroupPageView(PoisonPageView):
    """A page of failure groups, which need a permission of their own."""

    def has_permission(self) -> bool:
        return super().has_permission() and self.rights.groups


def find_record(object_id: object) -> Any:
    """Read a record without its large columns; the database cuts the error."""
    id = as_id(str(object_id))
    rows = (
        PoisonRecord.objects.using(primary_alias()).without_bodies().defer("last_error", "verdict")
    )
    cut = {"error": Left("last_error", ERROR_LIMIT + 1), "said": Left("verdict", ERROR_LIMIT + 1)}
    return None if id is None else rows.annotate(**cut).filter(pk=id).first()
