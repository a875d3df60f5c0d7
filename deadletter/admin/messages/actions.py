"""
Acts on messages that wait in a queue: retry now, retry dead, release, poison, remove.

Each class describes its effect and calls one function of `operations`; `lifecycle` refuses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.http import HttpResponse, HttpResponseRedirect
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ... import clock, operations
from ...lifecycle.dead_queues import read_original_death, refuse_retry_dead, source_queues
from ...lifecycle.manual_acts import (
    refuse_discard,
    refuse_poison,
    refuse_release,
    refuse_retry_now,
)
from ...lifecycle.refusals import Refusal
from ...lifecycle.values import ActResult
from ...models import Kind, Message, OnPoison, Queue, State, StreamPolicy, primary_alias
from ...text import page_text
from ..base import as_id, tell, write_log
from ..confirm import ActSubject, ActView, Question, WhyForm
from ..render import refusal_text

#: Messages in one act: a page of the list.
AT_ONCE = 100
#: Refusals told one by one.
_TOLD = 10

RETRY, REMOVE = "deadletter.retry_poison", "deadletter.remove_poison"


class MessageActView(ActView):
    """An act on the messages whose ids are in the address, or come back with the answer."""

    slug: ClassVar[str]
    label: ClassVar[Any]
    danger = False

    @staticmethod
    def refuse(message: Message, state: str) -> Refusal | None:
        """Return the refusal of `lifecycle` as far as it can be known without locks."""
        raise NotImplementedError

    @classmethod
    def refusal(cls, message: Message, state: str) -> str:
        """Return why the act would leave a message alone; "": it would not."""
        found = cls.refuse(message, state)
        return capfirst(found.label) if found else ""

    def says(self, messages: Sequence[Message]) -> list[str]:
        """Say what will happen to these messages."""
        raise NotImplementedError

    def act(self, ids: Sequence[int], answer: dict[str, Any]) -> ActResult:
        raise NotImplementedError

    def button(self, n: int) -> str:
        raise NotImplementedError

    def told(self, n: int) -> str:
        raise NotImplementedError

    def prepare(self) -> None:
        given = self.request.POST if self.request.method == "POST" else self.request.GET
        found = [as_id(part.strip()) for part in given.get("ids", "").split(",")]
        self.ids = list(dict.fromkeys(id for id in found if id is not None))[:AT_ONCE]
        self.list_url = self.link("message_changelist")
        self.back = self.came_from(self.list_url)

    def question(self) -> Question:
        rows, now = _read(self.ids), clock.now(primary_alias())
        refusals = {m.pk: self.refusal(m, m.state(now)) for m in rows}
        accepted = [m for m in rows if not refusals[m.pk]]
        gone = len(self.ids) - len(rows)
        return Question(
            title=f"{self.button(len(accepted))}?" if accepted else str(self.label),
            button=self.button(len(accepted)),
            says=self.says(accepted) if accepted else [gettext("There is nothing to do.")],
            subjects=[self._subject(m, m.state(now), refusals[m.pk]) for m in rows],
            hidden=[("ids", ",".join(str(m.pk) for m in accepted)), ("next", self.back)],
            back=self.back,
            danger=self.danger,
            possible=bool(accepted),
            problems=[_gone(gone)] if gone else [],
        )

    def perform(self, form: WhyForm) -> HttpResponse:
        before = {message.pk: message for message in _read(self.ids)}
        result = self.act(self.ids, form.cleaned_data)
        done = [before[id] for id in result.done if id in before]
        why = form.cleaned_data["why"]
        write_log(self.request, done, f"{self.label}: {why}" if why else str(self.label))
        self._tell(result)
        return HttpResponseRedirect(self._next_url())

    def _subject(self, message: Message, state: str, refusal: str) -> ActSubject:
        attempts = ngettext("%(n)s attempt", "%(n)s attempts", message.attempts)
        about = [
            gettext("queue %(name)s") % {"name": message.queue.name},
            str(State(state).label),
            attempts % {"n": message.attempts},
        ]
        if message.stream is not None:
            about.append(gettext("stream %(name)s") % {"name": message.stream})
        url = self.link("message_change", message.pk)
        return ActSubject(label=str(message), about=about, url=url, refusal=refusal)

    def _tell(self, result: ActResult) -> None:
        if result.done:
            tell(self.request, self.told(len(result.done)))
        if result.missing:
            tell(self.request, _gone(len(result.missing)), messages.WARNING)
        for why in list(result.refused.values())[:_TOLD]:
            text = gettext("Refused: %(why)s.") % {"why": refusal_text(why)}
            tell(self.request, text, messages.ERROR)
        if (left := len(result.refused) - _TOLD) > 0:
            text = ngettext(
                "%(n)s more message was not changed.",
                "%(n)s more messages were not changed.",
                left,
            )
            tell(self.request, text % {"n": left}, messages.ERROR)
        if not (result.done or result.missing or result.refused):
            tell(self.request, gettext("There was nothing to do."), messages.WARNING)

    def _next_url(self) -> str:
        """Return the next page: the list, if the page of the message no longer exists."""
        gone = len(self.ids) == 1 and not _read(self.ids)
        left = gone and self.back == self.link("message_change", self.ids[0])
        return self.list_url if left else self.back


class RetryDeadView(MessageActView):
    """Retry messages of a dead queue in the queue where they died."""

    slug, permission, label = "retry-dead", RETRY, _("Retry in its original queue")
    refuse = staticmethod(refuse_retry_dead)

    def says(self, messages: Sequence[Message]) -> list[str]:
        columns = ("death", "source_id", "origin", "queue_id", "failure_reason")
        ids = [message.pk for message in messages]
        rows = Message.objects.using(primary_alias()).filter(pk__in=ids).only(*columns)
        sources = source_queues(primary_alias())
        targets: Counter[str] = Counter()
        for row in rows:
            death, only = read_original_death(row), sources.get(row.queue_id, [])
            guess = only[0] if len(only) == 1 else "?"
            targets[(death and death.queue) or guess] += 1
        says = [
            ngettext(
                "%(n)s message goes back to queue %(queue)s, under the id that it had there.",
                "%(n)s messages go back to queue %(queue)s, under the ids that they had there.",
                n,
            )
            % {"n": n, "queue": page_text(queue, limit=200)}
            for queue, n in sorted(targets.items())
        ]
        kept = gettext(
            "Attempts are counted from 0 again. Payload, history, stages reached, key and place in "
            "the stream are kept."
        )
        return [*says, kept]

    def act(self, ids: Sequence[int], answer: dict[str, Any]) -> ActResult:
        found = operations.retry_dead(ids, self.by, why=answer["why"])
        return ActResult(found.retried, found.missing, found.refused)

    def button(self, n: int) -> str:
        text = ngettext(
            "Retry %(n)s message in its original queue",
            "Retry %(n)s messages in their original queues",
            n,
        )
        return text % {"n": n}

    def told(self, n: int) -> str:
        text = ngettext(
            "%(n)s message is back in its queue.", "%(n)s messages are back in their queues.", n
        )
        return text % {"n": n}


class RetryNowForm(WhyForm):
    """Asks whether the attempts made so far count."""

    keep_attempts = forms.BooleanField(label=_("Keep the number of attempts"), required=False)
    field_order = ["keep_attempts", "why"]


class RetryNowView(MessageActView):
    """Make failed messages due now, instead of at the end of their delays."""

    slug, permission, label = "retry-now", RETRY, _("Retry now")
    refuse = staticmethod(refuse_retry_now)
    form_class = RetryNowForm

    def says(self, messages: Sequence[Message]) -> list[str]:
        n = len(messages)
        return [
            ngettext(
                "%(n)s message becomes due at once, instead of at the end of its delay.",
                "%(n)s messages become due at once, instead of at the end of their delays.",
                n,
            )
            % {"n": n},
            gettext(
                "Attempts are counted from 0 again, unless you choose to keep their number. "
                "Payload, history and place in the stream are kept."
            ),
        ]

    def act(self, ids: Sequence[int], answer: dict[str, Any]) -> ActResult:
        reset = not answer["keep_attempts"]
        found = operations.retry_now(ids, by=self.by, why=answer["why"], reset=reset)
        return ActResult(found.retried, found.missing, found.refused)

    def button(self, n: int) -> str:
        return ngettext("Retry %(n)s message now", "Retry %(n)s messages now", n) % {"n": n}

    def told(self, n: int) -> str:
        return ngettext("%(n)s message is due now.", "%(n)s messages are due now.", n) % {"n": n}


class ReleaseView(MessageActView):
    """Release messages by name: they no longer wait for their streams."""

    slug, permission, label = "release", RETRY, _("Release")
    refuse = staticmethod(refuse_release)

    def says(self, messages: Sequence[Message]) -> list[str]:
        n = len(messages)
        return [
            ngettext(
                "%(n)s message may run before earlier messages of its stream that wait or died.",
                "%(n)s messages may run before earlier messages of their streams that wait or "
                "died.",
                n,
            )
            % {"n": n},
            gettext(
                "The order of the stream is not kept for released messages. Other waiting messages "
                "stay blocked."
            ),
        ]

    def act(self, ids: Sequence[int], answer: dict[str, Any]) -> ActResult:
        found = operations.release(ids, by=self.by, why=answer["why"])
        return ActResult(found.done, found.missing, found.refused)

    def button(self, n: int) -> str:
        return ngettext("Release %(n)s message", "Release %(n)s messages", n) % {"n": n}

    def told(self, n: int) -> str:
        text = ngettext("%(n)s message was released.", "%(n)s messages were released.", n)
        return text % {"n": n}


class PoisonView(MessageActView):
    """Poison messages by hand; each goes where the policy of its queue sends poison."""

    slug, permission, label = "poison", REMOVE, _("Poison by hand")
    refuse = staticmethod(refuse_poison)
    why_required = True
    danger = True

    def says(self, messages: Sequence[Message]) -> list[str]:
        queues: dict[str, tuple[Queue, int]] = {}
        for message in messages:
            name = message.queue.name
            queues[name] = (message.queue, queues.get(name, (None, 0))[1] + 1)
        says = [_poison_goes(queue, n) for queue, n in queues.values()]
        if any(m.stream is not None and _halts(m.queue) for m in messages):
            says.append(
                gettext(
                    "Where the queue's stream policy is halt, the stream is halted until the "
                    "poison record is retried or removed."
                )
            )
        if any(message.instance is not None for message in messages):
            says.append(
                gettext(
                    "The instances they belong to are notified: a flow may handle the failure of "
                    "an activity; otherwise the instance fails."
                )
            )
        return says

    def act(self, ids: Sequence[int], answer: dict[str, Any]) -> ActResult:
        found = operations.poison(ids, by=self.by, why=answer["why"])
        return ActResult(found.done, found.missing, found.refused)

    def button(self, n: int) -> str:
        return ngettext("Poison %(n)s message", "Poison %(n)s messages", n) % {"n": n}

    def told(self, n: int) -> str:
        text = ngettext("%(n)s message was poisoned.", "%(n)s messages were poisoned.", n)
        return text % {"n": n}


class RemoveView(MessageActView):
    slug, permission, label = "remove", REMOVE, _("Remove")
    refuse = staticmethod(refuse_discard)
    danger = True

    def says(self, messages: Sequence[Message]) -> list[str]:
        n = len(messages)
        says = [
            ngettext(
                "%(n)s message is removed for good: it will never be handled, and it cannot be "
                "brought back.",
                "%(n)s messages are removed for good: they will never be handled, and they cannot "
                "be brought back.",
                n,
            )
            % {"n": n}
        ]
        if any(message.stream is not None for message in messages):
            says.append(gettext("The messages behind it in its stream no longer wait for it."))
        if any(message.kind == Kind.TASK for message in messages):
            says.append(gettext("The results of tasks say that they were cancelled."))
        return says

    def act(self, ids: Sequence[int], answer: dict[str, Any]) -> ActResult:
        found = operations.remove(ids, by=self.by, why=answer["why"])
        return ActResult(found.removed, found.missing, found.refused)

    def button(self, n: int) -> str:
        return ngettext("Remove %(n)s message", "Remove %(n)s messages", n) % {"n": n}

    def told(self, n: int) -> str:
        text = ngettext("%(n)s message was removed.", "%(n)s messages were removed.", n)
        return text % {"n": n}


#: The acts by the name that they have in an address.
ACTS: dict[str, type[MessageActView]] = {
    act.slug: act for act in (RetryDeadView, RetryNowView, ReleaseView, PoisonView, RemoveView)
}


def _read(ids: Sequence[int]) -> list[Message]:
    rows = Message.objects.using(primary_alias()).without_bodies().filter(pk__in=ids).order_by("pk")
    # Joined: messages of a queue that was deleted by hand have no policy and cannot be acted on.
    return list(rows.select_related("queue__dead_queue"))


def _gone(n: int) -> str:
    return ngettext(
        "%(n)s message is not in a queue any more.",
        "%(n)s messages are not in a queue any more.",
        n,
    ) % {"n": n}


def _halts(queue: Queue) -> bool:
    """True if a death halts its stream: only a poison record can."""
    return queue.stream_policy == StreamPolicy.HALT and queue.on_poison == OnPoison.QUARANTINE


def _poison_goes(queue: Queue, n: int) -> str:
    values = {"n": n, "queue": queue.name, "dead": queue.dead_queue}
    if queue.on_poison == OnPoison.DISCARD:
        return (
            ngettext(
                "%(n)s message of queue %(queue)s is DISCARDED, as the policy of the queue says: "
                "it cannot be brought back.",
                "%(n)s messages of queue %(queue)s are DISCARDED, as the policy of the queue "
                "says: they cannot be brought back.",
                n,
            )
            % values
        )
    if queue.on_poison == OnPoison.DEAD_QUEUE:
        return (
            ngettext(
                "%(n)s message of queue %(queue)s is moved to the dead queue %(dead)s.",
                "%(n)s messages of queue %(queue)s are moved to the dead queue %(dead)s.",
                n,
            )
            % values
        )
    return (
        ngettext(
            "%(n)s message of queue %(queue)s becomes a poison record: it is not handled until "
            "an operator retries it.",
            "%(n)s messages of queue %(queue)s become poison records: they are not handled until "
            "an operator retries them.",
            n,
        )
        % values
    )
