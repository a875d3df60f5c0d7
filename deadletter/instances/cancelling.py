"""How is an instance stopped? With its children, and with all that is not being handled now."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Q

from ..error_details import ErrorDetails
from ..exceptions import InstanceNotRunning
from ..lifecycle import retry_outcomes, streams
from ..lifecycle.instances import end, on_death
from ..lifecycle.transaction import Stream, Transaction, in_transaction
from ..models import Instance, InstanceStatus, Message, Queue, stream_of
from . import names


def cancel(instance: str, why: str = "", *, using: str | None = None) -> list[str]:
    """
    Fail an instance by decision, and its running children; return the ids that were cancelled.

    Its messages that nobody is handling are removed; results of the others are ignored. A parent
    is told. Raises: InstanceNotRunning.
    """
    id = names.instance_id(instance)
    return in_transaction(lambda tx: cancelling(tx, id, why), using=using)


def cancelling(tx: Transaction, id: str, why: str) -> list[str]:
    family, held = _hold(tx, id)
    _remove_messages(tx, family, held)
    locked = on_death.lock(tx, family)
    if id not in locked or not locked[id].is_running:
        raise InstanceNotRunning(id, locked[id].status if id in locked else None)
    error = ErrorDetails.Application(f"cancelled: {why}" if why else "cancelled")
    # The lowest first: what each tells its parent is ignored, since that ends a moment later.
    ended = [member for member in reversed(family) if member in locked]
    ended = [member for member in ended if locked[member].is_running]
    for member in ended:
        end.fail(tx, locked[member], error, cancelled=True)
    return ended[::-1]


def _family(tx: Transaction, id: str) -> list[str]:
    """Return the instance and all that runs below it, parents first."""
    family, level = [id], [id]
    running = Instance.objects.using(tx.using).filter(status=InstanceStatus.RUNNING)
    while level:
        children = running.filter(parent__in=level).exclude(pk__in=family).order_by("pk")
        level = list(children.values_list("pk", flat=True))
        family += level
    return family


def _hold(tx: Transaction, id: str) -> tuple[list[str], set[Stream]]:
    """
    Lock the streams of an instance and of all that runs below it.

    Looked at again under the locks: a turn that was under way may have started another child,
    which nobody would cancel. Whose stream is locked takes no turn, so this ends.
    """
    family = _family(tx, id)
    held: set[Stream] = set()
    while missing := _streams(tx, family) - held:
        tx.run_for(missing, "lock_named_streams")
        held |= missing
        family = _family(tx, id)
    return family, held


def _remove_messages(tx: Transaction, family: Collection[str], held: set[Stream]) -> None:
    """Delete what is not leased. The streams are locked already; rows come after them."""
    now = tx.time()
    idle = Q(lease_token=None) | Q(available_at=None) | Q(available_at__lte=now)
    rows = Message.objects.using(tx.using).filter(idle, instance__in=list(family))
    ids = list(rows.select_for_update().order_by("pk").values_list("pk", flat=True))
    if ids:
        tx.run("delete", ids=ids)
        retry_outcomes.mark_removed(tx, ids)
        streams.wake(tx, held)


def _streams(tx: Transaction, family: Collection[str]) -> set[Stream]:
    queues = dict(Queue.objects.using(tx.using).values_list("name", "pk"))
    rows = Instance.objects.using(tx.using).filter(pk__in=list(family))
    found = rows.values_list("pk", "queue")
    return {(queues[queue], stream_of(id)) for id, queue in found if queue in queues}
