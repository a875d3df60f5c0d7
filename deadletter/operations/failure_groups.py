"""
Failure groups: what failed ever with one cause, its state, and what is left of it in the tables.

A group that was merged into another one is shown in that one: its numbers are added, its own row
and its hours stay as they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import (
    Case,
    F,
    IntegerField,
    Max,
    Min,
    OuterRef,
    Q,
    Subquery,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Coalesce, Greatest
from django.db.models.lookups import IsNull
from django.utils import timezone

from .. import clock, sql
from ..models import (
    ApplicationRelease,
    FailureGroup,
    GroupHour,
    GroupState,
    GroupTag,
    PoisonRecord,
    WorkerProcess,
    primary_alias,
)
from ..models.group import OPEN_STATES
from ..redaction import redact_tag
from ..sql.planner import by_index
from ..text import short_repr
from .filter_values import check_text, read_tag
from .streams import HeldStream, get_stream

#: Records and messages in dead queues are counted up to this limit, for each group.
COUNTED = 10_000
#: Halted streams are counted up to this limit.
STREAMS_COUNTED = 1_000
#: Groups that may be merged into one.
MOST_MERGED = 100
#: Halted streams and values of a tag that a group shows.
STREAMS_SHOWN, VALUES_SHOWN, RELEASES_SHOWN = 10, 10, 50
#: A chart up to this long has a point for each hour, a longer one for each day.
HOURLY = timedelta(days=3)
#: Hours of groups are kept so long.
LONGEST_SERIES = timedelta(days=90)
#: Rows in one query: some builds of SQLite take no more parameters.
_CHUNK = 900
#: The filter for all states that need a person.
OPEN = "open"
#: What needs a person comes first.
STATE_ORDER = (*OPEN_STATES, GroupState.MUTED, GroupState.RESOLVED)


@dataclass(frozen=True, kw_only=True)
class GroupFilter:
    """
    A selection of failure groups. Every field narrows it; None matches everything.

    A group also matches if a group that was merged into it does. Raises ValueError, naming the
    field, for a value that no group can have.
    """

    #: A state, or "open": regressed, new and acknowledged.
    state: str | None = None
    #: A user name; "": groups without an owner.
    owner: str | None = None
    #: The group failed in this release.
    release: str | None = None
    #: The queue of the latest failure.
    queue: str | None = None
    name: str | None = None
    #: "key=value": a failure had this tag.
    tag: str | None = None
    #: A part of the name, exception, place, last error or ticket, or the start of the fingerprint.
    text: str | None = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in (OPEN, *GroupState.values):
            there = ", ".join((OPEN, *GroupState.values))
            raise ValueError(f"state: {short_repr(self.state)} is none of {there}")
        for key in ("owner", "release", "queue", "name", "text"):
            if (value := getattr(self, key)) is not None:
                check_text(key, value)
        if self.tag is not None:
            read_tag(self.tag)

    def __bool__(self) -> bool:
        return self != GroupFilter()


@dataclass(frozen=True, kw_only=True)
class FailureGroupRow:
    """A failure group, with the numbers of the groups that were merged into it."""

    fingerprint: str
    name: str
    queue: str
    exception: str
    frame: str
    reason: int
    #: The start of the text of the latest failure.
    error: str
    failures: int
    deaths: int
    first_failed_at: datetime
    last_failed_at: datetime
    first_died_at: datetime | None
    last_died_at: datetime | None
    first_release: str
    last_release: str
    state: str
    state_at: datetime
    #: Who set the state; "": a failure did.
    state_by: str
    muted_until: datetime | None
    muted_until_failures: int | None
    resolved_in: str
    owner: str
    ticket: str
    #: Fingerprints of the groups that were merged into this one.
    aliases: tuple[str, ...] = ()
    #: Poison records now, and messages in dead queues now: each at most COUNTED + 1 a fingerprint.
    records: int = 0
    in_dead_queues: int = 0
    #: Poison records that halt their streams, at most STREAMS_COUNTED + 1 a fingerprint.
    halted: int = 0

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The fingerprints of its failures: its own, and those of the merged groups."""
        return (self.fingerprint, *self.aliases)

    @property
    def is_open(self) -> bool:
        """True if it needs a person."""
        return self.state in OPEN_STATES


