"""
The lifecycle of a message: every change between `send` and its end.

This package is the only code that writes rows of messages and poison records. A public verb such as
`complete` opens a transaction; `complete_in(tx, ...)` joins one. Reading order:

- transaction, values: what all modules use
- enqueue, insert, notify: a message is sent
- levels, claims, candidates, limits, streams: due messages are leased
- settles, completions, stages, failures, releases, renewals: a worker reports what became of them
- results: what a finished task leaves behind
- quarantine, dead_queues: a message that cannot succeed leaves its queue
- batch, locks: reports and claim of a worker in one transaction, without waiting for locks
- retries, retry_outcomes, imports, policy_edits: what operators do
- outbox, lanes, outbox_batches, inboxes: messages for and from other systems
- sweeps, counters, internal_queue: maintenance
- instances/: what all this does to instances
"""

from __future__ import annotations

from ..exceptions import CompletionRefused, LeaseLost
from .batch import process_batch
from .claims import claim
from .completions import complete, complete_in, complete_last
from .enqueue import Outgoing, asend, asend_many, checked_priority, send, send_many
from .failures import abandon, fail
from .internal_queue import PREFIX as INTERNAL_PREFIX
from .internal_queue import QUEUE as INTERNAL_QUEUE
from .internal_queue import ensure_internal_queue
from .levels import oldest_due, oldest_waiting, priorities, read_levels, to_be_served
from .notify import CHANNEL, OUTBOX_CHANNEL
from .quarantine import Poisoning
from .releases import give_back, refund, release
from .renewals import renew, renew_unlocked_in
from .stages import unpublished
from .sweeps import Sweep, sweep
from .values import (
    Batch,
    Claimed,
    ClaimRequest,
    Completed,
    Completion,
    Failure,
    Floor,
    KeptResult,
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
    "CHANNEL",
    "INTERNAL_PREFIX",
    "INTERNAL_QUEUE",
    "OUTBOX_CHANNEL",
    "Batch",
    "ClaimRequest",
    "Claimed",
    "Completed",
    "Completion",
    "CompletionRefused",
    "Failure",
    "Floor",
    "KeptResult",
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
    "checked_priority",
    "claim",
    "complete",
    "complete_in",
    "complete_last",
    "ensure_internal_queue",
    "fail",
    "give_back",
    "oldest_due",
    "oldest_waiting",
    "priorities",
    "process_batch",
    "read_levels",
    "refund",
    "release",
    "renew",
    "renew_unlocked_in",
    "send",
    "send_many",
    "sweep",
    "to_be_served",
    "unpublished",
]
