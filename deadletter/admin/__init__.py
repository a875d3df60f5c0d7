"""The Django admin of deadletter: lists and pages of every model, acts that call `operations`."""

from __future__ import annotations

from .alerts import AlertAdmin
from .archive import PublishedMessageAdmin
from .audits import AuditEntryAdmin
from .breakers import BreakerAdmin
from .brokers import BrokerStatusAdmin
from .counters import CountAdmin
from .instances.admin import InstanceAdmin
from .messages.admin import MessageAdmin
from .poison.admin import PoisonRecordAdmin
from .queues import QueueAdmin
from .results import ResultAdmin
from .schedules.admin import ScheduleAdmin
from .workers import WorkerProcessAdmin

__all__ = [
    "AlertAdmin",
    "AuditEntryAdmin",
    "BreakerAdmin",
    "BrokerStatusAdmin",
    "CountAdmin",
    "InstanceAdmin",
    "MessageAdmin",
    "PoisonRecordAdmin",
    "PublishedMessageAdmin",
    "QueueAdmin",
    "ResultAdmin",
    "ScheduleAdmin",
    "WorkerProcessAdmin",
]
