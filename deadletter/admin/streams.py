"""Streams that stand still: what holds each, how many wait, and the ways out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import clock, operations
from ..models import Message, PoisonRecord, primary_alias
from ..operations import HeldStream
from ..operations.streams import COUNTED
from .confirm import Question, Subject, answered_why, ask, came_from, log_act
from .counts import Capped
from .error_text import may_read_errors
from .messages.act_view import act_url, may
from .messages.actions import ACTS, REMOVE, RETRY
from .urls import link

#: Streams on the page.
SHOWN = 25


@dataclass(frozen=True)
class Way:
    """A button."""

    label: Any
    url: str
    danger: bool = False


@dataclass(frozen=True)
class Shown:
    """A held stream with its links and the ways out that this person may take."""

    held: HeldStream
    waiting: Capped
    holder_url: str
    rows_url: str
    ways: Sequence[Way]


def list_view(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """List the halted streams, then those that have been blocked the longest."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    site = model_admin.admin_site
    rows = [_shown(model_admin, request, held) for held in operations.list_streams(limit=SHOWN)]
    context = {
        **site.each_context(request),
        "title": gettext("Streams that stand still"),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "rows": rows,
        "limit": SHOWN,
        "now": clock.now(primary_alias()),
    }
    request.current_app = site.name
    return TemplateResponse(request, "admin/deadletter/streams.html", context)


def show_holder(site_name: str, held: HeldStream | None, message: Message) -> str:
    """Render what a blocked message waits for."""
    context = {
        "held": held,
        "own": message.pk,
        "holder_url": _holder_url(site_name, held) if held else "",
        "streams_url": reverse("admin:deadletter_streams", current_app=site_name),
    }
    return render_to_string("admin/deadletter/holder.html", context)


def act_view(model_admin: Any, request: HttpRequest, slug: str, poison_id: int) -> HttpResponse:
    """Retry or remove the poison record that halts a stream, after asking."""
    if slug not in ("retry", "remove"):
        raise Http404
    if not _may_free(model_admin, request, slug):
        raise PermissionDenied
    here = reverse("admin:deadletter_streams", current_app=model_admin.admin_site.name)
    back = came_from(request, here)
    rows = PoisonRecord.objects.using(primary_alias()).without_bodies()
    record = rows.filter(pk=poison_id).first()
    if record is None:
        text = gettext("The poison record is gone: somebody else has retried or removed it.")
        model_admin.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(back)
    if request.method == "POST":
        _carry_out(model_admin, request, slug, record)
        return HttpResponseRedirect(back)
    error = (record.last_error or "")[:200]
    if not may_read_errors(request):
        error = f"{record.exception} {record.frame}".strip()
    return ask(model_admin, request, _question(model_admin, slug, record, error, back))


def _may_free(model_admin: Any, request: HttpRequest, slug: str) -> bool:
    needed = RETRY if slug == "retry" else REMOVE
    seen = model_admin.has_view_permission(request)
    return seen and request.user.has_perm(needed)


def _question(model_admin: Any, slug: str, record: PoisonRecord, error: str, back: str) -> Question:
    held = operations.get_stream(record.queue, record.stream or "")
    waiting = held.waiting if held else 0
    if slug == "retry":
        title, button = gettext("Retry what halts the stream"), gettext("Retry it")
        says = [
            gettext(
                "The message goes back to its place in queue %(queue)s, with 0 attempts, and runs "
                "before everything that waits behind it."
            )
            % {"queue": record.queue},
            gettext("If it dies again, the stream stands still again."),
        ]
    else:
        title, button = gettext("Remove what halts the stream"), gettext("Remove it for good")
        says = [
            gettext(
                "The poison record is removed for good: the message will never be handled, and it "
                "cannot be brought back."
            ),
            gettext("The stream goes on with the next message, as if this one had never been."),
        ]
    says.append(
        ngettext("%(n)s message waits behind it.", "%(n)s messages wait behind it.", waiting)
        % {"n": _capped(waiting)}
    )
    about = [
        gettext("queue %(name)s") % {"name": record.queue},
        gettext("stream %(name)s") % {"name": record.stream or "-"},
        error,
    ]
    url = _poison_url(model_admin.admin_site.name, record.pk)
    return Question(
        title=title,
        button=button,
        says=says,
        subjects=[Subject(label=str(record), about=about, url=url)],
        hidden=[("next", back)],
        back=back,
        danger=slug == "remove",
    )


def _carry_out(model_admin: Any, request: HttpRequest, slug: str, record: PoisonRecord) -> None:
    by, why = request.user.get_username(), answered_why(request)
    if slug == "retry":
        retrial = operations.retry_poison([record.pk], by=by, why=why)
        done, refused = retrial.retried, retrial.refused
        text = gettext("%(record)s is back in its queue; the stream goes on with it.")
        act = gettext("Retried.")
    else:
        done, refused = operations.remove_poison([record.pk], by=by, why=why).removed, {}
        text = gettext("%(record)s was removed; the stream goes on.")
        act = gettext("Removed.")
    if done:
        log_act(request, [record], f"{act} {why}".strip())
        model_admin.message_user(request, text % {"record": record}, messages.SUCCESS)
    for reason in refused.values():
        text = gettext("%(record)s was left alone: %(why)s") % {"record": record, "why": reason}
        model_admin.message_user(request, text, messages.ERROR)
    if not done and not refused:
        text = gettext("The poison record is gone: somebody else has retried or removed it.")
        model_admin.message_user(request, text, messages.WARNING)


def _shown(model_admin: Any, request: HttpRequest, held: HeldStream) -> Shown:
    site = model_admin.admin_site.name
    rows = reverse("admin:deadletter_message_changelist", current_app=site)
    return Shown(
        held,
        _capped(held.waiting),
        _holder_url(site, held),
        f"{rows}?{urlencode({'q': held.stream})}",
        _ways(model_admin, request, held),
    )


def _ways(model_admin: Any, request: HttpRequest, held: HeldStream) -> list[Way]:
    site, here = model_admin.admin_site.name, request.path
    ways = []
    if held.poison_id is not None:
        for slug, label in (("retry", _("Retry the poison")), ("remove", _("Remove the poison"))):
            if _may_free(model_admin, request, slug):
                args = [slug, held.poison_id]
                url = reverse("admin:deadletter_stream_act", args=args, current_app=site)
                ways.append(Way(label, url, danger=slug == "remove"))
    if held.failed and held.message_id and may(model_admin, request, ACTS["retry-now"]):
        url = act_url(site, "retry-now", [held.message_id], back=here)
        ways.append(Way(_("Retry the first now"), url))
    stuck = held.why in ("halted", "waiting")
    if held.next_id is not None and stuck and may(model_admin, request, ACTS["release"]):
        url = act_url(site, "release", [held.next_id], back=here)
        ways.append(Way(_("Release the next"), url))
    return ways


def _holder_url(site_name: str, held: HeldStream) -> str:
    if held.poison_id is not None:
        return _poison_url(site_name, held.poison_id)
    if held.message_id is None:
        return ""
    return link(site_name, "message_change", held.message_id)


def _poison_url(site_name: str, id: int) -> str:
    return link(site_name, "poisonrecord_change", id)


def _capped(n: int) -> Capped:
    return Capped(min(n, COUNTED), n > COUNTED)
