"""
Outcomes of retried messages, as of now.

The sweep adds outcomes to the audit entries, a batch at a time, and finds completed messages.
Between two sweeps an entry lags behind its messages. Pages therefore add the open rows to the
numbers of an entry: rows with the outcome of a death, and rows without an outcome whose message is
in no queue, which the sweep will count as completed. Only reads, at most LOOK rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db.models import Exists, OuterRef

from ..models import Act, AuditedMessage, AuditEntry, Message, OutboxMessage, primary_alias
from ..sql.planner import by_index

#: Open rows read over all entries, oldest first.
LOOK = 10_000
#: If there are more, the rows of entries with at most so many messages are read entry by entry.
SMALL = 1_000
#: Rows in one query: some builds of SQLite take no more parameters.
_CHUNK = 900

#: How often everything is read if a sweep interferes.
_TRIES = 3
_NUMBERS = ("done", "succeeded", "died_same", "died_other")

_Outcome = AuditedMessage.Outcome


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """How many messages of a retry ended in which way."""

    succeeded: int = 0
    died_same: int = 0
    died_other: int = 0
    removed: int = 0
    #: Waiting or running.
    open: int = 0


def attach_outcomes(entries: Iterable[AuditEntry], *, using: str | None = None) -> None:
    """
    Give each entry its `outcomes`.

    A sweep that commits between the read of the entries and the read of the rows moves numbers from
    the rows to the entries. So the entries are read again, and if they changed, everything is.
    """
    alias = primary_alias(using)
    found = list(entries)
    unsettled = [entry for entry in found if entry.act == Act.RETRY and entry.open]
    for _ in range(_TRIES):
        look = _Look(alias)
        for entry in found:
            entry.outcomes = look.of(entry)  # type: ignore[attr-defined]
        if not _changed(unsettled, alias):
            return


def outcomes_of(entry: AuditEntry) -> Outcomes:
    """Return the outcomes of the messages of one entry."""
    if not hasattr(entry, "outcomes"):
        attach_outcomes([entry], using=entry._state.db)
    return entry.outcomes  # type: ignore[attr-defined, no-any-return]


def _changed(entries: Sequence[AuditEntry], using: str) -> bool:
    """Refresh the numbers of these entries; return whether any of them changed."""
    rows = AuditEntry.objects.using(using).filter(pk__in=[entry.pk for entry in entries])
    current = {row["pk"]: row for row in rows.values("pk", *_NUMBERS)} if entries else {}
    changed = False
    for entry in entries:
        for name in _NUMBERS:
            value = current.get(entry.pk, {}).get(name, getattr(entry, name))
            changed |= value != getattr(entry, name)
            setattr(entry, name, value)
    return changed


class _Look:
    """Open rows at one moment; rows of all entries are read once, when first needed."""

    def __init__(self, using: str) -> None:
        self._using = using

    def of(self, entry: AuditEntry) -> Outcomes:
        known = Outcomes(
            succeeded=entry.succeeded, died_same=entry.died_same, died_other=entry.died_other
        )
        if entry.act != Act.RETRY or not entry.open:
            return known
        found, whole = self._of_all
        if whole:
            return _add(known, found[entry.pk], entry.open)
        if entry.done <= SMALL:
            rows = list(self._open_rows().filter(entry=entry)[: SMALL + 1])
            return _add(known, _by_entry(self._using, rows)[entry.pk], entry.open)
        # Some of its open rows may be beyond LOOK: the rest of the entry counts as open.
        counts = found[entry.pk]
        seen = sum(counts.values()) - counts[None]
        return _add(known, Counter({**counts, None: entry.open - seen}), entry.open)

    def _open_rows(self) -> Any:
        rows = AuditedMessage.objects.using(self._using).filter(is_open=True).order_by("pk")
        return rows.values_list("pk", "entry_id", "outcome")

    @cached_property
    def _of_all(self) -> tuple[defaultdict[int, Counter[int | None]], bool]:
        with by_index(self._using):
            rows = list(self._open_rows()[: LOOK + 1])
        return _by_entry(self._using, rows[:LOOK]), len(rows) <= LOOK


def settle_rows(rows: Sequence[AuditedMessage], *, using: str | None = None) -> None:
    """Give open rows the outcome that the sweep would give them; nothing is stored."""
    alias = primary_alias(using)
    completed = _completed(alias, [row.pk for row in rows if row.is_open and not row.outcome])
    for row in rows:
        if row.pk in completed:
            row.outcome = _Outcome.SUCCEEDED


def _add(known: Outcomes, counts: Counter[int | None], unknown: int) -> Outcomes:
    """
    Add the outcomes of open rows to the numbers of an entry.

    Messages that are neither in these numbers nor open were removed: only removals are closed
    without being added to the entry.
    """
    still = counts[None]
    return Outcomes(
        succeeded=known.succeeded + counts[_Outcome.SUCCEEDED],
        died_same=known.died_same + counts[_Outcome.DIED_SAME],
        died_other=known.died_other + counts[_Outcome.DIED_OTHER],
        removed=counts[_Outcome.REMOVED] + max(0, unknown - sum(counts.values())),
        open=still,
    )


def _by_entry(
    using: str, rows: Sequence[tuple[int, int, int | None]]
) -> defaultdict[int, Counter[int | None]]:
    """Count rows by entry and outcome; None are messages that wait or run."""
    completed = _completed(using, [pk for pk, _entry, outcome in rows if outcome is None])
    found: defaultdict[int, Counter[int | None]] = defaultdict(Counter)
    for pk, entry, outcome in rows:
        found[entry][_Outcome.SUCCEEDED if pk in completed else outcome] += 1
    return found


def _completed(using: str, pks: Sequence[int]) -> set[int]:
    """
    Return the rows whose message is in no queue, not in the outbox, and did not die.

    The statement checks the outcome again: a message may have died since the rows were read.
    """
    rows = AuditedMessage.objects.using(using).filter(is_open=True, outcome=None)
    there = Message.objects.using(using).filter(pk=OuterRef("message_id"))
    unpublished = OutboxMessage.objects.using(using).filter(message_id=OuterRef("message_id"))
    found: set[int] = set()
    with by_index(using):
        for start in range(0, len(pks), _CHUNK):
            gone = rows.filter(
                ~Exists(there), ~Exists(unpublished), pk__in=pks[start : start + _CHUNK]
            )
            found.update(gone.values_list("pk", flat=True))
    return found
