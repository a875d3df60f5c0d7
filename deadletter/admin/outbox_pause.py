"""Pause and resume a broker, or topics of it."""

from __future__ import annotations

from django import forms
from django.contrib.admin.utils import quote, unquote
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from .. import operations
from ..exceptions import MessageRejected
from ..lifecycle.pauses import check_topics
from ..models import BrokerStatus
from ..text import page_text
from .base import tell, write_log
from .confirm import ActSubject, ActView, Question, WhyForm, command

PERMISSION = "deadletter.pause_outbox"


class PauseOutboxForm(WhyForm):
    """Asks for the topics as well."""

    topic = forms.CharField(
        label=_("Topic"),
        required=False,
        max_length=200,
        help_text=_("A topic, or a pattern such as mail.*; empty: the whole broker."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )
    field_order = ["topic", "why"]

    def clean_topic(self) -> str:
        try:
            return check_topics(self.cleaned_data["topic"].strip())
        except MessageRejected as error:
            raise forms.ValidationError(error.problem) from None


class PauseOutboxView(ActView):
    permission = PERMISSION
    form_class: type[WhyForm] = PauseOutboxForm
    broker: BrokerStatus

    def prepare(self) -> None:
        name = unquote(self.kwargs["object_id"])
        found = self.model_admin.get_object(self.request, name)
        if found is None:
            raise Http404
        self.broker = found
        self.broker_page = self.link("brokerstatus_change", quote(found.pk))
        self.back = self.came_from(self.broker_page)

    def question(self) -> Question:
        name = page_text(self.broker.name, limit=100)
        return Question(
            title=gettext("Pause publishing"),
            button=gettext("Pause"),
            says=[
                gettext(
                    "Nothing of the topic is published to broker %(name)s until it is resumed, "
                    "from a few seconds from now on."
                )
                % {"name": name},
                gettext(
                    "Its messages wait in the outbox, and so do later ones of the same key. "
                    "Messages of other keys and topics are published as before."
                ),
            ],
            subjects=[ActSubject(label=name, url=self.broker_page)],
            hidden=[("next", self.back)],
            back=self.back,
            danger=True,
            command=command("outbox", "pause", "TOPIC", broker=self.broker.name),
        )

    def perform(self, form: WhyForm) -> HttpResponse:
        topic, why = form.cleaned_data["topic"], form.cleaned_data["why"]
        about = {"broker": self.broker.name, "by": self.by, "why": why}
        try:
            changed = operations.pause_outbox(topic, **about)
        except MessageRejected as error:
            form.add_error(None, error.problem)
            return self.ask(form)
        self.say(changed, topic, why, gettext("Paused."))
        return HttpResponseRedirect(self.back)

    def say(self, changed: bool, topic: str, why: str, done: str) -> None:
        if not changed:
            tell(self.request, gettext("There was nothing to do."))
            return
        write_log(self.request, [self.broker], f"{done} {topic}".strip(), why=why)
        tell(self.request, done)


class ResumeOutboxView(PauseOutboxView):
    """The topic of the pause is in the address, or comes back with the answer."""

    form_class = WhyForm

    def prepare(self) -> None:
        super().prepare()
        given = self.request.POST if self.request.method == "POST" else self.request.GET
        self.topic = given.get("topic", "")[:200]

    def question(self) -> Question:
        pauses = {
            row.topic: row for row in operations.list_pauses() if row.broker == self.broker.pk
        }
        found = pauses.get(self.topic)
        what = page_text(self.topic, limit=200) or gettext("the whole broker")
        return Question(
            title=gettext("Resume publishing"),
            button=gettext("Resume"),
            says=[
                gettext("What waits is published, in the order of each key."),
                gettext("It may be a lot at once: think of those who receive it."),
            ]
            if found
            else [gettext("There is nothing to do.")],
            subjects=[ActSubject(label=what, about=[self.broker.name], url=self.broker_page)],
            hidden=[("topic", self.topic), ("next", self.back)],
            back=self.back,
            possible=found is not None,
            command=command(
                "outbox",
                "resume",
                *([self.topic] if self.topic else ["--all"]),
                broker=self.broker.name,
            ),
        )

    def perform(self, form: WhyForm) -> HttpResponse:
        why = form.cleaned_data["why"]
        about = {"broker": self.broker.name, "by": self.by, "why": why}
        try:
            changed = operations.resume_outbox(self.topic, **about)
        except MessageRejected:
            changed = False
        self.say(changed, self.topic, why, gettext("Resumed."))
        return HttpResponseRedirect(self.back)
