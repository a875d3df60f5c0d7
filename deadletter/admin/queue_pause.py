"""Pause and resume a queue."""

from __future__ import annotations

from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from .. import operations
from ..exceptions import UnknownQueue
from ..models import Queue
from .base import tell, write_log
from .confirm import ActSubject, ActView, Question, WhyForm
from .urls import link


def pause_url(site_name: str, queue: Queue) -> str:
    """Return the page that resumes a paused queue, or pauses an open one."""
    return link(site_name, "queue_resume" if queue.paused else "queue_pause", queue.pk)


class PauseView(ActView):
    permission = "deadletter.pause_queue"
    #: What the act makes of the queue.
    paused = True
    queue: Queue

    def prepare(self) -> None:
        pk = self.kwargs["pk"]
        found = self.model_admin.get_object(self.request, str(pk))
        if found is None:
            raise Http404
        self.queue = found
        self.queue_page = self.link("queue_change", pk)
        self.back = self.came_from(self.queue_page)

    def question(self) -> Question:
        title, button, says = self.words()
        if self.queue.paused == self.paused:
            already = gettext("The queue is already paused.") if self.paused else ""
            says = [*says, already or gettext("The queue is not paused.")]
        return Question(
            title=title,
            button=button % {"name": self.queue.name},
            says=says,
            subjects=[ActSubject(label=self.queue.name, url=self.queue_page)],
            hidden=[("next", self.back)],
            back=self.back,
            danger=self.paused,
        )

    def words(self) -> tuple[str, str, list[str]]:
        """Return the title, the button and what will happen."""
        goes_on = gettext("What is being handled now is finished. New messages are still accepted.")
        stops = gettext("No worker takes messages from queue %(name)s until it is resumed.")
        says = [stops % {"name": self.queue.name}, goes_on]
        return gettext("Pause the queue"), gettext("Pause %(name)s"), says

    def perform(self, form: WhyForm) -> HttpResponse:
        verb = operations.pause if self.paused else operations.resume
        why = form.cleaned_data["why"]
        try:
            verb(self.queue.name, by=self.by, why=why)
        except UnknownQueue:
            raise Http404 from None
        done, told = self.told()
        write_log(self.request, [self.queue], done, why=why)
        tell(self.request, told % {"name": self.queue.name})
        return HttpResponseRedirect(self.back)

    def told(self) -> tuple[str, str]:
        """Return what Django's log and what the person is told."""
        return gettext("Paused."), gettext("Queue %(name)s is paused.")


class ResumeView(PauseView):
    paused = False

    def words(self) -> tuple[str, str, list[str]]:
        text = gettext("Workers take messages from queue %(name)s again, from the next second on.")
        says = [text % {"name": self.queue.name}]
        return gettext("Resume the queue"), gettext("Resume %(name)s"), says

    def told(self) -> tuple[str, str]:
        return gettext("Resumed."), gettext("Queue %(name)s is resumed.")
