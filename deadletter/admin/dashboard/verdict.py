"""The verdict at the top of the dashboard: everything that is wrong in one line, worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import F
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext

from ...models import GroupState, Message, PoisonRecord, Queue, Schedule, State
from ...operations.schedule_states import LATE as LATE_SCHEDULE
from ...text import page_text
from ...times import lasting
from ..counts import Capped, capped
from .broker_table import BrokerTable
from .group_table import DashboardGroup, GroupTable
from .links import Links
from .queue_table import QueueRow, QueueTable, WaitingQueue
from .stream_table import StreamTable
from .worker_table import READ, WorkerTable

#: Failed messages from which on a queue that completes nothing is reported.
FAILING = 10
#: A message due for longer is late; a worker lost for longer is not reported any more.
LATE, LOST = timedelta(minutes=5), timedelta(hours=24)
#: Dead letters of the last hour that are counted; queues or breakers that are named.
COUNTED, NAMED = 10_000, 3
#: Schedules that are counted.
SCHEDULES = 100


@dataclass(frozen=True)
class Finding:
    """A problem and its page. "bad": work has stopped or a repair failed; "warn": needs a look."""

    level: str
    text: str
    url: str = ""
    since: str = ""


@dataclass(frozen=True)
class Verdict:
    findings: list[Finding]
    #: The text and the link when nothing is wrong.
    calm: str
    calm_url: str = ""

    @property
    def level(self) -> str:
        return self.findings[0].level if self.findings else "good"


def judge(
    links: Links,
    now: datetime,
    using: str,
    *,
    queues: QueueTable | None,
    streams: StreamTable | None,
    workers: WorkerTable | None,
    brokers: BrokerTable | None,
    groups: GroupTable | None,
) -> Verdict:
    """Judge only by what the user may see."""
    lines = queues.lines if queues else []
    waiting = queues.waiting if queues else []
    found = [
        *_halted(streams, now),
        *_regressed(groups),
        *_unserved(waiting, workers, now),
        *_held(workers, now),
        *_unpublished(brokers, now),
        *_broken_schedules(links, now, using),
        *_late_schedules(links, now, using),
        *_died(links, groups, now, using),
        *_failing(links, lines),
        *_late(links, waiting, workers, now),
        *_paused(links, lines),
        *_paused_brokers(brokers),
        *_lost(workers, now),
    ]
    found.sort(key=lambda finding: finding.level != "bad")
    found[:1] = [replace(finding, text=capfirst(finding.text)) for finding in found[:1]]
    return Verdict(found, _calm(workers), workers.all_url if workers else "")


def _halted(streams: StreamTable | None, now: datetime) -> Iterator[Finding]:
    if streams and streams.halted:
        text = ngettext(
            "%(n)s stream halted: %(names)s", "%(n)s streams halted: %(names)s", streams.halted.n
        )
        named = [line.held.stream for line in streams.lines if line.held.why == "halted"]
        values = {"n": streams.halted, "names": _names(named, streams.halted)}
        yield Finding("bad", text % values, streams.all_url, _for(streams.since, now))


def _unserved(
    waiting: list[WaitingQueue], workers: WorkerTable | None, now: datetime
) -> Iterator[Finding]:
    """Report queues with due messages that no live worker serves."""
    if workers is None or workers.alive is None:
        return
    if not workers.alive:
        since = waiting[0].since if waiting else None
        text = gettext("no worker is running")
        yield Finding("bad" if waiting else "warn", text, workers.all_url, _for(since, now))
        return
    alone = [queue for queue in waiting if queue.name not in workers.served]
    for queue in alone[:NAMED]:
        text = gettext("no worker serves queue %(name)s") % {"name": _short(queue.name)}
        yield Finding("bad", text, queue.url, _for(queue.since, now))
    yield from _others("bad", len(alone) - NAMED, workers.all_url)


def _held(workers: WorkerTable | None, now: datetime) -> Iterator[Finding]:
    breakers = (workers and workers.breakers) or []
    for line in breakers[:NAMED]:
        # A hold is on purpose; it is reported so that it is not forgotten.
        if line.is_held:
            text = gettext("messages named %(name)s are held by %(by)s")
            level = "warn"
        else:
            text = gettext("circuit breaker open for %(name)s")
            level = "bad"
        text %= {"name": _short(line.name), "by": _short(line.by)}
        yield Finding(level, text, line.url, _for(line.opened_at, now))
    if workers and len(breakers) > NAMED:
        n = Capped(min(len(breakers), READ) - NAMED, len(breakers) > READ)
        text = ngettext("%(n)s more breaker open", "%(n)s more breakers open", n.n) % {"n": n}
        yield Finding("bad", text, workers.breakers_url)


def _unpublished(brokers: BrokerTable | None, now: datetime) -> Iterator[Finding]:
    """Report brokers that accept nothing, and messages of the outbox that wait for too long."""
    for line in brokers.lines if brokers else []:
        report = line.report
        if report.is_paused or not report.to_publish:
            continue
        name = {"name": _short(report.name)}
        waited = report.oldest_at is not None and now - report.oldest_at > LATE
        if not report.is_configured:
            text = gettext("messages wait for broker %(name)s, which is not in the settings")
            yield Finding("bad", text % name, line.url, _for(report.oldest_at, now))
        elif report.unavailable_since is not None:
            text = gettext("broker %(name)s accepts nothing")
            yield Finding("bad", text % name, line.url, _for(report.unavailable_since, now))
        elif waited and not report.relays:
            text = gettext("no relay publishes to broker %(name)s")
            yield Finding("bad", text % name, line.url, _for(report.oldest_at, now))
        elif waited:
            text = gettext("publishing to broker %(name)s is behind")
            yield Finding("warn", text % name, line.url, _for(report.oldest_at, now))


def _paused_brokers(brokers: BrokerTable | None) -> Iterator[Finding]:
    for line in brokers.lines if brokers else []:
        if not line.report.paused:
            continue
        if line.report.is_paused:
            text = gettext("broker %(name)s is paused, and %(n)s of its messages wait")
        else:
            text = gettext("topics of broker %(name)s are paused, and %(n)s messages wait")
        yield Finding("warn", text % {"name": _short(line.name), "n": line.paused}, line.url)


def _broken_schedules(links: Links, now: datetime, using: str) -> Iterator[Finding]:
    """Report schedules that cannot fire. A paused one is not tried."""
    if not links.schedules:
        return
    failing = Schedule.objects.using(using).failing().filter(due_at__isnull=False)
    rows = list(failing.without_bodies().order_by("failing_since", "id")[: SCHEDULES + 1])
    for row in rows[:NAMED]:
        text = gettext("schedule %(name)s cannot fire") % {"name": _short(row.name)}
        url = links.to(Schedule, "schedule_change", row.pk)
        yield Finding("bad", text, url, _for(row.failing_since, now))
    if len(rows) > NAMED:
        n = Capped(min(len(rows), SCHEDULES) - NAMED, len(rows) > SCHEDULES)
        text = ngettext("and %(n)s more schedule", "and %(n)s more schedules", n.n) % {"n": n}
        yield Finding("bad", text, links.to(Schedule, "schedule_changelist", state="broken"))


def _late_schedules(links: Links, now: datetime, using: str) -> Iterator[Finding]:
    """Report schedules that no worker fires, as one finding: they have one cause."""
    if not links.schedules:
        return
    late = Schedule.objects.using(using).due(now - LATE_SCHEDULE).filter(failing_since=None)
    rows = list(late.values_list(F("due_at"), flat=True)[: SCHEDULES + 1])
    if rows:
        n = Capped(min(len(rows), SCHEDULES), len(rows) > SCHEDULES)
        text = ngettext(
            "%(n)s schedule is late: no worker fires it",
            "%(n)s schedules are late: no worker fires them",
            n.n,
        )
        url = links.to(Schedule, "schedule_changelist", state="late")
        yield Finding("bad", text % {"n": n}, url, _for(rows[0], now))


def _regressed(groups: GroupTable | None) -> Iterator[Finding]:
    """Report causes that were resolved and failed again."""
    if groups and (n := groups.counts[GroupState.REGRESSED]):
        text = ngettext(
            "%(n)s resolved cause came back: %(names)s",
            "%(n)s resolved causes came back: %(names)s",
            n.n,
        )
        found = groups.of(GroupState.REGRESSED)
        url = found[0].url if n.n == 1 else groups.url(GroupState.REGRESSED)
        names = _names([_name(line) for line in found], n)
        yield Finding("bad", text % {"n": n, "names": names}, url)


def _name(line: DashboardGroup) -> str:
    return f"{line.title} ({line.group.name})"


def _died(links: Links, groups: GroupTable | None, now: datetime, using: str) -> Iterator[Finding]:
    if not links.poison:
        return
    lines = groups.lines if groups else []
    hour = now - timedelta(hours=1)
    records = capped(PoisonRecord.objects.using(using).filter(poisoned_at__gt=hour), COUNTED)
    moved = _moved(hour, using)
    n = Capped(records.n + moved.n, records.more or moved.more)
    if n:
        text = ngettext(
            "%(n)s dead letter of the last hour is still there",
            "%(n)s dead letters of the last hour are still there",
            n.n,
        )
        text %= {"n": n}
        of_late = [line for line in lines if (line.group.last_died_at or hour) > hour][:NAMED]
        if of_late:
            names = ", ".join(_short(_name(line)) for line in of_late)
            text = gettext("%(text)s, among them %(names)s") % {"text": text, "names": names}
        # Groups include messages in dead queues; the list of poison records does not.
        url = links.to(PoisonRecord, "poisonrecord_changelist")
        yield Finding("warn", text, url if moved else links.records(since=hour))


def _moved(after: datetime, using: str) -> Capped:
    """Count the messages in dead queues that died after a time."""
    rows = Queue.objects.using(using).filter(sources__isnull=False)
    queues = sorted(set(rows.values_list("pk", flat=True)))
    if not queues:
        return Capped(0)
    moved = Message.objects.using(using).filter(queue_id__in=queues, died_at__gt=after)
    return capped(moved.values("pk"), COUNTED)


def _failing(links: Links, lines: list[QueueRow]) -> Iterator[Finding]:
    """Report queues with many failed messages and no success: a dependency is down."""
    failing = []
    for line in lines:
        failed = next((cell for cell in line.cells if cell.state == State.FAILED), None)
        if failed and failed.n.n >= FAILING and line.is_idle and not line.is_dead_queue:
            failing.append((line, failed))
    for line, failed in failing[:NAMED]:
        text = gettext("queue %(name)s completes nothing, and %(n)s of its messages have failed")
        yield Finding("warn", text % {"name": _short(line.name), "n": failed.n}, failed.url)
    rows = links.to(Queue, "queue_changelist") or links.to(Message, "message_changelist")
    yield from _others("warn", len(failing) - NAMED, rows)


def _late(
    links: Links, waiting: list[WaitingQueue], workers: WorkerTable | None, now: datetime
) -> Iterator[Finding]:
    """Report queues that a worker serves and whose oldest message is late."""
    served = workers.served if workers and workers.alive is not None else None
    late = [
        queue
        for queue in waiting
        if now - queue.since > LATE and (served is None or queue.name in served)
    ]
    for queue in late[:NAMED]:
        text = gettext("queue %(name)s is behind") % {"name": _short(queue.name)}
        yield Finding("warn", text, queue.url, _for(queue.since, now))
    rows = links.to(Queue, "queue_changelist") or links.to(Message, "message_changelist")
    yield from _others("warn", len(late) - NAMED, rows)


def _paused(links: Links, lines: list[QueueRow]) -> Iterator[Finding]:
    paused = [line for line in lines if line.paused and line.due_since and not line.is_dead_queue]
    for line in paused[:NAMED]:
        pending = next(cell.n for cell in line.cells if cell.state == State.PENDING)
        yield Finding("warn", _paused_text(line.name, pending), line.url or line.due_url)
    rows = links.to(Queue, "queue_changelist") or links.to(Message, "message_changelist")
    yield from _others("warn", len(paused) - NAMED, rows)


def _paused_text(name: str, pending: Capped) -> str:
    text = ngettext(
        "queue %(name)s is paused with %(n)s message due",
        "queue %(name)s is paused with %(n)s messages due",
        pending.n,
    )
    return text % {"name": _short(name), "n": pending}


def _lost(workers: WorkerTable | None, now: datetime) -> Iterator[Finding]:
    if workers and workers.lost_at and now - workers.lost_at < LOST:
        n = len(workers.lost)
        text = ngettext("%(n)s worker lost", "%(n)s workers lost", n) % {"n": n}
        yield Finding("warn", text, workers.all_url, _for(workers.lost_at, now))


def _others(level: str, n: int, url: str) -> Iterator[Finding]:
    if n > 0:
        yield Finding(
            level, ngettext("and %(n)s more queue", "and %(n)s more queues", n) % {"n": n}, url
        )


def _calm(workers: WorkerTable | None) -> str:
    if workers is None or not workers.alive:
        return gettext("All is well.")
    n = len(workers.alive)
    text = ngettext(
        "All is well. %(n)s worker is running.", "All is well. %(n)s workers are running.", n
    )
    return text % {"n": n}


def _for(since: datetime | None, now: datetime) -> str:
    """Return the duration in one unit: "for 2 hours" is exact enough here."""
    if since is None or now - since < timedelta(minutes=1):
        return ""
    return gettext("for %(time)s") % {"time": lasting(since, now, depth=1)}


def _names(names: Sequence[str], every: Capped) -> str:
    """Name the first few, and say how many more there are: "a, b, c and 4 more"."""
    shown = ", ".join(_short(name) for name in names[:NAMED])
    left = Capped(every.n - len(names[:NAMED]), every.more)
    return gettext("%(names)s and %(n)s more") % {"names": shown, "n": left} if left else shown


def _short(name: str) -> str:
    return page_text(name, limit=60)
