"""
A message queue with a dead-letter queue, inside the application's own database.

Reading order: status, backoff, failure_policy, payload, error_details, instance_events (values
without a database); models (the tables); lifecycle (everything that changes messages); instances
(long-running processes); worker (runs handlers); operations (what people do to messages and
queues); metrics; then admin, cli and views. Imports go one way, in that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .error_details import ErrorDetails
from .exceptions import (
    DeadletterError,
    InstanceNotRunning,
    InstanceRunning,
    LeaseLost,
    LockNotAvailable,
    MessageRejected,
    PayloadRejected,
    Permanent,
    Retry,
    UnknownQueue,
)
from .instance_events import (
    ActivityCompleted,
    ActivityFailed,
    ChildCompleted,
    ChildFailed,
    Raised,
    Started,
    TimerFired,
)
from .status import FailureReason, Status

if TYPE_CHECKING:
    from .instances import (
        Run,
        acancel,
        ainstance_status,
        araise_event,
        astart,
        await_for,
        cancel,
        instance_status,
        orchestration,
        raise_event,
        start,
        wait_for,
    )
    from .lifecycle.enqueue import Outgoing, asend, asend_many, send, send_many
    from .lifecycle.inboxes import inbox
    from .lifecycle.outbox import (
        OutgoingEvent,
        apublish,
        apublish_many,
        publish,
        publish_many,
    )
    from .lifecycle.publications import Publication
    from .worker.registry import handler

__version__ = "0.1.0"

__all__ = [
    "ActivityCompleted",
    "ActivityFailed",
    "ChildCompleted",
    "ChildFailed",
    "DeadletterError",
    "ErrorDetails",
    "FailureReason",
    "InstanceNotRunning",
    "InstanceRunning",
    "LeaseLost",
    "LockNotAvailable",
    "MessageRejected",
    "Outgoing",
    "OutgoingEvent",
    "PayloadRejected",
    "Permanent",
    "Publication",
    "Raised",
    "Retry",
    "Run",
    "Started",
    "Status",
    "TimerFired",
    "UnknownQueue",
    "acancel",
    "ainstance_status",
    "apublish",
    "apublish_many",
    "araise_event",
    "asend",
    "asend_many",
    "astart",
    "await_for",
    "cancel",
    "handler",
    "inbox",
    "instance_status",
    "orchestration",
    "publish",
    "publish_many",
    "raise_event",
    "send",
    "send_many",
    "start",
    "wait_for",
]

#: Names that need models, imported on first use: Django imports this package before the models.
_LATE = {
    "Outgoing": "lifecycle.enqueue",
    "asend": "lifecycle.enqueue",
    "asend_many": "lifecycle.enqueue",
    "send": "lifecycle.enqueue",
    "send_many": "lifecycle.enqueue",
    "handler": "worker.registry",
    "OutgoingEvent": "lifecycle.outbox",
    "Publication": "lifecycle.publications",
    "apublish": "lifecycle.outbox",
    "apublish_many": "lifecycle.outbox",
    "inbox": "lifecycle.inboxes",
    "publish": "lifecycle.outbox",
    "publish_many": "lifecycle.outbox",
}
_LATE |= dict.fromkeys(
    (
        "Run",
        "acancel",
        "ainstance_status",
        "araise_event",
        "astart",
        "await_for",
        "cancel",
        "instance_status",
        "orchestration",
        "raise_event",
        "start",
        "wait_for",
    ),
    "instances",
)


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATE[name]}", __name__), name)
