"""The page of blocked and halted streams: what holds each, how many messages wait, the ways out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.template.loader import render_to_string
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import clock, operations
from ..models import Message, primary_alias
from ..operations import HeldStream
from ..operations.streams import COUNTED
from .base import AdminView, may
from .counts import Capped
from .poison.acts import RECORD_ACTS
from .urls import link, to_act

#: Streams on the page.
SHOWN = 25
_LABELS = {"retry": _("Retry the poison"), "remove": _("Remove the poison")}


@dataclass(frozen=True)
class StreamAction:
    """A button of a row: an act that may let the stream continue."""

    label: Any
    url: str
    danger: bool = False
    #: The key that follows it, see keyboard.js.
    press: str = ""


@dataclass(frozen=True)
class StreamRow:
    """A held stream with its links, and the ways out that this person may take."""

    held: HeldStream
    waiting: Capped
    holder_url: str
    rows_url: str
    ways: Sequence[StreamAction]


class StreamsView(AdminView):
    """Lists the halted streams, then those that have been blocked the longest."""

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return self.page(
            "streams",
            gettext("Blocked and halted streams"),
            rows=[self.row(held) for held in operations.list_streams(limit=SHOWN)],
            limit=SHOWN,
            now=clock.now(primary_alias()),
        )

    def row(self, held: HeldStream) -> StreamRow:
        return StreamRow(
            held,
            Capped(min(held.waiting, COUNTED), held.waiting > COUNTED),
            _holder_url(self.site_name, held),
            self.link("message_changelist", q=held.stream),
            [*self.ways_of_poison(held), *self.ways_of_messages(held)],
        )

    def ways_of_poison(self, held: HeldStream) -> list[StreamAction]:
        if held.poison_id is None:
            return []
        return [
            StreamAction(
                _LABELS[slug],
                self.link("stream_act", slug, held.poison_id),
                danger=act.danger,
                press="r" if slug == "retry" else "",
            )
            for slug, act in RECORD_ACTS.items()
            if may(self.model_admin, self.request, act.permission)
        ]

    def ways_of_messages(self, held: HeldStream) -> list[StreamAction]:
        """Offer acts on the first message that waits, and on the next one behind it."""
        ways, back = [], self.request.path
        if not may(self.model_admin, self.request, "deadletter.retry_poison"):
            return []
        if held.failed and held.message_id:
            url = to_act(self.site_name, "retry-now", [held.message_id], back=back)
            ways.append(StreamAction(_("Retry the first now"), url, press="r"))
        if held.next_id is not None and held.why in ("halted", "waiting"):
            url = to_act(self.site_name, "release", [held.next_id], back=back)
            ways.append(StreamAction(_("Release the next"), url))
        return ways


class StreamActView(AdminView):
    """
    Retries or removes the poison record that halts a stream.

    The act is the one of the poison pages; here it needs the permission to view messages instead of
    poison, and it returns to the page of streams.
    """

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        act = RECORD_ACTS.get(kwargs["slug"])
        if act is None:
            raise Http404
        home = link(self.model_admin.admin_site.name, "streams")
        view = act.as_view(model_admin=self.model_admin, home=home)
        return view(request, object_id=kwargs["poison_id"])


def show_holder(site_name: str, held: HeldStream | None, message: Message) -> str:
    """Render what a blocked message waits for."""
    context = {
        "held": held,
        "own": message.pk,
        "holder_url": _holder_url(site_name, held) if held else "",
        "streams_url": link(site_name, "streams"),
    }
    return render_to_string("admin/deadletter/holder.html", context)


def _holder_url(site_name: str, held: HeldStream) -> str:
    if held.poison_id is not None:
        return link(site_name, "poisonrecord_change", held.poison_id)
    if held.message_id is None:
        return ""
    return link(site_name, "message_change", held.message_id)
