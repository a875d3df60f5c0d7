"""The frame of every page of poison: its rights, its addresses and its navigation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from ...models import Act
from ...operations import trail
from ...text import page_text
from ...times import moment
from ..base import AdminView, alias, tell


@dataclass(frozen=True, kw_only=True)
class Rights:
    """What this person may do. A page shows only these buttons; each act checks again."""

    payload: bool
    retry: bool
    edit: bool
    remove: bool

    def to(self, act: str) -> bool:
        return {Act.RETRY: self.retry, Act.REMOVE: self.remove}.get(Act(act), False)


def rights(request: HttpRequest) -> Rights:
    def may(name: str) -> bool:
        return request.user.has_perm(f"deadletter.{name}")

    payload, retry = may("view_payload"), may("retry_poison")
    return Rights(
        payload=payload,
        retry=retry,
        # Editing shows the payload, and retries the message with it.
        edit=payload and retry and may("edit_payload"),
        remove=may("remove_poison"),
    )


class PoisonPageView(AdminView):
    """A page of poison; its templates extend `poison/base.html`."""

    @property
    def rights(self) -> Rights:
        return rights(self.request)

    def url(self, page: str, *args: object, **query: Any) -> str:
        return self.link(f"poisonrecord_{page}", *args, **query)

    def page(self, template: str, title: str, *, status: int = 200, **context: Any) -> HttpResponse:
        frame = {
            # Themes take the last part of their heading from here.
            "original": context.get("record"),
            "rights": self.rights,
        }
        return super().page(template, title, status=status, **frame, **context)

    def after(self) -> str:
        """Return the page that follows an act."""
        return self.url("records")

    def gone(self, message_id: int | None) -> HttpResponse:
        """Say that a record is gone, and who retried or removed it."""
        last = trail(message_id, using=alias())[:1] if message_id is not None else []
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
        return HttpResponseRedirect(self.after())
