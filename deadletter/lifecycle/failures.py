"""What became of a claimed message? complete, fail, release; and renew, abandon."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from .. import crash_points, sql
from ..conf import get_settings
from ..durations import Duration, as_timedelta
from ..error_details import GIVEN_UP, HISTORY_LIMIT, PERMANENT
from ..exceptions import CompletionRefused, LeaseLost, LockNotAvailable
from ..failure_policy import Policy, PolicyInForce, read_counts, stored_reasons
from ..status import STAGE_BITS, FailureReason, Status, check_flags, check_stage
from ..text import storable_text
from . import streams
from .completions import finish
from .counters import Subject
from .held import held, held_under
from .limits import grown
from .locks import each_free, try_lock
from .noting import announce_failed, count_failure
from .quarantine import Death, death_by, quarantine
from .stages import by_end, complete_stages, unpublished
from .transaction import SHORT_WAIT, TRY_WAIT, Transaction, in_transaction
from .values import (
    Completed,
    Completion,
    Deferral,
    Failure,
    Outcome,
    Poisoned,
    Refused,
    Release,
    Released,
    Scheduled,
)

Outcomes = dict[int, Outcome]
#: Which token the caller says it holds for which message.
Tokens = Mapping[int, str]

_NOTHING = timedelta(0)
#: One for all: it says nothing of its message.
_COMPLETED = Completed()


def complete(
    token: str,
    ids: Iterable[int],
    *,
    status: Status | int = Status.PUBLISHED,
    seconds: float | None = None,
    using: str | None = None,
) -> Outcomes:
    """
    Finish messages: their rows are gone. With status 0 they are given back by name instead.

    Without PUBLISHED, in `status` or on the row, a stage is finished: the message is due again.
    `seconds` is how long each took, for the counters.
    Raises: LeaseLost naming the ids that are not the caller's; the others are finished.
    CompletionRefused naming those whose flags make no stage (none is new, FAILED, bits above 14);
    the others are finished. ValueError when no row can hold the status; nothing is done.
    LockNotAvailable when another transaction keeps a row or a stream locked; none is finished.
    So do all verbs here; `process_batch` settles the others and names the busy ones instead.
    """
    check_flags(status, field="status")
    wanted = [Completion(id, status, token, seconds) for id in ids]
    return _settled(wanted, lambda tx: completing(tx, wanted), using)


def complete_last(
    token: str,
    id: int,
    *,
    seconds: float,
    wait: Duration,
    stage: int = 0,
    using: str | None = None,
) -> None:
    """
    Finish one message, or a `stage` of it, as the last thing in the caller's transaction.

    The caller gives back the rest of its run. Waits for a locked row or stream up to `wait`, which
    is its lease: after that the message is not the caller's any more.
    Raises: LeaseLost, LockNotAvailable, CompletionRefused.
    """
    wanted = [Completion(id, stage or Status.PUBLISHED, token, seconds)]
    limit = as_timedelta(wait, field="wait").total_seconds()

    def work(tx: Transaction) -> Outcomes:
        if not stage:
            return completing(tx, wanted)
        streams.lock(tx, {id})
        return complete_stages(tx, wanted, keep_rest=True)

    outcome = in_transaction(work, using=using, wait=limit, is_last=True).get(id)
    if outcome is None:
        raise LeaseLost([id])
    if isinstance(outcome, Refused):
        raise CompletionRefused({id: outcome.why})


def fail(
    token: str, failures: Iterable[Failure], *, by: str | None = None, using: str | None = None
) -> Outcomes:
    """
    Record failed attempts: each message waits for its retry, or is quarantined.

    Raises: LeaseLost naming the ids that are not the caller's; the others are recorded.
    ValueError when a `completed` has other bits than 0 to 14; nothing is recorded.
    """
    wanted = [failure if failure.token else _with_token(failure, token) for failure in failures]
    check_reports((), wanted)

    def work(tx: Transaction) -> Outcomes:
        streams.lock(tx, {failure.id for failure in wanted})
        return failing(tx, wanted, by=by or "worker")

    return _settled(wanted, work, using)


def release(
    token: str, ids: Iterable[int], *, by_name: bool = False, using: str | None = None
) -> Outcomes:
    """
    Give messages back unprocessed, the attempt refunded.

    By name: each may pass a waiting or poisoned predecessor of its stream, never a leased one.
    Raises: LeaseLost naming the ids that are not the caller's; the others are given back.
    """
    wanted = [Release(id, 0, token) for id in ids]

    def work(tx: Transaction) -> Outcomes:
        streams.lock(tx, {item.id for item in wanted})
        return releasing(tx, wanted, by_name={item.id for item in wanted} if by_name else ())

    return _settled(wanted, work, using)


def renew(
    token: str, ids: Iterable[int], *, lease: Duration | None = None, using: str | None = None
) -> None:
    """
    Let the leases end later, counted from now.

    Raises: LeaseLost naming the ids whose lease is over or not the caller's; the others go on.
    """
    tokens = dict.fromkeys(ids, token)
    lost = in_transaction(lambda tx: renewing(tx, tokens, lease=lease), using=using)
    if lost:
        raise LeaseLost(lost)


def refund(token: str, ids: Iterable[int], *, using: str | None = None) -> list[int]:
    """
    Take the charge off messages whose lease ran out before they were started.

    Returns the ids that were still nobody else's. Unlike `release` this is for leases that are
    over: the messages are due again already, only the attempt they never had is given back.
    """
    tokens = dict.fromkeys(ids, token)
    return in_transaction(lambda tx: refunding(tx, tokens), using=using)


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
    Give one message up: it is free again after `delay`, or quarantined when it has had its share.

    count=False: it was never processed; the attempt is refunded and it cannot be poisoned.
    force_poison: quarantined whatever the count. max_attempts replaces the queue's number.
    Raises: LeaseLost.
    """
    failure = Failure(id, error=error or "", delay=delay or 0, token=token)
    wait = as_timedelta(delay or 0, field="delay")

    def work(tx: Transaction) -> Outcomes:
        streams.lock(tx, {id})
        if not count and not force_poison:
            return releasing(tx, [Release(id, wait, token)])
        return abandoning(
            tx, failure, force_poison=force_poison, max_attempts=max_attempts, by=by or "worker"
        )

    outcome = _settled([failure], work, using)[id]
    return outcome if isinstance(outcome, Poisoned) else Released()


