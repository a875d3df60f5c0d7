"""The results: the list of ended tasks and of handlers that keep results, and a page for each."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import DateTimeField, Q, QuerySet, Value
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import clock
from ..models import Result, ResultOutcome, primary_alias
from ..operations import trail
from ..operations.task_calls import list_calls
from ..sql.planner import by_index
from ..text import page_text
from ..times import age, moment
from .base import AdminView, NameFilter, QueueFilter, ReadOnlyAdmin, as_id
from .result_text import duration_of, find_result, show_result
from .urls import to_message

#: Results searched by a filter that has no index: the newest, of one name or of all.
REACH = 5_000
#: How a list colours outcomes; see admin.css.
_STATES = {
    ResultOutcome.SUCCESSFUL: "due",
    ResultOutcome.REMOVED: "halted",
    ResultOutcome.CANCELLED: "waiting",
}


class OutcomeFilter(admin.SimpleListFilter):
    title = _("outcome")
    parameter_name = "outcome"

    def lookups(
        self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]
    ) -> list[tuple[str, Any]]:
        return list(ResultOutcome.choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        known = value in ResultOutcome.values
        return queryset.filter(outcome=value) if known else queryset.none()


class ResultQueueFilter(QueueFilter):
    column = "queue"


class ResultNameFilter(NameFilter):
    """Filters by name, so that only the index of names can give the rows in their order."""

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return _of_name(queryset, self.value())


def _of_name(rows: Any, name: str | None) -> Any:
    if name is None:
        return rows
    return rows.none() if "\x00" in name else rows.latest_of(name)


class ResultList(ChangeList):
    """Searches a bounded number of rows, and reads the calls of a page at once."""

    #: Results that were searched, if there are older ones.
    reach = 0

    def get_queryset(self, *args: Any, **kwargs: Any) -> Any:
        rows: Any = super().get_queryset(*args, **kwargs)
        wanted = {key: self.params[key] for key in ("outcome", "queue") if key in self.params}
        if not wanted:
            return rows
        base = _of_name(Result.objects.using(rows.db).order_by("-pk"), self.params.get("name"))
        with by_index(rows.db):
            newest = list(base.values("pk", *wanted)[: REACH + 1])
        self.reach = REACH if len(newest) > REACH else 0
        # Searched here: no condition on the columns makes every planner stop at the reach.
        found = [row.pop("pk") for row in newest[:REACH] if row.items() >= wanted.items()]
        return rows.filter(pk__in=found)

    def get_ordering(self, *args: Any, **kwargs: Any) -> list[Any]:
        found: list[Any] = super().get_ordering(*args, **kwargs)
        if "name" not in self.params:
            return found
        sign = "-" if str(found[0]).startswith("-") else ""
        return [f"{sign}name", f"{sign}finished_at", *found]

    def get_results(self, request: HttpRequest) -> None:
        using = primary_alias()
        with by_index(using):
            super().get_results(request)
            rows: list[Any] = list(self.result_list)
        if request.user.has_perm("deadletter.view_payload"):
            calls = list_calls(Result, [row.pk for row in rows], using=using)
            for row in rows:
                row.call = calls.get(row.pk, "")
        self.result_list = rows


@admin.register(Result)
class ResultAdmin(ReadOnlyAdmin):
    list_display = (
        "shown_id",
        "shown_outcome",
        "shown_call",
        "queue",
        "finished",
        "took",
    )
    list_display_links = ("shown_id", "shown_call")
    list_filter = (OutcomeFilter, ResultQueueFilter, ResultNameFilter)
    ordering = ("-message_id",)
    sortable_by = ("shown_id",)
    search_fields = ("message_id", "name")
    search_help_text = _("A message id, or the whole name of a task or message.")
    list_per_page = 50
    actions = None
    without_payload = {
        "shown_call": "shown_name",
        **dict.fromkeys(("payload", "headers", "value", "history", "progress"), ""),
    }

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request).without_bodies()
        return rows.annotate(now=Value(clock.now(rows.db), DateTimeField()))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ResultList

    def matches(self, term: str) -> Q:
        id = as_id(term)
        return Q(name=term) if id is None else Q(pk=id)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> Any:
        return ResultView.as_view(model_admin=self)(request, object_id=object_id)

    @admin.display(description=_("message"), ordering="message_id")
    def shown_id(self, result: Result) -> str:
        return str(result.pk)

    @admin.display(description=_("call or name"))
    def shown_call(self, result: Any) -> str:
        call = page_text(getattr(result, "call", ""), limit=160)
        if not call:
            return self.shown_name(result)
        module = page_text(result.name.rpartition(".")[0], limit=200)
        return format_html('<bdi>{}</bdi> <span class="dl-part">{}</span>', call, module)

    @admin.display(description=_("name"))
    def shown_name(self, result: Result) -> str:
        return page_text(result.name, limit=200)

    @admin.display(description=_("outcome"))
    def shown_outcome(self, result: Result) -> str:
        state = next((s for outcome, s in _STATES.items() if outcome == result.outcome), "waiting")
        label = page_text(result.get_outcome_display(), limit=50)
        return format_html('<span class="dl-state dl-state-{}">{}</span>', state, label)

    @admin.display(description=_("finished"))
    def finished(self, result: Any) -> str:
        at = result.finished_at
        text = gettext("%(time)s ago") % {"time": age(at, result.now)}
        return format_html('<span title="{}">{}</span>', moment(at), text)

    @admin.display(description=_("took"))
    def took(self, result: Result) -> str:
        return duration_of(result) or "-"


class ResultView(AdminView):
    """Shows one result: the call, what it returned or why it failed, its attempts."""

    def prepare(self) -> HttpResponse | None:
        id = as_id(self.kwargs["object_id"])
        self.row = find_result(id)
        if self.row is not None:
            return None
        title = gettext("Result %(id)s") % {"id": id if id is not None else "?"}
        url = "" if id is None else to_message(self.site_name, self.request, id)
        return self.page("result/missing", title, status=404, original=title, message_url=url)

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        assert self.row is not None  # noqa: S101 - `prepare` has answered otherwise
        title = page_text(str(self.row), limit=250)
        return self.page(
            "result/page",
            title,
            # Some themes take the last crumb from the original.
            original=title,
            result=show_result(self.site_name, request, self.row),
            trail=trail(self.row.pk, using=primary_alias()),
        )

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        raise PermissionDenied  # a result is never changed
