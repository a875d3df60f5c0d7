"""
One chart of the dashboard as HTML: the plot, a legend with sums, and a table.

Every number links to the rows behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from ...operations.series import Series, Window
from .svg import BarSeries, Chart, LineSeries

# Formatted here and not in a template, which takes five times as long for hundreds of cells.
_LINKED = '<td class="dl-number"><a href="{}">{}</a></td>'
_PLAIN = '<td class="dl-number">{}</td>'
_ROW = '<tr><th scope="row">{}</th>{}</tr>'
_SLOT = '<path class="dl-slot" d="{}"><title>{}</title></path>'
_LINKED_SLOT = f'<a href="{{}}" tabindex="-1">{_SLOT}</a>'


@dataclass(frozen=True)
class FigureSeries:
    """The values of one series, and the URL of the rows behind it ("" without permission)."""

    label: str
    colour: str
    values: list[int]
    url: str


@dataclass(frozen=True, kw_only=True)
class FigureSpec:
    """What a figure shows, before it is drawn."""

    key: str
    title: str
    empty: str
    #: The rows behind a time step, of all series together.
    url: str
    series: Sequence[FigureSeries]
    chart: Callable[..., Chart]


@dataclass(frozen=True)
class TimeAxis:
    """The time axis that all charts share: for each step its label, its name and its query."""

    labels: list[str]
    moments: list[str]
    queries: list[str]
    #: The query for the whole window.
    query: str

    @classmethod
    def of(cls, series: Series) -> TimeAxis:
        local = [timezone.localtime(point.at) for point in series.points]
        starts = [_since(point.at) for point in series.points]
        ends = [_until(point.until) for point in series.points]
        # The last step has no end: it includes what a host with a fast clock counted.
        ends[-1] = ""
        return cls(
            [_label(at, series.window) for at in local],
            [_moment(at, series.window) for at in local],
            [start + end for start, end in zip(starts, ends, strict=True)],
            starts[0],
        )


@dataclass(frozen=True)
class LegendEntry:
    """A series in the legend: its name, its sum, and the CSS class suffix of its colour."""

    label: str
    total: str
    url: str
    colour: str


@dataclass(frozen=True)
class TimeStep:
    """A time step: its row of the table, and the area of the plot with its tooltip."""

    row: SafeString
    #: Empty if all values are 0.
    slot: SafeString


@dataclass(frozen=True, kw_only=True)
class Figure:
    key: str
    title: str
    #: The chart in one sentence, for screen readers.
    description: str
    empty: str
    chart: Chart
    legend: list[LegendEntry]
    steps: list[TimeStep]
    #: True if all values are 0.
    quiet: bool

    @property
    def rows(self) -> SafeString:
        """The rows of the table, the newest first."""
        return format_html_join("", "{}", ((step.row,) for step in reversed(self.steps)))

    @property
    def slots(self) -> SafeString:
        return format_html_join("", "{}", ((step.slot,) for step in self.steps))

    @property
    def bars(self) -> Iterator[tuple[str, BarSeries]]:
        return ((self.legend[bars.series].colour, bars) for bars in self.chart.bars if bars.bars)

    @property
    def lines(self) -> Iterator[tuple[str, LineSeries]]:
        return ((self.legend[line.series].colour, line) for line in self.chart.lines)


def draw_figure(spec: FigureSpec, axis: TimeAxis) -> Figure:
    legend = [
        LegendEntry(one.label, _shown(sum(one.values)), _at(one.url, axis.query), one.colour)
        for one in spec.series
    ]
    quiet = not any(any(one.values) for one in spec.series)
    chart = spec.chart([one.values for one in spec.series], labels=axis.labels)
    cuts = [
        gettext("above the axis: %(n)s at %(time)s") % {"n": _shown(n), "time": axis.moments[step]}
        for step, n in chart.above
    ]
    return Figure(
        key=spec.key,
        title=spec.title,
        description=", ".join([*(f"{entry.label} {entry.total}" for entry in legend), *cuts])
        or spec.empty,
        empty=spec.empty,
        chart=chart,
        legend=legend,
        # A chart without values has no table.
        steps=[] if quiet else [_step(spec, axis, chart, n) for n in range(len(axis.labels))],
        quiet=quiet,
    )


def _step(spec: FigureSpec, axis: TimeAxis, chart: Chart, n: int) -> TimeStep:
    label, query = axis.moments[n], axis.queries[n]
    texts = [_shown(one.values[n]) for one in spec.series]
    urls = [_at(one.url, query) for one in spec.series]
    row = format_html(_ROW, label, _cells(urls, texts))
    if not any(one.values[n] for one in spec.series):
        return TimeStep(row, SafeString(""))
    numbers = zip(spec.series, texts, strict=True)
    tooltip = f"{label}: {', '.join(f'{one.label} {text}' for one, text in numbers)}"
    return TimeStep(row, _slot(_at(spec.url, query), chart.area(n), tooltip))


def _cells(urls: list[str], texts: list[str]) -> SafeString:
    if not all(urls):
        return format_html_join("", _PLAIN, ((text,) for text in texts))
    cells = (
        format_html(_PLAIN, text) if text == "0" else format_html(_LINKED, url, text)
        for url, text in zip(urls, texts, strict=True)
    )
    return format_html_join("", "{}", ((cell,) for cell in cells))


def _slot(url: str, area: str, tooltip: str) -> SafeString:
    if url:
        return format_html(_LINKED_SLOT, url, area, tooltip)
    return format_html(_SLOT, area, tooltip)


def _at(url: str, query: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{query}" if url else ""


def _since(at: datetime) -> str:
    return f"since={at.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def _until(at: datetime) -> str:
    return f"&until={at.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def _label(local: datetime, window: Window) -> str:
    """Return the label of a round time (every 15 minutes, 6 hours or day), "" for the others."""
    if window.name == "hour":
        return f"{local:%H:%M}" if local.minute % 15 == 0 else ""
    if window.name == "day":
        return f"{local:%H:%M}" if local.hour % 6 == 0 else ""
    # The step in which a day begins: steps follow UTC, so local midnight may be inside one.
    midnight = local.replace(hour=0, minute=0)
    return date_format(local, "D") if local - midnight < window.step else ""


def _moment(local: datetime, window: Window) -> str:
    """Return when a step began. The name of the day is enough: no window is longer than a week."""
    time = date_format(local, "TIME_FORMAT")
    return time if window.name == "hour" else f"{date_format(local, 'D')} {time}"


def _shown(n: int) -> str:
    # Most numbers of a chart are below 1,000 and have no digits to group.
    return str(n) if n < 1_000 else number_format(n, use_l10n=True, force_grouping=True)
