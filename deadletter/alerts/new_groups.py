"""
The condition of the rule for new groups: a cause of death that no notice has reported.

A group is new when its first record is not older than the first decision ever made and no alert is
stored for it, or when a message of it died later than the last death that its closed alert knew of.
Neither the order of ids nor a watermark of time is used, because records commit out of order: one
with a lower id, or an earlier time, can appear after a later one was seen. Whenever a record
appears, its group is compared with the stored alerts. Closed alerts are stored for KEPT; groups
without a death since then are not new.

A merged group is read with its main group, and speaks as that one. Muted and resolved groups are
left out, see main_groups.py. A regressed group speaks by the rule for regressed groups, if there is
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import F

from .. import sql
from ..models import Alert, AlertState, FailureGroup, GroupState, Message
from . import regressed_groups
from .context import (
    COUNTED,
    MOST,
    AlertContext,
    Observation,
    alert_poison,
    identify,
    later,
    newest,
    sample_error,
    samples,
)
from .main_groups import CLOSED_AS, Standing, members_of, read_members

RULE = Alert.Rule.NEW_GROUP.value
#: Groups read by one decision, one index probe each; the next decision continues there.
GROUPS = 2_000
#: Groups of one alert whose latest dead letter is looked at for the example.
EXAMPLES = 10
#: How long closed alerts are kept, and so how late a record may appear and still be new.
KEPT = timedelta(days=30)


@dataclass(frozen=True)
class GroupObservations:
    """The observations of one decision, and the range of fingerprints that it read."""

    found: list[Observation] = field(default_factory=list)
    after: str = ""
    upto: str | None = None
    #: The last deaths in groups that are merged into the subjects of open alerts, by main group
    #: and by the groups' own counts, unless the range is all there is.
    merged: dict[str, datetime] = field(default_factory=dict)

    def has_ended(self, fingerprint: str, recent: datetime) -> bool:
        """True if the group was read, and none of its own or merged messages died recently."""
        covered = self.after < fingerprint and (self.upto is None or fingerprint <= self.upto)
        last = self.merged.get(fingerprint)
        return covered and (last is None or last <= recent)


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
    known = {alert.subject: alert for alert in open.values() if alert.rule == RULE}
    recent = context.now - context.policy.recover_after
    standings = context.standings.read([group.fingerprint for group in groups])
    mains = [
        group
        for group in _by_main(groups, standings)
        if not _is_left_out(context, standings[group.fingerprint])
    ]
    found = [
        _growing(group, known[group.fingerprint])
        for group in mains
        if group.fingerprint in known and group.last > recent
    ]
    begun = [
        group
        for group in mains
        if group.fingerprint not in known
        and group.first >= state.started_at
        and group.last >= context.now - KEPT
    ]
    found += _new(context, _unreported(context, begun, standings))
    has_read_all = not after and upto is None
    merged = {} if has_read_all else _last_merged_deaths(context, known)
    return GroupObservations(found, after, upto, merged)


def _by_main(
    groups: Iterable[_GroupTimes], standings: dict[str, Standing]
) -> Iterator[_GroupTimes]:
    """Yield one row for each main group: with the first and the last death of all of its own."""
    found: dict[str, _GroupTimes] = {}
    for group in groups:
        main = standings[group.fingerprint].main
        standings.setdefault(main, standings[group.fingerprint])
        other = found.get(main, group)
        latest = max(group, other, key=lambda one: one.last)
        found[main] = replace(latest, fingerprint=main, first=min(group.first, other.first))
    yield from found.values()


def _is_left_out(context: AlertContext, standing: Standing) -> bool:
    is_regressed = standing.state == GroupState.REGRESSED
    return standing.is_quiet or (
        is_regressed and regressed_groups.is_watched(context, standing.queue)
    )


def _last_merged_deaths(context: AlertContext, known: Iterable[str]) -> dict[str, datetime]:
    rows = FailureGroup.objects.using(context.using).filter(merged_into__in=sorted(known))
    dead = rows.filter(last_died_at__isnull=False)
    times = dead.order_by("last_died_at").values_list("merged_into", F("last_died_at"))
    return dict(times)


def recount(context: AlertContext, alert: Alert) -> int:
    """Update an alert's count and example; return the number of deaths since the last notice."""
    members = members_of(context.using, alert.subject)
    # A death counts even if the message was retried or removed since.
    count = count_deaths(context.using, members, {"gte": alert.since})
    alert.count = max(alert.count, count)
    latest = None
    for fingerprint in members[:EXAMPLES]:
        latest = later(latest, _newest(context, fingerprint))
    # A group can come back with a failure; then its last death is older.
    if latest is not None and (alert.rule == RULE or latest.poisoned_at >= alert.since):
        kept = (regressed_groups.RELEASE, regressed_groups.RESOLVED_IN, CLOSED_AS)
        of_group = {key: alert.detail[key] for key in kept if key in alert.detail}
        alert.detail = {**identify(latest), **of_group}
        alert.error = sample_error(latest)
    if alert.told_at is None or alert.rule != RULE:
        return 0
    reported = datetime.fromtimestamp(alert.told_mark, tz=context.now.tzinfo)
    return count_deaths(context.using, members, {"gte": alert.since, "gt": reported})


