"""The pictures of the results: bars and points for peers, lines for growth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from .peers import SYSTEMS, load
from .results import Results

OURS, LIMIT, PEER = "#b3261e", "#8a8a8a", "#3b6ea5"
PALE = {OURS: "#e3a19d", LIMIT: "#cfcfcf", PEER: "#a9c1dc"}
#: What each scenario must keep of the rate without it.
GOALS = {
    "backlog-1000000": ("backlog of 1,000,000", 0.8),
    "scheduled": ("1,000,000 scheduled", 0.8),
    "poison": ("1,000,000 poison records", 0.8),
    "blocked": ("500,000 parked", 0.8),
    "streams": ("10,000 streams", 0.5),
    "failing": ("20 % failing", 0.5),
}


def draw(results: Results) -> Iterator[Path]:
    """Draw every picture there are figures for, and name the files."""
    folder = results.file.parent
    pictures = {
        "drain": (_drain, "drain-1"),
        "send": (_send, "send-one"),
        "pickup": (_pickup, "pickup"),
        "cost": (_cost, "drain-1"),
        "scenarios": (_scenarios, "plain"),
        "growth": (_growth, "backlog-1000000"),
        "steady": (_steady, "steady"),
    }
    for name, (paint, needed) in pictures.items():
        if needed in results.measurements:
            paint(results, file := folder / f"{name}.png")
            yield file


def _drain(results: Results, file: Path) -> None:
    names = _measured(results, "drain-1")
    with _figure(file, "Drain: messages per second", height=0.62 * len(names) + 1.4) as axes:
        for place, name in enumerate(reversed(names)):
            for offset, measurement, shade in ((0.2, "drain-1", 0), (-0.2, "drain-2", 1)):
                if spread := results.spread(measurement, name):
                    color = PALE[_color(name)] if shade else _color(name)
                    error = [[spread.median - spread.low], [spread.high - spread.median]]
                    axes.barh(place + offset, spread.median, 0.38, color=color, xerr=error)
                    axes.text(spread.high, place + offset, f" {spread.median:,.0f}", va="center")
        _names(axes, names)
        axes.set_xlabel("dark: one process, pale: two; the line is the lowest and highest round")
        axes.margins(x=0.12)


def _send(results: Results, file: Path) -> None:
    columns = {"send-one": "one at a time", "send-many": "many in one call"}
    with _figure(file, "Send: messages per second", columns=2) as panels:
        for axes, (measurement, title) in zip(panels, columns.items(), strict=True):
            names = _measured(results, measurement)
            for place, name in enumerate(reversed(names)):
                spread = results.spread(measurement, name)
                assert spread is not None
                axes.barh(place, spread.median, 0.6, color=_color(name))
                axes.text(spread.median, place, f" {spread.median:,.0f}", va="center")
            _names(axes, names)
            axes.set_title(title, loc="left")
            axes.margins(x=0.2)


def _pickup(results: Results, file: Path) -> None:
    names = _measured(results, "pickup", "p50")
    title = "Pickup: milliseconds from send to handler, 50 messages/s"
    with _figure(file, title, height=0.4 * len(names) + 1.5) as axes:
        for place, name in enumerate(reversed(names)):
            low, high = (results.spread("pickup", name, figure) for figure in ("p50", "p99"))
            assert low is not None
            assert high is not None
            axes.plot([low.median, high.median], [place] * 2, color=PALE[_color(name)], lw=4)
            axes.plot(low.median, place, "o", color=_color(name), ms=9)
            axes.plot(high.median, place, "|", color=_color(name), ms=14, mew=3)
            label = f"  {low.median:.3g} / {high.median:.3g}"
            axes.text(high.median, place, label, va="center")
        _names(axes, names)
        _logarithmic(axes)
        axes.set_xlabel("circle: half of the messages within; bar: 99 %; logarithmic")
        axes.margins(x=0.2)


def _cost(results: Results, file: Path) -> None:
    with _figure(file, "What a message costs, and a worker", columns=2) as panels:
        names = _measured(results, "drain-1")
        for axes, title in zip(
            panels, ("processor µs a message", "resident MB of a worker"), strict=True
        ):
            axes.set_title(title, loc="left")
            _names(axes, names)
        for place, name in enumerate(reversed(names)):
            worker, server = (
                results.spread("drain-1", name, figure) for figure in ("worker_us", "server_us")
            )
            memory = results.spread("drain-1", name, "memory")
            assert worker is not None
            assert server is not None
            assert memory is not None
            total = max(worker.median + server.median, 1.0)
            panels[0].plot([1, total], [place] * 2, color=PALE[_color(name)], lw=1)
            panels[0].plot(total, place, "o", color=_color(name), ms=8)
            parts = f"  {worker.median:,.0f} + {server.median:,.0f}"
            panels[0].text(total, place, parts, va="center")
            panels[1].barh(place, memory.median, 0.6, color=_color(name))
            panels[1].text(memory.median, place, f" {memory.median:,.0f}", va="center")
        _logarithmic(panels[0])
        panels[0].set_xlabel("worker + server; logarithmic")
        panels[0].margins(x=0.35)
        panels[1].margins(x=0.15)


def _scenarios(results: Results, file: Path) -> None:
    with _figure(file, "Rate against a queue with nothing else in it", height=4.2) as axes:
        found = [name for name in reversed(GOALS) if name in results.measurements]
        for place, name in enumerate(found):
            goal = GOALS[name][1]
            for offset, system in ((0.2, "deadletter"), (-0.2, "raw")):
                if spread := results.ratio((name, system), ("plain", system)):
                    axes.barh(place + offset, spread.median, 0.36, color=_color(system))
                    axes.text(spread.median, place + offset, f" {spread.median:.2f}", va="center")
            axes.plot([goal, goal], [place - 0.42, place + 0.42], color="black", lw=2)
        axes.set_yticks(range(len(found)), [GOALS[name][0] for name in found])
        axes.axvline(1.0, color="#bbbbbb", lw=1, zorder=0)
        axes.set_xlabel("red: deadletter, grey: raw limit, black mark: at least")
        axes.margins(x=0.1)


def _growth(results: Results, file: Path) -> None:
    lines = {
        "messages waiting": {f"backlog-{10**n}": 10**n for n in range(3, 7)},
        "bytes of a payload": {"plain": 100, "payload-4096": 4_096, "payload-65536": 65_536},
        "worker processes": {"plain": 1, "processes-2": 2, "processes-4": 4},
    }
    with _figure(file, "Messages per second", columns=3, width=11, height=3.8) as panels:
        for axes, (title, points) in zip(panels, lines.items(), strict=True):
            for system in ("raw", "deadletter"):
                drawn = {
                    x: spread
                    for name, x in points.items()
                    if (spread := results.spread(name, system))
                }
                if not drawn:
                    continue
                medians = [spread.median for spread in drawn.values()]
                axes.plot(list(drawn), medians, "o-", color=_color(system), label=_title(system))
                lows = [spread.low for spread in drawn.values()]
                highs = [spread.high for spread in drawn.values()]
                axes.fill_between(list(drawn), lows, highs, color=PALE[_color(system)], alpha=0.4)
            if axes.has_data():
                axes.set_xscale("log", base=2 if title == "worker processes" else 10)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
            axes.set_ylim(bottom=0)
            axes.set_xlabel(title)
            axes.grid(visible=True, axis="y", color="#e5e5e5")
        panels[0].legend(frameon=False)


def _steady(results: Results, file: Path) -> None:
    with _figure(file, "Steady state: messages per second, by tenths", height=3.6) as axes:
        for system in ("raw", "deadletter"):
            spreads = [results.spread("steady", system, f"tenth_{n}") for n in range(1, 11)]
            rates = [spread.median for spread in spreads if spread]
            places = range(1, len(rates) + 1)
            axes.plot(places, rates, "o-", color=_color(system), label=_title(system))
        axes.set_ylim(bottom=0)
        axes.set_xticks(range(1, 11))
        axes.set_xlabel("tenth of the run")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
        axes.grid(visible=True, axis="y", color="#e5e5e5")
        axes.legend(frameon=False)


@contextmanager
def _figure(file: Path, title: str, *, columns: int = 1, width: float = 9, height: float = 5):  # type: ignore[no-untyped-def]
    figure, axes = plt.subplots(1, columns, figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", weight="bold")
    for each in [axes] if columns == 1 else axes:
        each.spines[["top", "right"]].set_visible(False)
    yield axes
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _measured(results: Results, measurement: str, figure: str = "rate") -> list[str]:
    return [name for name in SYSTEMS if results.spread(measurement, name, figure)]


def _names(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), [_title(name) for name in reversed(names)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))


def _logarithmic(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _title(system: str) -> str:
    return load(system).title


def _color(system: str) -> str:
    if system.startswith("deadletter"):
        return OURS
    return LIMIT if system.startswith("raw") or system == "django-create" else PEER
