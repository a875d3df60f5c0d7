"""Documented alias: `read_burial` is `deadletter.lifecycle.dead_queues.read_original_death`."""

from __future__ import annotations

from .dead_queues import OriginalDeath as Burial
from .dead_queues import read_original_death as read_burial

__all__ = ["Burial", "read_burial"]
