"""The charts of the dashboard: throughput, failed attempts and deaths in a window of time."""

from __future__ import annotations

from datetime import datetime
from functools import partial

from django.utils.translation import gettext

from ...operations.series import Series, Window, read_series
from ...status import FailureReason
from ..render import reason_name
from .figure import Figure, FigureSeries, FigureSpec, TimeAxis, draw_figure
from .links import Links
from .svg import lines, stacked_bars

#: Reasons with a series of their own; the others share one.
REASONS = 5


def draw_charts(links: Links, window: Window, now: datetime, using: str) -> list[Figure]:
    """Draw the charts that this user may see; one statement reads all of their numbers."""
    if not (links.messages or links.poison or links.counts):
        return []
    series = read_series(window, now=now, using=using)
    axis = TimeAxis.of(series)
    specs = []
    if links.messages or links.counts:
        specs += [_throughput(links, series), _failures(links, series)]
    if links.poison or links.counts:
        specs.append(_deaths(links, series))
    return [draw_figure(spec, axis) for spec in specs]


def _throughput(links: Links, series: Series) -> FigureSpec:
    labels = {
        "sent": gettext("sent"),
        "completed": gettext("completed"),
        "failed": gettext("failed"),
    }
    return FigureSpec(
        key="throughput",
        title=gettext("Throughput"),
        empty=gettext("Nothing was sent or handled in this time."),
        # A time step links to all of its counters.
        url=links.counters(),
        series=[
            FigureSeries(label, what, series.values(what), links.counters(what=what))
            for what, label in labels.items()
        ],
        # The current step is not over and would look like a fall.
        chart=partial(lines, whole=len(series.points) - 1),
    )


def _failures(links: Links, series: Series) -> FigureSpec:
    """Show the most frequent reasons. A reason keeps its colour, whatever its rank."""
    reasons = list(series.reasons())
    named, rest = reasons[:REASONS], reasons[REASONS:]

    def of(label: str, colour: str, *these: FailureReason) -> FigureSeries:
        names = ",".join(reason.name.lower() for reason in these)
        url = links.counters(what="failed", reason=names)
        return FigureSeries(label, f"reason-{colour}", _by(series, *these), url)

    shown = [of(reason_name(reason), reason.name.lower(), reason) for reason in named]
    if rest:
        shown.append(of(gettext("others"), "other", *rest))
    return FigureSpec(
        key="failures",
        title=gettext("Failed attempts by reason"),
        empty=gettext("No attempt failed in this time."),
        url=links.counters(what="failed"),
        series=shown,
        chart=stacked_bars,
    )


def _deaths(links: Links, series: Series) -> FigureSpec:
    # A bar links to the poison records of its time, a number to the counters: a record that was
    # retried or removed since still counts as a death.
    records, counters = links.records(), links.counters(what="poisoned")
    deaths = FigureSeries(gettext("died"), "poison", series.values("poisoned"), counters or records)
    return FigureSpec(
        key="poison",
        title=gettext("Deaths"),
        empty=gettext("Nothing died in this time."),
        url=records or counters,
        series=[deaths],
        chart=stacked_bars,
    )


def _by(series: Series, *reasons: FailureReason) -> list[int]:
    return [sum(point.reasons.get(reason, 0) for reason in reasons) for point in series.points]
