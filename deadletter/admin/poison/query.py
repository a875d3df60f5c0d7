"""Which poison does an address ask for? Read into a PoisonFilter, or a problem in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from django.db.models import F, Q
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from django.utils.translation import gettext

from ...models import PoisonRecord
from ...operations import PoisonFilter
from ...patterns import is_pattern
from ..base import COUNT_LIMIT, as_id

#: What an address may ask for, in the order of the form.
FIELDS = (
    "queue",
    "name",
    "kind",
    "reason",
    "exception",
    "fingerprint",
    "stream",
    "instance",
    "text",
    "since",
    "until",
)
#: Found by an index that also knows the time, the narrowest first.
INDEXED = ("fingerprint", "instance", "stream", "exception", "name", "queue")
#: Records looked at for what no index answers; a link leads on to older ones.
REACH, REACH_FOR_TEXT = 10_000, 5_000


@dataclass(frozen=True)
class Asked:
    """A filter and the way back to it, or why it could not be read; then it matches nothing."""

    wanted: PoisonFilter
    query: dict[str, str]
    problem: str = ""

    @property
    def any(self) -> bool:
        return bool(self.wanted)


def read_filter(
    given: Mapping[str, Any], *, texts: bool, besides: frozenset[str] = frozenset()
) -> Asked:
    """
    Read a query or a posted form; `besides` are parameters of the page itself.

    `texts`: the reader may see texts of errors, and so search them.
    """
    query = {key: str(given[key]).strip() for key in FIELDS if str(given.get(key, "")).strip()}
    unknown = sorted(set(given) - set(FIELDS) - besides - {"csrfmiddlewaretoken"})
    if unknown:
        problem = gettext("There is no filter “%(name)s”.") % {"name": unknown[0][:100]}
        return Asked(PoisonFilter(), query, problem)
    if "text" in query and not texts:
        del query["text"]
        problem = gettext("You may not see texts of errors, so you cannot search them.")
        return Asked(PoisonFilter(), query, problem)
    try:
        values = {key: _time(key, value) for key, value in query.items()}
        return Asked(PoisonFilter.from_dict(values), query)
    except (ValueError, OverflowError) as error:
        return Asked(PoisonFilter(), query, str(error)[:500])


def _time(key: str, text: str) -> Any:
    """A time without a zone, as browsers send it, is the operator's own."""
    if key not in ("since", "until"):
        return text
    try:
        moment = parse_datetime(text)
        if moment is None and (day := parse_date(text)) is not None:
            moment = datetime(day.year, day.month, day.day)  # noqa: DTZ001 - made aware below
    except ValueError:
        moment = None
    if moment is None:
        return text  # the filter says what is wrong with it
    if timezone.is_naive(moment):
        moment = timezone.make_aware(moment)
    # A time that is out of range in UTC would break the statement, not the form.
    return moment.astimezone(UTC)


@dataclass(frozen=True)
class Window:
    """
    The matching records, newest first, at a bounded price.

    What one index answers is all there. Anything else is looked for among the newest `reach`
    records of what an index does answer; `end` is the time of the oldest of them, None when there
    are no older ones.
    """

    rows: Any
    end: datetime | None = None
    reach: int = 0


def window(wanted: PoisonFilter, using: str, *, after: Q | None = None) -> Window:
    """Return the newest matching records first, from the place `after` on."""
    first = next((key for key in INDEXED if _is_exact(wanted, key)), None)
    names = (*INDEXED, "kind", "reason", "text")
    rest = [key for key in names if key != first and getattr(wanted, key) is not None]
    rows = wanted.records(using).order_by("-poisoned_at", "-pk")
    if after is not None:
        rows = rows.filter(after)
    if not rest:
        return Window(rows)
    reach = REACH_FOR_TEXT if wanted.text is not None else REACH
    base = replace(wanted, **dict.fromkeys(rest)).records(using).order_by("-poisoned_at")
    if after is not None:
        base = base.filter(after)
    # A time, not ids: the planner can use it with whatever index it likes.
    times = base.values_list(F("poisoned_at"), flat=True)
    end = next(iter(times[reach - 1 : reach]), None)
    return Window(rows if end is None else rows.filter(poisoned_at__gte=end), end, reach)


def _is_exact(wanted: PoisonFilter, key: str) -> bool:
    """A pattern of queues is several places of the index, each in an order of its own."""
    value = getattr(wanted, key)
    return value is not None and not (key == "queue" and is_pattern(value))


@dataclass(frozen=True)
class Counted:
    """How many match: exactly, or at least so many."""

    n: int
    more: bool = False


def count(found: Window, *, limit: int = COUNT_LIMIT) -> Counted:
    """Count up to `limit`; older ones that were not looked at are more."""
    n = int(found.rows.order_by().values("pk")[: limit + 1].count())
    return Counted(min(n, limit), n > limit or found.end is not None)


def jump(term: str, using: str) -> tuple[str, Any]:
    """
    Say what a search term is: ("record", id), a column that has exactly this value, or ("", None).

    One index probe each; nothing is searched for that has no index.
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
