"""The groups of dead letters that grow the fastest, and those that are new."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils.translation import gettext

from ...models import Message, PoisonRecord
from ...operations.growth import COUNTED, HOURS, Growth, growing
from ..counts import Capped
from .links import Links
from .svg import Sparkline, sparkline

#: Groups in each of the two lists.
SHOWN = 5


@dataclass(frozen=True)
class DashboardGroup:
    growth: Growth
    #: True if the group began within the hours shown.
    new: bool
    day: Capped
    spark: Sparkline
    #: The sparkline in words, for screen readers.
    told: str
    url: str
    day_url: str


@dataclass(frozen=True)
class GroupTable:
    fastest: list[DashboardGroup]
    #: The groups that began last, without those in `fastest`.
    newest: list[DashboardGroup]
    all_url: str


def read_group_table(links: Links, now: datetime, using: str) -> GroupTable | None:
    if not links.poison:
        return None
    found = growing(limit=SHOWN, using=using)
    since = now - timedelta(hours=HOURS)

    def lines(groups: Iterable[Growth]) -> list[DashboardGroup]:
        return [_line(links, growth, since) for growth in groups]

    all_url = links.to(PoisonRecord, "poisonrecord_changelist")
    others = [growth for growth in found.newest if growth not in found.fastest]
    return GroupTable(lines(found.fastest), lines(others), all_url)


def _line(links: Links, growth: Growth, since: datetime) -> DashboardGroup:
    hours = [Capped(min(n, COUNTED), n > COUNTED) for n in growth.hours]
    told = gettext("Dead letters by the hour of their death, the oldest first: %(hours)s") % {
        "hours": ", ".join(str(n) for n in hours)
    }
    url = links.records(fingerprint=growth.fingerprint)
    day_url = links.records(fingerprint=growth.fingerprint, since=since)
    if growth.is_moved:
        # All of the group is in dead queues: there are no poison records to list.
        moved = links.to(Message, "message_changelist", group=growth.fingerprint)
        url, day_url = moved or url, moved or day_url
    return DashboardGroup(
        growth,
        growth.first_seen > since,
        Capped(growth.day, growth.capped),
        sparkline([n.n for n in hours]),
        told,
        url,
        day_url,
    )
