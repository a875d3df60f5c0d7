"""Queues that the settings name: `migrate` creates missing rows; existing rows are kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django.apps import apps as installed
from django.apps.registry import Apps
from django.db import router

from ..conf import get_settings
from ..logs import event
from ..models import Queue
from ..tasks import lookup

#: How often a queue created here defers a message whose name no handler has: 303 s in all, long
#: enough for a rolling deployment.
UNREGISTERED_ATTEMPTS = 10


def create_declared_queues(*, using: str, apps: Apps = installed, **kwargs: Any) -> None:
    """
    Create missing queues of DEADLETTER["QUEUES"] and of deadletter's backends in TASKS.

    `migrate` passes the state of the apps at its end; `flush` passes none, so all apps are there.
    """
    if not router.allow_migrate_model(using, Queue) or not _has_table(apps):
        return
    declared: dict[str, Mapping[str, Any]] = {"default": {}}
    declared |= {name: {} for name in lookup.task_queues(using)}
    declared |= get_settings().queues
    existing = set(Queue.objects.using(using).values_list("name", flat=True))
    # A dead queue may be declared after the queue that names it: create the targets first.
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
    """Return whether the table has the current schema: after a migration back it has not."""
    try:
        found = apps.get_model("deadletter", "Queue")
    except LookupError:
        return False
    return {field.name for field in found._meta.fields} == {f.name for f in Queue._meta.fields}
