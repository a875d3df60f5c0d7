"""Acts on a schedule: run it now, pause and resume it."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from ... import clock, operations
from ...exceptions import UnknownSchedule
from ...models import RunOutcome, Schedule, primary_alias
from ...operations.schedule_states import ScheduleState, schedule_state
from ...schedules import CannotFire
from ...text import page_text
from ...timetable import TimetableError
from ..base import tell, write_log
from ..confirm import ActSubject, ActView, Question, WhyForm, command
from .shown import exact, rule_text


class ScheduleActView(ActView):
    """An act on the schedule whose id is in the address."""

    schedule: Schedule

    def prepare(self) -> None:
        found = self.model_admin.get_object(self.request, str(self.kwargs["pk"]))
        if found is None:
            raise Http404
        self.schedule = found
        self.now = clock.now(primary_alias())
        self.page_url = self.link("schedule_change", found.pk)
        self.back = self.came_from(self.page_url)

    @property
    def name(self) -> str:
        return page_text(self.schedule.name, limit=200)

    def make_question(self, title: str, button: str, says: Sequence[str], verb: str) -> Question:
        row = self.schedule
        about = [
            page_text(row.target, limit=200),
            rule_text(row),
            str(schedule_state(row, self.now).label),
        ]
        return Question(
            title=title % {"name": self.name},
            button=button,
            says=says,
            warnings=self.warnings(),
            subjects=[ActSubject(label=row.name, about=about, url=self.page_url)],
            hidden=[("next", self.back)],
            back=self.back,
            command=command("schedules", verb, row.name),
        )

    def warnings(self) -> list[str]:
        return []

    def done(
        self, form: WhyForm, log: str, told: str, level: int = messages.SUCCESS
    ) -> HttpResponse:
        write_log(self.request, [self.schedule], log, why=form.cleaned_data["why"])
        tell(self.request, told, level)
        return HttpResponseRedirect(self.back)


class RunScheduleView(ScheduleActView):
    permission = "deadletter.run_schedule"

    def question(self) -> Question:
        says = [
            gettext("One message is sent now, whatever waits or runs of earlier ones."),
            gettext("No moment is consumed: the next run is the same as before (%(at)s).")
            % {"at": exact(self.schedule.next_at)},
        ]
        return self.make_question(gettext("Run %(name)s now?"), gettext("Run it now"), says, "run")

    def warnings(self) -> list[str]:
        row = self.schedule
        if row.key:
            return [
                gettext("It sends nothing while an unfinished message has the key %(key)s.")
                % {"key": page_text(row.key, limit=100)}
            ]
        if schedule_state(row, self.now) == ScheduleState.BROKEN:
            return [gettext("Its last attempt to fire failed; this one probably fails, too.")]
        return []

    def perform(self, form: WhyForm) -> HttpResponse:
        why = form.cleaned_data["why"]
        try:
            run = operations.run_schedule(self.schedule.name, by=self.by, why=why)
        except UnknownSchedule:
            raise Http404 from None
        except CannotFire as error:
            text = gettext("Nothing was sent. %(why)s") % {"why": page_text(error, limit=500)}
            tell(self.request, text, messages.ERROR)
            return HttpResponseRedirect(self.back)
        if run.outcome != RunOutcome.SENT:
            text = gettext("Nothing was sent: another message has its key.")
            return self.done(
                form, gettext("Run by hand: nothing was sent."), text, messages.WARNING
            )
        text = gettext("%(name)s was sent as message %(id)s.")
        told = text % {"name": self.name, "id": run.message_id}
        return self.done(form, gettext("Run by hand."), told)


class PauseScheduleView(ScheduleActView):
    permission = "deadletter.pause_schedule"

    def question(self) -> Question:
        says = [
            gettext("It sends nothing until it is resumed. What it has sent already is handled."),
            gettext("The moments until then are not missed: nothing is sent for them later."),
        ]
        if self.schedule.paused:
            says = [gettext("It is paused already."), *says]
        return self.make_question(gettext("Pause %(name)s?"), gettext("Pause it"), says, "pause")

    def perform(self, form: WhyForm) -> HttpResponse:
        try:
            operations.pause_schedule(self.schedule.name, by=self.by, why=form.cleaned_data["why"])
        except UnknownSchedule:
            raise Http404 from None
        told = gettext("%(name)s is paused.") % {"name": self.name}
        return self.done(form, gettext("Paused."), told)


class ResumeScheduleView(ScheduleActView):
    permission = "deadletter.pause_schedule"

    def question(self) -> Question:
        says = [gettext("It goes on with its next moment from now.")]
        if not self.schedule.paused:
            says = [gettext("It is not paused."), *says]
        return self.make_question(gettext("Resume %(name)s?"), gettext("Resume it"), says, "resume")

    def warnings(self) -> list[str]:
        if self.schedule.orphaned_at is None:
            return []
        return [gettext("It is no longer declared, so it does not run even if it is resumed.")]

    def perform(self, form: WhyForm) -> HttpResponse:
        try:
            row = operations.resume_schedule(
                self.schedule.name, by=self.by, why=form.cleaned_data["why"]
            )
        except UnknownSchedule:
            raise Http404 from None
        except TimetableError as error:
            # This release cannot read its expression or its time zone.
            text = gettext("It was not resumed. %(why)s") % {"why": page_text(error, limit=500)}
            tell(self.request, text, messages.ERROR)
            return HttpResponseRedirect(self.back)
        told = gettext("%(name)s is resumed. Its next run: %(at)s.")
        return self.done(
            form, gettext("Resumed."), told % {"name": self.name, "at": exact(row.next_at)}
        )
