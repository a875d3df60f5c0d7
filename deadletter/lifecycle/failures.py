"""
Fail: record a failed attempt; the message waits for its retry, or is quarantined.

The policies of the handler and of the queue decide which of the two, and how long it waits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from .. import crash_points, signals, sql
from ..application_release import current_release, cut_release
from ..conf import get_settings
from ..durations import Duration, as_timedelta
from ..error_details import GIVEN_UP, HISTORY_LIMIT, PERMANENT
from ..failure_policy import Policy, PolicyInForce, read_counts, stored_reasons, with_one_more
from ..message_tags import Tag, clean_tags
from ..models import Message
from ..status import STAGE_BITS, FailureReason, Status
from ..text import storable_text
from . import custom_fingerprints, streams
from .counters import CounterKey
from .group_changes import GroupKey, cause_and_group
from .quarantine import MessageDeath, death_by_limit, quarantine
from .releases import release_in
from .settles import Outcomes, lease_guard, queue_names, settle
from .stages import check_reports, record_last_reports
from .transaction import Transaction
from .values import Deferral, Failure, Poisoned, Release, Released, Scheduled

_NO_DELAY = timedelta(0)


def fail(
    token: str, failures: Iterable[Failure], *, by: str | None = None, using: str | None = None
) -> Outcomes:
    """
    Record failed attempts: each message waits for its retry, or is quarantined.

    Raises: LeaseLost naming the ids that are not the caller's; the others are recorded.
    ValueError when a `completed` has other bits than 0 to 14; nothing is recorded.
    """
    reports = [item if item.token else replace(item, token=token) for item in failures]
    check_reports((), reports)

    def work(tx: Transaction) -> Outcomes:
        streams.lock(tx, {item.id for item in reports})
        return fail_in(tx, reports, by=by or "worker")

    return settle(reports, work, using)


def fail_in(tx: Transaction, failures: Sequence[Failure], *, by: str) -> Outcomes:
    """
    Record failures by the policies in force now. The caller holds the locks of the streams.

    `by` is the worker, for the poison records.
    """
    reports = {failure.id: failure for failure in failures}
    leased = [
        _LeasedRow(*row) for row in tx.run("read_for_failure", **lease_guard(failures)._asdict())
    ]
    deaths: list[MessageDeath] = []
    deferrals: dict[int, Deferral] = {}
    written: dict[int, dict[str, Any]] = {}
    for row in leased:
        failure = reports[row.id]
        facts = _facts(tx, failure, row)
        _count(tx, failure, row, facts)
        if failure.deferred and failure.reason == FailureReason.UNREGISTERED:
            deferral = deferrals[row.id] = _deferral(failure, row)
            written[row.id] = _as_written(failure, deferral.delay, facts) | _as_deferred(deferral)
            continue
        policy = row.policy(failure)
        counts = with_one_more(read_counts(row.reason_counts), FailureReason.read(failure.reason))
        death = _judge(failure, row.attempts, policy, counts)
        if death is not None:
            deaths.append(replace(death, raised=failure.raised))
        delay = _NO_DELAY if death else _delay(failure, row.attempts, policy, counts)
        written[row.id] = _as_written(failure, delay, facts) | {"counts": counts}
    if not written:
        return {}
    record_last_reports(tx, [reports[id] for id in written])
    # Only the rows that were just read: another transaction may have renewed the leases of the rest
    # since.
    guard = lease_guard([reports[id] for id in written])._asdict()
    recorded = tx.run("fail", **guard, rows=json.dumps(written), history_limit=HISTORY_LIMIT)
    crash_points.reach("fail.recorded")
    outcomes: Outcomes = {}
    for id, at, _queue_id, _stream in recorded:
        moment = sql.as_datetime(at, tx.connection)
        outcomes[id] = Scheduled(moment, deferrals.get(id))  # type: ignore[arg-type]
    if deaths:
        attempts = {row.id: row.attempts for row in leased}
        for id in quarantine(tx, deaths, by=by):
            outcomes[id] = Poisoned(attempts[id])
    streams.wake(tx, streams.streams_of(recorded))
    _announce(tx, leased, reports, outcomes)
    return outcomes


def abandon(
    token: str,
    id: int,
    *,
    delay: Duration | None = None,
    count: bool = True,
    force_poison: bool = False,
    error: str | None = None,
    max_attempts: int | None = None,
    by: str | None = None,
    using: str | None = None,
) -> Released | Poisoned:
    """
    Give one message up: it is due again after `delay`, or quarantined at its limit.

    count=False: it was never processed; the attempt is refunded and it cannot be poisoned.
    force_poison: quarantined whatever the count. max_attempts replaces the queue's number.
    Raises: LeaseLost.
    """
    failure = Failure(
        id, error=error or "", delay=delay or 0, max_attempts=max_attempts, token=token
    )
    wait = as_timedelta(delay or 0, field="delay")

    def work(tx: Transaction) -> Outcomes:
        streams.lock(tx, {id})
        if not count and not force_poison:
            return release_in(tx, [Release(id, wait, token)])
        return abandon_in(tx, failure, force_poison=force_poison, by=by or "worker")

    outcome = settle([failure], work, using)[id]
    return outcome if isinstance(outcome, Poisoned) else Released()


def abandon_in(tx: Transaction, failure: Failure, *, force_poison: bool, by: str) -> Outcomes:
    """Count an abandoned attempt; quarantine the message if it was the last."""
    guard = lease_guard([failure])._asdict()
    rows = tx.run("read_for_failure", **guard)
    if not rows:
        return {}
    row = _LeasedRow(*rows[0])
    counts = with_one_more(read_counts(row.reason_counts), FailureReason.UNKNOWN)
    facts = _facts(tx, failure, row)
    written = _as_written(failure, as_timedelta(failure.delay or 0, field="delay"), facts)
    written |= {"failed": 0, "counts": counts}
    if failure.error:
        _count(tx, failure, row, facts)
    else:
        written |= {"entry": None, "reason": None, "error": None}
    recorded = tx.run(
        "fail", **guard, rows=json.dumps({row.id: written}), history_limit=HISTORY_LIMIT
    )
    policy = row.policy(failure)
    if force_poison:
        death: MessageDeath | None = _death_at_once(failure, policy, GIVEN_UP)
    else:
        death = death_by_limit(
            row.id, policy, FailureReason.UNKNOWN, attempts=row.attempts, counts=counts
        )
    if death is not None:
        quarantine(tx, [death], by=by)
        return {row.id: Poisoned(row.attempts)}
    streams.wake(tx, streams.streams_of(recorded))
    return {row.id: Released()}


class _LeasedRow(NamedTuple):
    """A message under the caller's lease, and the policy of its queue."""

    id: int
    attempts: int
    queue_id: int
    name: str
    kind: str
    max_attempts: int | None
    backoff_base: Any
    backoff_cap: Any
    jitter: float
    cooldown: Any
    reason_policies: str | None
    unregistered_attempts: int | None
    reason_counts: str | None
    unregistered_count: int | None

    def policy(self, failure: Failure) -> PolicyInForce:
        """Return the policy of the queue and that of the handler, which the report contains."""
        handler = failure.policy or Policy()
        if failure.unlimited:
            handler = replace(handler, max_attempts=None)
        elif failure.max_attempts is not None:
            handler = replace(handler, max_attempts=failure.max_attempts)
        queue = _queue_policy(
            self.max_attempts,
            self.backoff_base,
            self.backoff_cap,
            self.jitter,
            self.cooldown,
            self.reason_policies,
        )
        return PolicyInForce(queue, handler)


