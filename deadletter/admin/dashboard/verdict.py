"""The verdict at the top of the dashboard: everything that is wrong in one line, worst first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import F
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext

from ...models import Message, PoisonRecord, Queue, Schedule, State
from ...operations.schedule_states import LATE as LATE_SCHEDULE
from ...text import page_text
from ...times import lasting
from ..counts import Capped, capped
from .broker_table import BrokerTable
from .links import Links
from .queue_table import QueueRow, QueueTable
from .stream_table import StreamTable
from .worker_table import WorkerTable

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
    """A problem and its page. Level "bad": work has stopped; "warn": it needs a look."""

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
) -> Verdict:
    """Judge only by what the user may see."""
    lines = queues.lines if queues else []
    found = [
        *_halted(streams, now),
        *_unserved(lines, workers, now),
        *_held(workers, now),
        *_unpublished(brokers, now),
        *_broken_schedules(links, now, using),
        *_late_schedules(links, now, using),
        *_died(links, now, using),
        *_failing(links, lines),
        *_late(links, lines, workers, now),
        *_paused(lines, now),
        *_paused_brokers(brokers),
        *_lost(workers, now),
    ]
    found.sort(key=lambda finding: finding.level != "bad")
    found[:1] = [replace(finding, text=capfirst(finding.text)) for finding in found[:1]]
    return Verdict(found, _calm(workers), workers.all_url if workers else "")


def _halted(streams: StreamTable | None, now: datetime) -> Iterator[Finding]:
    if streams and streams.halted:
        text = ngettext("%(n)s stream halted", "%(n)s streams halted", streams.halted.n)
        yield Finding(
            "bad", text % {"n": streams.halted}, streams.all_url, _for(streams.since, now)
        )


def _unserved(
    lines: list[QueueRow], workers: WorkerTable | None, now: datetime
) -> Iterator[Finding]:
    """Report queues with due messages that no live worker serves."""
    if workers is None or workers.alive is None:
        return
    waiting = [line for line in lines if line.due_since and not (line.paused or line.is_dead_queue)]
    if not workers.alive:
        since = min((line.due_since for line in waiting if line.due_since), default=None)
        text = gettext("no worker is running")
        yield Finding("bad" if waiting else "warn", text, workers.all_url, _for(since, now))
        return
    alone = [line for line in waiting if line.name not in workers.served]
    for line in alone[:NAMED]:
        text = gettext("no worker serves queue %(name)s") % {"name": _short(line.name)}
        yield Finding("bad", text, line.due_url, _for(line.due_since, now))
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
        n = len(breakers) - NAMED
        text = ngettext("%(n)s more breaker open", "%(n)s more breakers open", n) % {"n": n}
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


def _died(links: Links, now: datetime, using: str) -> Iterator[Finding]:
    if not links.poison:
        return
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
        # Groups include messages in dead queues; the list of poison records does not.
        groups = links.to(PoisonRecord, "poisonrecord_changelist")
        yield Finding("warn", text % {"n": n}, groups if moved else links.records(since=hour))


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
    links: Links, lines: list[QueueRow], workers: WorkerTable | None, now: datetime
) -> Iterator[Finding]:
    """Report queues that a worker serves and whose oldest message is late."""
    served = workers.served if workers and workers.alive is not None else None
    late = [
        line
        for line in lines
        if line.due_since
        and now - line.due_since > LATE
        and not (line.paused or line.is_dead_queue)
        and (served is None or line.name in served)
    ]
    for line in late[:NAMED]:
        text = gettext("queue %(name)s is behind") % {"name": _short(line.name)}
        yield Finding("warn", text, line.due_url, _for(line.due_since, now))
    rows = links.to(Queue, "queue_changelist") or links.to(Message, "message_changelist")
    yield from _others("warn", len(late) - NAMED, rows)


def _paused(lines: list[QueueRow], now: datetime) -> Iterator[Finding]:
    for line in lines:
        if line.paused and line.due_since and not line.is_dead_queue:
            pending = next(cell.n for cell in line.cells if cell.state == State.PENDING)
            yield Finding("warn", _paused_text(line.name, pending), line.url or line.due_url)


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


def _short(name: str) -> str:
    return page_text(name, limit=60)
