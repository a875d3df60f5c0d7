"""Post: insert the messages of instances, that is events in their streams, and activities."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.db import connections

from ... import clock, tracing
from ...instance_events import Event, as_payload
from ...logs import event
from ...models import Instance, Kind, Queue
from ..counters import writer
from ..insert import announce_sent, insert_one
from ..notify import notify_after_commit
from ..transaction import Transaction

_NO_DELAY = timedelta(0)


@dataclass(frozen=True, kw_only=True)
class InstanceMessage:
    """A message of an instance. `payload` is JSON text that was checked or made here."""

    kind: Kind
    name: str
    queue: str
    instance: str
    execution_id: int | None
    payload: str
    activity_id: int | None = None
    stream: str | None = None
    delay: timedelta = _NO_DELAY
    priority: int = 0
    headers: Mapping[str, Any] | None = None


def event_message(
    to: Instance,
    event: Event,
    *,
    payload: str | None = None,
    execution_id: int | None = None,
    activity_id: int | None = None,
) -> InstanceMessage:
    """Return an event as the next message of the stream of an instance."""
    return InstanceMessage(
        kind=Kind.ORCHESTRATION,
        name=to.name,
        queue=to.queue,
        stream=to.stream,
        instance=to.id,
        execution_id=to.execution_id if execution_id is None else execution_id,
        activity_id=activity_id,
        # Not checked against the settings: the quarantine depends on it, so nothing may refuse it.
        payload=payload or json.dumps(as_payload(event), ensure_ascii=False),
        headers=None if to.version is None else {"version": to.version},
    )


def post(using: str, message: InstanceMessage) -> int | None:
    """Insert a message in the caller's transaction; None: its queue does not exist."""
    connection = connections[using]
    trace = tracing.context()
    headers = message.headers if trace is None else tracing.join_headers(message.headers, trace)
    rows = insert_one(
        connection,
        {
            "name": message.name,
            "kind": message.kind.value,
            "payload": message.payload,
            "headers": None if headers is None else json.dumps(dict(headers), ensure_ascii=False),
            "stream": message.stream,
            "key": None,
            "priority": message.priority,
            "at": None,
            "delay": message.delay,
            "expires_in": _expires_in(using, message),
            "queue": message.queue,
            "instance": message.instance,
            "execution_id": message.execution_id,
            "activity_id": message.activity_id,
            "now": clock.transaction_time(connection),
            "writer": writer(connection),
        },
    )
    if not rows:
        return None
    id = int(rows[0][0])
    if not message.delay:
        notify_after_commit(using)
    announce_sent(using, message.queue, [(id, message.name)], message.kind.value)
    return id


def post_or_log(
    tx: Transaction, message: InstanceMessage, *, fallback_queue: str | None = None
) -> None:
    """Post a message that must not be lost; use another queue, or the log, if its own is gone."""
    if post(tx.using, message) is not None:
        return
    if fallback_queue is not None:
        other = replace(message, queue=fallback_queue)
        if post(tx.using, other) is not None:
            return
    event(
        logging.ERROR,
        "instance_unreachable",
        "instance {instance} could not be told what happened: its queue {queue} is gone. "
        "Create the queue again, then cancel the instance or start it anew",
        instance=message.instance,
        queue=message.queue,
    )


def _expires_in(using: str, message: InstanceMessage) -> timedelta | None:
    """
    Return the expiry of a delayed message, counted from when it is due; None: the queue's.

    The delay of a timer or an activity is chosen without regard to the queue's expiry. Counted from
    the send, a delay longer than the expiry would let the message expire at the moment it is due.
    """
    if not message.delay:
        return None
    queue = Queue.objects.using(using).filter(name=message.queue)
    limit = queue.values_list("expire_timeout", flat=True).first()
    return None if limit is None else limit + message.delay
