"""Queues, messages and poison in the Django admin: declarations, and calls of `operations`."""

from __future__ import annotations

from .messages import MessageAdmin
from .poison import PoisonRecordAdmin
from .queues import QueueAdmin

__all__ = ["MessageAdmin", "PoisonRecordAdmin", "QueueAdmin"]
