"""Which records or messages does an act mean? Ids, filters or --all, never nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..models import Message, PoisonRecord
from ..operations import PoisonFilter, find_moved, get_message, trail, whereabouts
from ..operations.acting import PIECE
from .args import add_filters, alias, number, poison_filter
from .output import usage


@dataclass(frozen=True)
class Selection:
    """Exactly one of them is set."""

    poison_ids: list[int] = field(default_factory=list)
    message_ids: list[int] = field(default_factory=list)
    wanted: PoisonFilter | None = None


def add_selection(parser: argparse.ArgumentParser, *, message: str) -> None:
    parser.add_argument("ids", nargs="*", type=number, metavar="ID", help="ids of poison records")
    parser.add_argument("--message", nargs="+", type=number, metavar="ID", default=[], help=message)
    parser.add_argument("--all", action="store_true", help="every poison record")
    add_filters(parser)
    parser.add_argument(
        "--limit", type=number, metavar="N", help="of what matches, the N that died first"
    )
    parser.add_argument(
        "--progress", action="store_true", help="say how far it is, also without a terminal"
    )


def select(options: dict[str, Any]) -> Selection:
    """Read the selection. Raises CommandError (2) for none, or for two that contradict."""
    wanted = poison_filter(options)
    given = {
        "ids": bool(options["ids"]),
        "--message": bool(options["message"]),
        "a filter": bool(wanted),
        "--all": options["all"],
    }
    named = [name for name, there in given.items() if there]
    if not named:
        raise usage("name ids, --message ids, a filter, or --all")
    if len(named) > 1:
        raise usage(f"{' and '.join(named)} contradict each other: use one of them")
    if options["limit"] is not None and not (wanted or options["all"]):
        raise usage("--limit is for filters and --all")
    if options["ids"]:
        return Selection(poison_ids=list(dict.fromkeys(options["ids"])))
    if options["message"]:
        return Selection(message_ids=list(dict.fromkeys(options["message"])))
    return Selection(wanted=wanted)


def find_poison(ids: list[int], options: dict[str, Any]) -> list[PoisonRecord]:
    """Return the records of ids that exist, in the order asked for."""
    rows = PoisonRecord.objects.using(alias(options)).without_bodies()
    found: dict[int, PoisonRecord] = {}
    for first in range(0, len(ids), PIECE):
        found |= {row.pk: row for row in rows.filter(pk__in=ids[first : first + PIECE])}
    return [found[id] for id in ids if id in found]


def find_messages(ids: Iterable[int], options: dict[str, Any]) -> list[Message]:
    found = (get_message(id, using=alias(options)) for id in ids)
    return [message for message in found if message is not None]


def find_buried(ids: Iterable[int], options: dict[str, Any]) -> dict[int, Message]:
    """Return the messages that lie in dead queues, by the ids they had before."""
    found = {id: find_moved(id, using=alias(options)) for id in ids}
    return {id: row for id, row in found.items() if isinstance(row, Message)}


def where_now(row: Message | PoisonRecord) -> str:
    """Say where something is that was moved to a dead queue."""
    if isinstance(row, Message):
        return f"message {row.pk} of queue {row.queue.name} now"
    return f"poison record {row.pk} now: it died again in queue {row.queue}"


def why_no_poison(id: int, options: dict[str, Any]) -> str:
    """Say why there is no poison record of that id, if it can be guessed."""
    place = whereabouts(id, using=alias(options))
    if place is None:
        return f"{id}: there is no such poison record; it was retried or removed, or never was"
    state, poison_id = place
    if poison_id:
        return f"{id}: is a message; its poison record is {poison_id} (or use --message {id})"
    return f"{id}: there is no such poison record; the message of that id is {state}"


def why_no_message(id: int, options: dict[str, Any]) -> str:
    place = whereabouts(id, using=alias(options))
    if place is not None and place[1]:
        return f"{id}: is dead; its poison record is {place[1]}"
    moved = find_moved(id, using=alias(options))
    if moved is not None:
        return f"{id}: died, and is {where_now(moved)}"
    acts = trail(id, using=alias(options))
    if not acts:
        return f"{id}: is in no queue: completed, removed, or never sent"
    last = acts[0]
    ended = str(last.get_outcome_display()) if last.outcome else "in no queue any more"
    why = f": {last.entry.why}" if last.entry.why else ""
    at = f"{last.entry.at:%Y-%m-%d %H:%M:%S %Z}"
    return f"{id}: {ended}; the last act was {last.entry.act} by {last.entry.by or '?'}, {at}{why}"