def check_reports(completions: Iterable[Completion], failures: Iterable[Failure]) -> None:
    """Refuse flags that cannot be stored, before anything is. Raises: ValueError."""
    for completion in unpublished(completions):
        check_flags(completion.status, field=f"status of message {completion.id}")
    for failure in failures:
        if failure.completed:
            # Whoever gives back the status of the message may give FAILED with it.
            flags = failure.completed & ~int(Status.FAILED)
            check_stage(flags, field=f"completed of message {failure.id}")


def completing(tx: Transaction, completions: Sequence[Completion]) -> Outcomes:
    """Finish messages, or stages of them; those with status 0 are given back by name."""
    if not unpublished(completions):
        return dict.fromkeys(finish(tx, completions), _COMPLETED)
    streams.lock(tx, {item.id for item in completions})
    outcomes: Outcomes = {}
    others, stages = by_end(completions)
    finished = [item for item in others if item.status]
    if finished:
        outcomes = dict.fromkeys(finish(tx, finished), _COMPLETED)
    named = [item for item in others if not item.status]
    if named:
        back = [Release(item.id, 0, item.token) for item in named]
        outcomes |= releasing(tx, back, by_name={item.id for item in named})
    if stages:
        outcomes |= complete_stages(tx, stages)
    return outcomes


