"""Acts on many records, selected one by one or by filter: retry, remove, export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import messages
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseRedirect,
    QueryDict,
    StreamingHttpResponse,
)
from django.utils.translation import gettext, ngettext

from ... import operations
from ...models import Act, BulkJob, primary_alias
from ...operations import bulk as jobs
from ..base import as_id, log_about_all, tell, write_log
from ..confirm import ActView, BulkRetryForm, Question, WhyForm, command, command_for
from ..counts import Capped
from ..render import refusal_text
from . import effects
from .frame import PoisonPageView
from .plan import ACTS, AT_ONCE, BulkPlan, Selected, plan_ids, plan_matching, read_plan, sample
from .query import PoisonFilterForm

#: Parameters of these forms that are not part of the filter.
_OWN = frozenset({"ids", "scope", "scope_of_export", "first", "format"})
#: Records a progress page can count to the end.
_TOTAL = 1_000_000
#: Refusals told one by one.
_TOLD = 5


class SelectionView(PoisonPageView):
    """A page that is about selected records, or about all that match a filter."""

    def read_selection(self, given: QueryDict) -> list[int] | None:
        """
        Read the filter, and return the selected ids; None: all that match.

        An empty selection is nothing, never everything.
        """
        self.filter = PoisonFilterForm(given, texts=self.rights.payload, besides=_OWN)
        scope = given.get("scope") or given.get("scope_of_export")
        if scope == "all" or (scope != "selected" and "ids" not in given):
            return None
        found = [as_id(text) for text in given.getlist("ids")]
        return list(dict.fromkeys(id for id in found if id is not None))

    def back_to_records(self, text: str, level: int = messages.ERROR, **query: str) -> HttpResponse:
        tell(self.request, text, level)
        return HttpResponseRedirect(self.url("records", **query))


class BulkActView(SelectionView, ActView):
    """
    Retries or removes many records.

    The question carries a signed plan, so neither the records nor the filter can differ from what
    was shown. A POST without a plan comes from the list of records; the answer is the confirmation
    page.
    """

    template = "poison/bulk"
    base_template = "admin/deadletter/poison/base.html"
    plan: BulkPlan
    #: The filter was given as such: not a selection, and not the first few.
    by_filter = False

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if kwargs["act"] not in ACTS:
            raise Http404
        self.act = Act(kwargs["act"])
        return super().dispatch(request, *args, **kwargs)

    def has_permission(self) -> bool:
        return super().has_permission() and self.rights.to(self.act)

    def prepare(self) -> HttpResponse | None:
        request = self.request
        self.answered = request.method == "POST" and "plan" in request.POST
        if not self.answered:
            return self.make_plan(request.POST if request.method == "POST" else request.GET)
        plan = read_plan(self.act, request.POST["plan"], request)
        if plan is None:
            return self.back_to_records(gettext("The confirmation has expired. Nothing was done."))
        self.plan = plan
        return None

    def make_plan(self, given: QueryDict) -> HttpResponse | None:
        ids = self.read_selection(given)
        if self.filter.problem:
            return self.back_to_records(self.filter.problem)
        self.by_filter = ids is None and "first" not in given
        if ids is not None:
            self.plan = plan_ids(self.act, ids)
        else:
            first = as_id(given.get("first", ""))
            self.plan = plan_matching(self.act, self.filter.wanted, first=first)
        if not self.plan.counted:
            text = gettext("Nothing matches: there is nothing to do.")
            return self.back_to_records(text, messages.WARNING, **self.filter.query)
        return None

    @property
    def form_class(self) -> type[WhyForm]:  # type: ignore[override]
        return BulkRetryForm if self.act == Act.RETRY else WhyForm

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        # The filter of the list has a field "queue" too: only an answer is read as one.
        return super().post(request) if self.answered else self.ask(self.form())

    def question(self) -> Question:
        retrying, counted = self.act == Act.RETRY, self.plan.counted
        values = {"n": str(Capped(counted.n))}
        says, warnings = self.advice()
        if retrying:
            title, all_of_them = gettext("Retry these messages?"), gettext("Retry them all")
            some = ngettext("Retry %(n)s message", "Retry %(n)s messages", counted.n)
        else:
            title = gettext("Remove these messages?")
            all_of_them = gettext("Remove them all for good")
            some = ngettext(
                "Remove %(n)s message for good", "Remove %(n)s messages for good", counted.n
            )
        return Question(
            title=title,
            button=all_of_them if counted.more else some % values,
            hidden=[("plan", self.plan.signed(self.request))],
            back=self.url("records"),
            danger=not retrying,
            says=says,
            warnings=warnings,
            command=self.command(),
        )

    def ask(self, form: WhyForm, **context: Any) -> HttpResponse:
        found = self.plan.wanted.as_dict() if self.plan.wanted is not None else {}
        if not found and self.by_filter:
            found = self.filter.query
        return super().ask(
            form,
            plan=self.plan,
            act=str(self.act),
            sample=sample(self.plan),
            at_once=AT_ONCE,
            shown={key: value for key, value in found.items() if key != "up_to"},
            by_filter=self.plan.wanted is not None,
            **context,
        )

    def advice(self) -> tuple[list[str], list[str]]:
        """Return what to know before the retry; of a large selection, about its newest records."""
        if self.act != Act.RETRY:
            return [], []
        wanted, alias = self.plan.wanted, primary_alias()
        if wanted is not None and wanted.fingerprint is not None:
            found = operations.retry_advice(wanted.fingerprint, using=alias)
        else:
            found = operations.retry_advice(records=self.plan.ids or self.plan.newest, using=alias)
        return effects.advice(found)

    def command(self) -> str:
        """Return the same act on the command line, while it stays readable."""
        plan = self.plan
        if plan.wanted is not None:
            return command_for(plan.act, plan.wanted, why="…")
        if len(plan.ids) <= 20:
            return command(plan.act, *plan.ids, why="…")
        if self.by_filter and self.filter.wanted:
            return command_for(plan.act, self.filter.wanted, why="…")
        return ""

    def perform(self, form: WhyForm) -> HttpResponse:
        answer, why = form.cleaned_data, form.cleaned_data["why"]
        options: dict[str, Any] = {"queue": answer.get("queue") or None, "rate": answer.get("rate")}
        ids = self.plan.ids
        if self.plan.wanted is not None:
            return self.start_job(options, why)
        before = {
            row.pk: row for row in Selected(ids=ids).records(primary_alias()).defer("last_error")
        }
        if self.act == Act.RETRY:
            retried = operations.retry_poison(ids, by=self.by, why=why, **options)
            done, missing, refused = retried.retried, retried.missing, retried.refused
            text, told = gettext("Retried."), _retried(len(done))
        else:
            removed = operations.remove_poison(ids, by=self.by, why=why)
            done, missing, refused = removed.removed, removed.missing, removed.refused
            text, told = gettext("Removed."), _removed(len(done))
        rows = [before[id] for id in done if id in before]
        write_log(self.request, rows, text, why=why, gone=self.act == Act.REMOVE)
        _tell(self.request, told if done else "", missing, refused)
        return HttpResponseRedirect(self.url("records"))

    def start_job(self, options: dict[str, Any], why: str) -> HttpResponse:
        """Hand a long act to the background. The same plan confirmed twice is one job."""
        plan = self.plan
        assert plan.wanted is not None  # noqa: S101 - the caller looked
        running = BulkJob.objects.using(primary_alias()).filter(state__in=("running", "paused"))
        for job in running.select_related("entry").order_by("-pk")[:50]:
            if job.entry.selection == plan.wanted.as_dict() and job.entry.act == plan.act:
                tell(self.request, gettext("This has already been started."), messages.WARNING)
                return HttpResponseRedirect(self.url("job", job.pk))
        total = plan.wanted.records(primary_alias()).order_by().values("pk")[: _TOTAL + 1].count()
        job = jobs.start_job(
            self.act,
            plan.wanted,
            total=total,
            by=self.by,
            why=why,
            using=primary_alias(),
            **options,
        )
        write_log(self.request, [job], gettext("Started."), why=why)
        tell(self.request, gettext("The job runs in the background. This page shows its progress."))
        return HttpResponseRedirect(self.url("job", job.pk))


class ExportView(SelectionView):
    """Streams records as JSON Lines or CSV; payloads only for readers who may see them."""

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        ids = self.read_selection(request.POST)
        format = request.POST.get("format", "jsonl")
        if self.filter.problem or format not in ("jsonl", "csv"):
            return self.back_to_records(self.filter.problem or gettext("There is no such format."))
        wanted = (
            self.filter.wanted.fixed(primary_alias())
            if ids is None
            else Selected(ids=tuple(ids[:AT_ONCE]))
        )
        lines: Iterator[str] = operations.export_poison(
            wanted, format=format, payloads=self.rights.payload, by=self.by, using=primary_alias()
        )
        text = gettext("Exported poison as %(format)s: %(filter)s")
        shown = {"ids": len(ids)} if ids is not None else wanted.as_dict()
        log_about_all(self.model_admin, request, text % {"format": format, "filter": shown})
        kind = {"jsonl": "application/x-ndjson", "csv": "text/csv"}[format]
        response = StreamingHttpResponse(
            (line.encode("utf-8", "replace") for line in lines),
            content_type=f"{kind}; charset=utf-8",
        )
        response["Content-Disposition"] = f'attachment; filename="poison.{format}"'
        response["X-Content-Type-Options"] = "nosniff"
        return response


def _tell(request: HttpRequest, done: str, missing: list[int], refused: dict[int, str]) -> None:
    if done:
        tell(request, done)
    if n := len(missing):
        text = ngettext(
            "%(n)s record no longer exists: it was already retried or removed.",
            "%(n)s records no longer exist: they were already retried or removed.",
            n,
        )
        tell(request, text % {"n": n}, messages.WARNING)
    for id, why in list(refused.items())[:_TOLD]:
        text = gettext("Poison record %(id)s was not retried: %(why)s.")
        tell(request, text % {"id": id, "why": refusal_text(why)}, messages.ERROR)
    if (n := len(refused) - _TOLD) > 0:
        text = ngettext("%(n)s more was not retried.", "%(n)s more were not retried.", n)
        tell(request, text % {"n": n}, messages.ERROR)


def _retried(n: int) -> str:
    return ngettext("Retried %(n)s message.", "Retried %(n)s messages.", n) % {"n": n}


def _removed(n: int) -> str:
    return ngettext("Removed %(n)s message for good.", "Removed %(n)s messages for good.", n) % {
        "n": n
    }
