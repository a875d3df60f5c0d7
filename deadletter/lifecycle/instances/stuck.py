"""
Stuck instances: running instances that wait for a lost message, found and marked by the sweep.

Such an instance has called an activity, set a timer or started a child, or has not begun, and has
no message in any queue, no running child, and no poison record of what it waits for. It happens
when a message of an instance is deleted without its flow being notified: by a worker older than
instances, which takes an activity for a plain message, by hand, or by a restored backup. An
instance that waits only for an event from outside is not stuck.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import F, OuterRef, Q, Subquery, TextField
from django.db.models.functions import Cast

from ... import clock
from ...exceptions import LockNotAvailable
from ...logs import event
from ...models import Instance, InstanceStatus, Message, PoisonRecord, primary_alias
from ...sql.planner import INDEX_ONLY, by_index
from ..locks import for_each_unlocked
from ..transaction import SHORT_WAIT, Transaction, in_transaction

#: Running instances that a sweep checks, and marked instances that it checks again.
REACH, JUDGED_AGAIN = 1_000, 500
#: Time since the last turn before an instance is checked.
QUIET = timedelta(minutes=1)

#: Where the last check of this process ended, by database: time of the last turn and id.
_places: dict[str, tuple[datetime, str]] = {}


class WaitingInstance(NamedTuple):
    """A running instance without a message and without a running child."""

    id: str
    name: str
    execution_id: int
    is_begun: bool
    revision: int
    #: JSON text, parsed later: a damaged one must not fail the query of all.
    pending: str

    def waits_for(self) -> list[int | None]:
        """Return the activity ids that it waits for; None stands for its start."""
        if not self.is_begun:
            return [None]
        try:
            pending = json.loads(self.pending)
            return [int(id) for id in pending]
        except (ValueError, TypeError):
            return []


def mark_stuck(*, using: str | None = None) -> int:
    """
    Mark the stuck ones of the next running instances, and clear the marks of those that go on.

    Returns how many were marked. Reads at most REACH + JUDGED_AGAIN instances, each with two index
    probes; writes, and so takes SQLite's write lock, only when a mark changes.
    """
    alias = primary_alias(using)
    marked = _marked(alias)
    following = _following(alias)
    stuck = _judge(alias, {*marked, *following})
    new = [stuck[id] for id in following if id in stuck and id not in marked]
    over = [id for id in marked if id not in stuck]
    if not new and not over:
        return 0
    try:
        return in_transaction(lambda tx: _write(tx, new, over), using=alias, wait=SHORT_WAIT)
    except LockNotAvailable:
        return 0  # the table itself is locked: a later sweep checks again


def _marked(alias: str) -> list[str]:
    rows = Instance.objects.using(alias).filter(stuck_since__isnull=False)
    ids = rows.order_by("stuck_since", "id").values_list("pk", flat=True)
    return list(ids[:JUDGED_AGAIN])


def _following(alias: str) -> list[str]:
    """Return the next running instances by last turn; after the last, start from the first."""
    rows = Instance.objects.using(alias).filter(status=InstanceStatus.RUNNING)
    rows = rows.filter(updated_at__lt=clock.now(alias) - QUIET)
    place = _places.get(alias)
    if place is not None:
        at, id = place
        rows = rows.filter(updated_at__gte=at).filter(Q(updated_at__gt=at) | Q(pk__gt=id))
    found = list(rows.order_by("updated_at", "id").values_list(F("updated_at"), "pk")[:REACH])
    if len(found) < REACH:
        _places.pop(alias, None)
    else:
        _places[alias] = found[-1]
    return [id for _at, id in found]


def _judge(alias: str, ids: Collection[str]) -> dict[str, WaitingInstance]:
    candidates = [row for row in _without_message(alias, ids) if row.waits_for()]
    if not candidates:
        return {}
    # Poison first, then the messages again: a message that is retried in between is seen as one or
    # the other.
    known = [row.id for row in candidates]
    dead = PoisonRecord.objects.using(alias).filter(instance__in=known)
    died = set(dead.values_list("instance", "execution_id", "activity_id"))
    return {
        row.id: row
        for row in _without_message(alias, known)
        if any((row.id, row.execution_id, what) not in died for what in row.waits_for())
    }


def _without_message(alias: str, ids: Collection[str]) -> list[WaitingInstance]:
    """Read in one statement, so that a concurrent turn is seen whole or not at all."""
    if not ids:
        return []
    # A subquery with LIMIT 1 instead of EXISTS: a join could read the whole table of messages.
    message = Message.objects.filter(instance=OuterRef("pk")).order_by("instance", "id")
    child = Instance.objects.filter(parent=OuterRef("pk"), status=InstanceStatus.RUNNING)
    rows: Any = Instance.objects.using(alias).filter(pk__in=ids, status=InstanceStatus.RUNNING)
    rows = rows.annotate(
        message=Subquery(message.values("pk")[:1]),
        child=Subquery(child.order_by("parent", "id").values("pk")[:1]),
        waits=Cast("pending", TextField()),
    ).filter(message=None, child=None)
    columns = ("id", "name", "execution_id", "is_begun", "revision", "waits")
    with by_index(alias, INDEX_ONLY):
        return [WaitingInstance(*row) for row in rows.order_by("id").values_list(*columns)]


def _write(tx: Transaction, new: Sequence[WaitingInstance], over: Sequence[str]) -> int:
    """Write the marks; a locked instance is left to a later sweep. Return how many were marked."""
    rows = Instance.objects.using(tx.using)
    now = tx.time()

    def clear(_tx: Transaction, ids: Sequence[str]) -> None:
        rows.filter(pk__in=ids).update(stuck_since=None)

    def mark(_tx: Transaction, some: Sequence[WaitingInstance]) -> list[WaitingInstance]:
        # The revision guards against a turn since the check: a message had come after all.
        return [
            row
            for row in some
            if rows.filter(pk=row.id, revision=row.revision, stuck_since=None).update(
                stuck_since=now
            )
        ]

    for_each_unlocked(tx, over, clear)
    marked = [row for part in for_each_unlocked(tx, new, mark).results for row in part]
    tx.after_commit(lambda: _log(marked))
    return len(marked)


def _log(marked: Sequence[WaitingInstance]) -> None:
    for row in marked:
        event(
            logging.ERROR,
            "instance_stuck",
            "instance {instance} ({name}, execution {execution_id}) is running and nothing of it "
            "is under way: what it waits for was lost. Cancel it, or raise an event that its flow "
            "knows",
            instance=row.id,
            name=row.name,
            execution_id=row.execution_id,
        )
