"""The timeline of a failure group: what people did and wrote, and what happened by itself."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.db import connections

from .. import sql
from ..models import Act, AuditedMessage, AuditEntry, GroupEvent, primary_alias
from .failure_groups import as_rows, find_main, read_releases
from .retry_outcomes import Outcomes, attach_outcomes, settle_rows

#: Events, and acts on the messages of a group, that are read: the latest.
EVENTS, ACTS = 1_000, 200
#: Messages of a group in an act that touched others as well are counted up to this limit, and
#: their outcomes read up to it.
COUNTED = 1_000


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """One line of a timeline."""

    at: datetime
    #: A GroupEvent.Kind, an Act ("retry", "remove", …), "edit": a retry with an edited payload, or
    #: "release": the beginning of a release in which the group failed.
    kind: str
    #: A user name, or what acted; "": nobody.
    by: str = ""
    #: The text of a note, the reason of an act, or the name of a release.
    text: str = ""
    #: What changed, as in GroupEvent.detail.
    detail: dict[str, Any] = field(default_factory=dict)
    #: The GroupEvent, to answer a note; None for other entries.
    event_id: int | None = None
    #: The audit entry of an act on messages.
    entry_id: int | None = None
    #: Messages of this group that the act touched; COUNTED + 1: at least so many.
    messages: int = 0
    #: How the retried messages of this group ended; None: no retry, or unknown.
    outcomes: Outcomes | None = None
    #: The fingerprint of the merged group that it belongs to; "": the group itself.
    merged: str = ""
    #: The answers to a note, oldest first; answers to answers are among them.
    replies: tuple[TimelineEntry, ...] = ()

    @property
    def last_at(self) -> datetime:
        """The time of the latest answer, or of the entry itself: its place in the timeline."""
        return max((self.at, *(reply.at for reply in self.replies)))


@dataclass(frozen=True, kw_only=True)
class GroupAct:
    """An audited act on messages of a group."""

    entry: AuditEntry
    #: Messages of the group; COUNTED + 1: at least so many.
    messages: int
    is_edit: bool
    #: Only for retries, if the number of messages is known.
    outcomes: Outcomes | None


def timeline(
    fingerprint: str,
    *,
    limit: int = 50,
    before: datetime | None = None,
    using: str | None = None,
) -> list[TimelineEntry]:
    """
    Return what happened to a group, the latest first; a note stands at its latest answer.

    For the next page, `before` is the `last_at` of the last entry. Entries of one moment are never
    divided: a page may be longer than `limit`.
    """
    alias = primary_alias(using)
    row = find_main(fingerprint, using=alias)
    if row is None:
        return []
    (group,) = as_rows([row], using=alias)
    found = [
        *_events(group.fingerprints, alias),
        *_acts(group.fingerprints, alias),
        *_releases(group.fingerprints, alias),
    ]
    if before is not None:
        found = [entry for entry in found if entry.last_at < before]
    found.sort(key=lambda entry: (entry.last_at, entry.event_id or 0), reverse=True)
    page = found[:limit]
    end = found[limit:]
    page += [entry for entry in end if page and entry.last_at == page[-1].last_at]
    return _with_numbers(page, group.fingerprints, alias)


def list_group_acts(
    fingerprints: Collection[str], *, limit: int = 50, using: str | None = None
) -> list[GroupAct]:
    """Return the audited acts on messages with these fingerprints, the latest first."""
    alias = primary_alias(using)
    return _read_acts(_entry_ids(fingerprints, limit, alias), fingerprints, alias)


def _read_acts(ids: Sequence[int], fingerprints: Collection[str], alias: str) -> list[GroupAct]:
    """Read acts with a fixed number of statements, and one for each that touched others as well."""
    rows = AuditEntry.objects.using(alias).filter(pk__in=ids).defer(*AuditEntry.LARGE)
    entries = list(rows.order_by("-pk"))
    edited = AuditEntry.objects.using(alias).filter(pk__in=ids, payload_after__isnull=False)
    edits = set(edited.values_list("pk", flat=True))
    whole = {entry.pk for entry in entries if _is_of_group(entry, fingerprints)}
    parts = {
        entry.pk: _touched(entry, fingerprints, alias) for entry in entries if entry.pk not in whole
    }
    retries = [entry for entry in entries if entry.act == Act.RETRY]
    attach_outcomes([entry for entry in retries if entry.pk in whole], using=alias)
    settle_rows(
        [row for entry in retries if entry.pk in parts for row in parts[entry.pk]], using=alias
    )
    return [
        GroupAct(
            entry=entry,
            messages=len(parts[entry.pk]) if entry.pk in parts else entry.done,
            is_edit=entry.pk in edits,
            outcomes=_outcomes_of(entry, parts.get(entry.pk)),
        )
        for entry in entries
    ]


def _is_of_group(entry: AuditEntry, fingerprints: Collection[str]) -> bool:
    """True if the act was on records of the group only: its filter says so."""
    wanted = entry.selection if isinstance(entry.selection, dict) else {}
    return wanted.get("fingerprint") in fingerprints


def _touched(entry: AuditEntry, fingerprints: Collection[str], alias: str) -> list[AuditedMessage]:
    rows = AuditedMessage.objects.using(alias).filter(
        entry=entry, fingerprint__in=list(fingerprints)
    )
    return list(rows.order_by("pk")[: COUNTED + 1])


def _outcomes_of(entry: AuditEntry, part: Sequence[AuditedMessage] | None) -> Outcomes | None:
    if entry.act != Act.RETRY:
        return None
    if part is None:
        return entry.outcomes  # type: ignore[attr-defined, no-any-return]
    return _outcomes(part) if len(part) <= COUNTED else None


def _outcomes(rows: Iterable[AuditedMessage]) -> Outcomes:
    kinds = AuditedMessage.Outcome
    counts = Counter(row.outcome for row in rows)
    return Outcomes(
        succeeded=counts[kinds.SUCCEEDED],
        died_same=counts[kinds.DIED_SAME],
        died_other=counts[kinds.DIED_OTHER],
        removed=counts[kinds.REMOVED],
        open=counts[None],
    )


def _entry_ids(fingerprints: Collection[str], limit: int, alias: str) -> list[int]:
    found: set[int] = set()
    for fingerprint in fingerprints:
        given = {"fingerprint": fingerprint, "before": 2**63 - 1, "limit": limit}
        found |= {row[0] for row in sql.run(connections[alias], "read_group_acts", given)}
    return sorted(found, reverse=True)[:limit]


def _events(fingerprints: Sequence[str], alias: str) -> list[TimelineEntry]:
    rows = GroupEvent.objects.using(alias).filter(fingerprint__in=fingerprints)
    events = {row.pk: row for row in rows.order_by("-pk")[:EVENTS]}
    replies: defaultdict[int, list[GroupEvent]] = defaultdict(list)
    first = []
    for row in events.values():
        root = _root(row, events)
        if root is row:
            first.append(row)
        else:
            replies[root.pk].append(row)
    main = fingerprints[0]
    return [_entry(row, main, sorted(replies[row.pk], key=lambda one: one.pk)) for row in first]


def _root(row: GroupEvent, events: dict[int, GroupEvent]) -> GroupEvent:
    """Return the first note of a thread; the oldest that was read if the thread is very long."""
    while row.answers_id is not None and row.answers_id in events:
        row = events[row.answers_id]
    return row


def _entry(row: GroupEvent, main: str, replies: Sequence[GroupEvent] = ()) -> TimelineEntry:
    return TimelineEntry(
        at=row.at,
        kind=str(row.kind),
        by=row.by,
        text=row.text,
        detail=row.detail if isinstance(row.detail, dict) else {},
        event_id=row.pk,
        merged="" if row.fingerprint == main else row.fingerprint,
        replies=tuple(_entry(reply, main) for reply in replies),
    )


def _acts(fingerprints: Sequence[str], alias: str) -> list[TimelineEntry]:
    """Return the acts without their numbers, which only those of the page need."""
    ids = _entry_ids(fingerprints, ACTS, alias)
    rows = AuditEntry.objects.using(alias).filter(pk__in=ids).order_by("-pk")
    found = rows.values_list("pk", "at", "act", "by", "why")
    return [
        TimelineEntry(at=at, kind=str(act), by=by, text=why, entry_id=pk)
        for pk, at, act, by, why in found
    ]


def _with_numbers(
    page: Sequence[TimelineEntry], fingerprints: Sequence[str], alias: str
) -> list[TimelineEntry]:
    ids = [entry.entry_id for entry in page if entry.entry_id is not None]
    acts = {act.entry.pk: act for act in _read_acts(ids, fingerprints, alias)} if ids else {}
    found = []
    for entry in page:
        act = acts.get(entry.entry_id or 0)
        if act is not None:
            kind = "edit" if act.is_edit else entry.kind
            entry = replace(entry, kind=kind, messages=act.messages, outcomes=act.outcomes)
        found.append(entry)
    return found


def _releases(fingerprints: Sequence[str], alias: str) -> list[TimelineEntry]:
    return [
        TimelineEntry(
            at=one.began_at or one.first_at,
            kind="release",
            text=one.name,
            detail={"failures": one.failures, "deaths": one.deaths},
        )
        for one in read_releases(fingerprints, using=alias)
    ]
