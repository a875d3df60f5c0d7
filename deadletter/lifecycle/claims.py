"""
Claim: lease due messages to a worker and count the attempt.

This module decides where a claim looks; candidates.py decides about what it finds there.

A message whose lease ran out is due again. The statement `claim` does not lease it, but returns it
with the verdict `lost`: `Limits.judge` checks its limits, then `lease_runs` leases it and records
WORKER_LOST for the attempt that was never reported, or the message is quarantined.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.db import OperationalError, connections
from django.db.models import Q

from .. import clock, crash_points
from ..durations import Duration, as_timedelta
from ..failure_policy import Policy
from ..models import Queue, primary_alias
from ..patterns import queue_selection
from . import levels
from .candidates import OpenClaim, largest_limit
from .limits import Limits
from .transaction import Transaction, in_transaction
from .values import Batch, ClaimRequest, Floor, Level, Levels

#: The most that one claim may take; above 500 nothing is gained.
LIMIT = 10_000
#: Levels that one statement looks at; further levels are looked at if these were not enough.
LEVELS = 200


def claim(
    queues: Sequence[str] | None = None,
    limit: int = 100,
    worker: str = "worker",
    lease: Duration | None = None,
    using: str | None = None,
) -> Batch:
    """
    Take up to `limit` due messages under a lease and count the attempt, in one transaction.

    `queues` are names or glob patterns in order of preference; a pattern never matches a dead queue
    or the internal queue. None: all but dead queues. `lease` defaults to the queue's.
    A message that has used up its attempts is quarantined instead, without being returned.
    """
    request = ClaimRequest(queues, limit, lease)
    hint = look_ahead(request, using=using)
    if hint is not None:
        if not hint.due:
            return Batch(new_token(), levels=hint)
        request = replace(request, levels=hint, rediscover=False)
    return in_transaction(lambda tx: claim_in(tx, request, worker=worker), using=using)


def look_ahead(request: ClaimRequest, *, using: str | None) -> Levels | None:
    """
    On SQLite, find the levels that a claim would find, without the write lock.

    For a claim with nothing to report: one that finds nothing would block every other writer. Only
    a hint: the claim decides under the lock. None: there is no hint, because the database is not
    SQLite, the caller has a transaction open or the database is locked.
    """
    _check(request)
    connection = connections[primary_alias(using)]
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        return None
    if not connection.get_autocommit():
        return None
    known = request.levels
    now = clock.transaction_time(connection)
    if known is not None and not known.due and not request.rediscover:
        return known
    try:
        # Only what is due now, as SQL compares it: a damaged time that Python cannot read may come
        # first at its level, and must not hide the due messages behind it.
        return levels.discover(connection, request, now=now, within=timedelta(0))
    except OperationalError as error:
        if "locked" not in str(error):
            raise
        return None


def new_token() -> str:
    return secrets.token_hex(8)


def claim_in(
    tx: Transaction, request: ClaimRequest, *, worker: str, exclude: Collection[int] = ()
) -> Batch:
    """Claim inside a transaction; `exclude` are messages that failed in the same transaction."""
    lease = _check(request)
    policies = request.policies
    if request.max_attempts:
        limits = {name: Policy(max_attempts=limit) for name, limit in request.max_attempts.items()}
        policies = {**limits, **policies}
    claim = OpenClaim(
        tx=tx,
        token=request.token or new_token(),
        worker=worker,
        lease=lease,
        limit=request.limit,
        limits=Limits(tx, policies, request.knows),
        failed=frozenset(exclude),
        expected=request.candidates if 0 < request.candidates < 1 else 1.0,
    )
    found = _claim_levels(tx, request, claim)
    if claim.messages:
        crash_points.reach("claim.leased")
    return Batch(
        token=claim.token,
        messages=claim.messages,
        dead=claim.dead,
        more=claim.cut_short and claim.parked > 0,
        floor=claim.floor,
        candidates=min(claim.used / len(claim.messages), 1.0) if claim.messages else 1.0,
        levels=found,
    )


def _check(request: ClaimRequest) -> timedelta | None:
    """Refuse a request that makes no sense; return its lease."""
    if not 0 <= request.limit <= LIMIT:
        raise ValueError(f"limit: expected 0 to {LIMIT:,}, got {request.limit!r}")
    lease = None if request.lease is None else as_timedelta(request.lease, field="lease")
    if lease == timedelta(0):
        raise ValueError("lease: must be greater than 0")
    return lease


def _claim_levels(tx: Transaction, request: ClaimRequest, claim: OpenClaim) -> Levels | None:
    """
    Claim from the levels that are known, then, if there is room left, from those that exist by now.

    Returns the levels that were discovered; None: the known ones were enough.
    """
    known, floors = request.levels, request.floors
    if known is not None:
        due: Sequence[Level] = known.due
        if request.queues is not None:
            # The known levels may include those of queues that are not asked for.
            place = queue_selection(tuple(request.queues)).place
            due = [
                level
                for level in due
                if place(level.queue, is_dead_queue=level.is_dead_queue) is not None
            ]
        claim.take_from(_places(tx, request, due, floors))
        if not (claim.room and request.rediscover) or claim.cut_short:
            return None
    found = levels.discover(tx.connection, request, now=tx.now, within=levels.VALID, keep=tx.is_own)
    rest: Sequence[Level] = found.due
    if known is not None:
        # From the start this time, without floors. A level that was already looked at from its
        # start has nothing more to give.
        seen = set() if floors else {(level.queue_id, level.priority) for level in known.due}
        rest = [level for level in rest if (level.queue_id, level.priority) not in seen]
        floors = {}
    claim.take_from(_places(tx, request, rest, floors))
    return found


def _places(
    tx: Transaction, request: ClaimRequest, due: Sequence[Level], floors: Mapping[str, Floor]
) -> Iterator[dict[str, Any]]:
    """Yield the parameters of each `claim` statement: many levels on PostgreSQL, one on SQLite."""
    if request.shuffle:
        due = levels.shuffled(due)
    # The rows of the queues are read when they are needed: one may have been paused or renamed
    # since its level was found.
    names = {} if request.queues is None else queue_selection(tuple(request.queues)).names
    for start in range(0, len(due), LEVELS):
        some = due[start : start + LEVELS]
        if tx.is_sqlite:
            yield from _sqlite_places(tx, some, names)
            continue
        starts = [floors.get(level.queue) for level in some]
        yield {
            "queue_ids": [level.queue_id for level in some],
            "names": [level.queue if level.queue in names else None for level in some],
            "priorities": [level.priority for level in some],
            "since": [floor and floor.since for floor in starts],
            "from_ids": [floor.id if floor else 0 for floor in starts],
        }


def _sqlite_places(
    tx: Transaction, some: Sequence[Level], names: Collection[str]
) -> Iterator[dict[str, Any]]:
    policies = Queue.objects.using(tx.using).filter(paused=False)
    if any(level.queue not in names for level in some):
        policies = policies.filter(Q(sources=None) | Q(name__in=names)).distinct()
    queues = policies.in_bulk({level.queue_id for level in some})
    for level in some:
        queue = queues.get(level.queue_id)
        if queue is None or (level.queue in names and queue.name != level.queue):
            continue
        yield {
            "queue_id": queue.pk,
            "priority": level.priority,
            "max_attempts": queue.max_attempts,
            "unregistered_attempts": (
                queue.max_attempts
                if queue.unregistered_attempts is None
                else queue.unregistered_attempts
            ),
            "largest_limit": largest_limit(
                queue.max_attempts,
                json.dumps(queue.reason_policies) if queue.reason_policies else None,
            ),
            "lease_timeout": queue.lease_timeout,
        }