def failing(tx: Transaction, failures: Sequence[Failure], *, by: str) -> Outcomes:
    """Record failures by the policies in force now. The caller holds the streams' locks."""
    wanted = {failure.id: failure for failure in failures}
    mine = tx.run("read_leased", **held(failures)._asdict())
    deaths: list[Death] = []
    rows: dict[int, dict[str, Any]] = {}
    attempts: dict[int, int] = {}
    deferrals: dict[int, Deferral] = {}
    for row in map(_Leased._make, mine):
        id, failure = row.id, wanted[row.id]
        count_failure(tx, failure, Subject(row.queue_id, row.name, row.kind))
        is_unknown = _is_unknown(failure)
        policy = row.policy(_handler_policy(failure))
        counts = row.counts if is_unknown else grown(row.counts, FailureReason.read(failure.reason))
        death = None if is_unknown else _judge(failure, row.attempts, policy, counts)
        if death:
            deaths.append(replace(death, raised=failure.raised))
            attempts[id] = row.attempts
        elif is_unknown:
            deferral = deferrals[id] = _deferral(failure, row)
            rows[id] = _recorded(failure, deferral.delay) | _deferred(deferral)
            continue
        delay = _NOTHING if death else _delay(failure, row.attempts, policy, counts)
        rows[id] = _recorded(failure, delay) | {"counts": counts}
    outcomes: Outcomes = {}
    if rows:
        # Not the others: a lease that was over a moment ago may be renewed by now.
        ours = held([wanted[id] for id in rows])._asdict()
        recorded = tx.run("fail", **ours, rows=json.dumps(rows), history_limit=HISTORY_LIMIT)
        crash_points.reach("fail.recorded")
        for id, at, _queue_id, _stream in recorded:
            moment = sql.as_datetime(at, tx.connection)
            outcomes[id] = Scheduled(moment, deferrals.get(id))  # type: ignore[arg-type]
        for id in quarantine(tx, deaths, by=by) if deaths else ():
            outcomes[id] = Poisoned(attempts[id])
        streams.wake(tx, streams.touched(recorded))
        announce_failed(tx, mine, wanted, outcomes)
    return outcomes


def releasing(
    tx: Transaction, items: Sequence[Release], *, by_name: Collection[int] = ()
) -> Outcomes:
    """Give messages back, uncounted. The caller holds the streams' locks."""
    # Almost always all of them in the same way.
    ways: dict[tuple[bool, timedelta], list[Release]] = {}
    for item in items:
        way = item.id in by_name, as_timedelta(item.delay, field="delay")
        ways.setdefault(way, []).append(item)
    rows: list[sql.Row] = []
    for (is_named, delay), some in ways.items():
        rows += tx.run(
            "release",
            **held(some)._asdict(),
            by_name=is_named,
            delay=sql.microseconds(delay),
        )
    crash_points.reach("release.given_back")
    streams.wake(tx, streams.touched(rows))
    return {row[0]: Released() for row in rows}


def renewing(tx: Transaction, tokens: Tokens, *, lease: Duration | None) -> list[int]:
    """Extend leases; return the ids that were not the caller's."""
    if not tokens:
        return []
    until = None if lease is None else as_timedelta(lease, field="lease")
    rows = tx.run("renew", **held_under(tokens)._asdict(), lease=until)
    crash_points.reach("renew.extended")
    return sorted(tokens.keys() - {row[0] for row in rows})


def renewing_free(
    tx: Transaction, tokens: Tokens, *, lease: Duration | None
) -> tuple[list[int], list[int]]:
    """Extend leases, waiting for nobody; return the ids that are lost, and those that are busy."""
    if tx.is_sqlite or not tokens:
        return renewing(tx, tokens, lease=lease), []
    until = None if lease is None else as_timedelta(lease, field="lease")
    holding = held_under(tokens)._asdict()
    rows = tx.run("renew_free", **holding, lease=until)
    crash_points.reach("renew.extended")
    missing = tokens.keys() - {row[0] for row in rows}
    if not missing:
        return [], []
    busy = {id for id, live in tx.run("read_held", **holding) if live and id in missing}
    return sorted(missing - busy), sorted(busy)


