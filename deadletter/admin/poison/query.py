"""
Which records an address asks for: the form of the filter, and the rows at a bounded price.

An address that cannot be read matches nothing and says why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import F, Q
from django.http import QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...models import Kind, MessageTag, PoisonRecord, Queue, primary_alias
from ...operations import PoisonFilter
from ...operations.filter_values import read_tag
from ...patterns import is_pattern
from ...status import FailureReason
from ..base import COUNT_LIMIT, as_id
from ..counts import Capped
from ..render import reason_name

#: Columns with an index that also has the time, the narrowest first.
INDEXED = ("fingerprint", "instance", "stream", "exception", "name", "queue")
#: Records searched when no index has the filter; a link leads on to older ones.
REACH, REACH_FOR_TEXT = 10_000, 5_000
#: Fields that quote payloads or texts of errors.
_WITH_PAYLOAD = ("tag", "text")
_TIME_EXAMPLE = "2026-01-31 12:00"


def _text(label: Any, **attrs: str) -> forms.CharField:
    # The length is checked by PoisonFilter; this only stops the browser.
    widget = forms.TextInput(attrs={"maxlength": 1_000, **attrs})
    return forms.CharField(label=label, required=False, widget=widget)


class PoisonFilterForm(forms.Form):
    """
    The filter of the page of records, and of the acts on everything that matches.

    A filter that cannot be read matches nothing: `problem` says why. `PoisonFilter` checks the
    values, here and on the command line.
    """

    queue = _text(_("Queue"), list="dl-queue-list")
    name = _text(_("Name"))
    kind = forms.CharField(label=_("Kind"), required=False, widget=forms.Select)
    reason = forms.CharField(label=_("Reason"), required=False, widget=forms.Select)
    exception = _text(_("Exception"))
    fingerprint = _text(_("Group"))
    stream = _text(_("Stream"))
    instance = _text(_("Instance"))
    tag = _text(_("Tag"), placeholder="customer.id=1041")
    text = _text(_("Text of the error"))
    since = _text(_("Died since"), placeholder=_TIME_EXAMPLE)
    until = _text(_("Died before"), placeholder=_TIME_EXAMPLE)

    def __init__(
        self, given: QueryDict, *, texts: bool, besides: frozenset[str] = frozenset()
    ) -> None:
        """
        Read a query or a posted form; `besides` are parameters of the page itself.

        `texts`: the reader may see payloads and error texts, and so search texts and tags.
        """
        super().__init__(given, auto_id="dl-%s")
        known = {*FIELDS, *besides, "csrfmiddlewaretoken"}
        self.unknown = sorted(set(given) - known)
        self.forbidden = not texts and any(given.get(key, "").strip() for key in _WITH_PAYLOAD)
        if not texts:
            for key in _WITH_PAYLOAD:
                del self.fields[key]
        self.wanted = PoisonFilter()
        self.full_clean()

    def clean(self) -> None:
        if self.unknown:
            text = gettext("There is no filter “%(name)s”.")
            raise ValidationError(text % {"name": self.unknown[0][:100]})
        if self.forbidden:
            text = gettext("You do not have permission to see error texts or search them.")
            raise ValidationError(text)
        try:
            values = {key: _time(key, value) for key, value in self.cleaned_data.items()}
            self.wanted = PoisonFilter.from_dict(values)
        except (ValueError, OverflowError) as error:
            raise ValidationError(str(error)[:500]) from error

    @property
    def problem(self) -> str:
        """Why the filter cannot be read; "": it can."""
        return next((str(text) for texts in self.errors.values() for text in texts), "")

    @property
    def query(self) -> dict[str, str]:
        """The filter as an address carries it."""
        given = {key: self.data.get(key, "").strip() for key in self.fields}
        return {key: value for key, value in given.items() if value}

    def with_choices(self) -> PoisonFilterForm:
        """Add the choices that a page shows. They come from short tables, never from poison."""
        anything = ("", gettext("any"))
        reasons = [(reason.name, reason_name(reason)) for reason in FailureReason]
        kinds = [(value, str(label)) for value, label in Kind.choices]
        for name, choices in (("kind", kinds), ("reason", reasons)):
            widget = self.fields[name].widget
            assert isinstance(widget, forms.Select)  # noqa: S101 - declared above
            widget.choices = [anything, *choices]
        return self

    def queue_names(self) -> list[str]:
        """Return the queues that the browser suggests."""
        return list(
            Queue.objects.using(primary_alias()).order_by("name").values_list("name", flat=True)
        )


#: Parameters of the filter, in the order of the form.
FIELDS = tuple(PoisonFilterForm.base_fields)


def _time(key: str, text: str) -> Any:
    """Read a time; without a zone, as browsers send it, it is in the operator's time zone."""
    if key not in ("since", "until"):
        return text
    try:
        moment = parse_datetime(text)
        if moment is None and (day := parse_date(text)) is not None:
            moment = datetime(day.year, day.month, day.day)  # noqa: DTZ001 - made aware below
    except ValueError:
        moment = None
    if moment is None:
        return text  # PoisonFilter names the problem
    if timezone.is_naive(moment):
        moment = timezone.make_aware(moment)
    # A time that is out of range in UTC would break the statement, not the form.
    return moment.astimezone(UTC)


