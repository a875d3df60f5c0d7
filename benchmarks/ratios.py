"""
What must be reached? Ratios inside one run, round by round: a slow minute hurts both sides.

A requirement that could not be measured (a peer that is not installed) is listed as such.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .peers import OUTBOX
from .results import Results, Spread

US = "deadletter"
TASKS, RESULTS = "deadletter-tasks", "deadletter-results"
#: The packages that keep Django's tasks in the database.
DJANGO_PEERS = ("django-ox", "django-tasks-db")
POSTGRES_PEERS = (
    "pgqueuer",
    "graphile-worker",
    "chancy",
    "procrastinate",
    "django-ox",
    "django-tasks-db",
)
PEERS = (*POSTGRES_PEERS, "dramatiq", "celery", "huey")
#: How many times faster one process has to drain.
AHEAD = {
    "pgqueuer": 1.5,
    "graphile-worker": 1.1,
    "chancy": 2.5,
    "dramatiq": 6.0,
    "celery": 12.0,
    "procrastinate": 25.0,
    "django-tasks-db": 50.0,
    "django-ox": 10.0,
}
#: Where an outbox publishes to.
BROKERS = {"quorum": "quorum queue", "classic": "classic queue", "redis": "Redis stream"}
#: MB a worker may have grown between the second and the last quarter of the steady state.
FLAT = 5.0


@dataclass(frozen=True)
class Requirement:
    title: str
    at_least: float
    reached: Spread | None

    @property
    def is_met(self) -> bool | None:
        return None if self.reached is None else self.reached.median >= self.at_least


def requirements(results: Results) -> list[Requirement]:
    def drained(other: str, goal: float, title: str) -> Requirement:
        return Requirement(title, goal, results.ratio(("drain-1", US), ("drain-1", other)))

    def grown(case: str, goal: float, title: str) -> Requirement:
        return Requirement(title, goal, results.ratio((case, US), ("plain", US)))

    def kept(system: str) -> Spread | None:
        return results.ratio(("results", system), ("tasks", system))

    return [
        drained("raw", 0.60, "drain, one process, against the raw limit at the same batch size"),
        *(drained(peer, goal, f"drain, against {peer}") for peer, goal in AHEAD.items()),
        Requirement(
            "drain, two processes against one",
            1.5,
            results.ratio(("drain-2", US), ("drain-1", US)),
        ),
        Requirement(
            "send one, against `Model.objects.create` of the same row",
            0.8,
            results.ratio(("send-one", US), ("send-one", "django-create")),
        ),
        Requirement(
            "send many, against COPY of the same rows",
            0.4,
            results.ratio(("send-many", US), ("send-many", "raw")),
        ),
        Requirement(
            "send many, against the fastest peer",
            1.0,
            _against_best(results, "send-many", US, PEERS),
        ),
        grown("streams", 0.5, "10,000 streams against none"),
        grown("blocked", 0.8, "500,000 parked behind one head against none"),
        grown("scheduled", 0.8, "1,000,000 scheduled against none"),
        grown("poison", 0.8, "1,000,000 poison records against none"),
        grown("backlog-1000000", 0.8, "backlog of 1,000,000 against 100,000"),
        grown("failing", 0.5, "20 % failing, per message executed, against none"),
        Requirement(
            "steady state: last tenth against the first",
            0.8,
            results.spread("steady", US, "ratio"),
        ),
        Requirement(
            "pickup p50: fastest PostgreSQL peer against deadletter",
            1.0,
            _peers_over_us(results, "pickup", "p50", POSTGRES_PEERS, min),
        ),
        Requirement(
            "memory of a worker: median of the peers against deadletter",
            1.0,
            _peers_over_us(results, "drain-1", "memory", PEERS, statistics.median),
        ),
        Requirement(
            f"memory in the steady state: {FLAT:g} MB of growth against what it grew",
            1.0,
            _flatness(results),
        ),
        Requirement(
            "drain of tasks without results, against messages",
            0.9,
            results.ratio(("drain-1", TASKS), ("drain-1", US)),
        ),
        Requirement(
            "drain of tasks with results, against messages",
            0.5,
            results.ratio(("drain-1", RESULTS), ("drain-1", US)),
        ),
        *(
            Requirement(
                f"drain of tasks with results, against {peer}",
                1.0,
                results.ratio(("drain-1", RESULTS), ("drain-1", peer)),
            )
            for peer in DJANGO_PEERS
        ),
        *(
            Requirement(
                f"{title}, against the faster of the packages for Django's tasks",
                1.0,
                _against_best(results, measurement, TASKS, DJANGO_PEERS),
            )
            for title, measurement in (
                ("enqueue of a task", "send-one"),
                ("enqueue of many tasks", "send-many"),
            )
        ),
        Requirement("tasks without results, 1,000,000 results against none", 0.9, kept(TASKS)),
        Requirement("tasks with results, 1,000,000 results against none", 0.9, kept(RESULTS)),
        *(_of_outbox(results) if set(results.systems) & set(OUTBOX) else ()),
    ]


def _of_outbox(results: Results) -> list[Requirement]:
    """What the outbox has to reach; listed where any of it was measured."""

    def against(measurement: str, ours: str, other: str) -> Spread | None:
        return results.ratio((measurement, ours), (measurement, other))

    relays = [
        Requirement(
            f"relay, {processes}, to a {where}, against one raw publisher",
            goal,
            results.ratio((measurement, f"outbox-{kind}"), ("drain-1", f"publisher-{kind}")),
        )
        for kind, where in BROKERS.items()
        for measurement, processes, goal in (
            ("drain-1", "one process", 0.5),
            ("drain-2", "two processes", 0.8),
        )
    ]
    flat = [
        Requirement(
            f"backlog of the outbox to a {where}: last tenth against the first",
            0.8,
            results.spread("backlog", f"outbox-{kind}", "ratio"),
        )
        for kind, where in BROKERS.items()
        if kind != "classic"
    ]
    away = [
        Requirement(
            f"{where} that was away: last third of the recovery against the first",
            0.8,
            results.ratio(
                ("outage", f"outbox-{kind}", "last_third"),
                ("outage", f"outbox-{kind}", "first_third"),
            ),
        )
        for kind, where in BROKERS.items()
        if kind != "classic"
    ]
    return [
        Requirement(
            "publish, against an INSERT of the same columns by hand",
            0.5,
            against("send-one", "outbox-quorum", "outbox-insert"),
        ),
        Requirement(
            "publish many, against COPY of the same rows",
            0.4,
            against("send-many", "outbox-quorum", "outbox-insert"),
        ),
        *relays,
        *flat,
        *away,
        Requirement(
            "drain of plain messages beside a relay, against a site without an outbox",
            0.9,
            against("beside", "deadletter-relay", US),
        ),
        Requirement(
            "drain of plain messages beside a relay, against --no-relay",
            0.9,
            against("beside", "deadletter-relay", "deadletter-no-relay"),
        ),
        Requirement(
            "send on a site with an outbox, against one without",
            0.9,
            against("send-one", "deadletter-relay", US),
        ),
    ]


def _against_best(
    results: Results, measurement: str, system: str, peers: Iterable[str]
) -> Spread | None:
    ours = results.each(measurement, system)
    theirs = [results.each(measurement, peer) for peer in peers]
    best = {n: max((rates[n] for rates in theirs if n in rates), default=0.0) for n in ours}
    return Spread.of([ours[n] / best[n] for n in ours if best[n]])


def _peers_over_us(
    results: Results,
    measurement: str,
    figure: str,
    peers: Iterable[str],
    choose: Callable[[list[float]], float],
) -> Spread | None:
    ours = results.each(measurement, US, figure)
    theirs = [found for peer in peers if (found := results.each(measurement, peer, figure))]
    by_round = {n: [found[n] for found in theirs if n in found] for n in ours}
    return Spread.of([choose(values) / ours[n] for n, values in by_round.items() if values])


def _flatness(results: Results) -> Spread | None:
    grown = results.each("steady", US, "growth")
    return Spread.of([FLAT / max(growth, FLAT / 10) for growth in grown.values()])
