"""What is measured, in which order: rounds outermost, so that a slow minute hurts everybody."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import psycopg

from . import growth, measure, outbox, stores
from .growth import GROWING
from .measure import Drain, Figures
from .peers import OUTBOX, load
from .results import Key, Results
from .sizes import PICKUP_RATE, SIZES, Sizes
from .system import System

#: The columns of the table of peers.
COLUMNS = ("send-one", "send-many", "drain-1", "drain-2", "get-result", "pickup", "idle")
STEADY = "steady"
#: What `--tasks` measures.
TASK_SYSTEMS = ("deadletter", *growth.TASKS, "django-ox", "django-tasks-db")
TASK_MEASUREMENTS = ("send-one", "send-many", "drain-1", "get-result", "tasks", "results")
#: What `--outbox` measures, and what only it can.
OUTBOX_SYSTEMS = ("deadletter", *OUTBOX)
OUTBOX_COLUMNS = ("latency", "backlog", "outage", "beside")
OUTBOX_MEASUREMENTS = ("send-one", "send-many", "drain-1", "drain-2", *OUTBOX_COLUMNS)
#: Results to read, at most.
RESULTS = 1_000


def scenario_names() -> list[str]:
    return [*(case.name for case in growth.cases(SIZES["full"])), STEADY]


@dataclass(frozen=True)
class Step:
    round: int
    measurement: str
    system: System
    run: Callable[[], Figures]

    @property
    def key(self) -> Key:
        return (self.round, self.measurement, self.system.name)


@dataclass
class Plan:
    sizes: Sizes
    rounds: int
    systems: list[str]
    measurements: list[str] | None
    stores: stores.Stores
    results: Results
    _templates: set[str] = field(default_factory=set)

    def describe(self, size: str) -> None:
        """Note what is measured on, and say it."""
        self.results.about |= {
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "size": size,
            "rounds": self.rounds,
            **stores.machine(),
        }
        load = os.getloadavg()[0]
        print(f"{size}: {self.rounds} rounds on {self.results.about['processor']}; load {load:.1f}")
        if load > 0.5:
            print("the machine is busy: figures will be too low, and ratios uncertain")

    def run(self) -> None:
        systems = self._present()
        steps = [step for n in range(1, self.rounds + 1) for step in self._round(n, systems)]
        steps = [step for step in steps if step.key not in self.results.figures]
        start = time.monotonic()
        for number, step in enumerate(steps, 1):
            self._measure(step, f"[{number}/{len(steps)}]")
            if number % 10 == 0:
                left = (time.monotonic() - start) / number * (len(steps) - number)
                print(f"    about {left / 60:.0f} min left", flush=True)

    def _measure(self, step: Step, place: str) -> None:
        try:
            figures = step.run()
        except (RuntimeError, OSError, ArithmeticError, ValueError, psycopg.Error) as error:
            # One failure is not worth the hour that was measured before it.
            self.results.skipped[f"{step.system.name} {step.measurement}"] = str(error)[-500:]
            self.results.write()
            print(
                f"{place} {step.measurement:12} {step.system.name:18} FAILED: {error}", flush=True
            )
            return
        self.results.add(step.key, figures)
        shown = "  ".join(f"{name} {value:,.4g}" for name, value in _main(figures))
        print(f"{place} {step.measurement:12} {step.system.name:18} {shown}", flush=True)

    def _present(self) -> list[System]:
        """Load the systems that can be measured here, and say plainly which cannot."""
        found = []
        for name in self.systems:
            try:
                system = load(name)
                reason = system.missing()
                if reason is None:
                    store = self.stores.of(system)
                    versions = self.results.about.setdefault("stores", {})
                    versions[system.store] = store.version()
                    if broker := self.stores.broker_of(system):
                        versions[broker.kind] = broker.version()
            except (ImportError, stores.Missing) as error:
                reason = str(error)
            if reason is not None:
                self.results.skipped[name] = reason
                print(f"skipped: {name}: {reason}")
                continue
            self.results.about.setdefault("versions", {}).update(system.versions())
            found.append(system)
        return found

    def _wanted(self, measurement: str) -> bool:
        if self.measurements is None:
            return measurement not in OUTBOX_COLUMNS
        return measurement in self.measurements

    def _round(self, number: int, systems: list[System]) -> list[Step]:
        # Another begins each time: nobody is always the one after the slowest.
        turn = number % max(len(systems), 1)
        systems = systems[turn:] + systems[:turn]
        steps = []
        for column in (*COLUMNS, *OUTBOX_COLUMNS):
            if self._wanted(column):
                steps += [
                    Step(number, column, system, partial(self._column, column, system))
                    for system in systems
                    if column in system.measures
                ]
        for case in growth.cases(self.sizes):
            if self._wanted(case.name):
                steps += [
                    Step(number, case.name, system, partial(self._case, case, system))
                    for system in systems
                    if system.name in case.systems
                ]
        if self._wanted(STEADY):
            passing = (self.sizes.passing, self.sizes.backlog)
            steps += [
                Step(
                    number,
                    STEADY,
                    system,
                    partial(measure.steady, system, self.stores.of(system), *passing),
                )
                for system in systems
                if system.name in GROWING
            ]
        return steps

    def _column(self, column: str, system: System) -> Figures:
        store = self.stores.of(system)
        if broker := self.stores.broker_of(system):
            broker.empty(system)
            # For each process of the system.
            os.environ.update(broker.environment())
        if column == "latency":
            return outbox.latency(system, store, self.sizes.picked)
        if column == "backlog":
            return outbox.backlog(system, store, self.sizes.of(1_000_000))
        if column == "outage" and broker:
            return outbox.outage(system, store, broker, self.sizes.away)
        if column == "beside":
            return outbox.beside(system, store, self.sizes.measured)
        if column == "pickup":
            return measure.pickup(system, store, self.sizes.picked, PICKUP_RATE)
        if column == "idle":
            return measure.idle(system, store, self.sizes.idle)
        verb = column.partition("-")[0]
        rate = system.rates["drain" if verb == "drain" else column]
        count = max(50, round(rate * self.sizes.seconds))
        if verb == "send":
            return measure.send(system, store, column, count)
        if verb == "get":
            tasks = max(50, round(system.rates["drain"] * self.sizes.seconds))
            return measure.get_result(system, store, min(tasks, RESULTS), count)
        if broker:
            return outbox.drain(system, store, broker, count, int(column[-1]))
        return measure.drain(system, store, Drain(count, processes=int(column[-1])))

    def _case(self, case: growth.Case, system: System) -> Figures:
        store = self.stores.of(system)
        template = f"case-{case.name}"
        if template not in self._templates:
            store.create(template, template=store.empty(system))
            case.fill(store.at(template))
            store.settle(store.at(template))
            self._templates.add(template)
        with store.fresh(system, template=template) as url:
            return measure.drain_filled(system, store, url, case.drain)


def _main(figures: Figures) -> list[tuple[str, float]]:
    names = ("rate", "ratio", "p50", "p99", "worker", "transactions")
    costs = ("worker_us", "server_us", "client_us", "memory")
    return [(name, figures[name]) for name in (*names, *costs) if name in figures]
