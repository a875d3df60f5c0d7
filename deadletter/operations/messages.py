"""What people do to messages that are still in a queue: look, hurry, release, poison, remove."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import clock
from ..lifecycle import manual_acts
from ..lifecycle.act_results import ActResult
from ..lifecycle.refusals import Refusal, RefusalReason
from ..lifecycle.transaction import Transaction
from ..models import Act, Message, PoisonRecord, State
from ..status import FailureReason
from . import audit
from .acting import PIECE, alias_of, carry_out, several
from .dead_queues import moved, retry_dead
from .hurrying import MessageFilter, in_detail
from .poison_records import AS_IT_WAS, Removal, Retrial, retry_poison


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
    return list(wanted.messages(state, alias_of(using))[:limit])


def get_message(message_id: int, *, using: str | None = None) -> Message | None:
    """Return one message with everything there is, or None when it is in no queue."""
    rows = Message.objects.using(alias_of(using)).select_related("queue")
    return rows.filter(pk=message_id).first()


def whereabouts(message_id: int, *, using: str | None = None) -> tuple[str, int] | None:
    """Say in which state a message is, and the poison record (or 0); None: it is nowhere."""
    alias = alias_of(using)
    record = PoisonRecord.objects.using(alias).filter(message_id=message_id)
    if (poison_id := record.values_list("pk", flat=True).first()) is not None:
        return State.DEAD, poison_id
    message = Message.objects.using(alias).light().filter(pk=message_id).first()
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
) -> Retrial:
    """
    Retry messages by their own ids: the dead as `retry_poison` does, the others as `retry_now`.

    A message in a dead queue goes back where it died, as `retry_dead` does; it is known by its id
    there, and by the one it had before. What `retry_now` refuses is refused. `queue`, `payload` and
    `rate` are for the dead: with one of them all others are refused. `reset=False` is for the
    others: with it the dead are refused, whose count always starts again. `literal` as for
    `retry_poison`.
    """
    wanted = several(message_ids)
    alias = alias_of(using)
    dead: dict[int, int] = {}
    for first in range(0, len(wanted), PIECE):
        piece = wanted[first : first + PIECE]
        rows = PoisonRecord.objects.using(alias).filter(message_id__in=piece)
        dead |= dict(rows.values_list("pk", "message_id"))
        # What was moved to a dead queue and died there again is known by its first id as well.
        rows = PoisonRecord.objects.using(alias).filter(source_id__in=piece, origin=None)
        again = rows.filter(moved_at__isnull=False).exclude(pk__in=dead)
        dead |= {pk: id for pk, id in again.values_list("pk", "source_id") if id is not None}
    buried = set(dead.values())
    there = moved([id for id in wanted if id not in buried], using=alias)
    # Two ids of one message are one message.
    given = {place: id for id, place in there.items()}
    if reset:
        found = retry_poison(
            list(dead), by, queue, payload, rate, why=why, literal=literal, using=alias
        )
        returned = retry_dead(
            list(given), by, queue, payload, rate, why=why, literal=literal, using=alias
        )
    else:
        found = Retrial(refused={id: _counts_anew(name) for id, name in dead.items()})
        returned = Retrial(refused={place: _counts_anew(id) for place, id in given.items()})
    others = [id for id in wanted if id not in buried and id not in there]
    if queue is None and rate is None and payload is AS_IT_WAS:
        hurried = retry_now(others, by=by, why=why, reset=reset, using=alias)
    else:
        known = {id: place for id in others if (place := whereabouts(id, using=alias)) is not None}
        hurried = Retrial(
            missing=[id for id in others if id not in known],
            refused={
                id: Refusal(RefusalReason.NOT_DEAD, id=id, state=State(place[0]))
                for id, place in known.items()
            },
        )
    return Retrial(
        sorted(
            [dead[id] for id in found.retried]
            + [given[id] for id in returned.retried]
            + hurried.retried
        ),
        sorted(
            [dead[id] for id in found.missing]
            + [given[id] for id in returned.missing]
            + hurried.missing
        ),
        {dead[id]: text for id, text in found.refused.items()}
        | {given[id]: text for id, text in returned.refused.items()}
        | hurried.refused,
        found.entry_id or returned.entry_id or hurried.entry_id,
    )


def _counts_anew(message_id: int) -> str:
    return Refusal(RefusalReason.DEAD_COUNTS_FROM_ZERO, id=message_id)


def retry_now(
    message_ids: int | Iterable[int],
    *,
    by: str | None = None,
    why: str = "",
    reset: bool = True,
    using: str | None = None,
) -> Retrial:
    """
    Retry messages that were tried before, now instead of at the end of their delay.

    For what failed, what was abandoned, and what is due again. Attempts are counted from 0 again;
    with `reset=False` the count goes on, so that the message has only the attempts it had left.
    What is blocked, in a worker, or was never tried is refused, each with its reason.
    """

    def work(tx: Transaction, ids: list[int]) -> ActResult:
        return manual_acts.retry_now_in(tx, ids, reset=reset)

    found = _act(Act.RETRY_NOW, work, message_ids, by, why, using, detail=in_detail(reset))
    return Retrial(found.done, found.missing, found.refused, found.entry_id)


def release(
    message_ids: int | Iterable[int],
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> ActResult:
    """Let messages pass a waiting or poisoned predecessor of their stream."""
    return _act(Act.RELEASE, manual_acts.release_by_name_in, message_ids, by, why, using)


def poison(
    message_ids: int | Iterable[int],
    *,
    why: str,
    by: str | None = None,
    using: str | None = None,
) -> ActResult:
    """Quarantine messages by hand, with the reason OPERATOR."""

    def work(tx: Transaction, ids: list[int]) -> ActResult:
        return manual_acts.poison_in(tx, ids, why=why, by=audit.person(by) or "operator")

    return _act(Act.POISON, work, message_ids, by, why, using)


def remove(
    message_ids: int | Iterable[int],
    *,
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> Removal:
    """Remove waiting messages for good; one that is being handled is refused."""
    found = _act(Act.DISCARD, manual_acts.discard_in, message_ids, by, why, using)
    return Removal(found.done, found.missing, found.refused, found.entry_id)


def _act(
    act: Act,
    verb: Callable[[Transaction, list[int]], ActResult],
    message_ids: int | Iterable[int],
    by: str | None,
    why: str,
    using: str | None,
    *,
    detail: Mapping[str, Any] | None = None,
) -> ActResult:
    ids = several(message_ids)
    opening = audit.Opening(
        act=act, by=by, why=why, selection=audit.of_ids(ids), detail=detail or {}
    )

    def work(tx: Transaction, piece: list[int], start: int) -> tuple[ActResult, None]:
        return verb(tx, piece), None

    found, entry = carry_out(opening, work, ids, using=using)
    return ActResult(found.done, found.missing, found.refused, entry)
