"""
Acts of the admin: the question before the act, the act, and the result for the person.

`ActView` is the view of every act. Its page says what will happen to which rows and asks for the
reason, which the audit trail keeps. `command` is the same act on the command line, to be copied.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext_lazy as _

from ..models import Queue, primary_alias
from ..operations import PoisonFilter
from ..status import FailureReason
from .base import AdminView

#: Characters of a reason; the audit trail keeps it for good.
WHY_LIMIT = 2_000


class WhyForm(forms.Form):
    """Asks for the reason, which the audit trail keeps with the operator's name."""

    why = forms.CharField(
        label=_("Why"),
        required=False,
        max_length=WHY_LIMIT,
        help_text=_("Kept in the audit trail with your name."),
        error_messages={"required": _("Say why: others will ask.")},
        widget=forms.Textarea(
            attrs={"rows": 2, "class": "vLargeTextField", "autocomplete": "off", "autofocus": True}
        ),
    )


class RetryForm(WhyForm):
    """Asks for the queue as well."""

    queue = forms.ChoiceField(label=_("Into the queue"), required=False)
    field_order = ["queue", "rate", "why"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        names = Queue.objects.using(primary_alias()).order_by("name").values_list("name", flat=True)
        queue = self.fields["queue"]
        assert isinstance(queue, forms.ChoiceField)  # noqa: S101 - declared above
        queue.choices = [("", _("the one it came from")), *((name, name) for name in names)]


class BulkRetryForm(RetryForm):
    """Asks for a rate as well: a dependency that has just recovered must not be overloaded."""

    rate = forms.FloatField(
        label=_("At most per second"),
        required=False,
        min_value=0.001,
        max_value=1_000_000,
        help_text=_("Empty: all at once. 10: the last of 600 is tried a minute from now."),
        widget=forms.NumberInput(attrs={"step": "any", "min": "0.001", "class": "vIntegerField"}),
    )


@dataclass(frozen=True, kw_only=True)
class ActSubject:
    """One row the act is about; `refusal` says why the act would leave it alone."""

    label: str
    about: Sequence[str] = ()
    url: str = ""
    refusal: str = ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """
    What the page says before an act.

    `hidden` comes back with the answer, so that the act touches exactly the rows that were shown.
    """

    title: str
    button: str
    says: Sequence[str] = ()
    #: Reasons why the act may fail or have no effect for now.
    warnings: Sequence[str] = ()
    subjects: Sequence[ActSubject] = ()
    hidden: Sequence[tuple[str, str]] = ()
    #: Where "No, go back" leads.
    back: str
    #: The act destroys something.
    danger: bool = False
    #: False: there is nothing to confirm.
    possible: bool = True
    problems: Sequence[str] = ()
    #: The same act on the command line.
    command: str = ""


class ActView(AdminView):
    """
    An act on rows: GET asks, POST acts.

    A subclass names the permission, returns the question and performs the act. `perform` tells the
    person the result and returns the page that follows. Nothing is changed before `perform`; if the
    form refuses the answer, the page asks again.
    """

    form_class: type[WhyForm] = WhyForm
    why_required = False
    template = "act"
    #: The frame of the page: the navigation and breadcrumbs around the question.
    base_template = "admin/deadletter/act_base.html"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return self.ask(self.form())

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        form = self.form(request.POST)
        return self.perform(form) if form.is_valid() else self.ask(form)

    def form(self, data: QueryDict | None = None) -> WhyForm:
        form = self.form_class(data)
        form.fields["why"].required = self.why_required
        return form

    def question(self) -> Question:
        raise NotImplementedError

    def perform(self, form: WhyForm) -> HttpResponse:
        raise NotImplementedError

    def ask(self, form: WhyForm, **context: Any) -> HttpResponse:
        """Show the question. Nothing has been changed yet."""
        question = self.question()
        return self.page(
            self.template,
            question.title,
            question=question,
            form=form,
            command=question.command,
            base_template=self.base_template,
            **context,
        )

    def came_from(self, otherwise: str) -> str:
        """Return the page that led here; only a path of this site is followed."""
        request = self.request
        wanted = request.POST.get("next") or request.GET.get("next") or ""
        safe = url_has_allowed_host_and_scheme(
            wanted, allowed_hosts={request.get_host()}, require_https=request.is_secure()
        )
        return wanted if wanted and safe else otherwise


def command(verb: str, *ids: object, **options: Any) -> str:
    """Return a command: `("retry", 17, why="…")` is `manage.py deadletter retry 17 --why '…'`."""
    words = ["manage.py", "deadletter", verb, *(str(id) for id in ids)]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name.replace('_', '-')}")
        elif value not in (None, ""):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return " ".join(shlex.quote(word) for word in words)


def command_for(verb: str, wanted: PoisonFilter, **options: Any) -> str:
    """Return the command for all records that match; without a filter, for all records."""
    found: Mapping[str, Any] = wanted.as_dict()
    narrowed = {key: value for key, value in found.items() if key not in ("up_to", "queues")}
    if "reason" in narrowed:
        narrowed["reason"] = FailureReason.read(narrowed["reason"]).name
    text = command(verb, **narrowed, **options)
    return text if narrowed else f"{text} --all"
