"""Queues that a name or a pattern stands for."""

from __future__ import annotations

from collections.abc import Iterator

from ..exceptions import UnknownQueue
from ..models import PoisonRecord, Queue
from ..patterns import is_pattern, queue_selection
from .acting import alias_of


def matching_queues(name: str, *, or_poison: bool = False, using: str | None = None) -> list[str]:
    """
    Return the queues that a name or a pattern means, by name; empty: none.

    `or_poison`: also queues that are gone and have left poison behind. A pattern matches neither
    dead queues nor deadletter's own queue.
    """
    alias = alias_of(using)
    rows = Queue.objects.using(alias)
    if not is_pattern(name):
        is_there = rows.filter(name=name).exists()
        left = or_poison and PoisonRecord.objects.using(alias).filter(queue=name).exists()
        return [name] if is_there or left else []
    queues = dict(rows.named_and_dead())
    if or_poison:
        queues = dict.fromkeys(_with_poison(alias), False) | queues
    return queue_selection((name,)).choose(queues.items())


def require_queue(
    name: str, *, or_pattern: bool = False, or_poison: bool = False, using: str | None = None
) -> None:
    """
    Raise UnknownQueue unless there is a queue of that name.

    `or_pattern`: or one that the pattern matches; `or_poison`: or one that has left poison behind.
    """
    is_refused = is_pattern(name) and not or_pattern
    if is_refused or not matching_queues(name, or_poison=or_poison, using=using):
        queues = Queue.objects.using(alias_of(using))
        raise UnknownQueue(name, queues.values_list("name", flat=True))


def _with_poison(alias: str) -> Iterator[str]:
    """Yield the queues that have poison: an index probe for each, however many records it has."""
    names = PoisonRecord.objects.using(alias).order_by("queue").values_list("queue", flat=True)
    found = names.first()
    while found is not None:
        yield found
        found = names.filter(queue__gt=found).first()
