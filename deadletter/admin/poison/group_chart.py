"""The chart of a failure group: its failures and deaths, with a mark where each release began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.translation import gettext

from ...operations.failure_groups import GroupSeries
from ...text import page_text
from ..dashboard.figure import Figure, FigureSeries, FigureSpec, TimeAxis, draw_figure
from ..dashboard.svg import Chart, stacked_bars, time_marks

#: Characters of a release at its mark; its whole name is in the list below the chart.
_MARK = 12
#: Labels of the time axis, about.
_LABELS = 4


@dataclass(frozen=True)
class GroupWindow:
    """A length of the chart that a reader can choose."""

    name: str
    label: str
    length: timedelta


def group_windows() -> list[GroupWindow]:
    return [
        GroupWindow("day", gettext("Last day"), timedelta(days=1)),
        GroupWindow("days", gettext("3 days"), timedelta(days=3)),
        GroupWindow("month", gettext("30 days"), timedelta(days=30)),
        GroupWindow("all", gettext("90 days"), timedelta(days=90)),
    ]


def draw_group(series: GroupSeries, records_url: str) -> Figure:
    """Draw failures as bars, the deaths among them in red."""
    points = series.points
    spec = FigureSpec(
        key="group",
        title=gettext("Failures and deaths"),
        empty=gettext("No attempt failed of this cause in this time."),
        url=records_url,
        series=[
            FigureSeries(gettext("died"), "poison", [p.deaths for p in points], records_url),
            FigureSeries(gettext("failed"), "attempts", [p.failures for p in points], ""),
        ],
        chart=partial(_overlaid, began=[point.began for point in points]),
    )
    return draw_figure(spec, _axis(series))


def _overlaid(
    series: Sequence[Sequence[int]], *, labels: Sequence[str], began: Sequence[Sequence[str]]
) -> Chart:
    """Draw deaths as the lower part of the failures: an attempt that kills has failed as well."""
    deaths, failures = series
    others = [max(f - d, 0) for f, d in zip(failures, deaths, strict=True)]
    chart = stacked_bars([deaths, others], labels=labels)
    marks = [
        (float(n), page_text(name, limit=_MARK), page_text(name, limit=100))
        for n, names in enumerate(began)
        for name in names
    ]
    return replace(chart, marks=time_marks(chart, marks))


def _axis(series: GroupSeries) -> TimeAxis:
    hourly = series.step < timedelta(days=1)
    local = [timezone.localtime(point.at) for point in series.points]
    starts = [f"since={_exact(point.at)}" for point in series.points]
    ends = [f"&until={_exact(point.at)}" for point in series.points[1:]] + [""]
    return TimeAxis(
        _labels(local, hourly=hourly),
        [_moment(at, hourly=hourly) for at in local],
        [start + end for start, end in zip(starts, ends, strict=True)],
        starts[0] if starts else "",
    )


def _labels(local: Sequence[datetime], *, hourly: bool) -> list[str]:
    """Label about four of the points: of hours those at a round time."""
    if not hourly:
        every = max(round(len(local) / _LABELS), 1)
        return [
            date_format(at, "MONTH_DAY_FORMAT") if n % every == every // 2 else ""
            for n, at in enumerate(local)
        ]
    every = next((n for n in (1, 2, 3, 6, 12, 24) if len(local) <= n * _LABELS), 24)
    return [
        (f"{at:%H:%M}" if every < 24 else date_format(at, "D")) if at.hour % every == 0 else ""
        for at in local
    ]


def _moment(local: datetime, *, hourly: bool) -> str:
    day = date_format(local, "SHORT_DATE_FORMAT")
    return f"{day} {date_format(local, 'TIME_FORMAT')}" if hourly else day


def _exact(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%MZ}"
