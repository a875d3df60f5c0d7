"""Import of exported messages, here or in another installation; each message is stored once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..exceptions import MessageRejected
from ..lifecycle.imports import (
    ImportedMessage,
    check_origin,
    import_in,
    preview_import_in,
    read_exported,
)
from ..lifecycle.transaction import Transaction, in_transaction
from ..models import Act, AuditEntry, primary_alias
from . import audit
from .acts import Progress, after_pieces
from .hidden_values import find_marker
from .queues import require_queue

#: Rows of one transaction, and characters of their payloads and histories.
PIECE, SIZE = 500, 4_000_000


@dataclass
class Import:
    """What became of the rows of an import."""

    #: Ids of messages in their origin, in order: stored now, and stored before.
    imported: list[int] = field(default_factory=list)
    ignored: list[int] = field(default_factory=list)
    #: The reason by the number of the row; the first row is 1.
    refused: dict[int, str] = field(default_factory=dict)
    #: The ids that imported messages have here, by their ids in the origin.
    ids: dict[int, int] = field(default_factory=dict)
    rows: int = 0
    #: The audit entry; 0 if nothing was imported or refused.
    entry_id: int = 0


def import_messages(
    rows: Iterable[Any],
    *,
    origin: str,
    queue: str | None = None,
    by: str | None = None,
    why: str = "",
    dry_run: bool = False,
    progress: Progress | None = None,
    using: str | None = None,
) -> Import:
    """
    Store rows as `export_poison` writes them, as messages: due now, attempts 0, histories kept.

    They go to `queue`, or each to the queue that its row names. `origin` and the `message_id` there
    (or `source_id`) identify a message: one that the queue has already, waiting or dead, is
    ignored. A row is refused, and nothing of it stored, if `send` would refuse it, if it has a
    redacted value, and if it belongs to an instance.

    Rows are stored in pieces, each in a transaction: after an interruption the same call does the
    rest, and two concurrent imports store nothing twice. Raises ValueError for a bad origin,
    UnknownQueue for a bad queue.
    """
    alias = primary_alias(using)
    check_origin(origin)
    if queue is not None:
        require_queue(queue, using=alias)
    selection = {"origin": origin} | ({"queue": queue} if queue is not None else {})
    work = _ImportRun(
        origin=origin,
        queue=queue,
        new=audit.NewEntry(act=Act.IMPORT, by=by, why=why, selection=selection),
        dry_run=dry_run,
        alias=alias,
    )
    for number, row in enumerate(rows, 1):
        work.add(number, row)
        if work.is_full:
            work.flush()
            if progress is not None:
                progress(number)
    work.flush()
    if progress is not None:
        progress(work.found.rows)
    return work.found


@dataclass
class BadRow:
    """A row that could not be read at all, with the reason."""

    problem: str


@dataclass(kw_only=True)
class _ImportRun:
    """One import: the result so far, and the piece that is being collected."""

    origin: str
    queue: str | None
    new: audit.NewEntry
    dry_run: bool
    alias: str
    found: Import = field(default_factory=Import)
    entry: AuditEntry | None = None
    #: The current piece: the number of the row and the message, by queue and id.
    _piece: dict[tuple[str, int], tuple[int, ImportedMessage]] = field(default_factory=dict)
    _refused: dict[int, str] = field(default_factory=dict)
    _repeated: list[int] = field(default_factory=list)
    _size: int = 0

    @property
    def is_full(self) -> bool:
        rows = len(self._piece) + len(self._refused) + len(self._repeated)
        return rows >= PIECE or self._size >= SIZE

    def add(self, number: int, row: Any) -> None:
        """Check one row: add it to the piece, or note why it is refused."""
        self.found.rows += 1
        try:
            if isinstance(row, BadRow):
                raise MessageRejected("row", row.problem)
            message = read_exported(row)
            _refuse_hidden(row)
            queue = self.queue if self.queue is not None else row.get("queue")
            if not isinstance(queue, str):
                raise MessageRejected("queue", "the row names none; say which")
        except MessageRejected as error:
            self._refused[number] = str(error)
            return
        if (queue, message.source_id) in self._piece:
            self._repeated.append(message.source_id)
            return
        self._piece[queue, message.source_id] = number, message
        self._size += message.size

    def flush(self) -> None:
        """Store the piece in one transaction, and add it to the result."""
        if not (self._piece or self._refused or self._repeated):
            return
        with after_pieces(len(self.found.imported)):
            stored, ignored, refused, entry = in_transaction(self._store, using=self.alias)
        self.entry = entry
        self.found.entry_id = entry.pk if entry is not None else 0
        self.found.imported += stored
        self.found.ids |= {} if self.dry_run else stored
        self.found.ignored += ignored
        self.found.refused |= refused
        self._piece, self._refused, self._repeated, self._size = {}, {}, [], 0

    def _store(
        self, tx: Transaction
    ) -> tuple[dict[int, int], list[int], dict[int, str], AuditEntry | None]:
        stored: dict[int, int] = {}
        ignored, refused = list(self._repeated), dict(self._refused)
        verb = preview_import_in if self.dry_run else import_in
        for queue in sorted({queue for queue, _ in self._piece}):
            messages = [a for (name, _), (_, a) in self._piece.items() if name == queue]
            result = verb(tx, messages, queue=queue, origin=self.origin)
            stored |= result.stored
            ignored += result.ignored
            refused |= {self._piece[queue, id][0]: text for id, text in result.refused.items()}
        entry = None if self.dry_run else self._write(tx, stored, ignored, refused)
        return stored, sorted(ignored), dict(sorted(refused.items())), entry

    def _write(
        self,
        tx: Transaction,
        stored: Mapping[int, int],
        ignored: list[int],
        refused: Mapping[int, str],
    ) -> AuditEntry | None:
        """Add the piece to the audit entry; the first row imported or refused creates it."""
        entry = self.entry
        if entry is None:
            if not (stored or refused):
                return None
            entry = audit.record(tx, self.new)
        total = len(self.found.ignored) + len(ignored)
        AuditEntry.objects.using(tx.using).filter(pk=entry.pk).update(detail={"ignored": total})
        touched = list(stored.values())
        audit.add(tx, entry, touched=touched, done=len(stored), refused=len(refused))
        return entry


def _refuse_hidden(row: Mapping[str, Any]) -> None:
    """Refuse a row with a redacted value: the stored marker would replace the value for good."""
    for name in ("payload", "headers", "history"):
        found = find_marker(row.get(name), name)
        if found is not None:
            raise MessageRejected(
                found, "is hidden by DEADLETTER['REDACT']: export it with its secrets (--reveal)"
            )
