"""The page of one schedule: what it sends and when, its latest runs and what became of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext

from ... import clock, operations
from ...durations import as_text
from ...models import Queue, Schedule, primary_alias
from ...operations.schedule_states import ScheduleState, schedule_state
from ...text import page_text
from ...times import lasting
from ...timetable import TimetableError
from ..base import AdminView, as_id
from ..confirm import command
from ..error_text import hidden_text, may_read_errors
from ..lookups import refuse_others
from ..render import read_json, show_json
from .outcomes import show_runs
from .shown import reader_zone, rule_text, show_moment, show_moments, state_badge

#: Runs listed, of the hundred that are kept; moments ahead.
RUNS, AHEAD = 25, 5


class ScheduleView(AdminView):
    row: Any

    def prepare(self) -> HttpResponse | None:
        refuse_others(self.request, ("all", "_changelist_filters"))
        pk = as_id(str(self.kwargs["object_id"]))
        rows = Schedule.objects.using(primary_alias()).without_bodies()
        self.row = rows.filter(pk=pk).first() if pk is not None else None
        if self.row is None:
            title = gettext("There is no such schedule")
            return self.page("schedule/missing", title, status=404)
        return None

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        row, alias = self.row, primary_alias()
        self.now = now = clock.now(alias)
        limit = None if "all" in request.GET else RUNS
        found = list(operations.list_runs(row, using=alias)[: (limit or 1_000) + 1])
        texts = may_read_errors(request)
        title = page_text(row.name, limit=200)
        return self.page(
            "schedule/page",
            title,
            original=title,
            schedule=row,
            badge=state_badge(row, now),
            trouble=self._trouble(texts),
            next_run="" if row.next_at is None else show_moment(row.next_at, row, now),
            ahead=self._ahead(),
            reader_zone=reader_zone(),
            facts=self._facts(),
            payload=show_json(read_json(row, "payload")) if texts else None,
            headers=show_json(read_json(row, "headers")) if texts else None,
            texts=texts,
            runs=show_runs(self.site_name, request, found[: limit or 1_000], now),
            more=bool(limit and len(found) > limit),
            acts=self._acts(),
            command=command("schedules", "next", row.name),
            now=now,
        )

    def _trouble(self, texts: bool) -> dict[str, str] | None:
        """Say why it does not run, and what to do."""
        row, state = self.row, schedule_state(self.row, self.now)
        if state == ScheduleState.BROKEN:
            since = lasting(row.failing_since, self.now, depth=1)
            return {
                "text": gettext("It could not fire for %(time)s.") % {"time": since},
                "error": row.last_error if texts else hidden_text(row.last_error),
                "advice": gettext(
                    "Correct the schedule, its queue or its task. It is tried again each minute, "
                    "and at once after an edit."
                ),
            }
        if state == ScheduleState.LATE:
            time = lasting(row.due_at, self.now, depth=1)
            return {
                "text": gettext("It has been due for %(time)s: no worker fires it.")
                % {"time": time},
                "advice": gettext("Workers fire schedules: start one, or see why they are busy."),
            }
        if state == ScheduleState.ORPHANED:
            return {
                "text": gettext("The code or the settings no longer declare it, so it stopped."),
                "advice": gettext("Delete it, or declare it again; the next migrate continues it."),
            }
        if state == ScheduleState.PAUSED:
            return {
                "text": gettext("A person has paused it."),
                "advice": gettext("Who and why is in the audit trail. “Resume” lets it go on."),
            }
        if state == ScheduleState.ENDED:
            return {
                "text": gettext("It has ended: no moment is left."),
                "advice": gettext("Give it a later end, more runs or another time to continue it."),
            }
        return None

    def _ahead(self) -> list[dict[str, Any]]:
        row = self.row
        if row.next_at is None:
            return []
        try:
            # An overdue moment is shown above: what follows is what comes.
            after = max(self.now, row.next_at - timedelta(microseconds=1))
            moments = operations.next_runs(row, AHEAD, after=after, using=primary_alias())
        except TimetableError:
            return []
        return show_moments(moments, row, self.now)

    def _facts(self) -> list[tuple[str, str]]:
        row = self.row

        def label(name: str) -> str:
            return str(Schedule._meta.get_field(name).verbose_name)  # type: ignore[union-attr]

        found = [(gettext("when"), rule_text(row))]
        if row.cron:
            found.append((label("time_zone"), row.time_zone))
        found += [(label("queue"), row.queue or gettext("that of the task, or default"))]
        found += [(label(name), str(value)) for name in ("stream", "key", "priority")
                  if (value := getattr(row, name)) is not None]  # fmt: skip
        found += [(label(name), as_text(value)) for name in ("expires_in", "jitter")
                  if (value := getattr(row, name))]  # fmt: skip
        found += [(label("overlap"), row.get_overlap_display())]
        found += [(label("missed"), row.get_missed_display())]
        runs = str(row.run_count)
        if row.max_runs is not None:
            runs = gettext("%(n)s of %(most)s") % {"n": row.run_count, "most": row.max_runs}
        found.append((label("run_count"), runs))
        return [(name, page_text(value, limit=300)) for name, value in found]

    def _acts(self) -> dict[str, str]:
        """Return the addresses of the acts that this person may do."""
        row, user = self.row, self.request.user
        acts = {}
        if user.has_perm("deadletter.run_schedule"):
            acts["run"] = self.link("schedule_run", row.pk)
        if user.has_perm("deadletter.pause_schedule"):
            acts["resume" if row.paused else "pause"] = self.link(
                "schedule_resume" if row.paused else "schedule_pause", row.pk
            )
        if self.model_admin.has_change_permission(self.request):
            acts["edit"] = self.link("schedule_edit", row.pk)
        if self.model_admin.has_delete_permission(self.request):
            acts["delete"] = self.link("schedule_delete", row.pk)
        queue = Queue.objects.using(primary_alias()).filter(name=row.queue or "default").first()
        if queue is not None and user.has_perm("deadletter.view_queue"):
            acts["queue"] = self.link("queue_change", queue.pk)
        return acts
