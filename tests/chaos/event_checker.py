"""
The checker's rules for events: what publishers, relays, the collector and operators wrote down, and
what is left in the outbox and in quarantine. Knows nothing of the queue's code.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from .topics import REFUSED

Line = dict[str, Any]


@dataclass(frozen=True)
class EventRemains:
    """What the database says in the end: the outbox and the poison records as (id, tag)."""

    outbox: Sequence[tuple[int, str]] = ()
    poison: Sequence[tuple[int, str]] = ()


@dataclass
class EventVerdict:
    """What was found; `violations` is empty when every promise was kept."""

    violations: list[str] = field(default_factory=list)
    stored: int = 0
    arrived: int = 0
    poison: int = 0
    removed: int = 0
    #: Arrivals of an event that had arrived before.
    duplicates: int = 0
    #: Events whose publisher never learnt what became of them, and that exist.
    recovered: int = 0

    def __str__(self) -> str:
        return (
            f"events stored {self.stored}, arrived {self.arrived}, refused {self.poison}, "
            f"removed {self.removed}, recovered {self.recovered}, duplicates {self.duplicates}"
        )


def check_events(lines: Iterable[Line], remains: EventRemains) -> EventVerdict:
    """Judge what became of the events of a run."""
    history = _EventHistory(list(lines), remains)
    verdict = EventVerdict(
        stored=len(history.stored),
        arrived=len(history.arrived_tags),
        poison=len(remains.poison),
        removed=len(history.removed),
        duplicates=len(history.arrivals) - len(history.first_arrivals),
        recovered=len(history.present & history.unknown),
    )
    for rule in (
        *(_lost, _ghosts, _identity, _refused, _unpublished),
        *(_order, _republished, _surplus),
    ):
        verdict.violations += rule(history)
    return verdict


class _EventHistory:
    def __init__(self, lines: list[Line], remains: EventRemains) -> None:
        self.remains = remains
        self.lines = sorted(lines, key=lambda line: line["at"])
        self.attempted = {
            tag: (key, topic)
            for line in self._of("attempted")
            for tag, key, topic in line.get("events", ())
        }
        self.withdrawn = self._tags("withdrawn")
        self.unknown = self._tags("unknown")
        #: Ids by tag, of events whose transaction committed for sure.
        self.stored: dict[str, int] = {}
        for line in self._of("acked"):
            self.stored.update(line.get("events", {}))
        #: Not those of the broker: a batch says itself what was confirmed.
        self.faults = self._of("fault")

    def _of(self, what: str) -> list[Line]:
        return [line for line in self.lines if line["what"] == what]

    def _tags(self, what: str) -> set[str]:
        return {tag for line in self._of(what) for tag, *_ in line.get("events", ())}

    @cached_property
    def arrivals(self) -> list[Line]:
        """What arrived, in order; not what the broker gave the collector again."""
        found: list[Line] = []
        seen: set[int] = set()
        for line in self._of("arrived"):
            if not (line["redelivered"] and line["id"] in seen):
                found.append(line)
            seen.add(line["id"])
        return found

    @cached_property
    def first_arrivals(self) -> list[Line]:
        found: dict[int, Line] = {}
        for line in self.arrivals:
            found.setdefault(line["id"], line)
        return list(found.values())

    @cached_property
    def arrived_tags(self) -> set[str]:
        return {line["tag"] for line in self.arrivals}

    @cached_property
    def removed(self) -> set[int]:
        return {id for line in self._of("removed") for id in line.get("events", ())}

    @cached_property
    def maybe_removed(self) -> set[int]:
        """What an operator wanted to remove and did not learn whether it is gone."""
        return {id for line in self._of("removing") for id in line.get("events", ())}

    @cached_property
    def present(self) -> set[str]:
        left = {tag for _, tag in (*self.remains.outbox, *self.remains.poison)}
        return left | self.arrived_tags

    @cached_property
    def batches(self) -> dict[int, list[Line]]:
        """
        Each batch in which an event was published; `known` are the ids that were confirmed.

        `settled` is when its relay began the next one: it settles a batch before.
        """
        open_batches: dict[int, Line] = {}
        last: dict[int, Line] = {}
        found: dict[int, list[Line]] = defaultdict(list)
        for line in self.lines:
            if line["what"] == "publishing":
                batch = {**line, "known": set(), "refused": set(), "settled": math.inf}
                if line["pid"] in last:
                    last[line["pid"]]["settled"] = line["at"]
                open_batches[line["pid"]] = last[line["pid"]] = batch
                for id in line["ids"]:
                    found[id].append(batch)
            elif line["what"] == "confirmed":
                batch = open_batches.pop(line["pid"])
                batch |= {"known": set(line["ids"]), "refused": set(line["refused"])}
        return found

    def was_hit(self, batch: Line, until: float) -> bool:
        """Say whether a fault kept this relay from settling what it knew, before `until`."""
        end = min(until, batch["settled"])
        return any(
            fault["at"] <= end
            and fault["until"] >= batch["at"]
            and (fault["pids"] is None or batch["pid"] in fault["pids"])
            for fault in self.faults
        )


def _lost(history: _EventHistory) -> list[str]:
    gone = history.removed | history.maybe_removed
    return [
        f"lost: event {tag} was stored and did not arrive"
        for tag, id in sorted(history.stored.items())
        if tag not in history.present and id not in gone
    ]


def _ghosts(history: _EventHistory) -> list[str]:
    never = history.present - history.attempted.keys()
    risen = history.present & history.withdrawn
    return [f"ghost: event {tag} was never published" for tag in sorted(never)] + [
        f"ghost: event {tag} was rolled back" for tag in sorted(risen)
    ]


def _identity(history: _EventHistory) -> list[str]:
    """An event has one id, and arrives under it with what was published."""
    ids: dict[str, set[int]] = defaultdict(set)
    for tag, id in history.stored.items():
        ids[tag].add(id)
    for id, tag in (*history.remains.outbox, *history.remains.poison):
        ids[tag].add(id)
    found = []
    for line in history.arrivals:
        tag = line["tag"]
        ids[tag].add(line["id"])
        expected = history.attempted.get(tag)
        if expected is not None and (line["key"], line["topic"]) != expected:
            found.append(f"changed: event {tag} arrived as {line['key']} {line['topic']}")
        if line["header"] != tag:
            found.append(f"changed: event {tag} arrived with the header of {line['header']}")
    return found + [
        f"doubled: event {tag} has ids {sorted(own)}"
        for tag, own in sorted(ids.items())
        if len(own) > 1
    ]


def _refused(history: _EventHistory) -> list[str]:
    """What the broker refuses ends as poison once and never arrives; nothing else does."""
    rows = Counter(tag for _, tag in history.remains.poison)
    refused = {tag for tag, (_, topic) in history.attempted.items() if topic == REFUSED}
    found = [f"doubled: event {tag} has {n} records" for tag, n in sorted(rows.items()) if n > 1]
    found += [
        f"refused: event {tag} is poison, and its topic is read"
        for tag in sorted(rows.keys() - refused)
    ]
    found += [
        f"two places: event {tag} arrived and is poison"
        for tag in sorted(rows.keys() & history.arrived_tags)
    ]
    return found + [
        f"refused: event {tag} arrived, and its topic is not read"
        for tag in sorted(refused & history.arrived_tags)
    ]


def _unpublished(history: _EventHistory) -> list[str]:
    return [
        f"not drained: event {tag} is still in the outbox"
        for _, tag in sorted(history.remains.outbox)
    ]


def _order(history: _EventHistory) -> list[str]:
    """The events of a key arrive for the first time in the order of their ids."""
    keys: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in history.first_arrivals:
        if line["key"] is not None:
            keys[line["place"], line["key"]].append(line)
    return [
        f"overtaken: event {earlier['tag']} of key {key} arrived behind {later['tag']}"
        for (_, key), lines in sorted(keys.items())
        for later, earlier in pairwise(lines)
        if earlier["id"] < later["id"]
    ]


def _republished(history: _EventHistory) -> list[str]:
    """A relay publishes an event again only if the fate of its last try was unknown."""
    found = []
    for id, batches in sorted(history.batches.items()):
        for before, again in pairwise(batches):
            if id in before["known"] and not history.was_hit(before, again["at"]):
                found.append(
                    f"unexplained: event {id} was confirmed to process {before['pid']} and "
                    f"published again by {again['pid']} though nothing had happened to the first"
                )
    return found


def _surplus(history: _EventHistory) -> list[str]:
    """An event arrives once at most for each time that it was published."""
    tries = {id: sum(batch["ids"].count(id) for batch in b) for id, b in history.batches.items()}
    return [
        f"surplus: event {id} was published {tries.get(id, 0)} times and arrived {n} times"
        for id, n in sorted(Counter(line["id"] for line in history.arrivals).items())
        if n > tries.get(id, 0)
    ]
