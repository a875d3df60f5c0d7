"""What happened in the last hour, day or week? Charts, and a table behind each."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from django.utils.translation import gettext

from ...operations.series import Series, Window, read_series
from ...status import FailureReason
from ..render import reason_name
from .drawing import Axis, Drawn, Plan, Strand, draw_plan
from .links import Links
from .svg import lines, stacked_bars

#: Reasons with a colour of their own; the rest are one.
REASONS = 5


def draw(links: Links, window: Window, now: datetime, using: str) -> list[Drawn]:
    """Draw what this person may see; one statement reads it all."""
    if not (links.messages or links.poison or links.counts):
        return []
    series = read_series(window, now=now, using=using)
    axis = Axis.of(series)
    plans = []
    if links.messages or links.counts:
        plans += [_throughput(links, series), _failures(links, series)]
    if links.poison or links.counts:
        plans.append(_poison(links, series))
    return [draw_plan(plan, axis) for plan in plans]


def _throughput(links: Links, series: Series) -> Plan:
    labels = {
        "sent": gettext("sent"),
        "completed": gettext("completed"),
        "failed": gettext("failed"),
    }
    return Plan(
        key="throughput",
        title=gettext("Throughput"),
        empty=gettext("Nothing was sent or handled in this time."),
        # A step as a whole leads to everything that was counted in it.
        url=links.counters(),
        strands=[
            Strand(label, what, series.values(what), links.counters(what=what))
            for what, label in labels.items()
        ],
        # The step under way would look like a fall.
        chart=partial(lines, whole=len(series.points) - 1),
    )


def _failures(links: Links, series: Series) -> Plan:
    """The most frequent reasons, each with the colour of its own, whatever its rank."""
    reasons = list(series.reasons())
    named, rest = reasons[:REASONS], reasons[REASONS:]

    def strand(label: str, colour: str, *these: FailureReason) -> Strand:
        names = ",".join(reason.name.lower() for reason in these)
        url = links.counters(what="failed", reason=names)
        return Strand(label, f"reason-{colour}", _by(series, *these), url)

    strands = [strand(reason_name(reason), reason.name.lower(), reason) for reason in named]
    if rest:
        strands.append(strand(gettext("others"), "other", *rest))
    return Plan(
        key="failures",
        title=gettext("Failed attempts by reason"),
        empty=gettext("No attempt failed in this time."),
        url=links.counters(what="failed"),
        strands=strands,
        chart=stacked_bars,
    )


def _poison(links: Links, series: Series) -> Plan:
    # A bar leads to the dead letters of its time that are there, a number to what was counted:
    # what was retried or removed since is a death, and no dead letter any more.
    records, counters = links.records(), links.counters(what="poisoned")
    return Plan(
        key="poison",
        title=gettext("Deaths"),
        empty=gettext("Nothing died in this time."),
        url=records or counters,
        strands=[Strand(gettext("died"), "poison", series.values("poisoned"), counters or records)],
        chart=stacked_bars,
    )


def _by(series: Series, *reasons: FailureReason) -> list[int]:
    return [sum(point.reasons.get(reason, 0) for reason in reasons) for point in series.points]
