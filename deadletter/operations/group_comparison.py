"""
What the dead messages of a failure group have in common, and in what they differ.

Payloads and headers are compared as DEADLETTER["REDACT"] lets a person see them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.db.models.functions import Coalesce, Length

from ..models import Damaged, Message, PoisonRecord, primary_alias
from ..redaction import HIDDEN, redact
from ..status import FailureReason
from .failure_groups import as_rows, find_main

#: Messages that are compared: the latest deaths.
SAMPLE = 200
#: Characters of payload and headers of one message, and of all; larger ones are left out.
LARGEST, ALL = 100_000, 5_000_000
#: Paths of one message, their depth, and paths that are returned.
_PATHS, _DEPTH, _RETURNED = 500, 20, 100
#: Values that are shown of a path, and characters of each.
VALUES, VALUE_LIMIT = 5, 200
#: Elements of a list that are compared.
_ELEMENTS = 50


@dataclass(frozen=True, kw_only=True)
class ComparedPath:
    """A place in messages, and the values that they have there."""

    #: "payload", "headers", or "message": its queue, stream, release and so on.
    source: str
    #: "customer.id", "items[].sku" (all elements of a list), "len(items)".
    path: str
    #: Messages that have the path.
    present: int
    #: Different values; a list has several in one message.
    distinct: int
    #: The most frequent values, as JSON, with the number of messages that have each.
    values: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What the compared messages share, and what varies."""

    #: Messages that were compared.
    sampled: int
    #: Messages that were left out because they are very large.
    too_large: int = 0
    #: Payloads that cannot be decoded.
    damaged: int = 0
    #: Paths with one value in all messages, and all other paths: the fewest values first.
    shared: tuple[ComparedPath, ...] = ()
    varying: tuple[ComparedPath, ...] = ()
    #: Paths whose values are hidden, with their sources.
    hidden: tuple[tuple[str, str], ...] = ()


def compare_records(
    fingerprint: str, *, payloads: bool = True, using: str | None = None
) -> Comparison:
    """
    Compare the dead messages of a group: poison records, and messages in dead queues.

    `payloads=False`, for readers who may not see payloads, leaves out payloads and headers.
    """
    alias = primary_alias(using)
    row = find_main(fingerprint, using=alias)
    if row is None:
        return Comparison(sampled=0)
    (group,) = as_rows([row], using=alias)
    look = _PathCounts()
    for model, order in ((PoisonRecord, "-poisoned_at"), (Message, "-died_at")):
        ids, large = _choose(model, order, group.fingerprints, look, alias, payloads=payloads)
        look.too_large += large
        for one in _read(model, ids, alias, payloads=payloads):
            look.add(one, payloads=payloads)
    return look.result()


@dataclass
class _PathCounts:
    """Adds up the paths of messages."""

    sampled: int = 0
    too_large: int = 0
    damaged: int = 0
    size: int = 0
    values: defaultdict[tuple[str, str], Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    present: Counter[tuple[str, str]] = field(default_factory=Counter)
    hidden: set[tuple[str, str]] = field(default_factory=set)

    def add(self, row: Any, *, payloads: bool) -> None:
        self.sampled += 1
        found = _Paths()
        for key, value in _facts(row).items():
            found.add("message", key, value)
        if payloads:
            for source in ("payload", "headers"):
                value = getattr(row, source)
                if isinstance(value, Damaged):
                    self.damaged += source == "payload"
                elif value is not None:
                    found.walk(source, "", redact(value), 0)
        for place, values in found.values.items():
            self.present[place] += 1
            self.values[place].update(values)
        self.hidden |= found.hidden

    def result(self) -> Comparison:
        shared: list[ComparedPath] = []
        varying: list[ComparedPath] = []
        for (source, path), counts in self.values.items():
            if (source, path) in self.hidden:
                continue  # hidden in some of them: the others could be guessed
            one = ComparedPath(
                source=source,
                path=path,
                present=self.present[source, path],
                distinct=len(counts),
                values=tuple(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:VALUES]),
            )
            is_shared = len(counts) == 1 and one.present == self.sampled
            (shared if is_shared else varying).append(one)
        shared.sort(key=lambda one: (_SOURCES[one.source], one.path))
        varying.sort(key=lambda one: (one.distinct, _SOURCES[one.source], one.path))
        return Comparison(
            sampled=self.sampled,
            too_large=self.too_large,
            damaged=self.damaged,
            shared=tuple(shared[:_RETURNED]),
            varying=tuple(varying[:_RETURNED]),
            hidden=tuple(sorted(self.hidden)[:_RETURNED]),
        )


