"""
Pauses of the outbox: brokers, and topics of them, that nothing is published to for a while.

A paused broker is not published to at all. A message whose topic is paused is held when its relay
meets it, with those of its key behind it; the others of its lane go on. Relays read pauses every
few seconds, and let what was resumed go on in pieces, in the order of ids.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, NamedTuple

from ..exceptions import MessageRejected
from ..models import OutboxPause
from ..patterns import is_pattern
from ..text import storable_text
from .enqueue import check_name
from .transaction import Transaction

#: A key of a lane.
LaneKey = tuple[int, str]
#: A topic in a lane.
LaneTopic = tuple[int, str]


@dataclass(frozen=True)
class Pauses:
    """What is paused of one broker."""

    #: Topics and patterns of them; "": the whole broker.
    topics: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """True if nothing is published to the broker."""
        return "" in self.topics

    def cover(self, topic: str) -> bool:
        """True if a topic is paused by itself, whatever becomes of the broker."""
        return topic in self.topics or any(
            re.match(translate(text), topic) for text in self.topics if is_pattern(text)
        )

    def __bool__(self) -> bool:
        return bool(self.topics)


class ResumedMessages(NamedTuple):
    """How many messages go on, and the keys that wait for a refused one among them."""

    n: int
    waiting: Collection[LaneKey]


def check_topics(topic: Any) -> str:
    """Return a topic, a pattern of topics, or "" for the whole broker. Raises: MessageRejected."""
    if not topic:
        return ""
    if not isinstance(topic, str) or not is_pattern(topic):
        return check_name("topic", topic)
    if len(topic) > 200 or not topic.isprintable():
        raise MessageRejected("topic", "a pattern has at most 200 printable characters")
    return topic


def pause_in(tx: Transaction, broker: str, topic: str, *, by: str, why: str) -> bool:
    """Pause a broker, or topics of it; False: they are paused already."""
    values = {"paused_at": tx.time(), "by": by, "why": storable_text(why)}
    rows = OutboxPause.objects.using(tx.using)
    _row, is_new = rows.get_or_create(broker=broker, topic=topic, defaults=values)
    return is_new


def resume_in(tx: Transaction, broker: str, topic: str) -> bool:
    """End a pause; False: there is none of exactly these topics."""
    rows = OutboxPause.objects.using(tx.using).filter(broker=broker, topic=topic)
    return rows.delete()[0] > 0


def read_pauses(tx: Transaction, broker: str) -> Pauses:
    rows = OutboxPause.objects.using(tx.using).filter(broker=broker)
    return Pauses(tuple(rows.order_by("topic").values_list("topic", flat=True)))


def hold_paused(tx: Transaction, ids: Sequence[int]) -> None:
    """Hold messages whose topic is paused. The caller holds their lanes."""
    tx.run("hold_paused", ids=ids)


def read_paused_topics(tx: Transaction, broker: str, lanes: Collection[int]) -> list[LaneTopic]:
    """Return which topics have paused messages in which of the lanes."""
    rows = tx.run("read_paused_topics", broker=broker)
    return [(lane, topic) for lane, topic in rows if lane in lanes]


def read_paused_keys(tx: Transaction, broker: str, keys: Collection[LaneKey]) -> dict[LaneKey, int]:
    """Return the first paused message of each of the keys that has one."""
    if not keys:
        return {}
    ordered = sorted(keys)
    if tx.is_sqlite:
        rows = tx.run("read_paused_keys", broker=broker, keys=ordered)
    else:
        rows = tx.run("read_paused_keys", broker=broker, **_columns(ordered))
    return {(lane, key): id for lane, key, id in rows if id is not None}


def resume_held(
    tx: Transaction, broker: str, topics: Sequence[LaneTopic], *, share: int
) -> ResumedMessages:
    """
    Let paused messages go on, at most `share` of each lane and topic.

    The first ones: a message goes on only if no paused one of its key is before it. The caller
    holds the lanes.
    """
    if tx.is_sqlite:
        rows = [
            row
            for lane, topic in topics
            for row in tx.run("resume_held", broker=broker, lane=lane, topic=topic, share=share)
        ]
    else:
        lanes, names = [lane for lane, _ in topics], [topic for _, topic in topics]
        rows = tx.run("resume_held", broker=broker, lanes=lanes, topics=names, share=share)
    keys = {(lane, key): False for lane, key, _is_refused in rows if key is not None}
    refused = {(lane, key) for lane, key, is_refused in rows if key is not None and is_refused}
    _free_keys(tx, broker, keys)
    return ResumedMessages(len(rows), refused)


def _free_keys(tx: Transaction, broker: str, keys: Iterable[LaneKey]) -> None:
    ordered = sorted(keys)
    if not ordered:
        return
    if not tx.is_sqlite:
        tx.run("free_keys", broker=broker, **_columns(ordered))
        return
    for lane, key in ordered:
        # A key with a refused message goes on to wait: the relay holds what this statement frees.
        tx.run("free_key", broker=broker, lane=lane, key=key)


def _columns(keys: Sequence[LaneKey]) -> dict[str, list[object]]:
    return {"lanes": [lane for lane, _ in keys], "keys": [key for _, key in keys]}
