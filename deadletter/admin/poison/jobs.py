"""How far is a long act, and how is it paused or ended?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext

from ... import clock
from ...models import BulkJob, Queue, WorkerProcess
from ...operations import PoisonFilter
from ...operations import bulk as operations
from ...operations.retry_outcomes import attach_outcomes, outcomes_of
from ..cli_hint import command_for
from ..pages import alias, need, render, rights, tell, url, write_log

#: Jobs in the list; the audit trail has them all.
LISTED = 50

#: What the buttons of the page ask for, and the state it leads to.
CONTROLS = {
    "pause": BulkJob.State.PAUSED,
    "resume": BulkJob.State.RUNNING,
    "cancel": BulkJob.State.CANCELLED,
}


def jobs(model_admin: Any, request: HttpRequest) -> HttpResponse:
    need(model_admin, request)
    rows = BulkJob.objects.using(alias()).select_related("entry").order_by("-pk")[:LISTED]
    return render(
        model_admin,
        request,
        "jobs",
        gettext("Background jobs"),
        tab="jobs",
        jobs=_progress(rows),
    )


def job(model_admin: Any, request: HttpRequest, job_id: int) -> HttpResponse:
    """Show a job; with POST pause, resume or cancel it."""
    need(model_admin, request)
    rows = BulkJob.objects.using(alias()).select_related("entry")
    # A number no id can be is asked of nobody.
    found = rows.filter(pk=job_id).first() if job_id < 2**63 else None
    if found is None:
        raise Http404
    if request.method == "POST":
        return _control(model_admin, request, found)
    progress = Progress(found)
    # A filter by the text of the error quotes the error.
    hidden = {"up_to"} if rights(request).payload else {"up_to", "text"}
    selection = {k: v for k, v in found.entry.selection.items() if k not in hidden}
    return render(
        model_admin,
        request,
        "job_progress" if "part" in request.GET else "job",
        gettext("Job %(id)s: %(act)s") % {"id": found.pk, "act": found.entry.get_act_display()},
        tab="jobs",
        job=found,
        progress=progress,
        may_control=rights(request).to(found.entry.act),
        unserved=not progress.over and _unserved(),
        selection=selection,
        command=command_for(
            found.entry.act,
            PoisonFilter.from_dict(selection),
            to_queue=found.entry.detail.get("queue"),
            rate=found.entry.detail.get("rate"),
            why=found.entry.why,
        ),
    )


def _progress(rows: Iterable[BulkJob]) -> list[Progress]:
    jobs = list(rows)
    attach_outcomes([job.entry for job in jobs], using=alias())
    return [Progress(job) for job in jobs]


class Progress:
    """A job in numbers, and what has become of its messages by now."""

    def __init__(self, job: BulkJob) -> None:
        self.job = job
        self.entry = job.entry
        self.outcomes = outcomes_of(job.entry)
        self.over = job.state in (BulkJob.State.DONE, BulkJob.State.CANCELLED)
        #: Whether nothing on its page will change any more.
        self.settled = self.over and not self.outcomes.open
        self.looked_at = job.done + job.refused
        # What somebody else took in the meantime is neither done nor refused.
        self.total = max(job.total, self.looked_at)
        finished = job.state == BulkJob.State.DONE
        self.percent = 100 if finished else 100 * self.looked_at // max(self.total, 1)
        self.missing = max(0, job.total - self.looked_at) if finished else 0


def _control(model_admin: Any, request: HttpRequest, found: BulkJob) -> HttpResponse:
    if not rights(request).to(found.entry.act):
        raise PermissionDenied
    here = HttpResponseRedirect(url(model_admin, "job", found.pk))
    wanted = CONTROLS.get(request.POST.get("act", ""))
    if wanted is None:
        tell(request, gettext("There is no such act."), messages.ERROR)
        return here
    try:
        operations.control_job(found.pk, wanted, by=request.user.get_username(), using=alias())
    except ValueError:
        tell(request, gettext("The job is over: there is nothing to change."), messages.WARNING)
        return here
    done = {
        BulkJob.State.PAUSED: gettext("Paused."),
        BulkJob.State.RUNNING: gettext("Resumed."),
        BulkJob.State.CANCELLED: gettext("Cancelled: what is done stays done."),
    }[wanted]
    write_log(request, [found], done)
    tell(request, done)
    return here


def _unserved() -> str:
    """Say why nothing would happen: no worker takes from deadletter's own queue."""
    now = clock.now(alias())
    queue = Queue.objects.using(alias()).filter(name=operations.QUEUE).first()
    if queue is not None and queue.paused:
        return gettext("The queue “deadletter” is paused: nothing goes on until it is resumed.")
    if operations.QUEUE in WorkerProcess.objects.using(alias()).alive(now).served():
        return ""
    return gettext(
        "No live worker serves the queue “deadletter”: nothing goes on until one does. Start "
        "“manage.py run_worker”, or add the queue to the ones it serves."
    )