@dataclass(frozen=True)
class SearchWindow:
    """
    The matching records, newest first, at a bounded price.

    A filter that one index covers is complete. Other conditions are searched for among the newest
    `reach` records that an index finds; `end` is the time of the oldest of them, None when there
    are no older ones.
    """

    rows: Any
    end: datetime | None = None
    reach: int = 0


def window(wanted: PoisonFilter, using: str, *, after: Q | None = None) -> SearchWindow:
    """Return the newest matching records first, beginning at the place `after`."""
    if wanted.tag is not None and _is_rare(wanted.tag, using):
        rows = wanted.records(using).order_by("-poisoned_at", "-pk")
        return SearchWindow(rows if after is None else rows.filter(after))
    first = next((key for key in INDEXED if _is_exact(wanted, key)), None)
    names = (*INDEXED, "kind", "reason", "tag", "text")
    rest = [key for key in names if key != first and getattr(wanted, key) is not None]
    rows = wanted.records(using).order_by("-poisoned_at", "-pk")
    if after is not None:
        rows = rows.filter(after)
    if not rest:
        return SearchWindow(rows)
    reach = REACH_FOR_TEXT if wanted.text is not None else REACH
    base = replace(wanted, **dict.fromkeys(rest)).records(using).order_by("-poisoned_at")
    if after is not None:
        base = base.filter(after)
    # A time, not ids: the planner can combine it with any index.
    times = base.values_list(F("poisoned_at"), flat=True)
    end = next(iter(times[reach - 1 : reach]), None)
    return SearchWindow(rows if end is None else rows.filter(poisoned_at__gte=end), end, reach)


def _is_rare(tag: str, using: str) -> bool:
    """True if so few messages have the tag that all of them can be read."""
    key, value = read_tag(tag)
    found = MessageTag.objects.using(using).filter(key=key, value=value).values("pk")
    return int(found[: REACH_FOR_TEXT + 1].count()) <= REACH_FOR_TEXT


def _is_exact(wanted: PoisonFilter, key: str) -> bool:
    """True if one range of the index has all rows; a pattern of queues is several ranges."""
    value = getattr(wanted, key)
    return value is not None and not (key == "queue" and is_pattern(value))


def count(found: SearchWindow, *, limit: int = COUNT_LIMIT) -> Capped:
    """Count up to `limit`; older records that were not searched count as more."""
    n = int(found.rows.order_by().values("pk")[: limit + 1].count())
    return Capped(min(n, limit), n > limit or found.end is not None)


def jump(term: str, using: str) -> tuple[str, Any]:
    """
    Return ("record", id), a column that has exactly this value, or ("", None).

    One index probe each; columns without an index are not searched.
    """
    rows = PoisonRecord.objects.using(using).order_by()
    number = as_id(term)
    if number is not None:
        for found in (Q(message_id=number), Q(pk=number)):
            id = rows.filter(found).values_list("pk", flat=True).first()
            if id is not None:
                return "record", id
    for column in INDEXED:
        if rows.filter(**{column: term}).values("pk")[:1]:
            return column, term
    return "", None
