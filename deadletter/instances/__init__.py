"""
Instances: long-running processes that advance by messages, in order, one at a time.

Reading order: flows (registered functions and versions), starts, run (what a flow sees and can
decide), turns, decisions (a turn's decisions are stored), activities, control (raise events, wait,
cancel), names (checks of input). What the death or the retry of a message does to its instance is
in `lifecycle.instances`.
"""

from __future__ import annotations

from asgiref.sync import sync_to_async

from .activities import finish_activity, fire_timer
from .control import await_for, cancel, instance_status, raise_event, wait_for
from .decisions import TIMER
from .flow_registry import Flow, Flows, flows, highest, orchestration
from .run import Run, TurnEnded
from .starts import start
from .turns import UnknownVersion, take_turn

astart = sync_to_async(start)
araise_event = sync_to_async(raise_event)
ainstance_status = sync_to_async(instance_status)
acancel = sync_to_async(cancel)

__all__ = [
    "TIMER",
    "Flow",
    "Flows",
    "Run",
    "TurnEnded",
    "UnknownVersion",
    "acancel",
    "ainstance_status",
    "araise_event",
    "astart",
    "await_for",
    "cancel",
    "finish_activity",
    "fire_timer",
    "flows",
    "highest",
    "instance_status",
    "orchestration",
    "raise_event",
    "start",
    "take_turn",
    "wait_for",
]