_SOURCES = {"message": 0, "payload": 1, "headers": 2}


class _Paths:
    """The paths of one message with their values."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], set[str]] = {}
        self.hidden: set[tuple[str, str]] = set()

    def add(self, source: str, path: str, value: Any) -> None:
        place = (source, path)
        if place not in self.values and len(self.values) >= _PATHS:
            return
        if isinstance(value, str) and value.startswith(HIDDEN[:-1]):
            self.hidden.add(place)
            return
        text = json.dumps(value, ensure_ascii=False, default=str)
        shown = text if len(text) <= VALUE_LIMIT else f"{text[: VALUE_LIMIT - 1]}…"
        self.values.setdefault(place, set()).add(shown)

    def walk(self, source: str, path: str, value: Any, depth: int) -> None:
        if isinstance(value, dict) and value and depth < _DEPTH:
            for key, child in list(value.items())[:_PATHS]:
                name = str(key)[:VALUE_LIMIT]
                self.walk(source, f"{path}.{name}" if path else name, child, depth + 1)
        elif isinstance(value, list) and depth < _DEPTH:
            self.add(source, f"len({path})", len(value))
            for child in value[:_ELEMENTS]:
                self.walk(source, f"{path}[]", child, depth + 1)
        else:
            self.add(source, path, value)


def _facts(row: PoisonRecord | Message) -> dict[str, Any]:
    """Return what a message is, apart from its content."""
    found: dict[str, Any] = {"name": row.name, "kind": str(row.kind), "priority": row.priority}
    found |= {"stream": row.stream, "key": row.key, "attempts": row.attempts}
    found |= {"origin": row.origin, "instance": row.instance}
    if isinstance(row, PoisonRecord):
        found |= {"queue": row.queue, "release": row.release or None}
        found["reason"] = FailureReason.read(row.reason).name
    elif isinstance(row.death, dict):
        # A message in a dead queue keeps the facts of its death.
        names = ("queue", "release", "key", "attempts")
        found |= {name: row.death[name] for name in names if name in row.death}
        if isinstance(row.death.get("reason"), int):
            found["reason"] = FailureReason.read(row.death["reason"]).name
    return {key: value for key, value in found.items() if value is not None}


def _choose(
    model: Any,
    order: str,
    fingerprints: Collection[str],
    look: _PathCounts,
    alias: str,
    *,
    payloads: bool,
) -> tuple[list[int], int]:
    """Return the ids of the latest deaths, and the number of those that are too large."""
    found: list[Any] = []
    room = SAMPLE - look.sampled
    for fingerprint in fingerprints:
        rows = model.objects.using(alias).filter(fingerprint=fingerprint)
        size = Coalesce(Length("payload"), 0) + Coalesce(Length("headers"), 0)
        found += rows.order_by(order, "-pk").annotate(size=size).values_list("pk", "size")[:room]
    ids, large = [], 0
    for id, size in found[:room]:
        if payloads and (size > LARGEST or look.size + size > ALL):
            large += 1
            continue
        look.size += size
        ids.append(id)
    return ids, large


def _read(model: Any, ids: list[int], alias: str, *, payloads: bool) -> Iterator[Any]:
    rows = model.objects.using(alias).filter(pk__in=ids).defer("history", "workers", "progress")
    if not payloads:
        rows = rows.defer("history", "workers", "progress", "payload", "headers")
    yield from rows.order_by("-pk").iterator(chunk_size=50)
