"""The causes: failure groups that need a person: regressed, then new, then acknowledged ones."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Sum
from django.utils.http import urlencode
from django.utils.translation import gettext

from ...models import FailureGroup, GroupHour, Message, PoisonRecord
from ...models.group import OPEN_STATES
from ...operations.failure_groups import COUNTED, FailureGroupRow, as_rows
from ..counts import Capped, capped
from ..poison.group_texts import GroupStateText, group_label, group_state, uncounted
from ..urls import GROUP
from .links import Links
from .svg import Sparkline, sparkline

#: Groups listed, and groups of a state that are counted.
SHOWN, GROUPS_COUNTED = 8, 1_000
#: Hours of the sparkline; the last is the current one.
HOURS = 24


@dataclass(frozen=True, kw_only=True)
class DashboardGroup:
    group: FailureGroupRow
    title: str
    state: GroupStateText
    #: The error of the latest failure; "" for readers who may not see it.
    error: str
    #: Failures in the last 24 hours.
    day: int
    spark: Sparkline
    #: The sparkline in words, for screen readers.
    told: str
    #: Its records, or the messages in dead queues where it has no records.
    dead: Capped
    url: str
    dead_url: str


@dataclass(frozen=True, kw_only=True)
class GroupTable:
    lines: list[DashboardGroup]
    #: Groups of each open state, regressed first.
    counts: dict[str, Capped]
    #: Why a failure of today may be missing; "": none is.
    behind: str
    all_url: str

    @property
    def more(self) -> Capped:
        """The open groups that are not listed."""
        n = sum(count.n for count in self.counts.values()) - len(self.lines)
        return Capped(max(n, 0), any(count.more for count in self.counts.values()))

    def url(self, state: str) -> str:
        """Return the list of the groups in a state."""
        return f"{self.all_url}?{urlencode({'state': str(state)})}" if self.all_url else ""

    def of(self, state: str) -> list[DashboardGroup]:
        return [line for line in self.lines if line.group.state == state]


def read_group_table(links: Links, now: datetime, using: str) -> GroupTable | None:
    """Read the groups by the index of their states: their number does not matter."""
    if not links.poison:
        return None
    counts: dict[str, Capped] = {}
    found: list[FailureGroup] = []
    for state in OPEN_STATES:
        rows = FailureGroup.objects.using(using).main().filter(state=state)
        counts[state] = capped(rows.values("pk"), GROUPS_COUNTED)
        if counts[state] and len(found) < SHOWN:
            found += rows.order_by("-last_failed_at", "-pk")[: SHOWN - len(found)]
    groups = as_rows(found, using=using) if found else []
    hours = _hours(groups, now, using)
    return GroupTable(
        lines=[_line(links, group, hours[group.fingerprint], now) for group in groups],
        counts=counts,
        behind=uncounted(now, empty=not found),
        all_url=links.to(PoisonRecord, "poisonrecord_changelist"),
    )


def _hours(groups: Iterable[FailureGroupRow], now: datetime, using: str) -> dict[str, list[int]]:
    """Return the failures of each group in each of the last 24 hours, the oldest first."""
    main = {one: group.fingerprint for group in groups for one in group.fingerprints}
    first = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    first -= timedelta(hours=HOURS - 1)
    found: defaultdict[str, Counter[int]] = defaultdict(Counter)
    if main:
        rows = GroupHour.objects.using(using).filter(fingerprint__in=main, at__gte=first)
        sums = rows.order_by().values("fingerprint", "at").annotate(n=Sum("failures"))
        for row in sums:
            # A worker whose clock runs ahead counts into the last hour.
            place = min((row["at"] - first) // timedelta(hours=1), HOURS - 1)
            found[main[row["fingerprint"]]][place] += row["n"]
    return {one: [found[one][n] for n in range(HOURS)] for one in main.values()}


def _line(links: Links, group: FailureGroupRow, hours: list[int], now: datetime) -> DashboardGroup:
    records = links.records(fingerprint=group.fingerprint)
    dead, dead_url = group.records, records
    moved = links.to(Message, "message_changelist", **{GROUP: group.fingerprint})
    if not group.records and group.in_dead_queues and moved:
        # All of the group is in dead queues: there are no poison records to list.
        dead, dead_url = group.in_dead_queues, moved
    told = gettext("Failures by hour, the oldest first: %(hours)s")
    return DashboardGroup(
        group=group,
        title=group_label(group),
        state=group_state(group, now),
        error=group.error if links.texts else "",
        day=sum(hours),
        spark=sparkline(hours),
        told=told % {"hours": ", ".join(str(n) for n in hours)},
        dead=Capped(min(dead, COUNTED), dead > COUNTED),
        url=links.group(group.fingerprint) or records,
        dead_url=dead_url,
    )
