"""Rows: fields, indexes and named sets. Transitions live in `lifecycle`."""

from __future__ import annotations

from .fields import Damaged
from .message import Kind, Message, State
from .poison import PoisonRecord
from .queue import OnPoison, Queue, StreamPolicy
from .worker import Breaker, WorkerProcess

__all__ = [
    "Breaker",
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
