"""Orphans: the messages a dead process held. Its supervisor frees their leases at once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db import connections
from django.db.utils import Error as DatabaseError

from ..failure_policy import Policy
from ..lifecycle import Completion, Failure, Release, process_batch
from ..logs import event
from ..models import Kind, Message
from ..status import FailureReason
from .crash_ledger import CrashLedger, LedgerEntry, SlotState
from .leases import claimed_under
from .process_death import ProcessDeath
from .registry import registry


@dataclass
class Orphans:
    """What the processes of one place held when they died, until it is freed."""

    worker: str
    entries: list[LedgerEntry] = field(default_factory=list)
    #: Tokens of claims that the process died in: their messages are not among the entries.
    claims: list[str] = field(default_factory=list)
    death: ProcessDeath | str = ""
    #: Messages that another transaction has locked, by the death of their process. They are freed
    #: later; the place is filled meanwhile.
    busy: dict[ProcessDeath | str, list[LedgerEntry]] = field(default_factory=dict)

    @property
    def are_held(self) -> bool:
        """True if the ledger of the last process is not settled yet."""
        return bool(self.entries or self.claims)

    def read(self, ledger: CrashLedger) -> None:
        """Read the ledger of a process that has just ended."""
        self.entries = ledger.entries()
        self.claims = ledger.announced

    def free(self, *, using: str) -> None:
        """Settle the ledger of the last process. Raises: DatabaseError, and nothing changes."""
        busy = free(self.worker, self.entries, self.death, claiming=self.claims, using=using)
        if busy:
            self.busy[self.death] = [*self.busy.get(self.death, []), *busy]
        self.entries, self.claims = [], []

    def free_busy(self, *, using: str) -> None:
        """Try locked messages again. Messages locked beyond their leases are left to the claims."""
        try:
            for death, entries in list(self.busy.items()):
                self.busy[death] = free(self.worker, entries, death, using=using)
        except DatabaseError:
            connections.close_all()
        self.busy = {death: entries for death, entries in self.busy.items() if entries}

    def leave_busy(self) -> None:
        """Give up on locked messages: the grace is over, and their leases run out."""
        ids = sorted(entry.id for entries in self.busy.values() for entry in entries)
        self.busy = {}
        if ids:
            event(
                logging.WARNING,
                "reports_left",
                "{count} messages that worker {worker} held are not freed: another "
                "transaction has locked them. They run again when their leases end",
                count=len(ids),
                worker=self.worker,
                message_ids=ids[:20],
            )


def free(
    worker: str,
    entries: Sequence[LedgerEntry],
    death: ProcessDeath | str,
    *,
    claiming: Sequence[str] = (),
    using: str,
) -> list[LedgerEntry]:
    """
    Settle what a dead process held; return the entries that another transaction has locked.

    An attempt is charged only to messages whose handlers ran, or returned results that are lost
    with the process. Waiting messages are released uncounted. Other messages that were done but not
    reported are completed. A handler that failed is recorded as a failure; its error is lost with
    the process.
    """
    if claiming:
        entries = [*entries, *_unseen(entries, claiming, using=using)]
    by_state: dict[SlotState, list[LedgerEntry]] = {state: [] for state in SlotState}
    for entry in entries:
        by_state[entry.state].append(entry)
    done, staged = by_state[SlotState.DONE], by_state[SlotState.STAGED]
    batch = process_batch(
        worker=worker,
        completions=[
            *[Completion(entry.id, token=entry.token) for entry in done],
            *[Completion(entry.id, entry.flags, entry.token) for entry in staged],
        ],
        failures=_failures(
            worker,
            death,
            running=by_state[SlotState.RUNNING],
            failed=by_state[SlotState.FAILED],
            using=using,
        ),
        releases=[Release(entry.id, 0, entry.token) for entry in by_state[SlotState.WAITING]],
        using=using,
    )
    locked = set(batch.busy)
    busy = [entry for entry in entries if entry.id in locked]
    if entries and len(busy) == len(entries):
        return busy
    freed = Counter(entry.state for entry in entries if entry.id not in locked)
    event(
        logging.WARNING,
        "leases_freed",
        "freed the messages of worker {worker}: {running} running and charged, {waiting} waiting "
        "and refunded, {done} done",
        worker=worker,
        running=freed[SlotState.RUNNING],
        waiting=freed[SlotState.WAITING],
        done=freed[SlotState.DONE] + freed[SlotState.STAGED],
    )
    return busy


def _unseen(
    entries: Sequence[LedgerEntry], tokens: Sequence[str], *, using: str
) -> list[LedgerEntry]:
    """Return the messages of claims that the process died in, as entries that only waited."""
    known = {(entry.id, entry.token) for entry in entries}
    return [
        LedgerEntry(id, token, SlotState.WAITING)
        for id, token in claimed_under(tokens, using=using).items()
        if (id, token) not in known
    ]


def _failures(
    worker: str,
    death: ProcessDeath | str,
    *,
    running: Sequence[LedgerEntry],
    failed: Sequence[LedgerEntry],
    using: str,
) -> list[Failure]:
    """Return the failures of messages that ran, or had failed, when their process died."""
    reason = death.reason if isinstance(death, ProcessDeath) else death

    def facts(id: int) -> str:
        return f" ({death.facts(id)})" if isinstance(death, ProcessDeath) else ""

    policies = _policies([entry.id for entry in (*running, *failed)], using=using)
    return [
        *[
            Failure(
                entry.id,
                error=f"worker {worker} died of {reason} while its handler ran{facts(entry.id)}",
                reason=FailureReason.WORKER_LOST,
                delay=0,
                token=entry.token,
                policy=policies.get(entry.id),
            )
            for entry in running
        ],
        *[
            Failure(
                entry.id,
                error=f"its handler failed; worker {worker} died of {reason} before it reported "
                f"the error{facts(entry.id)}",
                reason=FailureReason.HANDLER_EXCEPTION,
                token=entry.token,
                policy=policies.get(entry.id),
            )
            for entry in failed
        ],
    ]


def _policies(ids: Sequence[int], *, using: str) -> dict[int, Policy]:
    """Return the handlers' own failure policies, by message id; the queue's apply to the rest."""
    policies = registry.policies()
    if not policies or not ids:
        return {}
    # A flow may have the name of a handler.
    rows = Message.objects.using(using).exclude(kind=Kind.ORCHESTRATION)
    names = rows.filter(pk__in=ids, name__in=policies)
    return {id: policies[name] for id, name in names.values_list("pk", "name")}