def give_back(tokens: Tokens, *, using: str | None = None) -> tuple[int, dict[int, str]]:
    """
    Give messages back that were never started, whether their leases are over or not.

    Release and refund have opposite guards on one `now`: one of them takes the attempt off, unless
    somebody else has claimed the message since. Returns how many were given back, and which could
    not be because another transaction has locked them.
    """

    def some(tx: Transaction, ids: Collection[int]) -> int:
        mine = {id: tokens[id] for id in ids}
        streams.lock(tx, mine)
        released = releasing(tx, [Release(id, 0, token) for id, token in mine.items()])
        return len(released) + len(refunding(tx, mine))

    def work_carefully(tx: Transaction) -> tuple[int, dict[int, str]]:
        locked = try_lock(tx, held_under(tokens), alive=False)
        done = each_free(tx, sorted(locked.free), some)
        return sum(done.results), {id: tokens[id] for id in {*locked.busy, *done.busy}}

    try:
        return in_transaction(lambda tx: some(tx, tokens), using=using, wait=SHORT_WAIT), {}
    except LockNotAvailable:
        pass
    try:
        return in_transaction(work_carefully, using=using, wait=TRY_WAIT)
    except LockNotAvailable:
        return 0, dict(tokens)


def refunding(tx: Transaction, tokens: Tokens) -> list[int]:
    """Give back the attempts of messages that were never started and are due again."""
    if not tokens:
        return []
    streams.lock(tx, tokens.keys())
    return [row[0] for row in tx.run("refund", **held_under(tokens)._asdict())]


def abandoning(
    tx: Transaction, failure: Failure, *, force_poison: bool, max_attempts: int | None, by: str
) -> Outcomes:
    holding = held([failure])._asdict()
    for found in map(_Leased._make, tx.run("read_leased", **holding)):
        id, count = found.id, found.attempts
        counts = grown(found.counts, FailureReason.UNKNOWN)
        row = _recorded(failure, as_timedelta(failure.delay or 0, field="delay"))
        row |= {"failed": 0, "counts": counts}
        if failure.error:
            count_failure(tx, failure, Subject(found.queue_id, found.name, found.kind))
        else:
            row |= {"entry": None, "reason": None, "error": None}
        written = json.dumps({id: row})
        recorded = tx.run("fail", **holding, rows=written, history_limit=HISTORY_LIMIT)
        handler = Policy() if max_attempts is None else Policy(max_attempts=max_attempts)
        policy = found.policy(handler)
        death = _death_by_count(failure, count, policy, counts)
        if force_poison:
            death = _death_at_once(failure, policy, GIVEN_UP)
        if death:
            quarantine(tx, [death], by=by)
            return {id: Poisoned(count)}
        streams.wake(tx, streams.touched(recorded))
        return {id: Released()}
    return {}


def _settled(
    wanted: Sequence[Any], work: Callable[[Transaction], Outcomes], using: str | None
) -> Outcomes:
    """Do the work, then say which of the ids were not the caller's to settle."""
    if not wanted:
        return {}
    outcomes = in_transaction(work, using=using)
    missing = {item.id for item in wanted} - outcomes.keys()
    refused = {id: what.why for id, what in outcomes.items() if isinstance(what, Refused)}
    if refused:
        raise CompletionRefused(refused, missing)
    if missing:
        raise LeaseLost(missing)
    return outcomes


class _Leased(NamedTuple):
    """A message that the caller holds, and the policy of its queue."""

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

    @property
    def counts(self) -> dict[str, int]:
        """Its failures by reason."""
        return read_counts(self.reason_counts)

    def policy(self, handler: Policy) -> PolicyInForce:
        return PolicyInForce(_queue_policy(*self[5:11]), handler)


