"""What happened in the last hour, day or week? Charts, and a table behind each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.translation import gettext

from ..charts import Bars, Chart, Line, Slot, lines, stacked_bars
from ..models import Message
from ..operations.series import Point, Series, Window, read_series
from ..status import FailureReason
from .dashboard_links import Links
from .showing import reason_name

#: Reasons with a colour of their own; the rest are one.
REASONS = 5


@dataclass(frozen=True)
class Number:
    text: str
    url: str = ""


@dataclass(frozen=True)
class Legend:
    """A series: its name, its sum, and the class that gives its colour."""

    label: str
    total: Number
    colour: str


@dataclass(frozen=True)
class Row:
    """A step of time: a line of the table, and what the pointer is told."""

    label: str
    numbers: list[Number]
    told: str
    url: str
    any: bool


@dataclass(frozen=True, kw_only=True)
class Drawn:
    key: str
    title: str
    #: What it shows, in a sentence, for who cannot see it.
    description: str
    empty: str
    chart: Chart
    legend: list[Legend]
    rows: list[Row]
    #: Whether there is nothing to draw.
    quiet: bool

    @property
    def slots(self) -> Iterator[tuple[Slot, Row]]:
        """Where the pointer is told something: where something happened."""
        both = zip(self.chart.slots, self.rows, strict=True)
        return ((slot, row) for slot, row in both if row.any)

    @property
    def bars(self) -> Iterator[tuple[str, Bars]]:
        return ((self.legend[bars.series].colour, bars) for bars in self.chart.bars if bars.bars)

    @property
    def lines(self) -> Iterator[tuple[str, Line]]:
        return ((self.legend[line.series].colour, line) for line in self.chart.lines)


@dataclass(frozen=True)
class _Line:
    """A series on its way to a chart."""

    label: str
    colour: str
    values: list[int]
    #: The address of the rows of one step, and of all.
    url: Callable[[datetime, datetime], str]
    total_url: str = ""


@dataclass(frozen=True)
class _Axis:
    """The time, which all charts share: labels below some steps, and the beginning of each."""

    labels: list[str]
    moments: list[str]


def draw(links: Links, window: Window, now: datetime, using: str) -> list[Drawn]:
    """Draw what this person may see; one statement reads it all."""
    if not (links.messages or links.poison):
        return []
    series = read_series(window, now=now, using=using)
    axis = _Axis(_labels(series), _moments(series))
    found = []
    if links.messages:
        found += [_throughput(links, series, axis), _failures(links, series, axis)]
    if links.poison:
        found.append(_poison(links, series, axis))
    return found


def _throughput(links: Links, series: Series, axis: _Axis) -> Drawn:
    messages = links.to(Message, "message_changelist")
    failed = links.to(Message, "message_changelist", state="failed")
    rows = [
        _Line(gettext("sent"), "sent", series.values("sent"), _nowhere, messages),
        # A completed message leaves no row to lead to.
        _Line(gettext("completed"), "completed", series.values("completed"), _nowhere),
        _Line(gettext("failed"), "failed", series.values("failed"), _nowhere, failed),
    ]
    return _drawn(
        "throughput",
        gettext("Throughput"),
        gettext("Nothing was sent or handled in this time."),
        series,
        axis,
        rows,
        partial(lines, whole=len(series.points) - 1),
    )


def _failures(links: Links, series: Series, axis: _Axis) -> Drawn:
    """The most frequent reasons, each with the colour of its own, whatever its rank."""
    reasons = list(series.reasons())
    named, rest = reasons[:REASONS], reasons[REASONS:]
    url = links.to(Message, "message_changelist", state="failed")
    rows = [
        _Line(
            reason_name(reason), f"reason-{reason.name.lower()}", _by(series, reason), _nowhere, url
        )
        for reason in named
    ]
    if rest:
        rows.append(_Line(gettext("others"), "reason-other", _by(series, *rest), _nowhere, url))
    return _drawn(
        "failures",
        gettext("Failed attempts by reason"),
        gettext("No attempt failed in this time."),
        series,
        axis,
        rows,
        stacked_bars,
    )


def _poison(links: Links, series: Series, axis: _Axis) -> Drawn:
    def died(start: datetime, end: datetime) -> str:
        return links.records(since=start, until=end)

    total = links.records(since=series.points[0].at)
    return _drawn(
        "poison",
        gettext("Dead letters"),
        gettext("Nothing died in this time."),
        series,
        axis,
        [_Line(gettext("died"), "poison", series.values("poisoned"), died, total)],
        stacked_bars,
    )


def _drawn(
    key: str,
    title: str,
    empty: str,
    series: Series,
    axis: _Axis,
    rows: Sequence[_Line],
    chart: Callable[..., Chart],
) -> Drawn:
    legend = [
        Legend(row.label, Number(_shown(sum(row.values)), row.total_url), row.colour)
        for row in rows
    ]
    sums = ", ".join(f"{entry.label} {entry.total.text}" for entry in legend)
    return Drawn(
        key=key,
        title=title,
        description=sums or empty,
        empty=empty,
        chart=chart([row.values for row in rows], labels=axis.labels),
        legend=legend,
        rows=[_row(point, n, rows, axis.moments[n]) for n, point in enumerate(series.points)],
        quiet=not any(any(row.values) for row in rows),
    )


def _row(point: Point, n: int, rows: Sequence[_Line], label: str) -> Row:
    numbers = [
        Number(_shown(row.values[n]), row.url(point.at, point.until) if row.values[n] else "")
        for row in rows
    ]
    told = [f"{row.label} {number.text}" for row, number in zip(rows, numbers, strict=True)]
    url = next((number.url for number in numbers if number.url), "")
    happened = any(row.values[n] for row in rows)
    return Row(label, numbers, f"{label}: {', '.join(told)}", url, happened)


def _labels(series: Series) -> list[str]:
    """Label round times: every quarter of an hour, every six hours, every day."""
    return [_label(point.at, series.window) for point in series.points]


def _label(at: datetime, window: Window) -> str:
    local = timezone.localtime(at)
    if window.name == "hour":
        return f"{local:%H:%M}" if local.minute % 15 == 0 else ""
    if window.name == "day":
        return f"{local:%H:%M}" if local.hour % 6 == 0 else ""
    # The step in which a day begins; where the zone is off by hours, that is not at midnight.
    midnight = local.replace(hour=0, minute=0)
    return date_format(local, "D") if local - midnight < window.step else ""


def _moments(series: Series) -> list[str]:
    """Say of each step when it began."""
    name = "TIME_FORMAT" if series.window.name == "hour" else "SHORT_DATETIME_FORMAT"
    return [date_format(timezone.localtime(point.at), name) for point in series.points]


def _by(series: Series, *reasons: FailureReason) -> list[int]:
    return [sum(point.reasons.get(reason, 0) for reason in reasons) for point in series.points]


def _shown(n: int) -> str:
    # Below a thousand there is nothing to group, and most numbers of a chart are.
    return str(n) if n < 1_000 else number_format(n, use_l10n=True, force_grouping=True)


def _nowhere(start: datetime, end: datetime) -> str:
    return ""
