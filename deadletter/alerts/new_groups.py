"""
Which causes of death are new?

A group is new when its first record is not older than the first decision ever made and no alert is
remembered for it, or when it died later than the last death its closed alert knew of. Nothing is
taken from the order of ids or from a watermark of time, because records commit out of order: one
with a lower id, or an earlier time, can appear after a later one was seen. Whenever it appears, its
group is compared with what was told. Alerts are remembered for KEPT; groups in which nobody died
since then are not new.
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
from .conditions import COUNTED, MOST, Look, Observation, about, later, newest, sample, samples

RULE = Alert.Rule.NEW_GROUP.value
#: Groups looked at in one decision, one index probe each; with more, the next one goes on there.
GROUPS = 2_000
#: How long closed alerts are kept, and so how late a record may appear and still be new.
KEPT = timedelta(days=30)


@dataclass(frozen=True)
class Groups:
    """What was found, and about which fingerprints something is known now."""

    found: list[Observation] = field(default_factory=list)
    after: str = ""
    upto: str | None = None

    def reached(self, fingerprint: str) -> bool:
        return self.after < fingerprint and (self.upto is None or fingerprint <= self.upto)


@dataclass(frozen=True)
class _Group:
    fingerprint: str
    first: datetime
    last: datetime
    #: Its latest record, and the latest of it in a dead queue.
    record: int | None
    buried: int | None


def new_groups(look: Look, state: AlertState, open: dict[str, Alert]) -> Groups:
    """Find groups that began, and open ones that still grow. Moves the cursor of the state."""
    if not look.policy.of_kind(RULE):
        return Groups()
    after = state.cursor
    groups = _read(look, after)
    upto = groups[-1].fingerprint if len(groups) >= GROUPS else None
    state.cursor = upto or ""
    known = {alert.subject for alert in open.values() if alert.rule == RULE}
    recent = look.now - look.policy.recover_after
    found = [
        _grown(group) for group in groups if group.fingerprint in known and group.last > recent
    ]
    begun = [
        group
        for group in groups
        if group.fingerprint not in known
        and group.first >= state.started_at
        and group.last >= look.now - KEPT
    ]
    found += _begun(look, _untold(look, begun))
    return Groups(found, after, upto)


def recount(look: Look, alert: Alert) -> int:
    """Bring an alert's count and sample up to date; return how many are new since it was told."""
    records = look.poison().filter(fingerprint=alert.subject)
    since = records.filter(poisoned_at__gte=alert.since)
    buried = Message.objects.using(look.using).filter(fingerprint=alert.subject)
    moved = buried.filter(died_at__gte=alert.since)
    # What died has died, though somebody may have retried or removed it since.
    alert.count = max(alert.count, _counted(since) + _counted(moved, by="died_at"))
    last = buried.order_by("-died_at", "-id").values_list("pk", flat=True).first()
    latest = later(newest(records), look.dead(last).get(last))
    if latest is not None:
        alert.detail = about(latest)
        alert.error = sample(latest)
    if alert.told_at is None:
        return 0
    told = datetime.fromtimestamp(alert.told_mark, tz=look.now.tzinfo)
    fresh = _counted(since.filter(poisoned_at__gt=told))
    return fresh + _counted(moved.filter(died_at__gt=told), by="died_at")


def weights(look: Look, since: datetime) -> Counter[str]:
    """Count the newest COUNTED dead letters since then by group, to find the largest groups."""
    records = look.poison().filter(poisoned_at__gte=since).order_by("-poisoned_at", "-id")
    found = Counter(records.values_list("fingerprint", flat=True)[:COUNTED])
    for queue_id in look.dead_queues:
        moved = Message.objects.using(look.using).filter(queue_id=queue_id, died_at__gte=since)
        moved = moved.order_by("-queue_id", "-died_at", "-id")
        found.update(moved.values_list("fingerprint", flat=True)[:COUNTED])
    return found


def _counted(rows: Any, *, by: str = "poisoned_at") -> int:
    return int(rows.order_by(by, "id").values("pk")[: COUNTED + 1].count())


def _read(look: Look, after: str) -> list[_Group]:
    connection = connections[look.using]
    rows = sql.run(connection, "read_group_times", {"after": after, "limit": GROUPS})
    return [
        _Group(
            row[0],
            sql.as_datetime(row[1], connection) or look.now,
            sql.as_datetime(row[2], connection) or look.now,
            row[3],
            row[4],
        )
        for row in rows
    ]


def _grown(group: _Group) -> Observation:
    return Observation(
        rule=RULE,
        subject=group.fingerprint,
        since=group.first,
        last_at=group.last,
        mark=group.last.timestamp(),
    )


def _untold(look: Look, groups: list[_Group]) -> Iterator[tuple[_Group, Any, datetime | None]]:
    """
    Return groups that died since their last alert, if any: with what died last of each, and the
    time up to which their deaths are old news, if there is one.

    That is the last death the alert knew of and not when it was closed: a record may have a time
    before that and commit after it. Our own are left out, and queues that no rule asks for.
    """
    keys = [f"{RULE}:{group.fingerprint}" for group in groups]
    rows = Alert.objects.using(look.using).filter(key__in=keys, closed_at__isnull=False)
    # The last one of each counts.
    told: dict[str, Any] = dict(rows.order_by("last_at").values_list("subject", F("last_at")))
    news = [
        group
        for group in groups
        if group.fingerprint not in told or told[group.fingerprint] < group.last
    ]
    ids = [group.record for group in news if group.record is not None]
    records = look.poison().filter(pk__in=ids)
    queues = look.wanted_queues(RULE)
    if queues is not None:
        records = records.filter(queue__in=queues)
    latest = {record.pk: record for record in samples(records)[:MOST]}
    forgotten = look.now - KEPT
    dead = look.dead(*[group.buried for group in news if group.buried is not None][:MOST])
    for group in news:
        moved = dead.get(group.buried)
        if moved is not None and queues is not None and moved.queue not in queues:
            moved = None
        last = later(latest.get(group.record or 0), moved)
        if last is not None:
            old = forgotten if group.first < forgotten else None
            yield group, last, told.get(group.fingerprint, old)


def _begun(
    look: Look, groups: Iterable[tuple[_Group, Any, datetime | None]]
) -> Iterator[Observation]:
    for group, record, told in groups:
        yield Observation(
            rule=RULE,
            subject=group.fingerprint,
            since=group.first if told is None else _first_since(look, group, told),
            last_at=group.last,
            count=1,
            mark=group.last.timestamp(),
            detail=about(record),
            error=sample(record),
        )


def _first_since(look: Look, group: _Group, told: datetime) -> datetime:
    records = look.poison().filter(fingerprint=group.fingerprint, poisoned_at__gt=told)
    buried = Message.objects.using(look.using).filter(fingerprint=group.fingerprint)
    buried = buried.filter(died_at__gt=told).order_by("died_at", "id")
    times = records.order_by("poisoned_at", "id").values_list(F("poisoned_at"), flat=True)
    moves = buried.values_list(F("died_at"), flat=True)
    return min([*times[:1], *moves[:1]], default=group.last)
