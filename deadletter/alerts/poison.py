"""Do too many die, do too many lie there, does a stream stand still?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.db.models import F

from ..alert_rules import Rule
from ..models import Alert
from .conditions import COUNTED, Buried, Look, Observation, about, later, newest, sample


def rates(look: Look) -> Iterator[Observation]:
    """Find queues in which more died lately than the rule allows, wherever that lies now."""
    kind = Alert.Rule.POISON_RATE.value
    for rule, queue in look.scopes(kind):
        records = look.poison(queue).filter(poisoned_at__gt=look.now - rule.within)
        buried = look.buried(queue, after=look.now - rule.within)
        count = _counted(records, rule) + buried.count
        if count > rule.above:
            first = records.order_by("poisoned_at", "id").values_list(F("poisoned_at"), flat=True)
            times = [*first[:1], *([buried.first] if buried.first else [])]
            detail = {"within": rule.within.total_seconds()}
            yield _observed(look, kind, rule, queue, records, buried, count, times, detail)


def depths(look: Look) -> Iterator[Observation]:
    """Find queues of which more dead letters lie there, or in dead queues, than allowed."""
    kind = Alert.Rule.POISON_DEPTH.value
    for rule, queue in look.scopes(kind):
        records, buried = look.poison(queue), look.buried(queue)
        count = _counted(records, rule) + buried.count
        if count > rule.above:
            yield _observed(look, kind, rule, queue, records, buried, count, (), {})


def halted_streams(look: Look) -> Iterator[Observation]:
    """Find queues whose streams stand still behind a dead letter: one alert a queue."""
    kind = Alert.Rule.HALTED_STREAM.value
    if not look.policy.of_kind(kind):
        return
    for queue in look.queues:
        if look.wants(kind, queue) is None:
            continue
        records = look.poison(queue).halting().order_by("stream", "message_id")
        rows = list(records.values_list("pk", "stream", "poisoned_at")[: COUNTED + 1])
        if not rows:
            continue
        streams = {stream for _pk, stream, _at in rows}
        latest = newest(look.poison(queue).filter(pk=max(rows, key=lambda row: row[2])[0]))
        yield Observation(
            rule=kind,
            subject=queue,
            since=min(at for _pk, _stream, at in rows),
            last_at=look.now,
            count=len(streams),
            mark=len(streams),
            detail={**(about(latest) if latest else {}), "queue": queue, **_some(streams)},
            error=sample(latest) if latest else "",
        )


def _some(streams: set[str]) -> dict[str, Any]:
    return {"streams": sorted(streams)[:5]}


def _counted(records: Any, rule: Rule) -> int:
    """Count in the order of an index, and not for ever: a backlog of millions costs no more."""
    most = max(COUNTED, rule.above) + 1
    return int(records.order_by("poisoned_at", "id").values("pk")[:most].count())


def _observed(
    look: Look,
    kind: str,
    rule: Rule,
    queue: str,
    records: Any,
    buried: Buried,
    count: int,
    first: Sequence[datetime],
    detail: dict[str, Any],
) -> Observation:
    latest = later(newest(records), look.dead(buried.last_id).get(buried.last_id))
    by_time = kind == Alert.Rule.POISON_RATE
    return Observation(
        rule=kind,
        subject=queue,
        since=min(first, default=look.now),
        last_at=look.now,
        count=count,
        # A rate is news when more have died; a depth, when there are more than were told.
        mark=latest.poisoned_at.timestamp() if by_time and latest else float(count),
        detail={
            **(about(latest) if latest else {}),
            "queue": queue,
            "above": rule.above,
            **detail,
        },
        error=sample(latest) if latest else "",
    )
