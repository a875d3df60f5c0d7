"""Messages in a queue: list, read, retry, release by name, poison and remove them by id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from .. import clock
from ..lifecycle import manual_acts
from ..lifecycle.refusals import Refusal, RefusalReason
from ..lifecycle.transaction import Transaction
from ..lifecycle.values import ActResult
from ..models import Act, Message, PoisonRecord, State, primary_alias
from ..patterns import is_pattern
from ..status import FailureReason
from ..tasks.task_results import read_id
from ..text import short_repr
from . import audit
from .acts import Progress, Total, Verb, act_on_ids, act_on_matches, as_ids, pieces
from .dead_queues import moved, retry_dead
from .filters import MessageFilter
from .poison_records import AS_IT_WAS, RetryOptions, retry_poison
from .queues import matching_queues


def list_messages(
    state: str,
    *,
    queue: str | None = None,
    name: str | None = None,
    kind: str | None = None,
    instance: str | None = None,
    stream: str | None = None,
    reason: FailureReason | int | str | None = None,
    limit: int | None = None,
    using: str | None = None,
) -> list[Message]:
    """List messages in one state, oldest first, without their payloads."""
    wanted = MessageFilter(
        queue=queue, name=name, kind=kind, instance=instance, stream=stream, reason=reason
    )
    return list(wanted.messages(state, primary_alias(using))[:limit])


def get_message(message_id: int, *, using: str | None = None) -> Message | None:
    """Return one message with all its columns, or None if it is in no queue."""
    rows = Message.objects.using(primary_alias(using)).select_related("queue")
    return rows.filter(pk=message_id).first()


def whereabouts(message_id: int, *, using: str | None = None) -> tuple[str, int] | None:
    """Return the state of a message and its poison record (or 0), or None if it does not exist."""
    alias = primary_alias(using)
    record = PoisonRecord.objects.using(alias).filter(message_id=message_id)
    if (poison_id := record.values_list("pk", flat=True).first()) is not None:
        return State.DEAD, poison_id
    message = Message.objects.using(alias).without_bodies().filter(pk=message_id).first()
    return None if message is None else (message.state(clock.now(alias)), 0)


def retry_messages(
    message_ids: int | Iterable[int],
    *,
    by: str | None = None,
    why: str = "",
    queue: str | None = None,
    payload: Any = AS_IT_WAS,
    rate: float | None = None,
    literal: bool = False,
    reset: bool = True,
    using: str | None = None,
) -> ActResult:
    """
    Retry messages by their own ids: dead ones as `retry_poison` does, the others as `retry_now`.

    A message in a dead queue goes back to where it died, as `retry_dead` does; it is found by its
    id there and by the id it had before. `queue`, `payload` and `rate` are for dead messages: with
    one of them all others are refused. `reset=False` is for the others: with it dead messages,
    whose count always starts at 0, are refused. `literal` as for `retry_poison`.
    """
    wanted = as_ids(message_ids)
    alias = primary_alias(using)
    poisoned = _poison_of(wanted, using=alias)
    known = set(poisoned.values())
    places = moved([id for id in wanted if id not in known], using=alias)
    # Two ids of one message are one message.
    in_dead_queues = {place: id for id, place in places.items()}
    others = [id for id in wanted if id not in known and id not in places]
    if reset:
        options: dict[str, Any] = {"queue": queue, "payload": payload, "rate": rate}
        options["literal"] = literal
        # Both before the first act: a mismatch changes nothing.
        checked = RetryOptions(**options)
        checked.check_for(PoisonRecord.objects.using(alias), list(poisoned))
        checked.check_for(Message.objects.using(alias), list(in_dead_queues))
        options |= {"why": why, "using": alias}
        of_poison = retry_poison(list(poisoned), by, **options)
        of_dead_queues = retry_dead(list(in_dead_queues), by, **options)
    else:
        of_poison = ActResult(refused={id: _from_zero(given) for id, given in poisoned.items()})
        of_dead_queues = ActResult(
            refused={place: _from_zero(id) for place, id in in_dead_queues.items()}
        )
    if queue is None and rate is None and payload is AS_IT_WAS:
        of_others = retry_now(others, by=by, why=why, reset=reset, using=alias)
    else:
        of_others = _refuse_change(others, using=alias)
    return _by_given_ids(
        (of_poison, poisoned),
        (of_dead_queues, in_dead_queues),
        (of_others, {id: id for id in others}),
    )


def _poison_of(message_ids: list[int], *, using: str) -> dict[int, int]:
    """Return the poison records of these messages: the ids given, by the ids of the records."""
    found: dict[int, int] = {}
    for piece in pieces(message_ids):
        rows = PoisonRecord.objects.using(using).filter(message_id__in=piece)
        found |= dict(rows.values_list("pk", "message_id"))
        # A message that was moved to a dead queue and died there again keeps its first id.
        rows = PoisonRecord.objects.using(using).filter(source_id__in=piece, origin=None)
        again = rows.filter(moved_at__isnull=False).exclude(pk__in=found)
        found |= {pk: id for pk, id in again.values_list("pk", "source_id") if id is not None}
    return found


def _refuse_change(message_ids: list[int], *, using: str) -> ActResult:
    """Refuse messages that are not dead: only a dead one gets another queue, payload or rate."""
    found = {id: whereabouts(id, using=using) for id in message_ids}
    return ActResult(
        missing=[id for id, place in found.items() if place is None],
        refused={
            id: Refusal(RefusalReason.NOT_DEAD, id=id, state=State(place[0]))
            for id, place in found.items()
            if place is not None
        },
    )


def _by_given_ids(*parts: tuple[ActResult, Mapping[int, int]]) -> ActResult:
    """Add up results under the ids that were given: each result has ids of its own kind of row."""
    return ActResult(
        sorted(given[id] for result, given in parts for id in result.done),
        sorted(given[id] for result, given in parts for id in result.missing),
        {given[id]: text for result, given in parts for id, text in result.refused.items()},
        next((result.entry_id for result, _ in parts if result.entry_id), 0),
    )


def _from_zero(message_id: int) -> Refusal:
    return Refusal(RefusalReason.DEAD_COUNTS_FROM_ZERO, id=message_id)


def retry_now(
    message_ids: int | Iterable[int],
    *,
    by: str | None = None,
    why: str = "",
    reset: bool = True,
    using: str | None = None,
) -> ActResult:
    """
    Retry messages that were tried before, now instead of at the end of their delay.

    For messages that failed, were abandoned, or are due again. Attempts are counted from 0 again;
    with `reset=False` the count continues, so that a message has only the attempts it had left.
    Messages that are blocked, active or were never tried are refused, each with its reason.
    """

    def verb(tx: Transaction, ids: list[int], start: int) -> ActResult:
        return manual_acts.retry_now_in(tx, ids, reset=reset)

    return _act(Act.RETRY_NOW, verb, message_ids, by, why, using, detail=_detail(reset))


def retry_failed(
    wanted: MessageFilter,
    *,
    by: str | None = None,
    why: str = "",
    limit: int | None = None,
    reset: bool = True,
    progress: Progress | None = None,
    using: str | None = None,
) -> Total:
    """
    Retry failed messages now instead of at the end of their backoff, oldest first.

    Attempts are counted from 0 again, unless `reset` is False. Messages that are sent after the
    call began keep their backoff, so a handler that keeps failing cannot make it run forever.
    """
    alias = primary_alias(using)
    newest = Message.objects.using(alias).order_by("-pk").values_list("pk", flat=True).first() or 0
    selection = {key: value for key, value in asdict(wanted).items() if value is not None}
    if wanted.queue is not None and is_pattern(wanted.queue):
        selection["queues"] = matching_queues(wanted.queue, using=alias)
    new = audit.NewEntry(
        act=Act.RETRY_NOW,
        by=by,
        why=why,
        selection={**selection, "state": "failed"},
        detail=_detail(reset),
    )

    def verb(tx: Transaction, ids: list[int], start: int) -> ActResult:
        return manual_acts.retry_now_in(tx, ids, reset=reset)

    return act_on_matches(
        new,
        verb,
        lambda: wanted.messages(State.FAILED, alias).filter(pk__lte=newest),
        limit=limit,
        progress=progress,
        using=alias,
    )


def release(
    message_ids: int | Iterable[int],
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> ActResult:
    """Release messages by name: each may pass a waiting or poisoned predecessor of its stream."""

    def verb(tx: Transaction, ids: list[int], start: int) -> ActResult:
        return manual_acts.release_by_name_in(tx, ids)

    return _act(Act.RELEASE, verb, message_ids, by, why, using)


def poison(
    message_ids: int | Iterable[int],
    *,
    why: str,
    by: str | None = None,
    using: str | None = None,
) -> ActResult:
    """Quarantine messages by hand, with the reason OPERATOR."""

    def verb(tx: Transaction, ids: list[int], start: int) -> ActResult:
        return manual_acts.poison_in(tx, ids, why=why, by=audit.person(by) or "operator")

    return _act(Act.POISON, verb, message_ids, by, why, using)


def remove(
    message_ids: int | Iterable[int],
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> ActResult:
    """Remove messages for good; active messages and messages of instances are refused."""

    def verb(tx: Transaction, ids: list[int], start: int) -> ActResult:
        return manual_acts.discard_in(tx, ids)

    return _act(Act.DISCARD, verb, message_ids, by, why, using)


def cancel(
    ids: Any, *, by: str | None = None, why: str = "", using: str | None = None
) -> ActResult:
    """
    Cancel tasks, and other messages, that no worker runs: `remove` under its name for tasks.

    Takes ids of messages, ids of results (text), results of tasks, or several of them. The result
    of a cancelled task is kept with the outcome CANCELLED, which is the status FAILED in Django.
    Refused with the reason: running messages, messages of instances, and dead ones, whose poison
    record is removed instead. Missing: messages that have ended.
    """

    def verb(tx: Transaction, ids: list[int], start: int) -> ActResult:
        copies = moved(ids, using=tx.using)
        refused: dict[int, str] = {
            id: Refusal(RefusalReason.DEAD_IN_DEAD_QUEUE, id=id, copy=copy)
            for id, copy in copies.items()
        }
        result = manual_acts.discard_in(tx, [id for id in ids if id not in copies])
        for poison_id, id in _poison_of(result.missing, using=tx.using).items():
            refused[id] = Refusal(RefusalReason.DEAD, id=id, poison_id=poison_id)
        missing = [id for id in result.missing if id not in refused]
        return replace(result, missing=missing, refused=result.refused | refused)

    return _act(Act.DISCARD, verb, read_message_ids(ids), by, why, using)


def read_message_ids(given: Any) -> list[int]:
    """
    Return the ids of messages that are given by id, as text, or as objects that have an id.

    Raises: TypeError, or ValueError for a text that is no id.
    """
    is_single = isinstance(given, int | str) or not isinstance(given, Iterable)
    return as_ids(_message_id(item) for item in ([given] if is_single else given))


def _message_id(given: Any) -> Any:
    if isinstance(given, int):
        return given
    # The id of a poison record is not the id of its message.
    id = getattr(given, "message_id", getattr(given, "id", given))
    if not isinstance(id, str):
        return id
    found = read_id(id)
    if found is None:
        raise ValueError(f"{short_repr(id)} is not the id of a message or of its result")
    return found


def _act(
    act: Act,
    verb: Verb,
    message_ids: int | Iterable[int],
    by: str | None,
    why: str,
    using: str | None,
    *,
    detail: Mapping[str, Any] | None = None,
) -> ActResult:
    ids = as_ids(message_ids)
    selection = audit.of_ids(ids)
    new = audit.NewEntry(act=act, by=by, why=why, selection=selection, detail=detail or {})
    return act_on_ids(new, verb, ids, using=using)


def _detail(reset: bool) -> dict[str, bool]:
    """Return the detail of the audit entry: `reset` only if it is not the default."""
    return {} if reset else {"reset": False}
