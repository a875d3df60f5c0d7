"""Queues: find, create, change, pause, resume and delete them. Every change is audited."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import ProtectedError
from django.utils.translation import gettext

from ..durations import as_text
from ..exceptions import UnknownQueue
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, PoisonRecord, Queue, primary_alias
from ..models.queue import with_destination
from ..patterns import is_pattern, queue_selection
from . import audit

#: The fields of a policy, in the order people are shown them.
POLICY = tuple(Queue.policy_fields())


def create_queue(
    name: str, *, by: str | None = None, why: str = "", using: str | None = None, **policy: Any
) -> Queue:
    """
    Create a queue. Raises ValidationError, naming the field.

    A `dead_queue` without `on_poison` means on_poison="dead_queue".
    """
    alias = primary_alias(using)
    policy = with_destination(policy)

    def work(tx: Transaction) -> Queue:
        queue = Queue(name=name, **_resolved(name, policy, alias))
        queue.save(using=alias, force_insert=True)
        given = {field: value for field, value in policy.items() if field != "reason_policies"}
        if "reason_policies" in policy:
            given["reason_policies"] = queue.reason_policies
        _record(tx, Act.EDIT_QUEUE, queue, by, {"created": True, **given}, why)
        return queue

    return in_transaction(work, using=alias)


def set_queue(
    name: str, *, by: str | None = None, why: str = "", using: str | None = None, **policy: Any
) -> Queue:
    """
    Change fields of a policy; they take effect with the next claim or failure.

    A `dead_queue` without `on_poison` means on_poison="dead_queue". The audit entry keeps the old
    and the new values; a call that changes nothing writes none.
    """
    alias = primary_alias(using)
    policy = with_destination(policy)

    def work(tx: Transaction) -> Queue:
        queue = _get(name, alias)
        before = {field: getattr(queue, field) for field in policy}
        for field, value in _resolved(name, policy, alias).items():
            setattr(queue, field, value)
        queue.save(using=alias)
        changes = {
            field: f"{_shown(old)} → {_shown(getattr(queue, field))}"
            for field, old in before.items()
            if old != getattr(queue, field)
        }
        if changes:
            _record(tx, Act.EDIT_QUEUE, queue, by, changes, why)
        return queue

    return in_transaction(work, using=alias)


def delete_queue(
    name: str, *, by: str | None = None, why: str = "", using: str | None = None
) -> None:
    """
    Delete a queue that is not in use; the audit entry keeps its policy.

    Raises UnknownQueue, and ProtectedError while it has messages or is the dead queue of another.
    """
    alias = primary_alias(using)

    deleted: list[Queue] = []

    def work(tx: Transaction) -> None:
        queue = _get(name, alias)
        policy = {field: getattr(queue, field) for field in POLICY}
        # Before the entry is written: a queue in use is refused and leaves no entry.
        queue.delete(using=alias)
        _record(tx, Act.EDIT_QUEUE, queue, by, {"deleted": True, **policy}, why)
        deleted.append(queue)

    try:
        in_transaction(work, using=alias)
    except ProtectedError:
        # A message was sent during the commit of the deletion, and the queue was put back.
        for queue in deleted:
            in_transaction(
                lambda tx: _record(tx, Act.EDIT_QUEUE, queue, by, {"put_back": True}),  # noqa: B023
                using=alias,
            )
        raise


def pause(name: str, *, by: str | None = None, why: str = "", using: str | None = None) -> Queue:
    """Stop all claims from a queue until it is resumed; messages in flight are finished."""
    return _switch(name, Act.PAUSE, by, why, using)


def resume(name: str, *, by: str | None = None, why: str = "", using: str | None = None) -> Queue:
    """Allow claims from a paused queue again."""
    return _switch(name, Act.RESUME, by, why, using)


def pause_matching(
    name: str, *, by: str | None = None, why: str = "", using: str | None = None
) -> list[Queue]:
    """Pause all queues that a pattern such as `tenant-a/*` matches now, in one transaction."""
    return _switch_matching(name, Act.PAUSE, by, why, using)


def resume_matching(
    name: str, *, by: str | None = None, why: str = "", using: str | None = None
) -> list[Queue]:
    """Resume all queues that a pattern matches now, in one transaction."""
    return _switch_matching(name, Act.RESUME, by, why, using)


def matching_queues(name: str, *, or_poison: bool = False, using: str | None = None) -> list[str]:
    """
    Return the names of the queues that a name or a pattern matches.

    `or_poison`: also deleted queues that still have poison records. A pattern matches neither dead
    queues nor deadletter's internal queue.
    """
    alias = primary_alias(using)
    rows = Queue.objects.using(alias)
    if not is_pattern(name):
        is_there = rows.filter(name=name).exists()
        left = or_poison and PoisonRecord.objects.using(alias).filter(queue=name).exists()
        return [name] if is_there or left else []
    queues = dict(rows.named_and_dead())
    if or_poison:
        queues = dict.fromkeys(_with_poison(alias), False) | queues
    return queue_selection((name,)).choose(queues.items())


def require_queue(
    name: str, *, or_pattern: bool = False, or_poison: bool = False, using: str | None = None
) -> None:
    """
    Raise UnknownQueue unless there is a queue of that name.

    `or_pattern`: a pattern that matches a queue is enough; `or_poison`: so is a deleted queue that
    still has poison records.
    """
    is_refused = is_pattern(name) and not or_pattern
    if is_refused or not matching_queues(name, or_poison=or_poison, using=using):
        queues = Queue.objects.using(primary_alias(using))
        raise UnknownQueue(name, queues.values_list("name", flat=True))


def _switch_matching(
    name: str, act: Act, by: str | None, why: str, using: str | None
) -> list[Queue]:
    alias = primary_alias(using)
    names = matching_queues(name, using=alias) or [name]

    def work(tx: Transaction) -> list[Queue]:
        return [_switch(found, act, by, why, alias) for found in names]

    return in_transaction(work, using=alias)


def _switch(name: str, act: Act, by: str | None, why: str, using: str | None) -> Queue:
    alias = primary_alias(using)

    def work(tx: Transaction) -> Queue:
        queue = _get(name, alias)
        if queue.paused != (act == Act.PAUSE):
            queue.paused = act == Act.PAUSE
            queue.save(using=alias, update_fields=["paused"])
            _record(tx, act, queue, by, {}, why)
        return queue

    return in_transaction(work, using=alias)


def _get(name: str, alias: str) -> Queue:
    queue = Queue.objects.using(alias).filter(name=name).first()
    if queue is None:
        raise UnknownQueue(name, Queue.objects.using(alias).values_list("name", flat=True))
    return queue


def _resolved(name: str, policy: dict[str, Any], alias: str) -> dict[str, Any]:
    unknown = sorted(policy.keys() - set(POLICY))
    if unknown:
        raise ValueError(
            f"a queue has no field {', '.join(unknown)} (there are: {', '.join(POLICY)})"
        )
    target = policy.get("dead_queue")
    if isinstance(target, str):
        if target == name:
            text = gettext("A queue cannot be its own dead queue.")
            raise ValidationError({"dead_queue": [text]})
        policy = {**policy, "dead_queue": _get(target, alias)}
    return policy


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return json.dumps(value, default=str)
    return as_text(value) if isinstance(value, timedelta) else str(value)


def _record(
    tx: Transaction,
    act: Act,
    queue: Queue,
    by: str | None,
    changes: dict[str, Any],
    why: str = "",
) -> None:
    detail = {key: _shown(value) for key, value in changes.items()}
    selection = {"queue": queue.name}
    new = audit.NewEntry(act=act, by=by, why=why, selection=selection, detail=detail)
    entry = audit.record(tx, new)
    audit.add(tx, entry, done=1)


def _with_poison(alias: str) -> Iterator[str]:
    """Yield the queues with poison records: one index probe for each queue."""
    names = PoisonRecord.objects.using(alias).order_by("queue").values_list("queue", flat=True)
    found = names.first()
    while found is not None:
        yield found
        found = names.filter(queue__gt=found).first()
