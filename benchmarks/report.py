"""Write what was measured as Markdown: the requirements, the table of peers, the growth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from .peers import OUTBOX, SYSTEMS, load
from .ratios import requirements
from .results import Results, Spread
from .sizes import SIZES

Row = Iterable[str]
COSTS = ("worker_us", "server_us")

#: Heading, measurement and figure of each column of the table of peers.
COLUMNS = (
    ("send one /s", "send-one", "rate"),
    ("send many /s", "send-many", "rate"),
    ("drain, 1 process /s", "drain-1", "rate"),
    ("2 processes /s", "drain-2", "rate"),
    ("pickup p50 ms", "pickup", "p50"),
    ("p99 ms", "pickup", "p99"),
    ("memory MB", "drain-1", "memory"),
    ("worker CPU µs", "drain-1", "worker_us"),
    ("server CPU µs", "drain-1", "server_us"),
)


def publish(results: Results, *, pictures: bool) -> None:
    """Write results.md and the pictures beside the JSON, and show the requirements."""
    if not results.figures:
        return
    drawn = _draw(results) if pictures else {}

    def section(title: str, rows: list[Row], *wanted: str) -> list[str]:
        return _section(title, rows, [drawn[name] for name in wanted if name in drawn])

    lines = [
        "# Results",
        "",
        "Written by `make bench`. How to read them: [performance](../performance.md).",
        "",
        *_about(results),
        *section("What must be reached", _requirements(results)),
        *section("Peers", _peers(results), "drain", "send", "pickup", "cost"),
        *section("Settings of the peers", _settings(results)),
        *section("A worker with nothing to do", _idle(results)),
        *section("Growth", _growth(results), "scenarios", "growth"),
        *section("Django's tasks", _tasks(results)),
        *section("Tasks beside results", _tasks_beside_results(results)),
        *section("The outbox", _outbox(results)),
        *section("From the commit to the confirm, ms", _latency(results)),
        *section("A backlog of the outbox, by tenths", _tenths(results, "backlog", OUTBOX)),
        *section("A broker that was away", _outage(results)),
        *section("Plain messages beside an outbox", _beside(results)),
        *section("Steady state, by tenths", _steady(results), "steady"),
        *section("Not measured", _skipped(results)),
    ]
    file = results.file.with_name("results.md")
    file.write_text("\n".join(lines).rstrip() + "\n")
    print()
    for row in [*_requirements(results), *_short(results)]:
        print("  ".join(row))
    print(f"\nwritten: {', '.join(map(str, [file, results.file, *drawn.values()]))}")


def _draw(results: Results) -> dict[str, Path]:
    try:
        from .plots import draw
    except ImportError:
        print("no pictures: matplotlib is not installed")
        return {}
    return {file.stem: file for file in draw(results)}


def _about(results: Results) -> list[str]:
    about = results.about
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [
        f"{about['date']}, size `{about['size']}`, {about['rounds']} rounds.",
        f"{about['processor']}, {about['memory']}, {about['system']}, Python {about['python']}.",
        f"{', '.join(about.get('stores', {}).values())}.",
        f"{versions}.",
    ]
    if about["size"] != "full":
        lines.append("**Not a full run: use it to compare changes, not systems.**")
    return ["  \n".join(lines), ""]


def _section(title: str, rows: list[Row], pictures: list[Path]) -> list[str]:
    if len(rows) < 2:
        return []
    heading, *rest = [list(row) for row in rows]
    shown = [line for file in pictures for line in (f"![{title}: {file.stem}]({file.name})", "")]
    return [
        f"## {title}",
        "",
        *shown,
        f"| {' | '.join(heading)} |",
        f"|{' --- |' * len(heading)}",
        *(f"| {' | '.join(row)} |" for row in rest),
        "",
    ]


def _requirements(results: Results) -> list[Row]:
    rows: list[Row] = [("what", "at least", "reached", "rounds", "")]
    for one in requirements(results):
        reached = "not measured"
        if one.reached:
            low, high = one.reached.low, one.reached.high
            reached = f"{one.reached.median:.2f} ({low:.2f} to {high:.2f})"
        verdict = {True: "reached", False: "**missed**", None: ""}[one.is_met]
        if one.reached or set(results.measurements) > {"drain-1", "drain-2"}:
            rounds = str(one.reached.rounds) if one.reached else ""
            rows.append((one.title, f"{one.at_least:g}", reached, rounds, verdict))
    return rows


def _peers(results: Results) -> list[Row]:
    rows: list[Row] = [("system", *(heading for heading, _, _ in COLUMNS))]
    for system in (name for name in SYSTEMS if name in results.systems and name not in OUTBOX):
        spreads = [results.spread(measurement, system, f) for _, measurement, f in COLUMNS]
        if any(spreads):
            rows.append((_title(system), *map(shown, spreads)))
    return rows


def _settings(results: Results) -> list[Row]:
    rows: list[Row] = [("system", "settings")]
    rows += [
        (_title(name), load(name).settings.replace("|", "/"))
        for name in SYSTEMS
        if name in results.systems
    ]
    return rows


def _idle(results: Results) -> list[Row]:
    rows: list[Row] = [("system", "worker, % of a core", "server, %", "transactions/s", "MB")]
    figures = ("worker", "server", "transactions", "memory")
    for system in (name for name in SYSTEMS if results.spread("idle", name, "worker")):
        spreads = [results.spread("idle", system, figure) for figure in figures]
        rows.append((_title(system), *map(shown, spreads)))
    return rows


def _growth(results: Results) -> list[Row]:
    from .growth import cases

    rows: list[Row] = [
        (
            "what is there besides",
            "deadletter /s",
            "against nothing",
            "raw limit /s",
            "against nothing",
            "worker CPU µs",
            "server CPU µs",
        )
    ]
    for case in cases(SIZES[results.about["size"]]):
        ours, limit = (results.spread(case.name, name) for name in ("deadletter", "raw"))
        if not (ours or limit):
            continue
        share = [
            results.ratio((case.name, name), ("plain", name)) for name in ("deadletter", "raw")
        ]
        cpu = [results.spread(case.name, "deadletter", f) for f in COSTS]
        cells = (ours, share[0], limit, share[1], *cpu)
        rows.append((case.title, *map(shown, cells)))
    return rows


def _tasks(results: Results) -> list[Row]:
    from .plan import TASK_SYSTEMS

    columns = (
        ("enqueue /s", "send-one", "rate"),
        ("client CPU µs", "send-one", "client_us"),
        ("enqueue many /s", "send-many", "rate"),
        ("client CPU µs", "send-many", "client_us"),
        ("drain /s", "drain-1", "rate"),
        ("worker CPU µs", "drain-1", "worker_us"),
        ("server CPU µs", "drain-1", "server_us"),
        ("`get_result` /s", "get-result", "rate"),
        ("client CPU µs", "get-result", "client_us"),
    )
    headings = [heading for heading, _, _ in columns]
    rows: list[Row] = [("system", *headings, "drain against messages")]
    if "deadletter-tasks" not in results.systems:
        return rows
    for system in (name for name in TASK_SYSTEMS if name in results.systems):
        spreads = [results.spread(measurement, system, f) for _, measurement, f in columns]
        share = results.ratio(("drain-1", system), ("drain-1", "deadletter"))
        rows.append((_title(system), *map(shown, (*spreads, share))))
    return rows


def _tasks_beside_results(results: Results) -> list[Row]:
    from .growth import TASKS, cases

    rows: list[Row] = [
        (
            "system",
            "what is there besides",
            "drain /s",
            "against nothing",
            "worker CPU µs",
            "server CPU µs",
        )
    ]
    for case in cases(SIZES[results.about["size"]]):
        for system in (name for name in TASKS if results.spread(case.name, name)):
            spreads = [results.spread(case.name, system, f) for f in ("rate", *COSTS)]
            spreads.insert(1, results.ratio((case.name, system), ("tasks", system)))
            rows.append((_title(system), case.title, *map(shown, spreads)))
    return rows


def _steady(results: Results) -> list[Row]:
    rows: list[Row] = [
        ("system", *(str(n) for n in range(1, 11)), "last / first", "table MB", "grown MB")
    ]
    for system in ("deadletter", "raw"):
        figures = [*(f"tenth_{n}" for n in range(1, 11)), "ratio", "table_mb", "growth"]
        spreads = [results.spread("steady", system, figure) for figure in figures]
        if any(spreads):
            rows.append((_title(system), *map(shown, spreads)))
    return rows


def _outbox(results: Results) -> list[Row]:
    columns = (
        ("publish /s", "send-one", "rate"),
        ("client CPU µs", "send-one", "client_us"),
        ("publish many /s", "send-many", "rate"),
        ("client CPU µs", "send-many", "client_us"),
        ("drain, 1 process /s", "drain-1", "rate"),
        ("2 processes /s", "drain-2", "rate"),
        ("relay CPU µs", "drain-1", "worker_us"),
        ("database CPU µs", "drain-1", "server_us"),
        ("broker CPU µs", "drain-1", "broker_us"),
        ("memory MB", "drain-1", "memory"),
    )
    return _table(results, OUTBOX, columns)


def _latency(results: Results) -> list[Row]:
    columns = tuple(
        (f"{name} at {rate}/s", "latency", f"{prefix}{name}")
        for prefix, rate in (("", 50), ("busy_", 500))
        for name in ("p50", "p99", "longest")
    )
    return _table(results, OUTBOX, columns)


def _outage(results: Results) -> list[Row]:
    columns = (
        ("seconds away", "outage", "away"),
        ("stored /s before", "outage", "sent_before"),
        ("meanwhile", "outage", "sent_away"),
        ("relay, % of a core", "outage", "relay_away"),
        ("waiting at its return", "outage", "waiting"),
        ("first confirm after s", "outage", "resumed"),
        ("all published after s", "outage", "caught_up"),
        ("published /s meanwhile", "outage", "rate"),
        ("first third /s", "outage", "first_third"),
        ("last third /s", "outage", "last_third"),
        ("published again", "outage", "repeated"),
    )
    return _table(results, OUTBOX, columns)


def _beside(results: Results) -> list[Row]:
    columns = (
        ("send /s", "send-one", "rate"),
        ("send many /s", "send-many", "rate"),
        ("drain /s", "beside", "rate"),
        ("worker CPU µs", "beside", "worker_us"),
        ("server CPU µs", "beside", "server_us"),
        ("memory MB", "beside", "memory"),
    )
    if not results.spread("beside", "deadletter"):
        return [("system",)]
    return _table(results, ("deadletter", "deadletter-no-relay", "deadletter-relay"), columns)


def _table(
    results: Results, systems: Iterable[str], columns: Sequence[tuple[str, str, str]]
) -> list[Row]:
    """Return a row for each system of which anything was measured."""
    rows: list[Row] = [("system", *(heading for heading, _, _ in columns))]
    for system in systems:
        spreads = [
            results.spread(measurement, system, figure) for _, measurement, figure in columns
        ]
        if any(spreads):
            rows.append((_title(system), *map(shown, spreads)))
    return rows


def _tenths(results: Results, measurement: str, systems: Iterable[str]) -> list[Row]:
    columns = (
        ("messages", measurement, "messages"),
        *((str(n), measurement, f"tenth_{n}") for n in range(1, 11)),
        ("last / first", measurement, "ratio"),
        ("memory MB", measurement, "memory"),
        ("grown MB", measurement, "growth"),
    )
    return _table(results, systems, columns)


def _skipped(results: Results) -> list[Row]:
    rows: list[Row] = [("system", "why")]
    rows += [
        (name, reason.strip().splitlines()[0].replace("|", "/"))
        for name, reason in results.skipped.items()
    ]
    return rows


def _short(results: Results) -> list[Row]:
    """The rates in plain lines, for the terminal."""
    return [
        (f"{measurement:15}", f"{system:18}", shown(spread))
        for measurement in results.measurements
        for system in results.systems
        if (spread := results.spread(measurement, system))
    ]


def shown(spread: Spread | None) -> str:
    """12,300 ± 4 %: the median, and half the distance between the lowest and the highest."""
    if spread is None:
        return ""
    median = spread.median
    text = f"{median:,.0f}" if median >= 100 else f"{median:.3g}"
    if spread.rounds < 2 or not median:
        return text
    return f"{text} ± {(spread.high - spread.low) / 2 / median * 100:.0f} %"


def _title(system: str) -> str:
    title = load(system).title
    return f"**{title}**" if system == "deadletter" else title
