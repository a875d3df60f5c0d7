"""
A message queue inside the application's own database that knows what to do when work fails.

Reading order: status, backoff, payload, failures (pure); models; lifecycle (the verbs); worker;
operations (what people do); admin. Imports go one way, in that order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .exceptions import (
    DeadletterError,
    LeaseLost,
    MessageRejected,
    PayloadRejected,
    Permanent,
    Retry,
    UnknownQueue,
)
from .failures import ErrorDetails
from .status import FailureReason, Status

if TYPE_CHECKING:
    from .lifecycle.enqueue import Outgoing, asend, asend_many, send, send_many
    from .worker.registry import handler

__version__ = "0.1.0"

__all__ = [
    "DeadletterError",
    "ErrorDetails",
    "FailureReason",
    "LeaseLost",
    "MessageRejected",
    "Outgoing",
    "PayloadRejected",
    "Permanent",
    "Retry",
    "Status",
    "UnknownQueue",
    "asend",
    "asend_many",
    "handler",
    "send",
    "send_many",
]

#: Names that need models, found on first use: importing the package must not load the app registry.
_LATE = {
    "Outgoing": "lifecycle.enqueue",
    "asend": "lifecycle.enqueue",
    "asend_many": "lifecycle.enqueue",
    "send": "lifecycle.enqueue",
    "send_many": "lifecycle.enqueue",
    "handler": "worker.registry",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATE[name]}", __name__), name)
