"""Cancel an instance."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext, ngettext

from ... import operations
from ...models import Instance, InstanceStatus, Message
from ...text import page_text
from ..base import alias, tell, write_log
from ..confirm import ActSubject, ActView, Question, WhyForm
from ..counts import Capped, capped
from ..urls import to_instance
from .page import find, gone

#: Children named, and rows counted.
NAMED, COUNTED = 20, 1_000


class CancelView(ActView):
    permission = "deadletter.cancel_instance"
    why_required = True

    def prepare(self) -> HttpResponse | None:
        found = find(self.kwargs["object_id"])
        if found is None:
            return gone(self.model_admin, self.request)
        self.instance: Instance = found
        self.shown = page_text(found.pk, limit=200)
        return None

    def question(self) -> Question:
        found, problems = self.instance, []
        if not found.is_running:
            text = gettext("%(id)s is not running any more: it is %(status)s.")
            problems = [text % {"id": self.shown, "status": found.get_status_display()}]
        rows = Instance.objects.using(alias()).short_columns().filter(parent=found.pk)
        running = rows.filter(status=InstanceStatus.RUNNING).order_by("pk")
        children = list(running[: NAMED + 1]) if found.is_running else []
        return Question(
            title=gettext("Cancel %(id)s?") % {"id": self.shown},
            button=gettext("Cancel it for good"),
            says=_says(found, len(children)) if found.is_running else [gettext("Nothing to do.")],
            subjects=[
                _subject(self.site_name, self.request, one) for one in (found, *children[:NAMED])
            ],
            back=to_instance(self.site_name, self.request, found.pk),
            danger=True,
            possible=found.is_running,
            problems=problems,
        )

    def perform(self, form: WhyForm) -> HttpResponse:
        why = form.cleaned_data["why"]
        outcome = operations.cancel_instance(self.instance.pk, by=self.by, why=why)
        if outcome.refused:
            text = gettext("It was not cancelled: %(why)s.")
            tell(
                self.request, text % {"why": page_text(outcome.refused, limit=500)}, messages.ERROR
            )
        else:
            write_log(self.request, [self.instance], gettext("Cancelled: %(why)s") % {"why": why})
            tell(self.request, self.told(len(outcome.cancelled) - 1))
        return HttpResponseRedirect(to_instance(self.site_name, self.request, self.instance.pk))

    def told(self, below: int) -> str:
        if not below:
            return gettext("%(id)s was cancelled.") % {"id": self.shown}
        text = ngettext(
            "%(id)s was cancelled, and %(n)s instance below it.",
            "%(id)s was cancelled, and %(n)s instances below it.",
            below,
        )
        return text % {"id": self.shown, "n": below}


def _says(found: Instance, children: int) -> list[str]:
    waiting: Capped = capped(Message.objects.using(alias()).filter(instance=found.pk), COUNTED)
    said = [
        gettext(
            "It fails with the error “cancelled”, your reason and your name. It cannot be "
            "reopened, but the application may start the same id again."
        ),
        gettext(
            "Its messages in the queues (%(n)s) are removed. Messages that a worker is handling "
            "finish; their results are ignored."
        )
        % {"n": waiting},
    ]
    if children:
        said.append(
            gettext("Its running children and their running descendants are cancelled too.")
        )
    if found.parent is not None:
        text = gettext("Its parent %(id)s is notified, and fails too unless its flow handles that.")
        said.append(text % {"id": page_text(found.parent, limit=200)})
    return said


def _subject(site: str, request: HttpRequest, one: Instance) -> ActSubject:
    about = [
        str(one.get_status_display()),
        gettext("execution %(n)s") % {"n": one.execution_id},
        gettext("queue %(name)s") % {"name": page_text(one.queue, limit=200)},
    ]
    return ActSubject(label=str(one), about=about, url=to_instance(site, request, one.pk))
