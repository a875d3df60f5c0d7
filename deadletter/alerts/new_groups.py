"""
The condition of the rule for new groups: a cause of death that no notice has reported.

A group is new when its first record is not older than the first decision ever made and no alert is
stored for it, or when a message of it died later than the last death that its closed alert knew of.
Neither the order of ids nor a watermark of time is used, because records commit out of order: one
with a lower id, or an earlier time, can appear after a later one was seen. Whenever a record
appears, its group is compared with the stored alerts. Closed alerts are stored for KEPT; groups
without a death since then are not new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import F

from .. import sql
from ..models import Alert, AlertState, Message
from .context import (
    COUNTED,
    MOST,
    AlertContext,
    Observation,
    identify,
    later,
    newest,
    sample_error,
    samples,
)

RULE = Alert.Rule.NEW_GROUP.value
#: Groups read by one decision, one index probe each; the next decision continues there.
GROUPS = 2_000
#: How long closed alerts are kept, and so how late a record may appear and still be new.
KEPT = timedelta(days=30)


@dataclass(frozen=True)
class GroupObservations:
    """The observations of one decision, and the range of fingerprints that it read."""

    found: list[Observation] = field(default_factory=list)
    after: str = ""
    upto: str | None = None

    def covers(self, fingerprint: str) -> bool:
        return self.after < fingerprint and (self.upto is None or fingerprint <= self.upto)


@dataclass(frozen=True)
class _GroupTimes:
    fingerprint: str
    first: datetime
    last: datetime
    #: The ids of its latest poison record and its latest message in a dead queue.
    record: int | None
    moved: int | None


def new_groups(
    context: AlertContext, state: AlertState, open: dict[str, Alert]
) -> GroupObservations:
    """Find groups that are new, and open ones that still grow. Moves the cursor of the state."""
    if not context.policy.of_kind(RULE):
        return GroupObservations()
    after = state.cursor
    groups = _read(context, after)
    upto = groups[-1].fingerprint if len(groups) >= GROUPS else None
    state.cursor = upto or ""
    known = {alert.subject for alert in open.values() if alert.rule == RULE}
    recent = context.now - context.policy.recover_after
    found = [
        _growing(group) for group in groups if group.fingerprint in known and group.last > recent
    ]
    begun = [
        group
        for group in groups
        if group.fingerprint not in known
        and group.first >= state.started_at
        and group.last >= context.now - KEPT
    ]
    found += _new(context, _unreported(context, begun))
    return GroupObservations(found, after, upto)


def recount(context: AlertContext, alert: Alert) -> int:
    """Update an alert's count and example; return the number of deaths since the last notice."""
    records = context.poison().filter(fingerprint=alert.subject)
    since = records.filter(poisoned_at__gte=alert.since)
    in_dead_queues = Message.objects.using(context.using).filter(fingerprint=alert.subject)
    moved = in_dead_queues.filter(died_at__gte=alert.since)
    # A death counts even if the message was retried or removed since.
    alert.count = max(alert.count, _counted(since) + _counted(moved, by="died_at"))
    last = in_dead_queues.order_by("-died_at", "-id").values_list("pk", flat=True).first()
    latest = later(newest(records), context.moved_as_records(last).get(last))
    if latest is not None:
        alert.detail = identify(latest)
        alert.error = sample_error(latest)
    if alert.told_at is None:
        return 0
    reported = datetime.fromtimestamp(alert.told_mark, tz=context.now.tzinfo)
    fresh = _counted(since.filter(poisoned_at__gt=reported))
    return fresh + _counted(moved.filter(died_at__gt=reported), by="died_at")


def weights(context: AlertContext, since: datetime) -> Counter[str]:
    """Count the newest COUNTED dead letters since a time by group, to find the largest groups."""
    records = context.poison().filter(poisoned_at__gte=since).order_by("-poisoned_at", "-id")
    found = Counter(records.values_list("fingerprint", flat=True)[:COUNTED])
    for queue_id in context.dead_queues:
        moved = Message.objects.using(context.using).filter(queue_id=queue_id, died_at__gte=since)
        moved = moved.order_by("-queue_id", "-died_at", "-id")
        found.update(moved.values_list("fingerprint", flat=True)[:COUNTED])
    return found


def _counted(rows: Any, *, by: str = "poisoned_at") -> int:
    return int(rows.order_by(by, "id").values("pk")[: COUNTED + 1].count())


def _read(context: AlertContext, after: str) -> list[_GroupTimes]:
    connection = connections[context.using]
    rows = sql.run(connection, "read_group_times", {"after": after, "limit": GROUPS})
    return [
        _GroupTimes(
            row[0],
            sql.as_datetime(row[1], connection) or context.now,
            sql.as_datetime(row[2], connection) or context.now,
            row[3],
            row[4],
        )
        for row in rows
    ]


def _growing(group: _GroupTimes) -> Observation:
    return Observation(
        rule=RULE,
        subject=group.fingerprint,
        since=group.first,
        last_at=group.last,
        mark=group.last.timestamp(),
    )


def _unreported(
    context: AlertContext, groups: list[_GroupTimes]
) -> Iterator[tuple[_GroupTimes, Any, datetime | None]]:
    """
    Yield the groups with a death that no alert covers: each with its latest dead letter and the
    time up to which its deaths are covered, if there is one.

    That time is the last death the alert knew of, not the time it was closed: a record may have a
    time before that and commit after it. Left out are internal messages and queues that no
    rule is for.
    """
    keys = [f"{RULE}:{group.fingerprint}" for group in groups]
    rows = Alert.objects.using(context.using).filter(key__in=keys, closed_at__isnull=False)
    # The last alert of each subject counts.
    reported: dict[str, Any] = dict(rows.order_by("last_at").values_list("subject", F("last_at")))
    news = [
        group
        for group in groups
        if group.fingerprint not in reported or reported[group.fingerprint] < group.last
    ]
    ids = [group.record for group in news if group.record is not None]
    records = context.poison().filter(pk__in=ids)
    queues = context.queues_with_rule(RULE)
    if queues is not None:
        records = records.filter(queue__in=queues)
    latest = {record.pk: record for record in samples(records)[:MOST]}
    oldest = context.now - KEPT
    dead = context.moved_as_records(
        *[group.moved for group in news if group.moved is not None][:MOST]
    )
    for group in news:
        moved = dead.get(group.moved)
        if moved is not None and queues is not None and moved.queue not in queues:
            moved = None
        last = later(latest.get(group.record or 0), moved)
        if last is not None:
            old = oldest if group.first < oldest else None
            yield group, last, reported.get(group.fingerprint, old)


def _new(
    context: AlertContext, groups: Iterable[tuple[_GroupTimes, Any, datetime | None]]
) -> Iterator[Observation]:
    for group, record, reported in groups:
        yield Observation(
            rule=RULE,
            subject=group.fingerprint,
            since=group.first if reported is None else _first_since(context, group, reported),
            last_at=group.last,
            count=1,
            mark=group.last.timestamp(),
            detail=identify(record),
            error=sample_error(record),
        )


def _first_since(context: AlertContext, group: _GroupTimes, reported: datetime) -> datetime:
    records = context.poison().filter(fingerprint=group.fingerprint, poisoned_at__gt=reported)
    moved = Message.objects.using(context.using).filter(fingerprint=group.fingerprint)
    moved = moved.filter(died_at__gt=reported).order_by("died_at", "id")
    times = records.order_by("poisoned_at", "id").values_list(F("poisoned_at"), flat=True)
    moves = moved.values_list(F("died_at"), flat=True)
    return min([*times[:1], *moves[:1]], default=group.last)