@dataclass(frozen=True, kw_only=True)
class GroupPoint:
    """Failures and deaths in one hour or day of a chart."""

    at: datetime
    failures: int
    deaths: int
    #: Releases with the number of failures in them, the most first; "" is not listed.
    releases: tuple[tuple[str, int], ...] = ()
    #: Releases whose first failure of this group, or whose first worker, is in this time.
    began: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupSeries:
    """The points of a chart, oldest first, without gaps; the last is the current hour or day."""

    step: timedelta
    points: tuple[GroupPoint, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupRelease:
    """A release in which the group failed, in the last 90 days."""

    name: str
    failures: int
    deaths: int
    #: The hours of the first and of the last failure.
    first_at: datetime
    last_at: datetime
    #: When a worker of the release was first seen, if that is known.
    began_at: datetime | None = None
    #: Live workers that run it now.
    workers: int = 0


@dataclass(frozen=True, kw_only=True)
class TagCount:
    value: str
    failures: int
    last_at: datetime


@dataclass(frozen=True, kw_only=True)
class GroupTagKey:
    """A key of the tags of a group, with its most frequent values."""

    key: str
    #: Failures with the key.
    failures: int
    #: How many values are known, at most the bound of the table.
    distinct: int
    values: tuple[TagCount, ...] = ()
    #: Failures whose value was not kept, because there were too many values.
    others: int = 0
    #: True if DEADLETTER["REDACT"] hides the values of this key: `values` is empty.
    is_hidden: bool = False


@dataclass(frozen=True, kw_only=True)
class FailureGroupDetails:
    """All that the page of a group shows, apart from its timeline and the comparison."""

    group: FailureGroupRow
    #: The groups that were merged into it, without their own records now.
    merged: tuple[FailureGroupRow, ...] = ()
    series: GroupSeries = field(default_factory=lambda: GroupSeries(step=timedelta(hours=1)))
    #: The latest first.
    releases: tuple[GroupRelease, ...] = ()
    tags: tuple[GroupTagKey, ...] = ()
    #: At most STREAMS_SHOWN; their number is `group.halted`.
    streams: tuple[HeldStream, ...] = ()


def list_failure_groups(
    wanted: GroupFilter | None = None,
    *,
    limit: int = 50,
    offset: int = 0,
    using: str | None = None,
) -> list[FailureGroupRow]:
    """
    List groups: regressed, new, acknowledged, muted, resolved; in each the latest failure first.

    The price is one pass over the rows of the groups and three index probes for each group of the
    page, however many records there are.
    """
    alias = primary_alias(using)
    rows: Any = _matching(wanted or GroupFilter(), alias)
    latest: Any = F("last_failed_at")
    if _merged(alias).exists():
        of_merged = _merged(alias).filter(merged_into=OuterRef("fingerprint")).order_by()
        ends = of_merged.values("merged_into").annotate(end=Max("last_failed_at"))
        newest = Subquery(ends.values("end")[:1])
        latest = Greatest(F("last_failed_at"), Coalesce(newest, F("last_failed_at")))
    rank = Case(
        *(When(state=state, then=Value(n)) for n, state in enumerate(STATE_ORDER)),
        default=Value(len(STATE_ORDER)),
        output_field=IntegerField(),
    )
    rows = rows.alias(rank=rank, latest=latest).order_by("rank", "-latest", "-pk")
    return as_rows(list(rows[offset : offset + limit]), using=alias)


def count_failure_groups(
    wanted: GroupFilter | None = None, *, using: str | None = None
) -> dict[str, int]:
    """Count the groups that match, by state; `state` of the filter is ignored."""
    alias = primary_alias(using)
    rows = _matching(replace(wanted or GroupFilter(), state=None), alias)
    found = Counter(rows.order_by().values_list("state", flat=True))
    return {state: found[state] for state in STATE_ORDER}


def get_failure_group(
    fingerprint: str, *, window: timedelta | None = None, using: str | None = None
) -> FailureGroupDetails | None:
    """
    Return what is known of a group, or None. A merged group is answered by the one it is shown in.

    The series covers the last `window`, at most 90 days; by default the age of the group.
    """
    alias = primary_alias(using)
    row = find_main(fingerprint, using=alias)
    if row is None:
        return None
    merged = list(_merged(alias).filter(merged_into=row.fingerprint).order_by("fingerprint"))
    (group,) = as_rows([row], using=alias)
    now = clock.now(alias)
    releases = read_releases(group.fingerprints, using=alias)
    return FailureGroupDetails(
        group=group,
        merged=tuple(_row(one, [], {}) for one in merged),
        series=read_series(group, releases, now=now, window=window, using=alias),
        releases=tuple(releases[:RELEASES_SHOWN]),
        tags=read_group_tags(group.fingerprints, using=alias),
        streams=_halted_streams(group.fingerprints, alias),
    )


def find_main(fingerprint: str, *, using: str) -> FailureGroup | None:
    """Return the row of the group that a fingerprint is shown in, or None."""
    try:
        check_text("fingerprint", fingerprint)
    except ValueError:
        return None
    rows = FailureGroup.objects.using(using)
    row = rows.filter(fingerprint=fingerprint).first()
    if row is not None and row.merged_into:
        # The main row of a merge is never deleted before the others.
        return rows.filter(fingerprint=row.merged_into).first() or row
    return row


def as_rows(groups: Sequence[FailureGroup], *, using: str) -> list[FailureGroupRow]:
    """Add the numbers of merged groups and of what is in the tables now."""
    mains = [group.fingerprint for group in groups]
    merged: defaultdict[str, list[FailureGroup]] = defaultdict(list)
    for start in range(0, len(mains), _CHUNK):
        some = _merged(using).filter(merged_into__in=mains[start : start + _CHUNK])
        for one in some.order_by("fingerprint"):
            merged[one.merged_into].append(one)
    names = [*mains, *(one.fingerprint for some in merged.values() for one in some)]
    sizes = read_sizes(names, using=using)
    return [_row(group, merged[group.fingerprint], sizes) for group in groups]


def read_sizes(fingerprints: Iterable[str], *, using: str) -> dict[str, tuple[int, int, int]]:
    """Count records, messages in dead queues and halting records, each up to its limit."""
    wanted = list(dict.fromkeys(fingerprints))
    if not wanted:
        return {}
    limits = {"counted": COUNTED + 1, "halted": STREAMS_COUNTED + 1}
    with by_index(using):
        rows = sql.run(connections[using], "read_group_sizes", {"fingerprints": wanted, **limits})
    return {row[0]: (row[1], row[2], row[3]) for row in rows}


def read_releases(fingerprints: Collection[str], *, using: str) -> list[GroupRelease]:
    """Return the releases in which a group failed, the one with the latest beginning first."""
    rows = GroupHour.objects.using(using).filter(fingerprint__in=fingerprints).exclude(release="")
    counts = (
        rows.order_by()
        .values("release")
        .annotate(n=Sum("failures"), died=Sum("deaths"), first=Min("at"), last=Max("at"))
    )
    found = {row["release"]: row for row in counts}
    known = ApplicationRelease.objects.using(using).filter(name__in=list(found))
    began = dict(known.order_by().values_list("name", "first_seen_at"))
    alive = (
        WorkerProcess.objects.using(using).alive(clock.now(using)).filter(release__in=list(found))
    )
    workers = Counter(alive.values_list("release", flat=True))
    releases = [
        GroupRelease(
            name=name,
            failures=row["n"],
            deaths=row["died"],
            first_at=row["first"],
            last_at=row["last"],
            began_at=began.get(name),
            workers=workers[name],
        )
        for name, row in found.items()
    ]
    return sorted(releases, key=lambda one: (one.began_at or one.first_at, one.name), reverse=True)


def read_series(
    group: FailureGroupRow,
    releases: Sequence[GroupRelease],
    *,
    now: datetime,
    window: timedelta | None,
    using: str,
) -> GroupSeries:
    """Return failures and deaths by hour, or by day if the chart is longer than three days."""
    length = min(LONGEST_SERIES, max(timedelta(hours=1), window or now - group.first_failed_at))
    step = timedelta(hours=1) if length <= HOURLY else timedelta(days=1)
    edges = _edges(now, length, step)
    rows = GroupHour.objects.using(using).filter(
        fingerprint__in=group.fingerprints, at__gte=edges[0], at__lte=now
    )
    failures: Counter[datetime] = Counter()
    deaths: Counter[datetime] = Counter()
    by_release: defaultdict[datetime, Counter[str]] = defaultdict(Counter)
    for at, release, failed, died in rows.order_by().values_list(
        "at", "release", "failures", "deaths"
    ):
        edge = _start(at, step)
        failures[edge] += failed
        deaths[edge] += died
        if release:
            by_release[edge][release] += failed
    began: defaultdict[datetime, list[str]] = defaultdict(list)
    for one in reversed(releases):
        began[_start(one.began_at or one.first_at, step)].append(one.name)
    points = (
        GroupPoint(
            at=edge,
            failures=failures[edge],
            deaths=deaths[edge],
            releases=tuple(by_release[edge].most_common()),
            began=tuple(began[edge]),
        )
        for edge in edges
    )
    return GroupSeries(step=step, points=tuple(points))


def read_group_tags(fingerprints: Collection[str], *, using: str) -> tuple[GroupTagKey, ...]:
    """Return the keys of a group's tags with their most frequent values, by key."""
    rows = GroupTag.objects.using(using).filter(fingerprint__in=fingerprints).order_by()
    counts = rows.values("key", "value").annotate(n=Sum("failures"), last=Max("last_at"))
    by_key: defaultdict[str, list[TagCount]] = defaultdict(list)
    others: Counter[str] = Counter()
    for row in counts:
        if row["value"] == "":
            others[row["key"]] += row["n"]
            by_key.setdefault(row["key"], [])
            continue
        by_key[row["key"]].append(
            TagCount(value=row["value"], failures=row["n"], last_at=row["last"])
        )
    return tuple(_tag_key(key, by_key[key], others[key]) for key in sorted(by_key))


def _tag_key(key: str, counts: list[TagCount], others: int) -> GroupTagKey:
    shown = [one for one in counts if redact_tag(key, one.value) == one.value]
    top = sorted(shown, key=lambda one: (-one.failures, one.value))[:VALUES_SHOWN]
    return GroupTagKey(
        key=key,
        failures=sum(one.failures for one in counts) + others,
        distinct=len(counts),
        values=tuple(top),
        others=others,
        is_hidden=bool(counts) and not shown,
    )


def _matching(wanted: GroupFilter, alias: str) -> Any:
    rows = FailureGroup.objects.using(alias).main()
    if wanted.state is not None:
        states = OPEN_STATES if wanted.state == OPEN else (wanted.state,)
        rows = rows.filter(state__in=states)
    if wanted.owner is not None:
        rows = rows.filter(owner=wanted.owner)
    for condition in _conditions(wanted, alias):
        # Two steps, so that the usual case, no merged group, is planned by the main condition.
        merged = _merged(alias).filter(condition).order_by()
        mains = list(merged.values_list("merged_into", flat=True).distinct()[:_CHUNK])
        rows = rows.filter(condition | Q(fingerprint__in=mains) if mains else condition)
    return rows


def _conditions(wanted: GroupFilter, alias: str) -> list[Q]:
    """Return what the row of a group, or of one that was merged into it, must fulfil."""
    found = []
    if wanted.name is not None:
        found.append(Q(name=wanted.name))
    if wanted.queue is not None:
        found.append(Q(queue=wanted.queue))
    if wanted.release is not None:
        hours = GroupHour.objects.using(alias).filter(
            fingerprint=OuterRef("fingerprint"), release=wanted.release
        )
        # A probe for each group: the planner would turn an EXISTS into a scan of all hours.
        hour = Subquery(hours.order_by().values("pk")[:1])
        is_end = Q(first_release=wanted.release) | Q(last_release=wanted.release)
        found.append(is_end | Q(IsNull(hour, False)))
    if wanted.tag is not None:
        key, value = read_tag(wanted.tag)
        tags = GroupTag.objects.using(alias).filter(key=key, value=value)
        if redact_tag(key, value) != value:
            tags = tags.none()
        found.append(Q(fingerprint__in=tags.values("fingerprint")))
    if wanted.text is not None:
        columns = ("name", "exception", "frame", "error", "ticket")
        part = Q(fingerprint__startswith=wanted.text)
        for column in columns:
            part |= Q(**{f"{column}__icontains": wanted.text})
        found.append(part)
    return found


def _merged(alias: str) -> Any:
    return FailureGroup.objects.using(alias).exclude(merged_into="")


def _row(
    group: FailureGroup,
    merged: Sequence[FailureGroup],
    sizes: Mapping[str, tuple[int, int, int]],
) -> FailureGroupRow:
    all_of_it = [group, *merged]
    latest = max(all_of_it, key=lambda one: one.last_failed_at)
    oldest = min(all_of_it, key=lambda one: one.first_failed_at)
    first_deaths = [one.first_died_at for one in all_of_it if one.first_died_at is not None]
    last_deaths = [one.last_died_at for one in all_of_it if one.last_died_at is not None]
    counts = [sizes.get(one.fingerprint, (0, 0, 0)) for one in all_of_it]
    return FailureGroupRow(
        fingerprint=group.fingerprint,
        name=group.name,
        queue=latest.queue,
        exception=group.exception,
        frame=group.frame,
        reason=group.reason,
        error=latest.error,
        failures=sum(one.failures for one in all_of_it),
        deaths=sum(one.deaths for one in all_of_it),
        first_failed_at=oldest.first_failed_at,
        last_failed_at=latest.last_failed_at,
        first_died_at=min(first_deaths, default=None),
        last_died_at=max(last_deaths, default=None),
        first_release=oldest.first_release or group.first_release,
        last_release=latest.last_release or group.last_release,
        state=str(group.state),
        state_at=group.state_at,
        state_by=group.state_by,
        muted_until=group.muted_until,
        muted_until_failures=group.muted_until_failures,
        resolved_in=group.resolved_in,
        owner=group.owner,
        ticket=group.ticket,
        aliases=tuple(one.fingerprint for one in merged),
        records=sum(count[0] for count in counts),
        in_dead_queues=sum(count[1] for count in counts),
        halted=sum(count[2] for count in counts),
    )


def _halted_streams(fingerprints: Collection[str], alias: str) -> tuple[HeldStream, ...]:
    rows = PoisonRecord.objects.using(alias).halting().filter(fingerprint__in=fingerprints)
    pairs = rows.order_by().values_list("queue", "stream")[: STREAMS_SHOWN * 2]
    names = list(dict.fromkeys(pairs))[:STREAMS_SHOWN]
    found = (
        get_stream(queue, stream, using=alias) for queue, stream in names if stream is not None
    )
    return tuple(stream for stream in found if stream is not None)


def _edges(now: datetime, length: timedelta, step: timedelta) -> list[datetime]:
    """Return the beginnings of hours or days, oldest first; the last one contains now."""
    last = _start(now, step)
    edges = [last]
    while edges[-1] > now - length:
        # Half a step back, then its start: a day may have 23 or 25 hours.
        edges.append(_start(edges[-1] - step / 2, step))
    return edges[::-1]


def _start(at: datetime, step: timedelta) -> datetime:
    """Return the start of the hour, or of the day in the current time zone."""
    if step < timedelta(days=1):
        return at.replace(minute=0, second=0, microsecond=0)
    return timezone.localtime(at).replace(hour=0, minute=0, second=0, microsecond=0)
