"""
Alerts: conditions that people must know of, decided from rows and sent through the queue itself.

Reading order: context (what one decision reads), main_groups (which groups are quiet),
conditions, new_groups and regressed_groups (what is wrong now),
decisions (what is new, what has ended, what is sent), notice (the text and the message), delivery
(mail, webhook, slack, teams, pagerduty), current_counts (numbers at the time of delivery).
"""

from __future__ import annotations

from .decisions import Decision, decide, decide_when_due
from .notice import send_test

__all__ = ["Decision", "decide", "decide_when_due", "send_test"]
