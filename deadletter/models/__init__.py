"""Rows: fields, indexes and named sets. Transitions live in `lifecycle`."""

from __future__ import annotations

from .audit import Act, AuditedMessage, AuditEntry, BulkJob
from .fields import Damaged
from .message import Kind, Message, State
from .poison import PoisonRecord
from .queue import OnPoison, Queue, StreamPolicy
from .worker import Breaker, WorkerProcess

__all__ = [
    "Act",
    "AuditEntry",
    "AuditedMessage",
    "Breaker",
    "BulkJob",
    "Damaged",
    "Kind",
    "Message",
    "OnPoison",
    "PoisonRecord",
    "Queue",
    "State",
    "StreamPolicy",
    "WorkerProcess",
]
