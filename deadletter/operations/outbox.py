"""
Acts on the outbox, all audited: pause and resume brokers and topics, publish messages again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import Any

from ..conf import get_settings
from ..exceptions import MessageRejected
from ..lifecycle.archives import publish_archived_in
from ..lifecycle.pauses import check_topics, pause_in, resume_in
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, AuditEntry, OutboxPause, PublishedMessage, primary_alias
from ..text import short_repr
from . import audit
from .audit import NewEntry

#: Messages published again by one transaction.
PIECE = 500


@dataclass(frozen=True)
class Republished:
    """How many messages are published again, and how many are no longer in the archive."""

    done: int
    missing: int
    #: The audit entry; 0: nothing was selected.
    entry_id: int = 0


def pause_outbox(
    topic: str = "",
    *,
    broker: str = "default",
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> bool:
    """
    Publish nothing of a topic, or of topics that a pattern matches, until they are resumed.

    Without a topic the whole broker is paused. Relays notice within five seconds. Messages wait in
    the outbox, and those of their keys behind them; order holds when they go on.
    Returns False if exactly this is paused already. Raises: MessageRejected.
    """
    return _switch(Act.PAUSE_OUTBOX, topic, broker, by, why, using)


def resume_outbox(
    topic: str = "",
    *,
    broker: str = "default",
    by: str | None = None,
    why: str = "",
    using: str | None = None,
) -> bool:
    """
    End a pause of exactly this topic, pattern or broker: what waited is published, in order.

    Returns False if there is none.
    """
    return _switch(Act.RESUME_OUTBOX, topic, broker, by, why, using)


def list_pauses(*, using: str | None = None) -> list[OutboxPause]:
    """Return what is paused, by broker and topic."""
    rows = OutboxPause.objects.using(primary_alias(using))
    return list(rows.order_by("broker", "topic"))


@dataclass(frozen=True, kw_only=True)
class ArchiveFilter:
    """Published messages of one topic, by broker, key and the time of their confirm."""

    topic: str
    broker: str | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def apply(self, rows: Any) -> Any:
        rows = rows.filter(topic=self.topic)
        if self.broker is not None:
            rows = rows.filter(broker=self.broker)
        if self.key is not None:
            rows = rows.filter(key=self.key)
        if self.since is not None:
            rows = rows.filter(published_at__gte=self.since)
        if self.until is not None:
            rows = rows.filter(published_at__lt=self.until)
        return rows.order_by("topic", "id")

    def as_dict(self) -> dict[str, Any]:
        """Return what was given, as the audit trail keeps it."""
        given = {key: value for key, value in asdict(self).items() if value is not None}
        return {
            key: value.isoformat() if isinstance(value, datetime) else value
            for key, value in given.items()
        }


def list_published(
    *,
    topic: str | None = None,
    broker: str | None = None,
    key: str | None = None,
    limit: int = 100,
    using: str | None = None,
) -> list[PublishedMessage]:
    """Return published messages that are kept, newest first."""
    rows = PublishedMessage.objects.using(primary_alias(using))
    wanted = {"topic": topic, "broker": broker, "key": key}
    rows = rows.filter(**{name: value for name, value in wanted.items() if value is not None})
    # In the order of the index that has the condition.
    first = [name for name in ("key", "topic") if wanted[name] is not None][:1]
    return list(rows.order_by(*(f"-{name}" for name in first), "-id")[:limit])


def publish_again(
    ids: Iterable[int], *, by: str | None = None, why: str = "", using: str | None = None
) -> Republished:
    """
    Publish messages of the archive again, with new ids: consumers ignore ids that they know.

    Raises: MessageRejected for a broker that is no longer in the settings.
    """
    wanted = sorted(set(ids))
    about = NewEntry(act=Act.PUBLISH_AGAIN, by=by, why=why, selection=audit.of_ids(wanted))
    pieces = (wanted[start : start + PIECE] for start in range(0, len(wanted), PIECE))
    return _publish_pieces(about, pieces, primary_alias(using))


def publish_again_matching(
    wanted: ArchiveFilter, *, by: str | None = None, why: str = "", using: str | None = None
) -> Republished:
    """
    Publish all messages of a topic again that match, in the order of their ids.

    In pieces of one transaction each. What is published meanwhile is not published again.
    Raises: MessageRejected for a broker that is no longer in the settings.
    """
    alias = primary_alias(using)
    rows = PublishedMessage.objects.using(alias)
    last = wanted.apply(rows).values_list("pk", flat=True).last()

    def pieces() -> Iterable[Sequence[int]]:
        after = -1
        while last is not None:
            some = wanted.apply(rows).filter(pk__gt=after, pk__lte=last)
            ids = list(some.values_list("pk", flat=True)[:PIECE])
            if not ids:
                return
            yield ids
            after = ids[-1]

    about = NewEntry(act=Act.PUBLISH_AGAIN, by=by, why=why, selection=wanted.as_dict())
    return _publish_pieces(about, pieces(), alias)


def _publish_pieces(about: NewEntry, pieces: Iterable[Sequence[int]], alias: str) -> Republished:
    entry: AuditEntry | None = None
    done = missing = 0
    for ids in pieces:
        work = partial(_publish_piece, ids=ids, about=about, entry=entry)
        entry, stored = in_transaction(work, using=alias)
        done += stored
        missing += len(ids) - stored
    return Republished(done, missing, 0 if entry is None else entry.pk)


def _publish_piece(
    tx: Transaction, *, ids: Sequence[int], about: NewEntry, entry: AuditEntry | None
) -> tuple[AuditEntry, int]:
    stored = len(publish_archived_in(tx, ids))
    found = entry or audit.record(tx, about)
    audit.add(tx, found, done=stored, missing=len(ids) - stored)
    return found, stored


def _switch(act: Act, topic: str, broker: str, by: str | None, why: str, using: str | None) -> bool:
    checked = check_topics(topic)
    person = audit.person(by)

    def work(tx: Transaction) -> bool:
        if act == Act.PAUSE_OUTBOX:
            _check_known(broker)
            changed = pause_in(tx, broker, checked, by=person, why=why)
        else:
            changed = resume_in(tx, broker, checked)
        if changed:
            selection: Mapping[str, Any] = {"broker": broker, "topic": checked}
            entry = audit.record(tx, NewEntry(act=act, by=by, why=why, selection=selection))
            audit.add(tx, entry, done=1)
        return changed

    return in_transaction(work, using=primary_alias(using))


def _check_known(broker: str) -> None:
    if broker not in get_settings().brokers:
        raise MessageRejected("broker", f"there is no broker {short_repr(broker)} to pause")
