"""
The conditions of the rules, except new groups: each function yields what holds now.

Dead letters (rate, depth, halted streams), messages that wait (age, no worker), workers, breakers,
stuck instances, schedules, the outbox and its brokers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, Max, Min

from ..alert_rules import Rule
from ..conf import get_settings
from ..lifecycle.internal_queue import PREFIX, QUEUE
from ..lifecycle.lanes import brokers_with_messages, oldest_of_broker
from ..lifecycle.levels import oldest_waiting
from ..models import (
    Alert,
    Breaker,
    BrokerStatus,
    Instance,
    OutboxMessage,
    OutboxPause,
    OutboxRelay,
    Schedule,
    WorkerProcess,
)
from ..text import storable_text
from .context import (
    COUNTED,
    MOST,
    SAMPLE,
    AlertContext,
    MovedDeaths,
    Observation,
    identify,
    later,
    newest,
    sample_error,
)

#: How long after its time a breaker counts as closed, if it was not opened again.
CLOSED_AFTER = timedelta(minutes=5)
#: Instances that a notice names.
NAMED = 5


def observe(context: AlertContext) -> Iterator[Observation]:
    """Yield every condition that holds now, except new groups."""
    yield from poison_rates(context)
    yield from poison_depths(context)
    yield from halted_streams(context)
    yield from old_messages(context)
    yield from unserved_queues(context)
    yield from lost_workers(context)
    yield from open_breakers(context)
    yield from stuck_instances(context)
    yield from old_events(context)
    yield from unavailable_brokers(context)
    yield from failing_schedules(context)
    yield from overdue_schedules(context)


def poison_rates(context: AlertContext) -> Iterator[Observation]:
    """Find queues in which more messages died lately than the rule allows, moved ones included."""
    kind = Alert.Rule.POISON_RATE.value
    for rule, queue in context.scopes(kind):
        records = context.poison(queue).filter(poisoned_at__gt=context.now - rule.within)
        moved = context.moved(queue, after=context.now - rule.within)
        count = _count(records, rule) + moved.count
        if count > rule.above:
            first = records.order_by("poisoned_at", "id").values_list(F("poisoned_at"), flat=True)
            times = [*first[:1], *([moved.first] if moved.first else [])]
            detail = {"within": rule.within.total_seconds()}
            yield _dead_letters(context, kind, rule, queue, records, moved, count, times, detail)


def poison_depths(context: AlertContext) -> Iterator[Observation]:
    """Find queues with more dead letters, in dead queues too, than the rule allows."""
    kind = Alert.Rule.POISON_DEPTH.value
    for rule, queue in context.scopes(kind):
        records, moved = context.poison(queue), context.moved(queue)
        count = _count(records, rule) + moved.count
        if count > rule.above:
            yield _dead_letters(context, kind, rule, queue, records, moved, count, (), {})


def _count(records: Any, rule: Rule) -> int:
    """Count in the order of an index, up to a limit: a backlog of millions costs no more."""
    most = max(COUNTED, rule.above) + 1
    return int(records.order_by("poisoned_at", "id").values("pk")[:most].count())


def _dead_letters(
    context: AlertContext,
    kind: str,
    rule: Rule,
    queue: str,
    records: Any,
    moved: MovedDeaths,
    count: int,
    first: Sequence[datetime],
    detail: dict[str, Any],
) -> Observation:
    latest = later(newest(records), context.moved_as_records(moved.last_id).get(moved.last_id))
    by_time = kind == Alert.Rule.POISON_RATE
    return Observation(
        rule=kind,
        subject=queue,
        since=min(first, default=context.now),
        last_at=context.now,
        count=count,
        # A rate has news when more messages died; a depth, when the count exceeds the last notice.
        mark=latest.poisoned_at.timestamp() if by_time and latest else float(count),
        detail={
            **(identify(latest) if latest else {}),
            "queue": queue,
            "above": rule.above,
            **detail,
        },
        error=sample_error(latest) if latest else "",
    )


def halted_streams(context: AlertContext) -> Iterator[Observation]:
    """Find queues with streams that a poison record halts: one alert for each queue."""
    kind = Alert.Rule.HALTED_STREAM.value
    if not context.policy.of_kind(kind):
        return
    for queue in context.queues:
        if context.rule_for(kind, queue) is None:
            continue
        records = context.poison(queue).halting().order_by("stream", "message_id")
        rows = list(records.values_list("pk", "stream", "poisoned_at")[: COUNTED + 1])
        if not rows:
            continue
        streams = {stream for _pk, stream, _at in rows}
        latest = newest(context.poison(queue).filter(pk=max(rows, key=lambda row: row[2])[0]))
        yield Observation(
            rule=kind,
            subject=queue,
            since=min(at for _pk, _stream, at in rows),
            last_at=context.now,
            count=len(streams),
            mark=len(streams),
            detail={
                **(identify(latest) if latest else {}),
                "queue": queue,
                "streams": sorted(streams)[:5],
            },
            error=sample_error(latest) if latest else "",
        )


def old_messages(context: AlertContext) -> Iterator[Observation]:
    """Find queues in which a message has been due for longer than the rule allows."""
    kind = Alert.Rule.OLDEST_AGE.value
    if context.policy.of_kind(kind):
        for queue, due in _oldest_due(context):
            rule = context.rule_for(kind, queue)
            if rule is not None and context.now - due > rule.after:
                yield _waiting(context, kind, queue, due, rule.after)


def unserved_queues(context: AlertContext) -> Iterator[Observation]:
    """Find queues with due messages that no live worker serves."""
    kind = Alert.Rule.UNSERVED_QUEUE.value
    if not context.policy.of_kind(kind):
        return
    served = WorkerProcess.objects.using(context.using).alive(context.now).served()
    for queue, due in _oldest_due(context):
        rule = context.rule_for(kind, queue)
        if rule is not None and queue not in served and context.now - due > rule.after:
            yield _waiting(context, kind, queue, due, rule.after)


def _oldest_due(context: AlertContext) -> list[tuple[str, datetime]]:
    """
    Return since when the oldest due message of each queue waits: one index probe for each level.

    Paused queues and dead queues wait on purpose and are left out.
    """
    oldest = oldest_waiting(context.using, now=context.now)
    return [(name, since) for name, since in oldest.items() if name != QUEUE]


def _waiting(
    context: AlertContext, kind: str, queue: str, due: datetime, after: timedelta
) -> Observation:
    return Observation(
        rule=kind,
        subject=queue,
        since=due,
        last_at=context.now,
        detail={
            "queue": queue,
            "after": after.total_seconds(),
            "seconds": (context.now - due).total_seconds(),
        },
    )


def lost_workers(context: AlertContext) -> Iterator[Observation]:
    """Find workers that were not seen for too long. A worker that shuts down deletes its row."""
    kind = Alert.Rule.WORKER_LOST.value
    for rule in context.policy.of_kind(kind):
        lost_since = context.now - rule.after
        rows = WorkerProcess.objects.using(context.using).filter(seen_at__lt=lost_since)
        for worker in rows.order_by("name")[:MOST]:
            running = worker.running if isinstance(worker.running, list) else []
            yield Observation(
                rule=kind,
                subject=worker.name,
                since=worker.seen_at,
                last_at=context.now,
                count=worker.held,
                detail={
                    "name": worker.name,
                    "host": worker.host,
                    "running": [
                        storable_text(run.get("name", ""), limit=200)
                        for run in running[:5]
                        if isinstance(run, dict)
                    ],
                },
            )


def open_breakers(context: AlertContext) -> Iterator[Observation]:
    """Find message names that a breaker holds back because their handler keeps failing."""
    kind = Alert.Rule.BREAKER_OPENED.value
    if not context.policy.of_kind(kind):
        return
    # A handler that keeps failing is tried and held back again: one alert, not one for each time.
    # A name that only a person holds waits on purpose, as a paused queue does.
    open = Breaker.objects.using(context.using).open(context.now - CLOSED_AFTER).failing()
    rows = open.exclude(name__startswith=PREFIX)
    for breaker in rows.order_by("name")[:MOST]:
        yield Observation(
            rule=kind,
            subject=breaker.name,
            since=breaker.opened_at,
            last_at=context.now,
            count=breaker.failures,
            detail={"name": breaker.name},
            error=storable_text(breaker.error, limit=SAMPLE),
        )


def old_events(context: AlertContext) -> Iterator[Observation]:
    """Find brokers for which a message of the outbox has waited for longer than the rule allows."""
    kind = Alert.Rule.OUTBOX_AGE.value
    for rule in context.policy.of_kind(kind):
        pauses = _paused_brokers(context)
        known = get_settings().brokers
        for name in sorted({*known, *brokers_with_messages(using=context.using)} - pauses):
            stored = oldest_of_broker(name, using=context.using)
            if stored is not None and context.now - stored > rule.after:
                yield Observation(
                    rule=kind,
                    subject=name,
                    since=stored,
                    last_at=context.now,
                    detail={
                        "name": name,
                        "after": rule.after.total_seconds(),
                        "seconds": (context.now - stored).total_seconds(),
                    },
                )


def unavailable_brokers(context: AlertContext) -> Iterator[Observation]:
    """Find brokers that accept nothing, while a relay tries or messages wait."""
    kind = Alert.Rule.BROKER_UNAVAILABLE.value
    for rule in context.policy.of_kind(kind):
        pauses = _paused_brokers(context)
        relays = OutboxRelay.objects.using(context.using).alive(context.now)
        tried = set(relays.values_list("broker", flat=True))
        rows = BrokerStatus.objects.using(context.using).filter(
            unavailable_since__lt=context.now - rule.after
        )
        for broker in rows.order_by("name"):
            if broker.name in pauses or broker.name not in get_settings().brokers:
                continue
            waiting = OutboxMessage.objects.using(context.using).filter(broker=broker.name)
            n = waiting.filter(held=False).order_by()[: COUNTED + 1].count()
            if (n or broker.name in tried) and broker.unavailable_since is not None:
                yield Observation(
                    rule=kind,
                    subject=broker.name,
                    since=broker.unavailable_since,
                    last_at=context.now,
                    count=n,
                    detail={
                        "name": broker.name,
                        "seconds": (context.now - broker.unavailable_since).total_seconds(),
                    },
                    error=storable_text(broker.error, limit=SAMPLE),
                )


def _paused_brokers(context: AlertContext) -> set[str]:
    """Return the brokers that a person paused as a whole: they wait on purpose."""
    rows = OutboxPause.objects.using(context.using).filter(topic="")
    return set(rows.values_list("broker", flat=True))


def stuck_instances(context: AlertContext) -> Iterator[Observation]:
    """Find flows with instances that the sweep marked as stuck: one alert for each flow."""
    kind = Alert.Rule.STUCK_INSTANCE.value
    if not context.policy.of_kind(kind):
        return
    rows = Instance.objects.using(context.using).stuck()
    marks: dict[str, Any] = {
        "n": Count("pk"),
        "first": Min("stuck_since"),
        "last": Max("stuck_since"),
    }
    flows: Any = rows.order_by("name").values("name").annotate(**marks)
    for flow in flows[:MOST]:
        ids = rows.filter(name=flow["name"]).order_by("stuck_since", "id")
        yield Observation(
            rule=kind,
            subject=flow["name"],
            since=flow["first"],
            last_at=context.now,
            count=flow["n"],
            mark=flow["last"].timestamp(),
            detail={
                "name": flow["name"],
                "instances": list(ids.values_list("pk", flat=True)[:NAMED]),
            },
        )


def failing_schedules(context: AlertContext) -> Iterator[Observation]:
    """Find schedules that cannot fire: one alert for each. A paused one is not tried."""
    kind = Alert.Rule.SCHEDULE_FAILED.value
    if not context.policy.of_kind(kind):
        return
    rows = Schedule.objects.using(context.using).failing().filter(due_at__isnull=False)
    for schedule in rows.without_bodies().order_by("failing_since", "id")[:MOST]:
        yield Observation(
            rule=kind,
            subject=schedule.name,
            since=schedule.failing_since or context.now,
            last_at=context.now,
            detail={"name": schedule.name},
            error=storable_text(schedule.last_error, limit=SAMPLE),
        )


def overdue_schedules(context: AlertContext) -> Iterator[Observation]:
    """Find out whether schedules are due for longer than allowed: no worker fires them."""
    kind = Alert.Rule.SCHEDULE_OVERDUE.value
    for rule in context.policy.of_kind(kind):
        late = Schedule.objects.using(context.using).filter(due_at__lt=context.now - rule.after)
        rows = late.order_by("due_at", "id")
        first = rows.without_bodies().first()
        if first is None or first.due_at is None:
            continue
        yield Observation(
            rule=kind,
            subject="",
            since=first.due_at,
            last_at=context.now,
            count=rows.values("pk")[: COUNTED + 1].count(),
            detail={
                "name": first.name,
                "after": rule.after.total_seconds(),
                "seconds": (context.now - first.due_at).total_seconds(),
            },
        )
