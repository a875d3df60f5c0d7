"""Jobs: acts that run in the background, their progress, and how to pause or cancel them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from ... import clock
from ...models import BulkJob, Queue, WorkerProcess, primary_alias
from ...operations import PoisonFilter
from ...operations import bulk as operations
from ...operations.retry_outcomes import attach_outcomes, outcomes_of
from ..base import tell, write_log
from ..confirm import command_for
from .frame import PoisonPageView

#: Jobs in the list; the audit trail has them all.
LISTED = 50

#: The buttons of the page, and the state that each leads to.
CONTROLS = {
    "pause": BulkJob.State.PAUSED,
    "resume": BulkJob.State.RUNNING,
    "cancel": BulkJob.State.CANCELLED,
}


class JobsView(PoisonPageView):
    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        rows = (
            BulkJob.objects.using(primary_alias()).select_related("entry").order_by("-pk")[:LISTED]
        )
        title = gettext("Background jobs")
        return self.page("poison/jobs", title, tab="jobs", jobs=_progress(rows))


class JobView(PoisonPageView):
    """Shows a job; a POST pauses, resumes or cancels it."""

    def prepare(self) -> None:
        job_id = self.kwargs["job_id"]
        rows = BulkJob.objects.using(primary_alias()).select_related("entry")
        # Ids outside bigint cannot exist; skip the query.
        found = rows.filter(pk=job_id).first() if job_id < 2**63 else None
        if found is None:
            raise Http404
        self.job = found

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        job, entry, progress = self.job, self.job.entry, JobProgress(self.job)
        # A filter by the text of the error quotes the error.
        hidden = {"up_to"} if self.rights.payload else {"up_to", "text"}
        selection = {k: v for k, v in entry.selection.items() if k not in hidden}
        return self.page(
            "poison/job_progress" if "part" in request.GET else "poison/job",
            gettext("Job %(id)s: %(act)s") % {"id": job.pk, "act": entry.get_act_display()},
            tab="jobs",
            job=job,
            progress=progress,
            may_control=self.rights.to(entry.act),
            unserved=not progress.over and _unserved(),
            selection=selection,
            command=command_for(
                entry.act,
                PoisonFilter.from_dict(selection),
                to_queue=entry.detail.get("queue"),
                rate=entry.detail.get("rate"),
                why=entry.why,
            ),
        )

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not self.rights.to(self.job.entry.act):
            raise PermissionDenied
        here = HttpResponseRedirect(self.url("job", self.job.pk))
        wanted = CONTROLS.get(request.POST.get("act", ""))
        if wanted is None:
            tell(request, gettext("There is no such act."), messages.ERROR)
            return here
        try:
            operations.control_job(self.job.pk, wanted, by=self.by, using=primary_alias())
        except ValueError:
            tell(request, gettext("The job is over: there is nothing to change."), messages.WARNING)
            return here
        done = {
            BulkJob.State.PAUSED: gettext("Paused."),
            BulkJob.State.RUNNING: gettext("Resumed."),
            BulkJob.State.CANCELLED: gettext("Cancelled: what is done stays done."),
        }[wanted]
        write_log(request, [self.job], done)
        tell(request, done)
        return here


def _progress(rows: Iterable[BulkJob]) -> list[JobProgress]:
    jobs = list(rows)
    attach_outcomes([job.entry for job in jobs], using=primary_alias())
    return [JobProgress(job) for job in jobs]


class JobProgress:
    """A job in numbers, and what became of its messages so far."""

    def __init__(self, job: BulkJob) -> None:
        self.job = job
        self.entry = job.entry
        self.outcomes = outcomes_of(job.entry)
        self.over = job.state in (BulkJob.State.DONE, BulkJob.State.CANCELLED)
        #: True if nothing on its page will change any more.
        self.settled = self.over and not self.outcomes.open
        self.looked_at = job.done + job.refused
        # Records that other acts took in the meantime are neither done nor refused.
        self.total = max(job.total, self.looked_at)
        finished = job.state == BulkJob.State.DONE
        self.percent = 100 if finished else 100 * self.looked_at // max(self.total, 1)
        self.missing = max(0, job.total - self.looked_at) if finished else 0


def _unserved() -> str:
    """Say why the job waits: no worker takes from the internal queue."""
    now = clock.now(primary_alias())
    queue = Queue.objects.using(primary_alias()).filter(name=operations.QUEUE).first()
    if queue is not None and queue.paused:
        return gettext("The queue “deadletter” is paused: the job waits until it is resumed.")
    if operations.QUEUE in WorkerProcess.objects.using(primary_alias()).alive(now).served():
        return ""
    return gettext(
        "No live worker serves the queue “deadletter”: the job waits until one does. Start "
        "“manage.py run_worker”, or add the queue to the ones it serves."
    )
