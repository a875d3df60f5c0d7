"""The documented address of `read_burial`; it lives in `deadletter.lifecycle.dead_queues`."""

from __future__ import annotations

from .dead_queues import read_burial

__all__ = ["read_burial"]
