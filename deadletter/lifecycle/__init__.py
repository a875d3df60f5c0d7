"""
The verbs: everything that happens to a message between `send` and its end.

This package is the only code that writes queue rows. Reading order: enqueue, claim, settle,
streams, quarantine, sweep, batch; recover holds what people decide.
"""

from __future__ import annotations

from ..exceptions import CompletionRefused, LeaseLost
from .batch import process_batch
from .claims import claim
from .enqueue import Outgoing, asend, asend_many, send, send_many
from .failures import abandon, complete, fail, refund, release, renew
from .quarantine import Poisoning
from .sweeps import Sweep, sweep
from .values import (
    Batch,
    Claimed,
    ClaimRequest,
    Completed,
    Completion,
    Failure,
    Floor,
    Level,
    Levels,
    Outcome,
    Poisoned,
    Progress,
    Refused,
    Release,
    Released,
    Scheduled,
    Staged,
    WorkBatch,
)

__all__ = [
    "Batch",
    "ClaimRequest",
    "Claimed",
    "Completed",
    "Completion",
    "CompletionRefused",
    "Failure",
    "Floor",
    "LeaseLost",
    "Level",
    "Levels",
    "Outcome",
    "Outgoing",
    "Poisoned",
    "Poisoning",
    "Progress",
    "Refused",
    "Release",
    "Released",
    "Scheduled",
    "Staged",
    "Sweep",
    "WorkBatch",
    "abandon",
    "asend",
    "asend_many",
    "claim",
    "complete",
    "fail",
    "process_batch",
    "refund",
    "release",
    "renew",
    "send",
    "send_many",
    "sweep",
]