@lru_cache(maxsize=64)
def _queue_policy(
    limit: int | None, base: Any, cap: Any, jitter: float, cooldown: Any, reasons: str | None
) -> Policy:
    """Return the policy of a queue from the columns of its row. Cached: there are few queues."""
    return Policy(
        max_attempts=limit,
        backoff_base=sql.as_timedelta(base) or _NO_DELAY,
        backoff_cap=sql.as_timedelta(cap) or _NO_DELAY,
        jitter=jitter,
        cooldown=sql.as_timedelta(cooldown),
        reasons=stored_reasons(reasons),
    )


def _judge(
    failure: Failure, attempts: int, policy: PolicyInForce, counts: Mapping[str, int]
) -> MessageDeath | None:
    """Return the death if this failure was the last: N = max_attempts means N executions."""
    if failure.permanent:
        why = f"{PERMANENT}: its handler said it cannot succeed"
        return _death_at_once(failure, policy, why)
    if failure.reason in get_settings().permanent_reasons:
        why = f"{PERMANENT}: {failure.reason.name} is in PERMANENT_REASONS"
        return _death_at_once(failure, policy, why)
    # An attempt that could not start is judged by the next claim, unless its reason has a limit of
    # its own.
    if failure.deferred and not policy.sets_for(failure.reason, "max_attempts"):
        return None
    reason = FailureReason.read(failure.reason)
    return death_by_limit(failure.id, policy, reason, attempts=attempts, counts=counts)


def _death_at_once(failure: Failure, policy: PolicyInForce, why: str) -> MessageDeath:
    limit = policy.limit(FailureReason.read(failure.reason))
    return MessageDeath(failure.id, verdict=why, max_attempts=limit, unlimited=limit is None)


