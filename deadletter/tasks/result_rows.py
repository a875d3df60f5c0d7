"""
The row that says what became of a message: find it wherever the message is.

A message waits or runs in its queue, is dead there or in a dead queue, or has ended and has a row
in the table of results. It is in one place at each moment, and may move between two statements.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.models import F
from django.db.models.functions import Now

from .. import sql

if TYPE_CHECKING:
    from django.db.models import Model

    from ..models import Message, PoisonRecord, Result


class _Place(IntEnum):
    """What the statement `find_message` answers."""

    QUEUE = 0
    RESULTS = 1
    POISON = 2
    DEAD_QUEUE = 3
    POISON_OF_DEAD_QUEUE = 4


def find_row(message_id: int, *, using: str) -> Message | PoisonRecord | Result | None:
    """
    Return the row that says what became of a message, or None if nothing does.

    One statement if the message has ended, two if it waits or runs. A message also has the name of
    its queue as `queue_name`, and on PostgreSQL the time when it was read as `read_at`.
    """
    is_in_queue, result = _read_result(message_id, using)
    if result is not None and not is_in_queue:
        return result
    place = _Place.QUEUE if is_in_queue else _find_place(message_id, using)
    while place is not None:
        rows = iter(_rows_at(place, message_id, using))
        row: Message | PoisonRecord | Result | None = next(rows, None)
        if row is not None:
            return row
        # It has moved to another place since.
        place = _find_place(message_id, using)
    return None


def _read_result(message_id: int, using: str) -> tuple[bool, Result | None]:
    """Return whether a message is in its queue, and its result: both at one moment."""
    from ..models import Result

    query = _query("find_result", Result, using)
    row: Any = next(iter(Result.objects.using(using).raw(query, {"id": message_id})))
    return bool(row.is_in_queue), None if row.pk is None else row


@cache
def _query(name: str, model: type[Model], using: str) -> str:
    """
    Return a statement with the columns of a model, each as its field reads it.

    Made once: the ORM takes as long to make a query as to send it and to read the row.
    """
    compiler = model._default_manager.using(using).query.get_compiler(using)
    columns = []
    for field in model._meta.concrete_fields:
        column = f'r."{field.column}"'
        text, _ = field.select_format(compiler, column, ())
        columns.append(f'{text} AS "{field.column}"')
    (query,) = sql.statements(connections[using].vendor)[name]
    return query.replace("{columns}", ", ".join(columns))


def _find_place(message_id: int, using: str) -> _Place | None:
    """
    Return where a message is, or None if it is nowhere.

    One statement sees all places at one moment, between two moves of the message. It is also
    cheaper than the ORM, which writes all columns of a message into a query that finds none.
    """
    ((place,),) = sql.run(connections[using], "find_message", {"id": message_id})
    return None if place is None else _Place(place)


def _rows_at(place: _Place, message_id: int, using: str) -> Iterable[Any]:
    """Return the row at a place. Not sorted where one row can match: sorting costs as much."""
    from ..models import Message, PoisonRecord, Queue, Result

    if place == _Place.QUEUE:
        query = _query("read_message", Message, using)
        # No time is given: the server's is asked for, and SQLite has none.
        values = {"id": message_id, "now": None, "sent": None}
        return Message.objects.using(using).raw(query, values)
    if place == _Place.RESULTS:
        return Result.objects.using(using).filter(pk=message_id).order_by()
    poison = PoisonRecord.objects.using(using).order_by("pk")
    if place == _Place.POISON:
        return poison.filter(message_id=message_id)[:1]
    # A message that was moved to a dead queue has another id there.
    if place == _Place.POISON_OF_DEAD_QUEUE:
        return poison.filter(source_id=message_id, origin=None, moved_at__isnull=False)[:1]
    # The queue may be nobody's dead queue by now; all queues are named because the index begins
    # with the queue.
    queues = Queue.objects.using(using).values("pk")
    messages = Message.objects.using(using).annotate(queue_name=F("queue__name"), read_at=Now())
    moved = messages.filter(queue__in=queues, source_id=message_id, origin=None)
    return moved.order_by("pk")[:1]
