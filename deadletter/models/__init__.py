"""The tables: fields, indexes and named QuerySets. Transitions are in `lifecycle`."""

from __future__ import annotations

from .alert import Alert, AlertState
from .audit import Act, AuditedMessage, AuditEntry, BulkJob
from .count import NO_REASON, Count, Span
from .fields import Damaged
from .group import (
    ERROR_LIMIT,
    OPEN_STATES,
    ApplicationRelease,
    FailureGroup,
    GroupChange,
    GroupEvent,
    GroupHour,
    GroupState,
    GroupTag,
    MessageTag,
)
from .inbox import InboxMessage
from .instance import (
    Instance,
    InstanceEvent,
    InstanceLogKind,
    InstanceStatus,
    stream_of,
)
from .message import Kind, Message, State
from .outbox import (
    BrokerStatus,
    OutboxLane,
    OutboxMessage,
    OutboxPause,
    OutboxRelay,
    PublishedMessage,
)
from .poison import PoisonRecord, is_moved
from .primary import primary_alias
from .queue import OnPoison, Queue, StreamPolicy
from .result import Result, ResultOutcome
from .schedule import MissedRuns, Overlap, RunOutcome, Schedule, ScheduleRun, Sends
from .worker import UNTIL_RESET, Breaker, WorkerDeath, WorkerProcess

__all__ = [
    "ERROR_LIMIT",
    "NO_REASON",
    "OPEN_STATES",
    "UNTIL_RESET",
    "Act",
    "Alert",
    "AlertState",
    "ApplicationRelease",
    "AuditEntry",
    "AuditedMessage",
    "Breaker",
    "BrokerStatus",
    "BulkJob",
    "Count",
    "Damaged",
    "FailureGroup",
    "GroupChange",
    "GroupEvent",
    "GroupHour",
    "GroupState",
    "GroupTag",
    "InboxMessage",
    "Instance",
    "InstanceEvent",
    "InstanceLogKind",
    "InstanceStatus",
    "Kind",
    "Message",
    "MessageTag",
    "MissedRuns",
    "OnPoison",
    "OutboxLane",
    "OutboxMessage",
    "OutboxPause",
    "OutboxRelay",
    "Overlap",
    "PoisonRecord",
    "PublishedMessage",
    "Queue",
    "Result",
    "ResultOutcome",
    "RunOutcome",
    "Schedule",
    "ScheduleRun",
    "Sends",
    "Span",
    "State",
    "StreamPolicy",
    "WorkerDeath",
    "WorkerProcess",
    "is_moved",
    "primary_alias",
    "stream_of",
]
