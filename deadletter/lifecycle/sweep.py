"""What nobody else tidies up: expired messages, old poison, streams left without a token."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ..logs import event
from ..status import FailureReason
from . import outcomes, streams
from .quarantine import Death, quarantine
from .transaction import Transaction, in_transaction

#: Rows per transaction, so that a sweep never holds locks for long.
CHUNK = 500


@dataclass(frozen=True)
class Sweep:
    """What a sweep did. `repaired` counts broken streams and should always be 0."""

    expired: int
    forgotten: int
    repaired: int
    #: Retried messages whose end has been entered in the audit trail.
    followed: int = 0


def sweep(*, using: str | None = None, by: str = "sweep") -> Sweep:
    """Quarantine what expired, remove poison past its retention, repair stranded streams."""
    return Sweep(
        expired=_until_nothing_is_left(lambda tx: _expire(tx, by), using),
        forgotten=_until_nothing_is_left(_forget, using),
        repaired=in_transaction(_repair, using=using),
        followed=_until_nothing_is_left(lambda tx: outcomes.close(tx, limit=CHUNK), using),
    )


def _until_nothing_is_left(step: Callable[[Transaction], int], using: str | None) -> int:
    total = 0
    while count := in_transaction(step, using=using):
        total += count
    return total


def _expire(tx: Transaction, by: str) -> int:
    ids = [row[0] for row in tx.run("read_expired", limit=CHUNK)]
    if not ids:
        return 0
    streams.lock(tx, ids)
    # Read again under the locks: somebody may have claimed one in between.
    still = [row[0] for row in tx.run("read_expired", limit=CHUNK) if row[0] in set(ids)]
    deaths = [Death(id, FailureReason.EXPIRED, "expired before it was handled") for id in still]
    return len(quarantine(tx, deaths, by=by)) if deaths else 0


def _forget(tx: Transaction) -> int:
    return len(tx.run("forget_old_poison", limit=CHUNK))


def _repair(tx: Transaction) -> int:
    stranded = [(row[0], row[1]) for row in tx.run("read_stranded")]
    if not stranded:
        return 0
    tx.run_for(stranded, "lock_named_streams")
    # Judge again under the locks: a settle that was under way has woken its stream by now.
    still = {(row[0], row[1]) for row in tx.run("read_stranded")} & set(stranded)
    woken = streams.wake(tx, still)
    for queue_id, stream in sorted(still):
        event(
            logging.ERROR,
            "stream_repaired",
            "stream {stream} of queue {queue_id} had parked messages and nothing to wake them; "
            "repaired. Please report this: it should never happen",
            stream=stream,
            queue_id=queue_id,
        )
    return len(woken)
