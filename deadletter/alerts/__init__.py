"""
Who is told when something is wrong? Decided from rows, told through deadletter's own queue.

Reading order: looking (groups, poison, waiting, workers: what is wrong now), deciding (what is new,
what has ended, what is told), notices and wording (what is said), delivery (mail, webhook).
"""

from __future__ import annotations

from .decisions import Decision, decide, decide_when_due
from .notice import send_test

__all__ = ["Decision", "decide", "decide_when_due", "send_test"]
