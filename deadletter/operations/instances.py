"""Instances: list, read and cancel them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.db.models import F

from ..exceptions import InstanceNotRunning
from ..instances.control import cancel_in
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, Instance, InstanceEvent, primary_alias
from . import audit

#: Rows read for a name and a status together: no index has both.
REACH = 10_000
#: A value of `status` in lists, beside the statuses.
STUCK = "stuck"


@dataclass(frozen=True)
class Cancellation:
    """The cancelled instances, parents first, or why none was. `entry_id` is 0 if none was."""

    cancelled: list[str] = field(default_factory=list)
    refused: str = ""
    entry_id: int = 0


def list_instances(
    *,
    status: str | None = None,
    name: str | None = None,
    limit: int = 50,
    using: str | None = None,
) -> list[Instance]:
    """
    List instances, the latest activity first, without their large columns.

    The status "stuck" means running and waiting for a lost message, as the last sweep found it.
    """
    rows = (
        Instance.objects.using(primary_alias(using)).without_bodies().order_by("-updated_at", "-pk")
    )
    return list(narrowed(rows, status=status, name=name)[:limit])


def narrowed(rows: Any, *, status: str | None, name: str | None) -> Any:
    """
    Filter instances by status and name at a bounded cost.

    A status or a name has an index. Both together find everything if there are fewer than REACH
    instances of that status or of that name; otherwise the instances that were active since the
    REACH-th of either.
    """
    if status == STUCK:
        # Stuck instances are few, and have an index of their own.
        return rows.stuck() if name is None else rows.stuck().filter(name=name)
    if status is not None and name is not None:
        ends = [_end(rows.filter(status=status)), _end(rows.filter(name=name))]
        if None not in ends:
            rows = rows.filter(updated_at__gte=min(ends))
    if status is not None:
        rows = rows.filter(status=status)
    return rows if name is None else rows.filter(name=name)


def get_instance(id: str, *, using: str | None = None) -> Instance | None:
    """Return one instance with all its columns, or None."""
    if "\x00" in id:  # PostgreSQL refuses the character
        return None
    return Instance.objects.using(primary_alias(using)).filter(pk=id).first()


def events_of(
    id: str, *, before: int | None = None, limit: int = 50, using: str | None = None
) -> list[InstanceEvent]:
    """Return the log of an instance, latest first; `before`: only events before this id."""
    rows = InstanceEvent.objects.using(primary_alias(using)).filter(instance=id).order_by("-id")
    return list((rows if before is None else rows.filter(pk__lt=before))[:limit])


def cancel_instance(
    id: str, *, why: str, by: str | None = None, using: str | None = None
) -> Cancellation:
    """
    Cancel an instance and its running children, under an audit entry.

    The error of the instance keeps the reason and the user. One that is not running is refused.
    """
    who = audit.person(by)
    said = f"{why} ({who})" if who else why

    def work(tx: Transaction) -> Cancellation:
        cancelled = cancel_in(tx, id, said)
        selection = {"instance": id, "cancelled": cancelled[:100]}
        entry = audit.record(
            tx, audit.NewEntry(act=Act.CANCEL, by=by, why=why, selection=selection)
        )
        audit.add(tx, entry, done=len(cancelled))
        return Cancellation(cancelled, entry_id=entry.pk)

    try:
        return in_transaction(work, using=primary_alias(using))
    except InstanceNotRunning as error:
        return Cancellation(refused=error.problem)


def _end(rows: Any) -> Any:
    times = rows.order_by("-updated_at").values_list(F("updated_at"), flat=True)
    return next(iter(times[REACH - 1 : REACH]), None)
