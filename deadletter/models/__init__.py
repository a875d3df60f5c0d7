"""The tables: fields, indexes and named QuerySets. Transitions are in `lifecycle`."""

from __future__ import annotations

from .alert import Alert, AlertState
from .audit import Act, AuditedMessage, AuditEntry, BulkJob
from .count import NO_REASON, Count, Span
from .fields import Damaged
from .instance import (
    Instance,
    InstanceEvent,
    InstanceLogKind,
    InstanceStatus,
    stream_of,
)
from .message import Kind, Message, State
from .poison import PoisonRecord, is_moved
from .primary import primary_alias
from .queue import OnPoison, Queue, StreamPolicy
from .worker import Breaker, WorkerDeath, WorkerProcess

__all__ = [
    "NO_REASON",
    "Act",
    "Alert",
    "AlertState",
    "AuditEntry",
    "AuditedMessage",
    "Breaker",
    "BulkJob",
    "Count",
    "Damaged",
    "Instance",
    "InstanceEvent",
    "InstanceLogKind",
    "InstanceStatus",
    "Kind",
    "Message",
    "OnPoison",
    "PoisonRecord",
    "Queue",
    "Span",
    "State",
    "StreamPolicy",
    "WorkerDeath",
    "WorkerProcess",
    "is_moved",
    "primary_alias",
    "stream_of",
]
