"""
Measure deadletter, its peers and the limit of the database: `make bench ARGS="..."`.

    --quick                         some minutes: smaller numbers; one round of all, three of a few
    --only deadletter,raw           these systems
    --scenario drain-1,streams      these measurements (--list names them all)
    --tasks                         Django's tasks: deadletter's beside messages and two packages
    --outbox                        the outbox: its relay beside raw publishers and two packages
    --away 600                      seconds for which a broker is away in the measurement of that
    --resume                        go on with what an interrupted run left

Everything is interleaved: each round measures every system once before the next round begins.
Results are written after every measurement, the tables and pictures at the end.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from .peers import OUTBOX, SYSTEMS
from .plan import (
    COLUMNS,
    OUTBOX_COLUMNS,
    OUTBOX_MEASUREMENTS,
    OUTBOX_SYSTEMS,
    TASK_MEASUREMENTS,
    TASK_SYSTEMS,
    Plan,
    scenario_names,
)
from .report import publish
from .results import Results
from .sizes import SIZES
from .stores import Stores

#: Where figures to be kept go; those of a partial or quick run go where git does not look.
KEPT, PASSING = Path("docs/performance"), Path("build/bench")


def main() -> int:
    options = _options()
    if options.list:
        print("systems:     ", ", ".join(SYSTEMS))
        print("measurements:", ", ".join([*COLUMNS, *scenario_names(), *OUTBOX_COLUMNS]))
        return 0
    size = "tiny" if options.tiny else "quick" if options.quick else "full"
    partial = options.only or options.scenario or size != "full"
    folder = options.output or (PASSING if partial else KEPT)
    # Servers are stopped on the way out, whoever asks.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    results = _results(folder / "results.json", resume=options.resume or options.report)
    if options.resume and results.about.get("size", size) != size:
        print(
            f"{results.file} holds a {results.about['size']} run: resume it as such, or start anew"
        )
        return 1
    if not options.report:
        _measure(options, size, results)
    publish(results, pictures=not options.no_plots)
    return 0 if results.figures else 1


def _measure(options: argparse.Namespace, size: str, results: Results) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-") as home, ExitStack() as servers:
        plan = Plan(
            sizes=replace(SIZES[size], away=options.away or SIZES[size].away),
            rounds=options.rounds or _rounds(size, options.only),
            systems=options.only or [name for name in SYSTEMS if name not in OUTBOX],
            measurements=options.scenario,
            stores=Stores(Path(home), servers),
            results=results,
        )
        plan.describe(size)
        try:
            plan.run()
        except KeyboardInterrupt:
            print("interrupted: what was measured is kept, --resume goes on", file=sys.stderr)


def _rounds(size: str, only: list[str] | None) -> int:
    """Three quick rounds of some systems take as long as one of all."""
    return 1 if size == "quick" and not only else SIZES[size].rounds


def _results(file: Path, *, resume: bool) -> Results:
    if resume and file.exists():
        return Results.read(file)
    return Results(file)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench ARGS=...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a few minutes")
    size.add_argument("--tiny", action="store_true", help="see that it works; figures say nothing")
    parser.add_argument("--only", type=_among(list(SYSTEMS)), metavar="NAMES", help="systems")
    every = [*COLUMNS, *scenario_names(), *OUTBOX_COLUMNS]
    parser.add_argument("--scenario", type=_among(every), metavar="NAMES", help="measurements")
    parser.add_argument(
        "--tasks", action="store_true", help="the systems and measurements of tasks"
    )
    parser.add_argument(
        "--outbox", action="store_true", help="the systems and measurements of the outbox"
    )
    parser.add_argument("--away", type=float, metavar="SECONDS", help="how long a broker is away")
    parser.add_argument("--rounds", type=int, metavar="N")
    parser.add_argument("--resume", action="store_true", help="keep what is already measured")
    places = f"default: {KEPT}, of a partial run {PASSING}"
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=places)
    parser.add_argument("--report", action="store_true", help="only write tables and pictures anew")
    parser.add_argument("--no-plots", action="store_true")
    parser.add_argument("--list", action="store_true", help="name systems and measurements")
    options = parser.parse_args()
    if options.tasks:
        options.only = options.only or list(TASK_SYSTEMS)
        options.scenario = options.scenario or list(TASK_MEASUREMENTS)
    if options.outbox:
        options.only = options.only or list(OUTBOX_SYSTEMS)
        options.scenario = options.scenario or list(OUTBOX_MEASUREMENTS)
    return options


def _among(known: list[str]):  # type: ignore[no-untyped-def]
    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)}: unknown; there are {', '.join(known)}"
            )
        return names

    return read


if __name__ == "__main__":
    sys.exit(main())
