"""The log of an instance: one row an event, written in the transaction of the event."""

from __future__ import annotations

import json
from typing import Any

from ...models import Instance, InstanceEvent, InstanceLogKind
from ..transaction import Transaction

#: Characters of JSON kept of one event. An event that a failed instance missed is kept whole.
KEPT = 4_096


def add_log_entry(
    tx: Transaction,
    instance: Instance,
    event: InstanceLogKind | str,
    *,
    name: str = "",
    activity_id: int | None = None,
    message_id: int | None = None,
    data: Any = None,
    whole: bool = False,
) -> None:
    """Add an entry to the log of an instance; `whole`: do not cut its data."""
    InstanceEvent.objects.using(tx.using).create(
        instance=instance.id,
        execution_id=instance.execution_id,
        at=tx.time(),
        event=event,
        name=name,
        activity_id=activity_id,
        message_id=message_id,
        data=data if whole else _cut(data),
    )


def _cut(data: Any) -> Any:
    text = json.dumps(data, ensure_ascii=False)
    return data if len(text) <= KEPT else {"cut": text[:KEPT]}