def _newest(context: AlertContext, fingerprint: str) -> Any:
    """Return the dead letter of one group that died last, wherever it is."""
    moved = Message.objects.using(context.using).filter(fingerprint=fingerprint)
    last = moved.order_by("-died_at", "-id").values_list("pk", flat=True).first()
    records = context.poison().filter(fingerprint=fingerprint)
    return later(newest(records), context.moved_as_records(last).get(last))


def count_deaths(
    using: str,
    members: Iterable[str],
    times: dict[str, datetime] | None = None,
    *,
    limit: int | None = None,
) -> int:
    """
    Count the dead letters of groups, records and messages in dead queues, by the times of death.

    Each is counted up to `limit` + 1, in the order of an index, until the sum exceeds `limit`,
    which is COUNTED by default.
    """
    total, most = 0, COUNTED if limit is None else limit
    for fingerprint in members:
        records = alert_poison(using).filter(fingerprint=fingerprint)
        records = records.filter(**{f"poisoned_at__{op}": at for op, at in (times or {}).items()})
        moved = Message.objects.using(using).filter(fingerprint=fingerprint)
        moved = moved.filter(**{f"died_at__{op}": at for op, at in (times or {}).items()})
        total += _counted(records, limit=most) + _counted(moved, by="died_at", limit=most)
        if total > most:
            break
    return total


def weights(context: AlertContext, since: datetime) -> Counter[str]:
    """Count the newest COUNTED dead letters since a time by group, to find the largest groups."""
    records = context.poison().filter(poisoned_at__gte=since).order_by("-poisoned_at", "-id")
    found = Counter(records.values_list("fingerprint", flat=True)[:COUNTED])
    for queue_id in context.dead_queues:
        moved = Message.objects.using(context.using).filter(queue_id=queue_id, died_at__gte=since)
        moved = moved.order_by("-queue_id", "-died_at", "-id")
        found.update(moved.values_list("fingerprint", flat=True)[:COUNTED])
    return found


def _counted(rows: Any, *, by: str = "poisoned_at", limit: int) -> int:
    return int(rows.order_by(by, "id").values("pk")[: limit + 1].count())


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


def _growing(group: _GroupTimes, alert: Alert) -> Observation:
    # Of merged groups, those outside the range may have died later.
    last = max(group.last, alert.last_at)
    return Observation(
        rule=RULE,
        subject=group.fingerprint,
        since=group.first,
        last_at=last,
        mark=max(last.timestamp(), alert.mark),
    )


def _unreported(
    context: AlertContext, groups: list[_GroupTimes], standings: dict[str, Standing]
) -> Iterator[tuple[_GroupTimes, Any, datetime | None]]:
    """
    Yield the groups with a death that no alert covers: each with its latest dead letter and the
    time up to which its deaths are covered, if there is one.

    That time is the last death the alert knew of, not the time it was closed: a record may have a
    time before that and commit after it. A person who acts on a group knows of its deaths too.
    Left out are internal messages and queues that no rule is for.
    """
    reported = _reported(context, groups, standings)
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


def _reported(
    context: AlertContext, groups: list[_GroupTimes], standings: dict[str, Standing]
) -> dict[str, datetime]:
    """Return up to when the deaths of groups were reported, for those of which any were."""
    members = read_members(context.using, [group.fingerprint for group in groups])
    main_of = {one: main for main, own in members.items() for one in own}
    keys = [f"{RULE}:{fingerprint}" for fingerprint in main_of]
    found: dict[str, datetime] = {}
    for start in range(0, len(keys), GROUPS):
        rows = Alert.objects.using(context.using).filter(key__in=keys[start : start + GROUPS])
        for subject, last_at in rows.values_list("subject", F("last_at")):
            main = main_of[subject]
            found[main] = max(last_at, found.get(main, last_at))
    for group in groups:
        known = standings[group.fingerprint].known_until
        if known is not None:
            found[group.fingerprint] = max(known, found.get(group.fingerprint, known))
    return found


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
    found = [group.last]
    for fingerprint in members_of(context.using, group.fingerprint):
        records = context.poison().filter(fingerprint=fingerprint, poisoned_at__gt=reported)
        moved = Message.objects.using(context.using).filter(fingerprint=fingerprint)
        moved = moved.filter(died_at__gt=reported).order_by("died_at", "id")
        times = records.order_by("poisoned_at", "id").values_list(F("poisoned_at"), flat=True)
        found += [*times[:1], *moved.values_list(F("died_at"), flat=True)[:1]]
    return min(found)
