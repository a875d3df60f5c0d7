"""Queues declared in settings exist after `migrate`; from then on the row is the truth."""

from __future__ import annotations

import logging
from typing import Any

from django.apps import apps as installed
from django.apps.registry import Apps
from django.db import router

from ..conf import get_settings
from ..logs import event
from ..models import Queue

#: How often a queue made here puts off a message whose name nobody knows: 303 s in all, long enough
#: for a rolling deployment.
UNREGISTERED_ATTEMPTS = 10


def create_declared_queues(*, using: str, apps: Apps = installed, **kwargs: Any) -> None:
    """
    Create missing queues of DEADLETTER["QUEUES"], and "default". Existing rows stay.

    `migrate` says which apps there are at its end, `flush` says nothing: all of them.
    """
    if not router.allow_migrate_model(using, Queue) or not _has_table(apps):
        return
    declared = {"default": {}, **get_settings().queues}
    existing = set(Queue.objects.using(using).values_list("name", flat=True))
    # A dead queue may be declared after the queue that names it, so targets come first.
    for name in sorted(declared, key=lambda name: "dead_queue" in declared[name]):
        if name not in existing:
            _create(name, dict(declared[name]), using)


def _create(name: str, policy: dict[str, Any], using: str) -> None:
    target = policy.get("dead_queue")
    if isinstance(target, str):
        if target == name:
            raise ValueError(
                f'DEADLETTER["QUEUES"]["{name}"]: a queue cannot be its own dead queue.'
            )
        found = Queue.objects.using(using).filter(name=target).first()
        if found is None:
            raise ValueError(
                f'DEADLETTER["QUEUES"]["{name}"]: dead_queue {target!r} does not exist; declare it '
                "as a queue as well."
            )
        policy["dead_queue"] = found
    if "max_attempts" not in policy:
        policy.setdefault("unregistered_attempts", UNREGISTERED_ATTEMPTS)
    queue = Queue(name=name, **policy)
    queue.save(using=using, force_insert=True)
    event(logging.INFO, "queue_created", "created queue {queue}", queue=name)


def _has_table(apps: Apps) -> bool:
    """Migrated back to zero there is no table to fill, and to an older schema not with this one."""
    try:
        found = apps.get_model("deadletter", "Queue")
    except LookupError:
        return False
    return {field.name for field in found._meta.fields} == {f.name for f in Queue._meta.fields}
