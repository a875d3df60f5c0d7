"""Queues, messages and poison in the Django admin: declarations, and calls of `operations`."""

from __future__ import annotations

from .alerts import AlertAdmin
from .audits import AuditEntryAdmin
from .counters import CountAdmin
from .instances.admin import InstanceAdmin
from .messages.admin import MessageAdmin
from .poison.admin import PoisonRecordAdmin
from .queues import QueueAdmin
from .workers import BreakerAdmin, WorkerProcessAdmin

__all__ = [
    "AlertAdmin",
    "AuditEntryAdmin",
    "BreakerAdmin",
    "CountAdmin",
    "InstanceAdmin",
    "MessageAdmin",
    "PoisonRecordAdmin",
    "QueueAdmin",
    "WorkerProcessAdmin",
]
