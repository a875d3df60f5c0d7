"""The condition of the rule for regressed groups: failures that came back after a repair."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from ..lifecycle.internal_queue import PREFIX, QUEUE
from ..models import Alert, FailureGroup, GroupEvent, GroupState
from ..text import storable_text
from .context import MOST, SAMPLE, AlertContext, Observation

RULE = Alert.Rule.REGRESSED_GROUP.value
#: Keys of the detail that come from the regression, not from a dead letter.
RELEASE, RESOLVED_IN = "release", "resolved_in"


def regressed_groups(context: AlertContext, known: Collection[str]) -> Iterator[Observation]:
    """
    Yield the groups that are regressed now; `known` are the fingerprints of open alerts.

    At most MOST new ones; the next decision finds the rest.
    """
    if not context.policy.of_kind(RULE):
        return
    rows = FailureGroup.objects.using(context.using).main().filter(state=GroupState.REGRESSED)
    rows = rows.exclude(queue=QUEUE).exclude(name__startswith=PREFIX)
    queues = context.queues_with_rule(RULE)
    if queues is not None:
        rows = rows.filter(queue__in=queues)
    columns = ("fingerprint", "name", "queue", "exception", "error", "state_at")
    found = list(rows.order_by("last_failed_at", "id").values_list(*columns)[: MOST + len(known)])
    events = _read_events(context.using, [row[0] for row in found if row[0] not in known])
    for fingerprint, name, queue, exception, error, at in found:
        detail = {"queue": queue, "name": name, "exception": exception}
        yield Observation(
            rule=RULE,
            subject=fingerprint,
            since=at,
            last_at=context.now,
            # Resolved and back again between two decisions: news of the same alert.
            mark=at.timestamp(),
            detail={} if fingerprint in known else detail | events.get(fingerprint, {}),
            error="" if fingerprint in known else storable_text(error, limit=SAMPLE),
        )


def is_watched(context: AlertContext, queue: str) -> bool:
    """True if a rule for regressed groups is for this queue."""
    queues = context.queues_with_rule(RULE)
    return bool(context.policy.of_kind(RULE)) and (queues is None or queue in queues)


def _read_events(using: str, fingerprints: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the releases of the last regression of each group, as its event names them."""
    rows = GroupEvent.objects.using(using).filter(
        fingerprint__in=fingerprints, kind=GroupEvent.Kind.REGRESSED
    )
    found = {}
    for fingerprint, detail in rows.order_by("id").values_list("fingerprint", "detail"):
        if isinstance(detail, dict):
            given = {key: detail.get(key) for key in (RELEASE, RESOLVED_IN)}
            found[fingerprint] = {key: str(value) for key, value in given.items() if value}
    return found
