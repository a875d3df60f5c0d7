"""How do series become a chart, a legend with sums, and a table? Every number leads to its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils import timezone
from django.utils.formats import date_format, number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from ...operations.series import Series, Window
from .svg import Bars, Chart, Line

# Written here and not in a template, which takes five times as long for hundreds of them.
_LINKED = '<td class="dl-number"><a href="{}">{}</a></td>'
_PLAIN = '<td class="dl-number">{}</td>'
_ROW = '<tr><th scope="row">{}</th>{}</tr>'
_SLOT = '<path class="dl-slot" d="{}"><title>{}</title></path>'
_LINKED_SLOT = f'<a href="{{}}" tabindex="-1">{_SLOT}</a>'


@dataclass(frozen=True)
class Strand:
    """A series on its way to a chart, and the address of the rows behind it, "" if not allowed."""

    label: str
    colour: str
    values: list[int]
    url: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A chart that is still to be drawn."""

    key: str
    title: str
    empty: str
    #: The rows behind a step, whatever the strand.
    url: str
    strands: Sequence[Strand]
    chart: Callable[..., Chart]


@dataclass(frozen=True)
class Axis:
    """The time, which all charts share: of each step its label, its name, and how to ask for it."""

    labels: list[str]
    moments: list[str]
    queries: list[str]
    #: How to ask for all of it.
    query: str

    @classmethod
    def of(cls, series: Series) -> Axis:
        local = [timezone.localtime(point.at) for point in series.points]
        starts = [_since(point.at) for point in series.points]
        ends = [_until(point.until) for point in series.points]
        # What a clock that runs ahead counted is in the last step: it has no end.
        ends[-1] = ""
        return cls(
            [_label(at, series.window) for at in local],
            [_moment(at, series.window) for at in local],
            [start + end for start, end in zip(starts, ends, strict=True)],
            starts[0],
        )


@dataclass(frozen=True)
class Legend:
    """A series: its name, its sum, and the class that gives its colour."""

    label: str
    total: str
    url: str
    colour: str


@dataclass(frozen=True)
class Step:
    """A step of time: a line of the table, and where the pointer is told what happened."""

    row: SafeString
    #: Nothing where nothing happened.
    slot: SafeString


@dataclass(frozen=True, kw_only=True)
class Drawn:
    key: str
    title: str
    #: What it shows, in a sentence, for who cannot see it.
    description: str
    empty: str
    chart: Chart
    legend: list[Legend]
    steps: list[Step]
    #: Whether there is nothing to draw.
    quiet: bool

    @property
    def rows(self) -> SafeString:
        """The lines of the table, the newest first."""
        return format_html_join("", "{}", ((step.row,) for step in reversed(self.steps)))

    @property
    def slots(self) -> SafeString:
        return format_html_join("", "{}", ((step.slot,) for step in self.steps))

    @property
    def bars(self) -> Iterator[tuple[str, Bars]]:
        return ((self.legend[bars.series].colour, bars) for bars in self.chart.bars if bars.bars)

    @property
    def lines(self) -> Iterator[tuple[str, Line]]:
        return ((self.legend[line.series].colour, line) for line in self.chart.lines)


def draw_plan(plan: Plan, axis: Axis) -> Drawn:
    legend = [
        Legend(strand.label, _shown(sum(strand.values)), _at(strand.url, axis.query), strand.colour)
        for strand in plan.strands
    ]
    quiet = not any(any(strand.values) for strand in plan.strands)
    chart = plan.chart([strand.values for strand in plan.strands], labels=axis.labels)
    return Drawn(
        key=plan.key,
        title=plan.title,
        description=", ".join(f"{entry.label} {entry.total}" for entry in legend) or plan.empty,
        empty=plan.empty,
        chart=chart,
        legend=legend,
        # What is not drawn has no table.
        steps=[] if quiet else [_step(plan, axis, chart, n) for n in range(len(axis.labels))],
        quiet=quiet,
    )


def _step(plan: Plan, axis: Axis, chart: Chart, n: int) -> Step:
    label, query = axis.moments[n], axis.queries[n]
    texts = [_shown(strand.values[n]) for strand in plan.strands]
    urls = [_at(strand.url, query) for strand in plan.strands]
    row = format_html(_ROW, label, _cells(urls, texts))
    if not any(strand.values[n] for strand in plan.strands):
        return Step(row, SafeString(""))
    numbers = zip(plan.strands, texts, strict=True)
    told = f"{label}: {', '.join(f'{strand.label} {text}' for strand, text in numbers)}"
    return Step(row, _slot(_at(plan.url, query), chart.area(n), told))


def _cells(urls: list[str], texts: list[str]) -> SafeString:
    if all(urls):
        return format_html_join("", _LINKED, zip(urls, texts, strict=True))
    return format_html_join("", _PLAIN, ((text,) for text in texts))


def _slot(url: str, area: str, told: str) -> SafeString:
    return format_html(_LINKED_SLOT, url, area, told) if url else format_html(_SLOT, area, told)


def _at(url: str, query: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{query}" if url else ""


def _since(at: datetime) -> str:
    return f"since={at.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def _until(at: datetime) -> str:
    return f"&until={at.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def _label(local: datetime, window: Window) -> str:
    """Label round times: every quarter of an hour, every six hours, every day."""
    if window.name == "hour":
        return f"{local:%H:%M}" if local.minute % 15 == 0 else ""
    if window.name == "day":
        return f"{local:%H:%M}" if local.hour % 6 == 0 else ""
    # The step in which a day begins; where the zone is off by hours, that is not at midnight.
    midnight = local.replace(hour=0, minute=0)
    return date_format(local, "D") if local - midnight < window.step else ""


def _moment(local: datetime, window: Window) -> str:
    """Say when a step began: in a week no day comes twice at the same time."""
    time = date_format(local, "TIME_FORMAT")
    return time if window.name == "hour" else f"{date_format(local, 'D')} {time}"


def _shown(n: int) -> str:
    # Below a thousand there is nothing to group, and most numbers of a chart are.
    return str(n) if n < 1_000 else number_format(n, use_l10n=True, force_grouping=True)