def _delay(
    failure: Failure, attempts: int, policy: PolicyInForce, counts: Mapping[str, int]
) -> timedelta:
    """Return the time until the retry: the failure's own delay, else the policy's backoff."""
    reason = FailureReason.read(failure.reason)
    delays = ("backoff_base", "backoff_cap", "cooldown")
    # The delay of an attempt that could not start is the worker's: a policy for its reason wins.
    is_given = not (failure.deferred and policy.sets_for(reason, *delays))
    if failure.delay is not None and is_given:
        return as_timedelta(failure.delay, field="delay")
    return policy.delay(reason, attempts=attempts, counts=counts)


def _deferral(failure: Failure, row: _LeasedRow) -> Deferral:
    """Return how long a message waits that no handler of the worker is registered for."""
    count = (row.unregistered_count or 0) + 1
    delay = get_settings().unregistered.delay(count)
    if failure.delay is not None:
        delay = as_timedelta(failure.delay, field="delay")
    return Deferral(count, row.unregistered_attempts, delay)


def _as_deferred(deferral: Deferral) -> dict[str, Any]:
    """Return what `fail` writes for a deferral: the attempt is refunded, its own count grows."""
    count, limit = deferral.count, deferral.limit
    return {
        "refund": 1,
        "unregistered": count,
        "is_over": limit is not None and count >= max(limit, 1),
    }


class _GroupFacts(NamedTuple):
    """What a failure adds to its group: the release, its own fingerprint and its tags."""

    release: str
    #: "": the default fingerprint.
    group: str
    tags: list[Tag]


def _facts(tx: Transaction, failure: Failure, row: _LeasedRow) -> _GroupFacts:
    release = current_release() if failure.release is None else cut_release(failure.release)
    group = ""
    if failure.fingerprint:
        group = custom_fingerprints.admit(tx, row.name, storable_text(failure.fingerprint))
    return _GroupFacts(release, group, clean_tags(failure.tags) if failure.tags else [])


def _as_written(failure: Failure, delay: timedelta, facts: _GroupFacts) -> dict[str, Any]:
    """Return what the statement `fail` writes. UNREGISTERED leaves no entry in the history."""
    reason = FailureReason.read(failure.reason)
    error = storable_text(failure.error)
    entry: dict[str, Any] | None = None
    if reason is not FailureReason.UNREGISTERED:
        entry = {"reason": int(reason), "error": error}
        if failure.seconds is not None:
            entry["seconds"] = round(failure.seconds, 3)
        for key in ("traceback", "exception", "frame"):
            if text := getattr(failure, key):
                entry[key] = storable_text(text)
        # Only what is known: most rows stay as small as they are.
        entry |= {key: value for key, value in facts._asdict().items() if value}
    return {
        "reason": int(reason),
        "error": error,
        "completed": int(failure.completed) & STAGE_BITS,
        "failed": 0 if failure.deferred else int(Status.FAILED),
        "delay": sql.microseconds(delay),
        "entry": entry,
        "refund": 0,
    }


def _count(tx: Transaction, failure: Failure, row: _LeasedRow, facts: _GroupFacts) -> None:
    reason = FailureReason.read(failure.reason)
    if reason is FailureReason.UNREGISTERED:
        tx.counts.add(CounterKey(row.queue_id, row.name, row.kind), "deferred")
        return
    key = CounterKey(row.queue_id, row.name, row.kind, int(reason))
    tx.counts.add(key, "failed", seconds=failure.seconds)
    # As a death reads them from the history.
    cause, group = cause_and_group(
        row.name,
        reason,
        storable_text(failure.exception),
        storable_text(failure.frame),
        error=storable_text(failure.error),
        custom=facts.group,
    )
    tx.groups.add_failure(GroupKey(group, row.queue_id, facts.release), cause, facts.tags)


def _announce(
    tx: Transaction,
    rows: Sequence[_LeasedRow],
    failures: Mapping[int, Failure],
    outcomes: Outcomes,
) -> None:
    def each() -> Iterator[dict[str, Any]]:
        queues = queue_names(tx, (row.queue_id for row in rows))
        for row in rows:
            failure, outcome = failures[row.id], outcomes.get(row.id)
            yield {
                "message_id": row.id,
                "queue": queues[row.queue_id],
                "name": row.name,
                "kind": row.kind,
                "attempts": row.attempts,
                "reason": FailureReason.read(failure.reason),
                "error": storable_text(failure.error),
                "retry_at": outcome.at if isinstance(outcome, Scheduled) else None,
            }

    signals.announce(tx.using, "message_failed", signals.message_failed, sender=Message, each=each)
