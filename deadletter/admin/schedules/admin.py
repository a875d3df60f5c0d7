"""The list of schedules, their form, and the addresses of their pages."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ... import clock, operations
from ...exceptions import UnknownSchedule
from ...models import Schedule, primary_alias
from ...operations.schedule_states import (
    ScheduleState,
    in_schedule_state,
    latest_runs,
)
from ...text import page_text
from ...times import ago, moment
from ..base import CappedPaginator
from ..error_text import may_read_errors
from ..lookups import StrictLookups
from ..urls import link
from .calendar import CalendarView
from .form import BODIES, ScheduleForm, as_options, suggestions
from .outcomes import ShownRun, show_runs
from .schedule_acts import PauseScheduleView, ResumeScheduleView, RunScheduleView
from .schedule_page import ScheduleView
from .shown import reader_zone, rule_text, show_moment, show_moments, state_badge


class ScheduleStateFilter(admin.SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> Any:
        return ScheduleState.choices

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if value is None:
            return queryset
        if value not in ScheduleState.values:
            return queryset.none()
        return queryset.filter(in_schedule_state(value, clock.now(queryset.db)))


class ScheduleList(ChangeList):
    """Adds to each row of the page its latest run and what became of it."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: list[Any] = list(self.result_list)
        alias = primary_alias()
        now = clock.now(alias)
        runs = latest_runs([row.pk for row in rows], using=alias)
        site = self.model_admin.admin_site.name
        shown = show_runs(site, request, list(runs.values()), now)
        of = {run.run.schedule_id: run for run in shown}
        for row in rows:
            row.now, row.latest = now, of.get(row.pk)
        self.result_list = rows


