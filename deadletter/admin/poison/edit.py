"""Edit a payload and retry: write it, see the difference, confirm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ... import operations, payload_types
from ...checks import look_up_handlers
from ...conf import get_settings
from ...exceptions import PayloadMismatch, PayloadRejected, Undecodable
from ...models import Damaged, Kind, PoisonRecord
from ...operations import diff, redact
from ...operations.hidden_values import HiddenValueMoved, refuse_markers, restore, same
from ...payload import accept, decode
from ...tasks.lookup import describe_task
from ...text import escape_hidden, page_text
from ..confirm import WHY_LIMIT, Question, WhyForm
from ..render import Stored, hidden_changed, pretty, read_json
from . import effects
from .acts import RetryRecordView


class EditForm(WhyForm):
    """The payload as JSON, and the reason."""

    payload = forms.CharField(
        label=_("Payload (JSON)"),
        required=False,
        strip=False,
        widget=forms.Textarea(
            attrs={
                "rows": 18,
                "class": "vLargeTextField dl-editor",
                "spellcheck": "false",
                "autocapitalize": "off",
                "autocomplete": "off",
            }
        ),
    )
    why = forms.CharField(
        label=_("Why"),
        required=False,
        max_length=WHY_LIMIT,
        help_text=_("Kept in the audit trail with your name."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )
    field_order = ["payload", "why"]


class EditRecordView(RetryRecordView):
    """
    GET shows the payload, a POST shows the difference, and a POST with `confirmed` acts.

    Every POST is checked anew: the browser may send back something else than it was shown.
    """

    template = "poison/edit_confirm"
    form_class = EditForm

    def has_permission(self) -> bool:
        return super().has_permission() and self.rights.edit

    def prepare(self) -> HttpResponse | None:
        answer = super().prepare()
        if answer is None:
            self.stored = read_json(self.record, "payload")
        return answer

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return self.write(EditForm(initial={"payload": escape_hidden(self.stored.text())}))

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        form = EditForm(request.POST)
        self.draft = _check(request.POST.get("payload", ""), self.stored, self.record)
        if self.draft.problem:
            form.add_error("payload", self.draft.problem)
        if not form.is_valid() or "again" in request.POST:
            return self.write(form)
        return self.perform(form) if "confirmed" in request.POST else self.compare(form)

    def write(self, form: WhyForm) -> HttpResponse:
        return self.page(
            "poison/edit",
            gettext("Edit and retry %(record)s")
            % {"record": page_text(str(self.record), limit=200)},
            form=form,
            problem=self.stored.problem,
            is_task=self.record.kind == Kind.TASK,
            parameters=self.parameters(),
        )

    def parameters(self) -> str:
        """Return the parameters of the task, if this process finds it."""
        if self.record.kind != Kind.TASK:
            return ""
        return page_text(describe_task(self.record.name), limit=500)

    def compare(self, form: WhyForm) -> HttpResponse:
        new = redact(self.draft.value)
        return self.ask(
            form,
            lines=diff.lines(self.stored.text(), pretty(new)),
            hidden_changed=hidden_changed(new, self.stored, self.draft.value),
        )

    def question(self) -> Question:
        says, warnings = self.advice()
        return self.make_question(
            gettext("Retry %(record)s with this payload?"),
            button=gettext("Retry with this payload"),
            says=[
                *effects.of_retry(self.record),
                gettext("Its payload is replaced; the original stays in its history."),
                *says,
            ],
            warnings=[*effects.warnings(self.record), *warnings],
        )

    def perform(self, form: WhyForm) -> HttpResponse:
        why = form.cleaned_data["why"]
        # A marker that is left was in the payload before: `restore` refuses any other.
        outcome = operations.retry_poison(
            self.record.pk, by=self.by, payload=self.draft.value, why=why, literal=True
        )
        return self.told(outcome, gettext("Edited and retried."), why=why)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An edited payload with its hidden values restored, or the problem with it."""

    value: Any = None
    problem: str = ""


def _check(text: str, stored: Stored, record: PoisonRecord) -> Draft:
    try:
        edited = decode(text)
        accept(edited, limit=get_settings().payload_limit)
        value = _whole(edited, stored)
        accept(value, limit=get_settings().payload_limit)
    except HiddenValueMoved as error:
        return Draft(
            problem=gettext(
                "%(path)s: the hidden value for this placeholder is ambiguous, because the "
                "content around it was changed, copied or moved. Write the value instead of "
                "“[redacted]”."
            )
            % {"path": page_text(error.path, limit=300)}
        )
    except (Undecodable, PayloadRejected) as error:
        return Draft(problem=page_text(error, limit=500))
    except (ValueError, RecursionError) as error:
        return Draft(problem=page_text(f"{type(error).__name__}: {error}", limit=500))
    if not isinstance(stored.value, Damaged) and same(value, stored.value):
        return Draft(problem=gettext("Nothing was changed: to retry it as it is, use “Retry”."))
    try:
        look_up_handlers()
        payload_types.check(record.kind, record.name, value)
    except PayloadMismatch as error:
        return Draft(problem=page_text(error, limit=500))
    return Draft(value=value)


def _whole(edited: Any, stored: Stored) -> Any:
    """Return the payload with its hidden values restored; damaged text has none to restore."""
    if not isinstance(stored.value, Damaged):
        return restore(edited, stored.value)
    refuse_markers(edited)
    return edited
