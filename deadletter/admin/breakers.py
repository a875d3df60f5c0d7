"""The circuit breakers: what each holds, since when and why; hold a message name, reset."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db.models import DateTimeField, Q, Value
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from .. import clock, operations
from ..durations import as_text, as_timedelta
from ..models import Breaker, primary_alias
from ..operations.breakers import (
    COUNTED,
    LONGEST,
    check_name,
    count_waiting,
    known_names,
    similar_name,
)
from ..text import page_text
from ..times import age, ahead, lasting, moment
from .base import ReadOnlyAdmin, may, tell, write_log
from .confirm import ActSubject, ActView, Question, WhyForm, command
from .error_text import hidden_text
from .render import show_text
from .urls import link

HOLD = "deadletter.hold_breaker"
#: Names that the form suggests.
SUGGESTED = 500


class OpenBreakers(ChangeList):
    """Lists the open breakers only, with what they hold. A closed one still has its page."""

    def get_queryset(self, *args: Any, **kwargs: Any) -> Any:
        rows: Any = super().get_queryset(*args, **kwargs)
        return rows.open(clock.now(rows.db))

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: list[Any] = list(self.result_list)
        _add_waiting(rows)
        may_hold = request.user.has_perm(HOLD)
        for row in rows:
            row.may_hold = may_hold
        self.result_list = rows


@admin.register(Breaker)
class BreakerAdmin(ReadOnlyAdmin):
    """The open circuit breakers. A worker deletes the row when a probe succeeds."""

    list_display = (
        "name",
        "status",
        "acts",
        "waiting",
        "since",
        "opened_by",
        "shown_why",
        "error_start",
    )
    ordering = ("name",)
    search_fields = ("name",)
    search_help_text = _("The exact name of a message.")
    fields = (
        "name",
        "status",
        "waiting",
        "since",
        "opened_by",
        "shown_why",
        "shown_until",
        "failures",
        "shown_error",
    )
    readonly_fields = fields
    without_payload = dict.fromkeys(("error_start", "shown_error", "error"), "hidden_error")

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request)
        return rows.annotate(now=Value(clock.now(rows.db), DateTimeField()))

    def matches(self, term: str) -> Q:
        return Q(name=term)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return OpenBreakers

    def get_list_display(self, request: HttpRequest) -> Any:
        found = super().get_list_display(request)
        return found if request.user.has_perm(HOLD) else [c for c in found if c != "acts"]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        own = [
            path(
                "hold/",
                view(HoldView.as_view(model_admin=self)),
                name="deadletter_breaker_hold",
            ),
            path(
                "<int:pk>/reset/",
                view(ResetView.as_view(model_admin=self)),
                name="deadletter_breaker_reset",
            ),
        ]
        return own + super().get_urls()

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        may_hold = may(self, request, HOLD)
        hold = {"hold_url": link(self.admin_site.name, "breaker_hold") if may_hold else ""}
        return super().changelist_view(request, {**hold, **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        row = self.get_object(request, object_id)
        acts = {}
        if row is not None and may(self, request, HOLD):
            site = self.admin_site.name
            acts = {
                "reset_url": link(site, "breaker_reset", row.pk),
                "hold_url": _hold_url(site, row),
            }
        return super().change_view(request, object_id, form_url, {**acts, **(extra_context or {})})

    @admin.display(description=_("status"))
    def status(self, breaker: Any) -> Any:
        if breaker.until <= breaker.now:
            return _badge("waiting", gettext("the next message is tried"))
        if not breaker.is_held and breaker.until - breaker.now < timedelta(minutes=2):
            left = (breaker.until - breaker.now).total_seconds()
            return _badge("halted", gettext("held for %(n)d more seconds") % {"n": left})
        if breaker.held_until is None:
            return _badge("halted", gettext("held until it is reset"))
        left = lasting(breaker.now, breaker.until)
        return _badge("halted", gettext("held for another %(time)s") % {"time": left})

    @admin.display(description=_("messages held"))
    def waiting(self, breaker: Any) -> str:
        if not hasattr(breaker, "waiting_count"):
            _add_waiting([breaker])
        text = waiting_text(breaker.waiting_count, more=breaker.waiting_more)
        url = link(self.admin_site.name, "message_changelist", name=breaker.name)
        if not (url and breaker.waiting_count):
            return text
        return format_html('<a href="{}">{}</a>', url, text)

    @admin.display(description=_("since"))
    def since(self, breaker: Any) -> str:
        at = breaker.opened_at
        return format_html('<span title="{}">{}</span>', moment(at), age(at, breaker.now))

    @admin.display(description=_("held until"))
    def shown_until(self, breaker: Breaker) -> str:
        return gettext("it is reset") if breaker.held_until is None else moment(breaker.until)

    @admin.display(description=_("why"))
    def shown_why(self, breaker: Breaker) -> str:
        if breaker.is_held:
            return page_text(breaker.why, limit=300) or "-"
        text = gettext("its handler keeps failing: %(n)s times in a row")
        return text % {"n": breaker.failures}

    @admin.display(description=_("act"))
    def acts(self, breaker: Any) -> str:
        site = self.admin_site.name
        links = [(_hold_url(site, breaker), gettext("Hold"))] if not breaker.is_held else []
        links.append((link(site, "breaker_reset", breaker.pk), gettext("Reset")))
        return format_html_join(" ", '<a href="{}" class="dl-row-act">{}</a>', links)

    @admin.display(description=_("last error"))
    def error_start(self, breaker: Breaker) -> str:
        return page_text(breaker.error, limit=1_000) or "-"

    @admin.display(description=_("last error"))
    def shown_error(self, breaker: Breaker) -> str:
        return show_text(breaker.error or None)

    @admin.display(description=_("last error"))
    def hidden_error(self, breaker: Breaker) -> str:
        return hidden_text(breaker.error) or "-"


class HoldForm(WhyForm):
    """Asks which name, for how long, and why."""

    name = forms.CharField(
        label=_("Message name"),
        max_length=200,
        widget=forms.TextInput(
            attrs={"class": "vTextField", "list": "dl-names", "autocomplete": "off"}
        ),
    )
    duration = forms.CharField(
        label=_("For how long"),
        required=False,
        max_length=40,
        help_text=_("30m, 4h or 2d. Empty: until it is reset."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )
    anyway = forms.BooleanField(
        label=_("Hold it although no live worker knows this name"), required=False
    )
    field_order = ["name", "duration", "why", "anyway"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Shown after a name that no live worker knows.
        self._anyway = self.fields["anyway"]
        if "anyway" not in self.data:
            del self.fields["anyway"]

    def clean_name(self) -> str:
        name = str(self.cleaned_data["name"])
        try:
            check_name(name)
        except ValueError:
            text = gettext(
                "This cannot be held: a message name has letters, digits and _ . : / @ + -, and "
                "does not begin with “deadletter.”"
            )
            raise ValidationError(text) from None
        return name

    def clean_duration(self) -> Any:
        given = self.cleaned_data["duration"]
        if not given:
            return None
        try:
            length = as_timedelta(given)
        except ValueError:
            text = gettext("This is no duration. Write 30m, 4h or 2d.")
            raise ValidationError(text) from None
        if not 0 < length.total_seconds() <= LONGEST.total_seconds():
            text = gettext("More than nothing and at most %(most)s. Empty: until it is reset.")
            raise ValidationError(text % {"most": as_text(LONGEST)})
        return length

    def clean(self) -> dict[str, Any]:
        """Ask again if no live worker knows the name: it may be mistyped, and hold nothing."""
        found = super().clean() or self.cleaned_data
        name = found.get("name")
        known = known_names(using=primary_alias()) if name and not found.get("anyway") else []
        if known and name not in known:
            text = gettext("No live worker has a handler of this name.")
            if close := similar_name(str(name), known):
                text += " " + gettext("Did you mean %(name)s?") % {"name": close}
            self.add_error("name", text)
            self.fields["anyway"] = self._anyway
        return found


class HoldView(ActView):
    permission = HOLD
    form_class = HoldForm
    template = "breaker/hold"

    def prepare(self) -> None:
        self.list_url = self.link("breaker_changelist")
        self.back = self.came_from(self.list_url)
        self.name = page_text(self.request.GET.get("name", ""), limit=200)

    def form(self, data: Any = None) -> WhyForm:
        form = super().form(data)
        if data is None and self.name:
            form.initial["name"] = self.name
        # The first field that is still to be filled in.
        form.fields["why"].widget.attrs.pop("autofocus", None)
        first = "duration" if data is None and self.name else "name"
        form.fields[first].widget.attrs["autofocus"] = True
        return form

    def ask(self, form: WhyForm, **context: Any) -> HttpResponse:
        known = known_names(using=primary_alias())[:SUGGESTED]
        return super().ask(form, known=known, **context)

    def question(self) -> Question:
        return Question(
            title=gettext("Hold a message name"),
            button=gettext("Hold it"),
            says=[
                gettext("Workers start no message of this name, in any queue, within seconds."),
                gettext(
                    "What runs now is finished. The messages that wait lose no attempt, and new "
                    "ones are still accepted."
                ),
            ],
            hidden=[("next", self.back)],
            back=self.back,
            danger=True,
            command=command("breakers", "hold", self.name, why="…") if self.name else "",
        )

    def perform(self, form: WhyForm) -> HttpResponse:
        given = form.cleaned_data
        row = operations.hold_breaker(
            given["name"], duration=given["duration"], by=self.by, why=given["why"]
        )
        write_log(self.request, [row], gettext("Held."), why=given["why"])
        if row.held_until is None:
            text = gettext("Message name %(name)s is held until it is reset.")
        else:
            text = gettext("Message name %(name)s is held until %(at)s.")
        tell(self.request, text % {"name": row.name, "at": moment(row.until)})
        return HttpResponseRedirect(self.back)


class ResetView(ActView):
    permission = HOLD
    row: Any

    def prepare(self) -> None:
        found = self.model_admin.get_object(self.request, str(self.kwargs["pk"]))
        if found is None:
            raise Http404
        self.row = found
        self.list_url = self.link("breaker_changelist")
        self.back = self.came_from(self.list_url)

    def question(self) -> Question:
        row = self.row
        _add_waiting([row])
        return Question(
            title=gettext("Reset %(name)s?") % {"name": page_text(row.name, limit=200)},
            button=gettext("Reset it"),
            says=[
                gettext("Its messages run again: new ones within seconds, others within a minute."),
                _held_text(row.waiting_count, more=row.waiting_more),
            ],
            warnings=self._warnings(),
            subjects=[
                ActSubject(
                    label=row.name,
                    about=[opened_text(row, row.now), page_text(row.why, limit=300)]
                    if row.why
                    else [opened_text(row, row.now)],
                    url=self.link("breaker_change", row.pk),
                )
            ],
            hidden=[("next", self.back)],
            back=self.back,
            command=command("breakers", "reset", row.name, why="…"),
        )

    def _warnings(self) -> list[str]:
        if self.row.is_held:
            return []
        return [gettext("If its handler still fails, workers open the breaker again.")]

    def perform(self, form: WhyForm) -> HttpResponse:
        why = form.cleaned_data["why"]
        row = operations.reset_breaker(self.row.name, by=self.by, why=why)
        if row is None:
            text = gettext("%(name)s was reset already.") % {"name": self.row.name}
            tell(self.request, text, messages.WARNING)
        else:
            write_log(self.request, [self.row], gettext("Reset."), why=why, gone=True)
            text = gettext("Messages named %(name)s run again.") % {"name": self.row.name}
            tell(self.request, text)
        gone = self.back == self.link("breaker_change", self.row.pk)
        return HttpResponseRedirect(self.list_url if gone else self.back)


def opened_text(row: Breaker, now: datetime) -> str:
    """Say who opened a breaker, when, and until when it holds its messages."""
    when = {"by": page_text(row.opened_by, limit=100), "time": lasting(row.opened_at, now, depth=1)}
    if not row.is_held:
        return gettext("opened by %(by)s %(time)s ago, its handler keeps failing") % when
    if row.held_until is None:
        return gettext("held by %(by)s for %(time)s, until it is reset") % when
    when["end"] = ahead(row.until, now)
    return gettext("held by %(by)s for %(time)s, ends %(end)s") % when


def waiting_text(n: int, *, more: bool) -> str:
    shown = number_format(n, force_grouping=True)
    return gettext("at least %(n)s") % {"n": shown} if more else shown


def _held_text(n: int, *, more: bool) -> str:
    number = number_format(n, force_grouping=True)
    if more:
        text = gettext("It holds at least %(n)s messages: only the oldest %(most)s were looked at.")
        return text % {"n": number, "most": number_format(COUNTED, force_grouping=True)}
    return ngettext("It holds %(n)s message.", "It holds %(n)s messages.", n) % {"n": number}


def _add_waiting(rows: list[Any]) -> None:
    using = primary_alias()
    names = [row.name for row in rows]
    counts, more = count_waiting(names, now=clock.now(using), using=using)
    for row in rows:
        row.waiting_count, row.waiting_more = counts[row.name], more


def _hold_url(site_name: str, row: Breaker) -> str:
    return link(site_name, "breaker_hold", name=row.name)


def _badge(kind: str, word: str) -> Any:
    return format_html('<span class="dl-state dl-state-{}">{}</span>', kind, word)