@lru_cache(maxsize=64)
def _queue_policy(
    limit: int | None, base: Any, cap: Any, jitter: float, cooldown: Any, reasons: str | None
) -> Policy:
    """Return the policy of a queue, of which there are few, as its row has it."""
    return Policy(
        max_attempts=limit,
        backoff_base=sql.as_timedelta(base) or _NOTHING,
        backoff_cap=sql.as_timedelta(cap) or _NOTHING,
        jitter=jitter,
        cooldown=sql.as_timedelta(cooldown),
        reasons=stored_reasons(reasons),
    )


def _handler_policy(failure: Failure) -> Policy:
    policy = failure.policy or Policy()
    if failure.unlimited:
        return replace(policy, max_attempts=None)
    if failure.max_attempts is not None:
        return replace(policy, max_attempts=failure.max_attempts)
    return policy


def _is_unknown(failure: Failure) -> bool:
    """Whether nobody knew the name of the message: then the attempt is refunded."""
    return failure.deferred and failure.reason == FailureReason.UNREGISTERED


def _judge(
    failure: Failure, attempts: int, policy: PolicyInForce, counts: Mapping[str, int]
) -> Death | None:
    """Say whether this failure was the last: N = max_attempts means N executions."""
    if failure.permanent:
        why = f"{PERMANENT}: its handler said it cannot succeed"
        return _death_at_once(failure, policy, why)
    if failure.reason in get_settings().permanent_reasons:
        why = f"{PERMANENT}: {failure.reason.name} is in PERMANENT_REASONS"
        return _death_at_once(failure, policy, why)
    # What could not even start is judged by the claim, unless its reason has a limit of its own.
    if failure.deferred and not policy.sets_for(failure.reason, "max_attempts"):
        return None
    return _death_by_count(failure, attempts, policy, counts)


def _death_at_once(failure: Failure, policy: PolicyInForce, why: str) -> Death:
    limit = policy.limit(FailureReason.read(failure.reason))
    return Death(failure.id, verdict=why, max_attempts=limit, unlimited=limit is None)


def _death_by_count(
    failure: Failure, attempts: int, policy: PolicyInForce, counts: Mapping[str, int]
) -> Death | None:
    reason = FailureReason.read(failure.reason)
    reached = policy.reached(reason, attempts=attempts, counts=counts)
    return None if reached is None else death_by(failure.id, reached, attempts=attempts)


def _delay(
    failure: Failure, attempts: int, policy: PolicyInForce, counts: Mapping[str, int]
) -> timedelta:
    reason = FailureReason.read(failure.reason)
    delays = ("backoff_base", "backoff_cap", "cooldown")
    # What could not even start brings a delay of its own, which is not the handler's word.
    is_given = not (failure.deferred and policy.sets_for(reason, *delays))
    if failure.delay is not None and is_given:
        return as_timedelta(failure.delay, field="delay")
    return policy.delay(reason, attempts=attempts, counts=counts)


def _deferral(failure: Failure, row: _Leased) -> Deferral:
    """Say how long a message waits whose name nobody knew."""
    count = (row.unregistered_count or 0) + 1
    delay = get_settings().unregistered.delay(count)
    if failure.delay is not None:
        delay = as_timedelta(failure.delay, field="delay")
    return Deferral(count, row.unregistered_attempts, delay)


def _deferred(deferral: Deferral) -> dict[str, Any]:
    """What `fail` writes of a deferral: the attempt is refunded, a count of its own grows."""
    count, limit = deferral.count, deferral.limit
    return {
        "refund": 1,
        "unregistered": count,
        "is_over": limit is not None and count >= max(limit, 1),
    }


def _recorded(failure: Failure, delay: timedelta) -> dict[str, Any]:
    """What the statement `fail` writes. Nothing is marked or remembered of an unregistered name."""
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
    return {
        "reason": int(reason),
        "error": error,
        "completed": int(failure.completed) & STAGE_BITS,
        "failed": 0 if failure.deferred else int(Status.FAILED),
        "delay": sql.microseconds(delay),
        "entry": entry,
        "refund": 0,
    }


def _with_token(failure: Failure, token: str) -> Failure:
    return replace(failure, token=token)
