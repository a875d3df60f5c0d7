"""Retry, remove or export many: a selection, or everything that matches the filter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import messages
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    QueryDict,
    StreamingHttpResponse,
)
from django.utils.translation import gettext, ngettext

from ... import operations
from ...models import Act, BulkJob
from ...operations import bulk as jobs
from ...text import page_text
from ..base import as_id
from ..cli_hint import command, command_for
from ..forms import BulkRetryForm, WhyForm
from ..pages import alias, log_about_all, need, render, rights, tell, url, write_log
from .plan import ACTS, AT_ONCE, Plan, Selected, plan_ids, plan_matching, read_plan, sample
from .query import Asked, read_filter

#: Parameters of these forms that are not part of the filter.
_OWN = frozenset({"ids", "scope", "scope_of_export", "first", "format"})
#: Records a progress page can count to the end.
_TOTAL = 1_000_000
#: Refusals told one by one.
_TOLD = 5


def bulk(model_admin: Any, request: HttpRequest, act: str) -> HttpResponse:
    """
    Without a plan: show what would be done. With one, by POST: do exactly that.

    The plan is signed, so neither the records nor the filter can differ from what was shown.
    """
    if act not in ACTS:
        raise Http404
    need(model_admin, request, rights(request).to(act))
    if request.method == "POST" and "plan" in request.POST:
        plan = read_plan(act, request.POST["plan"], request)
        if plan is None:
            tell(request, gettext("The question was too old. Nothing was done."), messages.ERROR)
            return HttpResponseRedirect(url(model_admin, "records"))
        form = _form(act, request.POST)
        return (
            _do(model_admin, request, plan, form)
            if form.is_valid()
            else _ask(model_admin, request, plan, form)
        )
    given = request.POST if request.method == "POST" else request.GET
    ids, asked = _meant(request, given)
    if asked.problem:
        tell(request, asked.problem, messages.ERROR)
        return HttpResponseRedirect(url(model_admin, "records"))
    if ids is not None:
        plan = plan_ids(act, ids)
    else:
        plan = plan_matching(act, asked.wanted, first=as_id(given.get("first", "")))
    if not plan.counted.n and not plan.counted.more:
        tell(request, gettext("Nothing matches: there is nothing to do."), messages.WARNING)
        return HttpResponseRedirect(url(model_admin, "records", query=asked.query))
    by_filter = asked if ids is None and "first" not in given else None
    return _ask(model_admin, request, plan, _form(act, None), asked=by_filter)


def export(model_admin: Any, request: HttpRequest) -> HttpResponseBase:
    """Stream records as JSON Lines or CSV: payloads only for those who may see them."""
    allowed = need(model_admin, request)
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    ids, asked = _meant(request, request.POST)
    format = request.POST.get("format", "jsonl")
    if asked.problem or format not in ("jsonl", "csv"):
        tell(request, asked.problem or gettext("There is no such format."), messages.ERROR)
        return HttpResponseRedirect(url(model_admin, "records"))
    wanted = asked.wanted.fixed(alias()) if ids is None else Selected(ids=tuple(ids[:AT_ONCE]))
    lines: Iterator[str] = operations.export_poison(
        wanted,
        format=format,
        payloads=allowed.payload,
        by=request.user.get_username(),
        using=alias(),
    )
    text = gettext("Exported poison as %(format)s: %(filter)s")
    shown = {"ids": len(ids)} if ids is not None else wanted.as_dict()
    log_about_all(model_admin, request, text % {"format": format, "filter": shown})
    kind = {"jsonl": "application/x-ndjson", "csv": "text/csv"}[format]
    response = StreamingHttpResponse(
        (line.encode("utf-8", "replace") for line in lines), content_type=f"{kind}; charset=utf-8"
    )
    response["Content-Disposition"] = f'attachment; filename="poison.{format}"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def _meant(request: HttpRequest, given: QueryDict) -> tuple[list[int] | None, Asked]:
    """Read a selection, or the filter; a selection of nothing is nothing, never everything."""
    asked = read_filter(given, texts=rights(request).payload, besides=_OWN)
    scope = given.get("scope") or given.get("scope_of_export")
    if scope == "all" or (scope != "selected" and "ids" not in given):
        return None, asked
    found = [as_id(text) for text in given.getlist("ids")]
    return list(dict.fromkeys(id for id in found if id is not None)), asked


def _form(act: str, data: QueryDict | None) -> WhyForm:
    kind = BulkRetryForm if act == Act.RETRY else WhyForm
    # The filter has a field "queue" too.
    return kind(data)


def _ask(
    model_admin: Any,
    request: HttpRequest,
    plan: Plan,
    form: WhyForm,
    *,
    asked: Asked | None = None,
) -> HttpResponse:
    retrying = plan.act == Act.RETRY
    return render(
        model_admin,
        request,
        "bulk",
        gettext("Retry these messages?") if retrying else gettext("Remove these messages?"),
        plan=plan,
        signed=plan.signed(request),
        act=str(plan.act),
        form=form,
        sample=sample(plan),
        at_once=AT_ONCE,
        shown=_shown(plan, asked),
        by_filter=plan.wanted is not None,
        command=_command(plan, asked),
    )


def _shown(plan: Plan, asked: Asked | None) -> dict[str, Any]:
    found = plan.wanted.as_dict() if plan.wanted is not None else asked.query if asked else {}
    return {key: value for key, value in found.items() if key != "up_to"}


def _command(plan: Plan, asked: Asked | None) -> str:
    """The same act in words, while they stay readable."""
    if plan.wanted is not None:
        return command_for(plan.act, plan.wanted, why="…")
    if len(plan.ids) <= 20:
        return command(plan.act, *plan.ids, why="…")
    return command_for(plan.act, asked.wanted, why="…") if asked is not None and asked.any else ""


def _do(model_admin: Any, request: HttpRequest, plan: Plan, form: WhyForm) -> HttpResponse:
    asked = form.cleaned_data
    terms: dict[str, Any] = {"queue": asked.get("queue") or None, "rate": asked.get("rate")}
    by, why = request.user.get_username(), asked["why"]
    if plan.wanted is not None:
        return _begin(model_admin, request, plan, terms, why)
    before = {row.pk: row for row in Selected(ids=plan.ids).records(alias()).defer("last_error")}
    if plan.act == Act.RETRY:
        retried = operations.retry_poison(plan.ids, by=by, why=why, **terms)
        done, missing, refused = retried.retried, retried.missing, retried.refused
        text, told = gettext("Retried."), _retried(len(done))
    else:
        removed = operations.remove_poison(plan.ids, by=by, why=why)
        done, missing, refused = removed.removed, removed.missing, removed.refused
        text, told = gettext("Removed."), _removed(len(done))
    rows = [before[id] for id in done if id in before]
    write_log(request, rows, f"{text} {why}".strip(), gone=plan.act == Act.REMOVE)
    _tell(request, told if done else "", missing, refused)
    return HttpResponseRedirect(url(model_admin, "records"))


def _begin(
    model_admin: Any, request: HttpRequest, plan: Plan, terms: dict[str, Any], why: str
) -> HttpResponse:
    """Hand a long act to the background. The same plan confirmed twice is one job."""
    assert plan.wanted is not None  # noqa: S101 - the caller looked
    running = BulkJob.objects.using(alias()).filter(state__in=("running", "paused"))
    for job in running.select_related("entry").order_by("-pk")[:50]:
        if job.entry.selection == plan.wanted.as_dict() and job.entry.act == plan.act:
            tell(request, gettext("This has already been started."), messages.WARNING)
            return HttpResponseRedirect(url(model_admin, "job", job.pk))
    total = plan.wanted.records(alias()).order_by().values("pk")[: _TOTAL + 1].count()
    job = jobs.start_job(
        Act(plan.act),
        plan.wanted,
        total=total,
        by=request.user.get_username(),
        why=why,
        using=alias(),
        **terms,
    )
    started = gettext("Started.")
    write_log(request, [job], f"{started} {why}".strip())
    tell(request, gettext("It goes on in the background; this page follows it."))
    return HttpResponseRedirect(url(model_admin, "job", job.pk))


def _tell(request: HttpRequest, done: str, missing: list[int], refused: dict[int, str]) -> None:
    if done:
        tell(request, done)
    if n := len(missing):
        text = ngettext(
            "%(n)s record was already gone: somebody else was faster.",
            "%(n)s records were already gone: somebody else was faster.",
            n,
        )
        tell(request, text % {"n": n}, messages.WARNING)
    for id, why in list(refused.items())[:_TOLD]:
        text = gettext("Poison record %(id)s was not retried: %(why)s.")
        tell(request, text % {"id": id, "why": page_text(why, limit=500)}, messages.ERROR)
    if (n := len(refused) - _TOLD) > 0:
        text = ngettext("%(n)s more was not retried.", "%(n)s more were not retried.", n)
        tell(request, text % {"n": n}, messages.ERROR)


def _retried(n: int) -> str:
    return ngettext("Retried %(n)s message.", "Retried %(n)s messages.", n) % {"n": n}


def _removed(n: int) -> str:
    return ngettext("Removed %(n)s message for good.", "Removed %(n)s messages for good.", n) % {
        "n": n
    }
