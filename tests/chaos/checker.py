"""
Was every promise kept? Judges a history (what producers, handlers, operators and the nemesis wrote
down) and what is left in the database, and returns every violation it finds. Knows nothing of the
queue's code.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from .event_checker import EventVerdict

Line = dict[str, Any]

#: Handlers whose work and completion are one transaction: what they did is seen in the database.
ATOMIC = {"chaos.effect", "tests.chaos.tasks.effect"}
SUCCESSFUL = "successful"
#: Faults that hit only the connection: what was executed is reported over the next one, so they
#: explain a second start of an atomic handler alone, whose own transaction they broke.
CONNECTION_ONLY = {"terminate", "cut_before", "cut_after"}
#: Faults after which a process says nothing any more.
DEADLY = {"kill", "handler"}


class StoredResult(NamedTuple):
    """A row of the table of results; `fence` is the one that the task says it finished under."""

    id: int
    tag: str
    outcome: str
    fence: int | None = None


@dataclass(frozen=True)
class Remains:
    """What the database says in the end: messages and poison as (id, tag), effects by id."""

    queued: Sequence[tuple[int, str]] = ()
    poison: Sequence[tuple[int, str]] = ()
    effects: dict[int, int] = field(default_factory=dict)
    #: Messages of which a worker said itself that their lease was gone, or that it was over when a
    #: report that had broken off was repeated.
    leases_lost: frozenset[int] = frozenset()
    #: The results that are stored, and the statuses that an application reads, by id of the task.
    results: Sequence[StoredResult] = ()
    statuses: dict[int, str | None] = field(default_factory=dict)


@dataclass
class Verdict:
    """What was found; `violations` is empty when every promise was kept."""

    violations: list[str] = field(default_factory=list)
    sent: int = 0
    finished: int = 0
    poison: int = 0
    removed: int = 0
    #: Results of tasks.
    results: int = 0
    #: Starts of a message that had been started and had not failed.
    duplicates: int = 0
    #: Messages whose sender never learnt what became of them, and that exist.
    recovered: int = 0
    #: In a run with a broker; its violations are among those above.
    events: EventVerdict | None = None

    def __str__(self) -> str:
        return (
            f"sent {self.sent}, finished {self.finished}, poison {self.poison}, "
            f"removed {self.removed}, results {self.results}, recovered {self.recovered}, "
            f"duplicate starts {self.duplicates}"
        )


def check(
    lines: Iterable[Line], remains: Remains, *, max_attempts: int, lease: float = math.inf
) -> Verdict:
    """Judge a history; `max_attempts` is the largest in force, `lease` the seconds of a lease."""
    history = _History(list(lines), remains, lease)
    verdict = Verdict(
        sent=len(history.acked),
        finished=len(history.finished),
        poison=len(remains.poison),
        removed=len(history.removed),
        results=len(remains.results),
        recovered=len(history.present & history.unknown),
        duplicates=sum(1 for _ in history.duplicates()),
    )
    for rule in (
        *(_lost, _ghosts, _places, _unfinished, _effects, _order, _unexplained),
        *(_results, _outcomes, _statuses, _announcements),
    ):
        verdict.violations += rule(history)
    verdict.violations += _too_often(history, max_attempts)
    return verdict


class _History:
    def __init__(self, lines: list[Line], remains: Remains, lease: float) -> None:
        self.remains = remains
        self.lease = lease
        self.lines = sorted(lines, key=lambda line: line["at"])
        self.starts = self._of("start")
        self.attempted = self._tags("attempted")
        self.withdrawn = self._tags("withdrawn")
        self.unknown = self._tags("unknown")
        self.tasks = {tag for line in self._of("attempted") for tag in line.get("tasks", ())}
        self.retries = self._of("retrying")
        self.faults = self._of("fault")
        self.acked: dict[str, int] = {}
        for line in self._of("acked"):
            self.acked.update(zip(line["tags"], line["ids"], strict=True))

    def _of(self, what: str) -> list[Line]:
        return [line for line in self.lines if line["what"] == what]

    def _tags(self, what: str) -> set[str]:
        return {tag for line in self._of(what) for tag in line["tags"]}

    @cached_property
    def tags(self) -> dict[int, str]:
        """Which message is meant by an id, by all who ever saw it."""
        seen = {line["id"]: line["tag"] for line in self.starts}
        return seen | {id: tag for tag, id in self.acked.items()}

    @cached_property
    def removed(self) -> set[str]:
        ids = {id for line in self._of("removed") for id in line["ids"]}
        return {self.tags[id] for id in ids if id in self.tags}

    @cached_property
    def maybe_removed(self) -> set[str]:
        """What an operator wanted to remove and did not learn whether it is gone."""
        ids = {id for line in self._of("removing") for id in line["ids"]}
        return {self.tags[id] for id in ids if id in self.tags}

    @cached_property
    def finished(self) -> set[str]:
        done = {line["tag"] for line in self._of("finish") if line["name"] not in ATOMIC}
        return done | {self.tags[id] for id in self.remains.effects if id in self.tags}

    @cached_property
    def ended(self) -> set[str]:
        """Tasks that ended without success: removed, cancelled, discarded."""
        return {row.tag for row in self.remains.results if row.outcome != SUCCESSFUL}

    @cached_property
    def died(self) -> set[int]:
        """Ids that were poison at some time: their stream went on without them."""
        ids = {id for id, _ in self.remains.poison}
        ids |= {row.id for row in self.remains.results if row.outcome != SUCCESSFUL}
        ids |= {id for line in self.retries for id in line["ids"]}
        return ids | {id for line in self._of("removing") for id in line["ids"]}

    @cached_property
    def present(self) -> set[str]:
        left = {tag for _, tag in (*self.remains.queued, *self.remains.poison)}
        ended = {row.tag for row in self.remains.results}
        return left | {line["tag"] for line in self.starts} | self.finished | ended

    @cached_property
    def starts_by_id(self) -> dict[int, list[Line]]:
        found = defaultdict(list)
        for line in self.starts:
            found[line["id"]].append(line)
        return found

    @cached_property
    def failures(self) -> set[tuple[int, int]]:
        return {(line["id"], line["fence"]) for line in self._of("failed")}

    @cached_property
    def stages(self) -> set[tuple[int, int]]:
        """Starts that ended a stage of their message: another one follows."""
        return {(line["id"], line["fence"]) for line in self._of("stage")}

    def duplicates(self) -> Iterator[tuple[Line, Line]]:
        """Yield each start behind one that did not fail, together with that one."""
        for starts in self.starts_by_id.values():
            for before, again in pairwise(starts):
                if (before["id"], before["fence"]) not in self.failures | self.stages:
                    yield before, again

    def is_explained(self, start: Line, until: float) -> bool:
        """Say whether a fault hit the process of this start before somebody else began again."""
        if start["id"] in self.remains.leases_lost:
            return True
        return any(
            fault["at"] <= until
            and fault["until"] >= start["at"]
            and (fault["pids"] is None or start["pid"] in fault["pids"])
            and (fault["kind"] not in CONNECTION_ONLY or start["name"] in ATOMIC)
            for fault in self.faults
        )

    def was_silenced(self, start: Line, again: Line) -> bool:
        """
        Say whether its process died before it could say that the lease was lost.

        That it was lost shows only in the answer to its report, and on a machine with too much to
        do that can take as long as the lease. Not sooner than a lease after the first start.
        """
        return again["at"] - start["at"] >= self.lease and any(
            fault["kind"] in DEADLY
            and start["pid"] in fault["pids"]
            and again["at"] < fault["at"] <= again["at"] + self.lease
            for fault in self.faults
        )


def _lost(history: _History) -> list[str]:
    there = {tag for _, tag in (*history.remains.queued, *history.remains.poison)}
    accounted = history.finished | there | history.removed | history.maybe_removed | history.ended
    return [f"lost: {tag} was acknowledged" for tag in sorted(set(history.acked) - accounted)]


def _ghosts(history: _History) -> list[str]:
    ghosts = history.present - history.attempted
    risen = history.present & history.withdrawn
    return [f"ghost: {tag} was never sent" for tag in sorted(ghosts)] + [
        f"ghost: {tag} was rolled back" for tag in sorted(risen)
    ]


def _places(history: _History) -> list[str]:
    queued, poison = history.remains.queued, history.remains.poison
    found = [
        f"two places: {tag} is in the queue and poison" for _, tag in sorted({*queued} & {*poison})
    ]
    rows = Counter(tag for _, tag in (*queued, *poison))
    found += [f"doubled: {tag} has {n} rows" for tag, n in sorted(rows.items()) if n > 1]
    ids = defaultdict(set)
    for id, tag in (*history.tags.items(), *queued, *poison):
        ids[tag].add(id)
    found += [f"doubled: {tag} has ids {sorted(own)}" for tag, own in ids.items() if len(own) > 1]
    for id, tag in poison:
        starts = history.starts_by_id.get(id, [])
        settled = tag in history.finished and starts and tag not in _retried(history)
        if settled and not any(history.is_explained(start, float("inf")) for start in starts):
            found.append(f"two places: {tag} finished and is poison, and no fault explains it")
    return found


def _retried(history: _History) -> set[str]:
    ids = {id for line in history.retries for id in line["ids"]}
    return {history.tags[id] for id in ids if id in history.tags}


def _unfinished(history: _History) -> list[str]:
    return [f"not drained: {tag} is still queued" for _, tag in sorted(history.remains.queued)]


def _effects(history: _History) -> list[str]:
    found = [
        f"effect of {history.tags.get(id, id)} happened {n} times"
        for id, n in sorted(history.remains.effects.items())
        if n > 1
    ]
    poison = {id for id, _ in history.remains.poison}
    return found + [
        f"two places: {history.tags.get(id, id)} had its effect and is poison"
        for id in sorted(poison & history.remains.effects.keys())
    ]


def _too_often(history: _History, limit: int) -> list[str]:
    """A claim starts a handler once; between two retries or stages so many claims at most."""
    found = []
    for id, starts in sorted(history.starts_by_id.items()):
        claims = Counter(line["fence"] for line in starts)
        found += [
            f"started twice: {history.tags[id]} under fence {fence}"
            for fence, n in claims.items()
            if n > 1
        ]
        # The fence grows with every claim and is never reset: it tells before and after apart,
        # also for a start that came late.
        retried_at = sorted(
            line["fences"][str(id)] for line in history.retries if str(id) in line["fences"]
        )
        retried_at += [fence for one, fence in history.stages if one == id]
        lives = Counter(sum(fence > at for at in retried_at) for fence in claims)
        found += [
            f"started too often: {history.tags[id]} {n} times" for n in lives.values() if n > limit
        ]
    return found


def _order(history: _History) -> list[str]:
    """Nobody starts before all in front of it have finished once, but for those that died."""
    streams: dict[str, list[int]] = defaultdict(list)
    for line in history.lines:
        if line["what"] == "start" and line["stream"] is not None:
            streams[line["stream"]].append(line["id"])
    finishes: dict[int, float] = {}
    for line in history.lines:
        if line["what"] == "finish":
            finishes.setdefault(line["id"], line["at"])
    found = []
    for stream, ids in sorted(streams.items()):
        members = sorted(set(ids) - history.died)
        starts = {id: history.starts_by_id[id][0]["at"] for id in members}
        found += [
            f"overtaken: {history.tags[later]} started before {history.tags[earlier]} had "
            f"finished in stream {stream}"
            for earlier, later in pairwise(members)
            if starts[later] < finishes.get(earlier, float("inf"))
        ]
    return found


def _unexplained(history: _History) -> list[str]:
    return [
        f"unexplained: {before['tag']} was started under fence {before['fence']} and again under "
        f"{again['fence']} though nothing had happened to process {before['pid']}"
        for before, again in history.duplicates()
        if not history.is_explained(before, again["at"]) and not history.was_silenced(before, again)
    ]


def _results(history: _History) -> list[str]:
    """A task that is gone has one result; a task that is there, in whatever place, has none."""
    remains = history.remains
    rows = Counter(row.tag for row in remains.results)
    found = [f"two results: {tag} has {n}" for tag, n in sorted(rows.items()) if n > 1]
    there = {tag for _, tag in (*remains.queued, *remains.poison)}
    found += [
        f"early result: {row.tag} is {row.outcome} and still there"
        for row in remains.results
        if row.tag in there
    ]
    stored = {tag for tag in history.acked if tag in history.tasks}
    stored |= history.tasks & {line["tag"] for line in history.starts}
    return found + [
        f"no result: task {tag} is gone without one" for tag in sorted(stored - there - rows.keys())
    ]


def _outcomes(history: _History) -> list[str]:
    """A result says what happened: the task finished like that, or somebody gave it up."""
    ends = {(line["id"], line["fence"]) for line in history.lines if line["what"] == "finish"}
    given_up = history.removed | history.maybe_removed
    effects = history.remains.effects
    found = []
    for row in history.remains.results:
        starts = history.starts_by_id.get(row.id, [])
        if row.outcome == SUCCESSFUL:
            if (row.id, row.fence) not in ends:
                found.append(f"false result: {row.tag} never finished under fence {row.fence}")
        elif effects.get(row.id):
            found.append(f"false result: {row.tag} is {row.outcome} and had its effect")
        elif row.tag not in given_up and not starts:
            found.append(f"false result: {row.tag} is {row.outcome} and nobody gave it up")
    successful = {row.id for row in history.remains.results if row.outcome == SUCCESSFUL}
    atomic = {line["id"] for line in history.starts if line["name"] in ATOMIC}
    return found + [
        f"false result: {history.tags.get(id, id)} had no effect and is successful"
        for id in sorted(successful & atomic - effects.keys())
    ]


def _statuses(history: _History) -> list[str]:
    """What an application reads is what the rows say, and it can always be read."""
    remains = history.remains
    expected = {row.id: {"FAILED"} for row in remains.results}
    expected |= {row.id: {"SUCCESSFUL"} for row in remains.results if row.outcome == SUCCESSFUL}
    expected |= {id: {"FAILED"} for id, _ in remains.poison}
    expected |= {id: {"READY", "RUNNING"} for id, _ in remains.queued}
    wrong = [
        f"misread: {history.tags.get(id, id)} is read as {status}"
        for id, status in sorted(remains.statuses.items())
        if status not in expected.get(id, set())
    ]
    unread = {line["id"] for line in history.lines if line["what"] == "unread"}
    return wrong + [
        f"misread: {history.tags.get(id, id)} was there and not found" for id in sorted(unread)
    ]


def _announcements(history: _History) -> list[str]:
    """A success is announced once at most, and only if it is one; a death only of what died."""
    told = Counter((line["id"], line["status"]) for line in history.lines if line["what"] == "told")
    successful = {row.id for row in history.remains.results if row.outcome == SUCCESSFUL}
    found = []
    for (id, status), n in sorted(told.items()):
        tag = history.tags.get(id, id)
        if status == "SUCCESSFUL" and n > 1:
            found.append(f"announced: {tag} succeeded {n} times")
        is_true = id in (successful if status == "SUCCESSFUL" else history.died)
        if not is_true:
            found.append(f"announced: {tag} is {status}, and that is not true")
    return found
