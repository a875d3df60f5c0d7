"""Retry all failed messages that match the filters of the list, in bounded pieces."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.formats import number_format
from django.utils.http import urlencode
from django.utils.translation import gettext, ngettext

from ... import operations
from ...models import Queue, State, primary_alias
from ...operations import MessageFilter
from ...operations.depths import capped
from ...text import page_text
from ..base import as_id, tell
from ..confirm import ActView, Question, WhyForm, command
from ..render import reason_name
from ..urls import link
from .actions import RETRY, RetryNowForm

#: Messages that one answer retries; a request must end.
AT_MOST = 5_000
#: Parameters of the list that the act obeys. With others it would retry more than the list shows.
_OBEYED = frozenset({"state", "queue", "name", "reason", "p", "o"})


def retry_failed_url(site_name: str, request: HttpRequest) -> str:
    """Return the page of the act for the filters of a list; "" for a list that it cannot obey."""
    given = {key: value for key, value in request.GET.items() if value}
    if given.get("state") != State.FAILED or given.keys() - _OBEYED:
        return ""
    kept: dict[str, Any] = {key: given[key] for key in ("queue", "name", "reason") if key in given}
    found = link(site_name, "message_retry_failed")
    return f"{found}?{urlencode(kept)}" if found and kept else found


class RetryFailedView(ActView):
    """Makes all failed messages due that match, instead of at the end of their delays."""

    permission = RETRY
    form_class = RetryNowForm

    def prepare(self) -> None:
        given = self.request.POST if self.request.method == "POST" else self.request.GET
        self.given = {key: given.get(key, "") for key in ("queue", "name", "reason")}
        self.wanted = self._filter()
        query = {key: value for key, value in self.given.items() if value}
        self.back = f"{self.link('message_changelist')}?{urlencode({'state': 'failed', **query})}"

    def _filter(self) -> MessageFilter:
        queue = None
        if self.given["queue"]:
            id = as_id(self.given["queue"])
            rows = Queue.objects.using(primary_alias())
            queue = None if id is None else rows.filter(pk=id).first()
            if queue is None:
                raise Http404
        if "\x00" in self.given["name"]:
            raise Http404
        try:
            return MessageFilter(
                queue=queue.name if queue else None,
                name=self.given["name"] or None,
                reason=self.given["reason"] or None,
            )
        except ValueError:
            raise Http404 from None

    def question(self) -> Question:
        wanted = self.wanted
        n = capped(wanted.messages(State.FAILED, primary_alias()).values("pk"), AT_MOST)
        says = [
            ngettext(
                "%(n)s failed message becomes due at once, instead of at the end of its delay.",
                "%(n)s failed messages become due at once, instead of at the end of their delays.",
                n.n,
            )
            % {"n": n},
            gettext(
                "Attempts are counted from 0 again, unless you choose to keep their number. "
                "Payload, history and place in the stream are kept."
            ),
        ]
        if n.more:
            most = number_format(AT_MOST, use_l10n=True, force_grouping=True)
            text = gettext("One answer retries %(n)s of them, the oldest first. Ask again then.")
            says.append(text % {"n": most})
        return Question(
            title=gettext("Retry all failed messages that match?"),
            button=gettext("Retry them now"),
            says=[*self._narrowed(), *says] if n else [gettext("There is nothing to do.")],
            hidden=[(key, value) for key, value in self.given.items() if value],
            back=self.back,
            possible=bool(n),
            command=self._command(),
        )

    def _narrowed(self) -> list[str]:
        """Say which filters the act obeys."""
        wanted, found = self.wanted, []
        if wanted.queue:
            found.append(gettext("queue %(name)s") % {"name": page_text(wanted.queue, limit=200)})
        if wanted.name:
            found.append(gettext("name %(name)s") % {"name": page_text(wanted.name, limit=200)})
        if wanted.reason is not None:
            found.append(gettext("reason %(name)s") % {"name": reason_name(int(wanted.reason))})
        text = gettext("Only these: %(filters)s.")
        return [text % {"filters": ", ".join(found)}] if found else []

    def _command(self) -> str:
        narrowed = {**self.given, "queue": self.wanted.queue}
        return command("retry", failed=True, **narrowed, why="…")

    def perform(self, form: WhyForm) -> HttpResponse:
        given: dict[str, Any] = form.cleaned_data
        reset = not given["keep_attempts"]
        total = operations.retry_failed(
            self.wanted, by=self.by, why=given["why"], limit=AT_MOST, reset=reset
        )
        if total.done:
            text = ngettext("%(n)s message is due now.", "%(n)s messages are due now.", total.done)
            shown = number_format(total.done, use_l10n=True, force_grouping=True)
            tell(self.request, text % {"n": shown})
        else:
            tell(self.request, gettext("There was nothing to do."), messages.WARNING)
        return HttpResponseRedirect(self.back)
