"""How is an act on messages asked for, carried out and told? One view for every act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext, ngettext

from ... import clock
from ...models import Message, State, primary_alias
from ..base import as_id
from ..confirm import Question, Subject, answered_why, ask, came_from, log_act
from .actions import ACTS, MessageAct, Result

#: Messages in one act: a page of the list.
AT_ONCE = 100
#: Refusals told one by one.
_TOLD = 10


def act_url(site_name: str, slug: str, ids: Sequence[int], *, back: str = "") -> str:
    query = {"ids": ",".join(str(id) for id in ids)} | ({"next": back} if back else {})
    here = reverse("admin:deadletter_message_act", args=[slug], current_app=site_name)
    return f"{here}?{urlencode(query)}"


def act_view(model_admin: Any, request: HttpRequest, slug: str) -> HttpResponse:
    """GET: say what would happen. POST: do it to what was shown, and tell what came of it."""
    act = ACTS.get(slug)
    if act is None:
        raise Http404
    if not may(model_admin, request, act):
        raise PermissionDenied
    ids = _ids(request)
    back = came_from(request, _list_url(model_admin))
    if request.method == "POST":
        why = answered_why(request)
        if why or not act.why_required:
            _carry_out(model_admin, request, act, ids, why)
            return HttpResponseRedirect(_still_there(model_admin, back, ids))
    return ask(model_admin, request, _question(model_admin, request, act, ids, back))


def may(model_admin: Any, request: HttpRequest, act: MessageAct) -> bool:
    return model_admin.has_view_permission(request) and request.user.has_perm(act.permission)


def _ids(request: HttpRequest) -> list[int]:
    given = request.POST if request.method == "POST" else request.GET
    found = [as_id(part.strip()) for part in given.get("ids", "").split(",")]
    return list(dict.fromkeys(id for id in found if id is not None))[:AT_ONCE]


def _question(
    model_admin: Any, request: HttpRequest, act: MessageAct, ids: Sequence[int], back: str
) -> Question:
    rows, now = _read(ids)
    refusals = {m.pk: act.refuses(m, m.state(now)) for m in rows}
    willing = [m for m in rows if not refusals[m.pk]]
    problems = []
    if gone := len(ids) - len(rows):
        problems.append(_gone(gone))
    if request.method == "POST":
        problems.append(gettext("Say why: others will ask."))
    return Question(
        title=f"{act.button(len(willing))}?" if willing else str(act.label),
        button=act.button(len(willing)),
        says=act.says(willing) if willing else [gettext("There is nothing to do.")],
        subjects=[_subject(model_admin, m, m.state(now), refusals[m.pk]) for m in rows],
        hidden=[("ids", ",".join(str(m.pk) for m in willing)), ("next", back)],
        back=back,
        danger=act.danger,
        why_required=act.why_required,
        choice=act.choice and (*act.choice, act.choice[0] in request.POST),
        possible=bool(willing),
        problems=problems,
    )


def _read(ids: Sequence[int]) -> tuple[list[Message], Any]:
    alias = primary_alias()
    rows = Message.objects.using(alias).without_bodies().filter(pk__in=ids).order_by("pk")
    # Messages of a queue that was deleted by hand cannot be acted on: no policy says how.
    return list(rows.select_related("queue__dead_queue")), clock.now(alias)


def _subject(model_admin: Any, message: Message, state: str, refusal: str) -> Subject:
    about = [
        gettext("queue %(name)s") % {"name": message.queue.name},
        str(State(state).label),
        ngettext("%(n)s attempt", "%(n)s attempts", message.attempts) % {"n": message.attempts},
    ]
    if message.stream is not None:
        about.append(gettext("stream %(name)s") % {"name": message.stream})
    url = page_url(model_admin, message.pk)
    return Subject(label=str(message), about=about, url=url, refusal=refusal)


def _carry_out(
    model_admin: Any, request: HttpRequest, act: MessageAct, ids: Sequence[int], why: str
) -> None:
    before = {message.pk: message for message in _read(ids)[0]}
    chosen = {act.choice[0]: act.choice[0] in request.POST} if act.choice else {}
    result = act.verb(ids, by=request.user.get_username(), why=why, **chosen)
    done = [before[id] for id in result.done if id in before]
    log_act(request, done, f"{act.label}: {why}" if why else str(act.label))
    _tell(model_admin, request, act, result)


def _tell(model_admin: Any, request: HttpRequest, act: MessageAct, result: Result) -> None:
    if result.done:
        model_admin.message_user(request, act.told(len(result.done)), messages.SUCCESS)
    if result.missing:
        model_admin.message_user(request, _gone(len(result.missing)), messages.WARNING)
    now_there, now = _read(list(result.refused)[:_TOLD])
    translated = {m.pk: act.refuses(m, m.state(now)) for m in now_there}
    for id, why in list(result.refused.items())[:_TOLD]:
        text = gettext("Message %(id)s was left alone: %(why)s")
        why = translated.get(id) or why
        model_admin.message_user(request, text % {"id": id, "why": why}, messages.ERROR)
    if (left := len(result.refused) - _TOLD) > 0:
        text = ngettext(
            "%(n)s more message was left alone.", "%(n)s more messages were left alone.", left
        )
        model_admin.message_user(request, text % {"n": left}, messages.ERROR)
    if not (result.done or result.missing or result.refused):
        model_admin.message_user(request, gettext("There was nothing to do."), messages.WARNING)


def _gone(n: int) -> str:
    return ngettext(
        "%(n)s message is not in a queue any more.",
        "%(n)s messages are not in a queue any more.",
        n,
    ) % {"n": n}


def _still_there(model_admin: Any, back: str, ids: Sequence[int]) -> str:
    """The page of a message that has just been removed is no place to return to."""
    gone = len(ids) == 1 and not _read(ids)[0]
    return _list_url(model_admin) if gone and back == page_url(model_admin, ids[0]) else back


def page_url(model_admin: Any, id: int) -> str:
    site = model_admin.admin_site.name
    return reverse("admin:deadletter_message_change", args=[id], current_app=site)


def _list_url(model_admin: Any) -> str:
    return reverse("admin:deadletter_message_changelist", current_app=model_admin.admin_site.name)
