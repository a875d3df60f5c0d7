"""Records and messages by id, and the reason why an id is not found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..models import Message, PoisonRecord
from ..operations import find_moved, get_message, get_result, trail, whereabouts
from ..operations.acts import pieces
from .args import alias


def find_poison(ids: list[int], options: dict[str, Any]) -> list[PoisonRecord]:
    """Return the records that exist, in the order of the ids."""
    rows = PoisonRecord.objects.using(alias(options)).without_bodies()
    found: dict[int, PoisonRecord] = {}
    for piece in pieces(ids):
        found |= {row.pk: row for row in rows.filter(pk__in=piece)}
    return [found[id] for id in ids if id in found]


def find_messages(ids: Iterable[int], options: dict[str, Any]) -> list[Message]:
    """Return the messages that exist, in the order of the ids."""
    found = (get_message(id, using=alias(options)) for id in ids)
    return [message for message in found if message is not None]


def find_in_dead_queues(ids: Iterable[int], options: dict[str, Any]) -> dict[int, Message]:
    """Return messages in dead queues by the ids that they had before."""
    found = {id: find_moved(id, using=alias(options)) for id in ids}
    return {id: row for id, row in found.items() if isinstance(row, Message)}


def where_now(row: Message | PoisonRecord) -> str:
    """Return where a message is that was moved to a dead queue."""
    if isinstance(row, Message):
        return f"message {row.pk} of queue {row.queue.name} now"
    return f"poison record {row.pk} now: it died again in queue {row.queue}"


def why_no_poison(id: int, options: dict[str, Any]) -> str:
    """Return the most likely reason why there is no poison record with this id."""
    place = whereabouts(id, using=alias(options))
    if place is None:
        return f"{id}: there is no such poison record; it was retried or removed, or never was"
    state, poison_id = place
    if poison_id:
        return f"{id}: is a message; its poison record is {poison_id} (or use --message {id})"
    return f"{id}: there is no such poison record; the message of that id is {state}"


def why_no_message(id: int, options: dict[str, Any]) -> str:
    """Return the most likely reason why there is no message with this id."""
    place = whereabouts(id, using=alias(options))
    if place is not None and place[1]:
        return f"{id}: is dead; its poison record is {place[1]}"
    moved = find_moved(id, using=alias(options))
    if moved is not None:
        return f"{id}: died, and is {where_now(moved)}"
    acts = trail(id, using=alias(options))
    result = get_result(id, using=alias(options))
    if result is not None:
        at = f"{result.finished_at:%Y-%m-%d %H:%M:%S %Z}"
        return f"{id}: has ended at {at}: {result.outcome} (see results {id})"
    if not acts:
        return f"{id}: is in no queue: completed, removed, or never sent"
    last = acts[0]
    ended = str(last.get_outcome_display()) if last.outcome else "in no queue any more"
    why = f": {last.entry.why}" if last.entry.why else ""
    at = f"{last.entry.at:%Y-%m-%d %H:%M:%S %Z}"
    return f"{id}: {ended}; the last act was {last.entry.act} by {last.entry.by or '?'}, {at}{why}"


def why_no_result(id: int, options: dict[str, Any]) -> str:
    """Return the most likely reason why a message has no result."""
    place = whereabouts(id, using=alias(options))
    if place is None:
        return why_no_message(id, options)
    return f"{id}: has no result yet: it is {place[0]} (see show --message {id})"