@admin.register(Schedule)
class ScheduleAdmin(StrictLookups):
    list_display = ("name", "state", "next_run", "last_run", "rule")
    list_filter = (ScheduleStateFilter,)
    ordering = ("name",)
    sortable_by = ("name",)
    search_fields = ("name", "target")
    search_help_text = _("The beginning of a name, or of what is sent.")
    list_per_page = 50
    list_max_show_all = 0
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    actions = None
    form = ScheduleForm
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("name",)}),
        (_("What it sends"), {"fields": ("kind", "target", "payload", "queue")}),
        (
            _("When"),
            {
                "description": _("Fill in one of cron expression, interval and at."),
                "fields": ("cron", "time_zone", "interval", "at"),
            },
        ),
        (
            _("Limits"),
            {"fields": ("overlap", "missed", "grace", "jitter", "start", "end", "max_runs")},
        ),
        (
            _("More about the message"),
            {
                "classes": ("collapse",),
                "fields": ("priority", "stream", "key", "expires_in", "headers"),
            },
        ),
        (_("Reason"), {"fields": ("why",)}),
    )

    class Media:
        css = {"all": ("deadletter/admin.css", "deadletter/schedule.css")}

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).using(primary_alias())

    def get_search_results(
        self, request: HttpRequest, queryset: Any, search_term: str
    ) -> tuple[Any, bool]:
        term = search_term.strip()
        if not term or "\x00" in term:
            return (queryset.none() if term else queryset), False
        return queryset.filter(name__startswith=term) | queryset.filter(
            target__startswith=term
        ), False

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ScheduleList

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        acts = {"run": RunScheduleView, "pause": PauseScheduleView, "resume": ResumeScheduleView}
        own = [
            path(
                f"<int:pk>/{name}/",
                view(act.as_view(model_admin=self)),
                name=f"deadletter_schedule_{name}",
            )
            for name, act in acts.items()
        ]
        own += [
            path(
                "calendar/",
                view(CalendarView.as_view(model_admin=self)),
                name="deadletter_schedule_calendar",
            ),
            path(
                "<path:object_id>/edit/",
                view(self.edit_view),
                name="deadletter_schedule_edit",
            ),
        ]
        return own + super().get_urls()

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        calendar = link(self.admin_site.name, "schedule_calendar")
        extra = {"title": _("Schedules"), "calendar_url": calendar, "reader_zone": reader_zone()}
        return super().changelist_view(request, {**extra, **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> Any:
        """Show one schedule; `edit_view` is its form."""
        return ScheduleView.as_view(model_admin=self)(request, object_id=object_id)

    def edit_view(self, request: HttpRequest, object_id: str) -> Any:
        if not self.has_change_permission(request):
            raise PermissionDenied
        return self.changeform_view(request, object_id)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """Show the form; report what another person changed meanwhile instead of raising."""
        extra = {
            "suggestions": suggestions(),
            "reader_zone": reader_zone(),
            "show_save_and_add_another": False,
            "show_save_and_continue": False,
            **(extra_context or {}),
        }
        try:
            return super().changeform_view(request, object_id, form_url, extra)
        except IntegrityError:
            # Another person created it between the check and the insert.
            text = gettext("There is another schedule of this name.")
            self.message_user(request, text, messages.ERROR)
            return HttpResponseRedirect(self._list_url())
        except (ValidationError, UnknownSchedule) as error:
            text = " ".join(getattr(error, "messages", [str(error)]))
            self.message_user(request, page_text(text, limit=500), messages.ERROR)
            return HttpResponseRedirect(self._list_url())

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        form = context["adminform"].form
        preview = getattr(form, "preview", None)
        if preview is not None:
            context["preview"] = show_moments(preview, form.instance, clock.now(primary_alias()))
        context["has_preview"] = preview is not None
        return super().render_change_form(request, context, *args, **kwargs)

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        made = super().get_form(request, obj, change=change, **kwargs)
        if may_read_errors(request):
            return made
        return type("ScheduleFormWithoutBodies", (made,), {"shows_bodies": False})

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        hidden = () if may_read_errors(request) else BODIES
        return [
            (title, {**options, "fields": tuple(f for f in options["fields"] if f not in hidden)})
            for title, options in self.fieldsets
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        # Declarations, audit entries and messages refer to the name.
        return ("name",) if obj else ()

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        """Save through `operations`, which audits it; write only the edited fields."""
        about = {"by": request.user.get_username(), "why": form.cleaned_data.get("why", "")}
        if not change:
            given = as_options(form.cleaned_data, Schedule.DEFINITION)
            obj.pk = operations.create_schedule(obj.name, **about, **given).pk
            return
        edited = as_options(
            form.cleaned_data, [name for name in Schedule.DEFINITION if name in form.changed_data]
        )
        if edited:
            operations.set_schedule(obj.name, **about, **edited)

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        """Delete through `operations`, which audits it."""
        operations.delete_schedule(obj.name, by=request.user.get_username())

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Name the schedule; its runs are its own and need no permission."""
        return [page_text(obj, limit=200) for obj in objs], {}, set(), []

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().delete_view(request, *args, **kwargs)
        except UnknownSchedule:
            return HttpResponseRedirect(self._list_url())

    def response_add(self, request: HttpRequest, obj: Any, *args: Any, **kwargs: Any) -> Any:
        return self._saved(request, obj, gettext("Schedule %(name)s was created."))

    def response_change(self, request: HttpRequest, obj: Any) -> Any:
        return self._saved(request, obj, gettext("Schedule %(name)s was changed."))

    @admin.display(description=_("state"))
    def state(self, row: Any) -> str:
        return state_badge(row, row.now)

    @admin.display(description=_("next run"))
    def next_run(self, row: Any) -> str:
        return "-" if row.next_at is None else show_moment(row.next_at, row, row.now)

    @admin.display(description=_("when"))
    def rule(self, row: Schedule) -> str:
        parts = [row.time_zone] if row.cron else []
        if row.target != row.name:
            parts.append(page_text(row.target, limit=200))
        shown = format_html_join("", '<bdi class="dl-part">{}</bdi>', ((part,) for part in parts))
        return format_html("<code>{}</code>{}", rule_text(row), shown)

    @admin.display(description=_("last outcome"))
    def last_run(self, row: Any) -> str:
        latest: ShownRun | None = row.latest
        if latest is None:
            return "-"
        at = latest.run.fired_at
        badge = _badge(latest.kind, latest.label)
        if (found := latest.message) is not None:
            badge = _badge(found.kind, found.label)
            if found.url:
                badge = format_html('<a href="{}">{}</a>', found.url, badge)
        when = format_html(
            '<span class="dl-part" title="{}">{}</span>', moment(at), ago(at, row.now, depth=1)
        )
        return format_html("{} {}", badge, when)

    def _saved(self, request: HttpRequest, obj: Schedule, text: str) -> HttpResponse:
        self.message_user(request, text % {"name": page_text(obj.name, limit=200)})
        page = link(self.admin_site.name, "schedule_change", obj.pk)
        return HttpResponseRedirect(page or self._list_url())

    def _list_url(self) -> str:
        here = self.admin_site.name
        return reverse("admin:deadletter_schedule_changelist", current_app=here)


def _badge(kind: str, word: str) -> str:
    return format_html('<span class="dl-state dl-state-{}">{}</span>', kind, word)
