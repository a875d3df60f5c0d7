"""What did an instance do, and when? One row an event, written with what it tells of."""

from __future__ import annotations

import json
from typing import Any

from ...models import Instance, InstanceEvent, InstanceLogKind
from ..transaction import Transaction

#: Characters of JSON kept of one event; what an instance missed is kept whole.
KEPT = 4_096


def note(
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
    """Add a line to the timeline of an instance."""
    InstanceEvent.objects.using(tx.using).create(
        instance=instance.id,
        execution_id=instance.execution_id,
        at=tx.time(),
        event=event,
        name=name,
        activity_id=activity_id,
        message_id=message_id,
        data=data if whole else _bounded(data),
    )


def _bounded(data: Any) -> Any:
    text = json.dumps(data, ensure_ascii=False)
    return data if len(text) <= KEPT else {"cut": text[:KEPT]}
