"""
Crash points: named places in the code where a test can look in or end the process.

In production nothing listens, and reaching a point is a call that compares with None: at most 0.2
microseconds. Points are where a batch, a transaction or a run of messages passes, not one message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Every point, and what a process that dies there has done and has not done.
POINTS = {
    "send.stored": "a message is stored, its sender's transaction is open",
    "send_many.stored": "many messages are stored, their sender's transaction is open",
    "notify.sending": "a sender has committed, no worker is notified yet",
    "claim.leased": "messages are leased and counted, the claim is not committed",
    "claim.parked": "messages of a blocked stream are parked, the claim is not committed",
    "batch.settled": "outcomes are written, the claim of the same transaction has not begun",
    "complete.deleted": "finished messages without a stream are deleted, those of streams not yet",
    "complete.unblocking": "finished messages are deleted, their streams are not woken",
    "results.stored": "finished tasks are deleted and their results stored, nothing is committed",
    "stage.completed": "finished stages are written, the rest of their runs is not given back",
    "stage.recorded": "what a running handler has done is written, not committed",
    "fail.recorded": "failures are written, messages at their limit are not quarantined",
    "release.given_back": "messages behind a failure are given back, their stream is not woken",
    "renew.extended": "leases are extended, not committed",
    "quarantine.recorded": "the poison record is written, the message is not deleted",
    "quarantine.deleted": "the message is deleted, its stream is not woken",
    "stream.woken": "the first parked message is due again, nothing is committed",
    "groups.folding": "changes are deleted, nothing is added to their groups or committed",
    "retry.restored": "a message is back in its queue, its record or copy is still there",
    "remove.deleted": "poison is removed, its stream is not woken",
    "transaction.committing": "everything is written, nothing is committed",
    "transaction.committed": "everything is committed, no signal is sent and no worker notified",
    "pump.exchanging": "outcomes are gathered, the transaction has not begun",
    "pump.exchanged": "outcomes and claim are committed, the pump has processed neither",
    "pump.taken_in": "claimed messages are in the buffer",
    "handler.starting": "a message is about to be passed to its handler",
    "handler.returned": "the handler has returned, its outcome is not queued for the pump",
    "atomic.completed": "an atomic handler's work and completion are written, not committed",
    "publish.stored": "a message for a broker is stored, its transaction is open",
    "publish_many.stored": "messages for a broker are stored, their transaction is open",
    "relay.published": "a broker has confirmed a batch, nothing is settled",
    "relay.exchanged": "a batch is settled and the next one read, the relay has noted neither",
    "outbox.deleted": "confirmed messages are deleted, refused ones are not written",
    "outbox.quarantined": "a poison record is written, its message is still in the outbox",
    "outbox.settled": "a batch is settled, nothing is committed",
    "schedule.firing": "due schedules are locked, nothing is written",
    "schedule.sent": "the message of a moment is stored, the moment is not recorded",
    "schedule.recorded": "message, moment and next moment are written, nothing is committed",
    "schedule.fired": "due schedules are fired and committed",
    "supervisor.freeing": "a child is dead, what it held is not freed",
    "supervisor.freed": "what a dead child held is freed, the ledger still says it is not",
}

#: Called with the point and what passes it: a message, or None where many pass at once.
Listener = Callable[[str, Any], None]

_listener: Listener | None = None


def reach(point: str, subject: Any = None) -> None:
    """Tell the listener that this point is reached."""
    if _listener is not None:
        _listener(point, subject)


def is_watched() -> bool:
    """Return True if a test listens; for points that cost something to set up."""
    return _listener is not None


def listen(listener: Listener | None) -> None:
    """Call `listener` at every point from now on; None: stop."""
    global _listener
    _listener = listener
