"""How do messages of instances get in? Events in the stream of their instance, and activities."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import connections

from ... import clock, tracing
from ...instance_events import Event, as_payload
from ...models import Instance, Kind, Queue
from ..counters import writer
from ..insert import announce_sent, store_one
from ..notify import notify_after_commit

_AT_ONCE = timedelta(0)


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A message of an instance. `payload` is JSON text that passed the door, or is our own."""

    kind: Kind
    name: str
    queue: str
    instance: str
    execution_id: int | None
    payload: str
    activity_id: int | None = None
    stream: str | None = None
    delay: timedelta = _AT_ONCE
    priority: int = 0
    headers: Mapping[str, Any] | None = None


def event_letter(
    to: Instance,
    event: Event,
    *,
    payload: str | None = None,
    execution_id: int | None = None,
    activity_id: int | None = None,
) -> Letter:
    """Address an event to an instance: the next message of its stream."""
    return Letter(
        kind=Kind.ORCHESTRATION,
        name=to.name,
        queue=to.queue,
        stream=to.stream,
        instance=to.id,
        execution_id=to.execution_id if execution_id is None else execution_id,
        activity_id=activity_id,
        # Ours, and the quarantine depends on it: no setting may refuse it.
        payload=payload or json.dumps(as_payload(event), ensure_ascii=False),
        headers=None if to.version is None else {"version": to.version},
    )


def post(using: str, letter: Letter) -> int | None:
    """Store a message inside the caller's transaction; None: its queue does not exist."""
    connection = connections[using]
    trace = tracing.context()
    headers = letter.headers if trace is None else tracing.join_headers(letter.headers, trace)
    rows = store_one(
        connection,
        {
            "name": letter.name,
            "kind": letter.kind.value,
            "payload": letter.payload,
            "headers": None if headers is None else json.dumps(dict(headers), ensure_ascii=False),
            "stream": letter.stream,
            "key": None,
            "priority": letter.priority,
            "at": None,
            "delay": letter.delay,
            "expires_in": _expires_in(using, letter),
            "queue": letter.queue,
            "instance": letter.instance,
            "execution_id": letter.execution_id,
            "activity_id": letter.activity_id,
            "now": clock.transaction_time(connection),
            "writer": writer(connection),
        },
    )
    if not rows:
        return None
    id = int(rows[0][0])
    if not letter.delay:
        notify_after_commit(using)
    announce_sent(using, letter.queue, [(id, letter.name)], letter.kind.value)
    return id


def _expires_in(using: str, letter: Letter) -> timedelta | None:
    """
    Count the queue's time for handling from when a message is due, not from when it is sent.

    Nobody chose the time of a timer or a delayed activity with the queue's limit in mind, and one
    that is longer would die at the moment it is due. None: as the queue says.
    """
    if not letter.delay:
        return None
    queue = Queue.objects.using(using).filter(name=letter.queue)
    limit = queue.values_list("expire_timeout", flat=True).first()
    return None if limit is None else limit + letter.delay
