"""Retry or remove one poison record."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect, QueryDict
from django.utils.html import format_html
from django.utils.translation import gettext

from ... import operations
from ...models import Kind, primary_alias
from ...text import page_text
from ..base import as_id, tell, write_log
from ..confirm import ActSubject, ActView, Question, RetryForm, WhyForm, command
from ..render import refusal_text
from ..urls import to_message
from . import effects
from .frame import PoisonPageView, find_record

#: Characters of the error that the question shows.
_ERROR_SHOWN = 200


class RecordActView(PoisonPageView, ActView):
    """An act on one record. From another page, `home`, it returns to that page."""

    danger = False

    def prepare(self) -> HttpResponse | None:
        self.record = find_record(self.kwargs["object_id"])
        if self.home:  # a site may have this address and no pages of poison
            self.base_template = ActView.base_template
        else:
            self.base_template = "admin/deadletter/poison/base.html"
        # Used only to say which operator was faster.
        message_id = as_id(self.request.POST.get("message", ""))
        return None if self.record is not None else self.gone(message_id)

    def make_question(self, title: str, **given: Any) -> Question:
        """Return the question about the record; the title names it as %(record)s."""
        record, page = self.record, self.url("change", self.record.pk)
        about = [gettext("queue %(name)s") % {"name": record.queue}]
        if record.stream is not None:
            about.append(gettext("stream %(name)s") % {"name": record.stream})
        if self.rights.payload:
            about.append((record.error or "")[:_ERROR_SHOWN])
        else:
            about.append(f"{record.exception} {record.frame}".strip())
        subject = ActSubject(label=str(record), about=list(filter(None, about)), url=page)
        return Question(
            title=title % {"record": page_text(str(record), limit=200)},
            subjects=[subject],
            hidden=[("message", str(record.message_id))],
            back=self.home or page,
            danger=self.danger,
            **given,
        )


class RetryRecordView(RecordActView):
    permission = "deadletter.retry_poison"
    form_class: type[WhyForm] = RetryForm

    def form(self, data: QueryDict | None = None) -> WhyForm:
        form = super().form(data)
        if self.record.kind == Kind.EVENT:
            # Back to the outbox: a queue would be refused.
            form.fields.pop("queue", None)
        return form

    def question(self) -> Question:
        says, warnings = self.advice()
        return self.make_question(
            gettext("Retry %(record)s?"),
            button=gettext("Retry it"),
            says=[*effects.of_retry(self.record), *says],
            warnings=[*effects.warnings(self.record), *warnings],
            command=command("retry", self.record.pk, why="…"),
        )

    def advice(self) -> tuple[list[str], list[str]]:
        """Return what releases, workers and earlier retries say about a retry now."""
        found = operations.retry_advice(records=self.record.pk, using=primary_alias())
        return effects.advice(found)

    def perform(self, form: WhyForm) -> HttpResponse:
        queue, why = form.cleaned_data.get("queue") or None, form.cleaned_data["why"]
        outcome = operations.retry_poison(self.record.pk, by=self.by, queue=queue, why=why)
        return self.told(outcome, gettext("Retried."), queue=queue, why=why)

    def told(
        self, outcome: operations.Retrial, done: str, *, why: str, queue: str | None = None
    ) -> HttpResponse:
        """Report the result of the retry, including an earlier act by another person."""
        record = self.record
        if outcome.missing:
            return self.gone(record.message_id)
        if outcome.refused:
            text = gettext("It was not retried: %(why)s.")
            refusal = refusal_text(next(iter(outcome.refused.values())))
            tell(self.request, text % {"why": refusal}, messages.ERROR)
            return HttpResponseRedirect(self.home or self.url("change", record.pk))
        write_log(self.request, [record], done, why=why)
        text = gettext("Message %(id)s (%(name)s) is back in the queue %(queue)s.") % {
            "id": record.message_id,
            "name": page_text(record.name, limit=200),
            "queue": page_text(queue or record.queue, limit=200),
        }
        if record.halts:
            text = f"{text} {gettext('The stream continues with this message.')}"
        page = to_message(self.site_name, self.request, record.message_id)
        if page and record.kind != Kind.EVENT:  # the outbox has no page for each message
            text = format_html('{} <a href="{}">{}</a>', text, page, gettext("Look at it"))
        tell(self.request, text)
        return HttpResponseRedirect(self.home or self.url("records"))


class RemoveRecordView(RecordActView):
    permission = "deadletter.remove_poison"
    danger = True

    def question(self) -> Question:
        return self.make_question(
            gettext("Remove %(record)s?"),
            button=gettext("Remove it for good"),
            says=effects.of_remove(self.record),
            command=command("remove", self.record.pk, why="…"),
        )

    def perform(self, form: WhyForm) -> HttpResponse:
        record, why = self.record, form.cleaned_data["why"]
        outcome = operations.remove_poison(record.pk, by=self.by, why=why)
        if not outcome.removed:
            return self.gone(record.message_id)
        write_log(self.request, [record], gettext("Removed."), why=why, gone=True)
        text = gettext("Message %(id)s (%(name)s) was removed for good.")
        text %= {"id": record.message_id, "name": page_text(record.name, limit=200)}
        if record.halts:
            text = f"{text} {gettext('The stream continues.')}"
        tell(self.request, text)
        return HttpResponseRedirect(self.home or self.url("records"))


#: The acts on one record by the name that they have in an address.
RECORD_ACTS: dict[str, type[RecordActView]] = {
    "retry": RetryRecordView,
    "remove": RemoveRecordView,
}
