"""Whose time is up? Renew what runs, give back what only waits, give up on what takes too long."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

from .. import tracing
from ..exceptions import LockNotAvailable
from ..lifecycle.failures import give_back, renewing_free
from ..lifecycle.transaction import SHORT_WAIT, in_transaction
from ..logs import event
from ..models import Message
from .busy_reports import Backlog
from .execute import TookTooLong, failure
from .executors import Executors
from .in_flight import Holding, Holdings
from .options import Options
from .tally import Tally

#: Seconds between two looks at everything held.
INTERVAL = 0.05
#: Seconds until a row that somebody else has locked is tried again.
BUSY_PAUSE = 0.25
#: Seconds an async handler has to end after its own time limit, or a stop, cancelled it.
CANCELLATION = 1.0


class Leases:
    """Called by the pump, in its thread."""

    def __init__(
        self,
        *,
        options: Options,
        holdings: Holdings,
        executors: Executors,
        backlog: Backlog,
        tally: Tally,
    ) -> None:
        self._backlog = backlog
        self._options = options
        self._holdings = holdings
        self._executors = executors
        self._tally = tally
        self._next = 0.0
        #: When leases whose rows were locked are renewed next.
        self._busy: dict[int, float] = {}
        self._debts_at = 0.0
        #: Never started, but the lease may be over: token by id, until the charge is taken off.
        self.owed: dict[int, str] = {}
        #: Tokens of claims whose transaction broke: they may have been committed all the same.
        self.doubtful: set[str] = set()
        #: Threads that were given up on and may never come back.
        self.stuck = 0

    def check(self, now: float) -> None:
        if now < self._next:
            return
        self._next = now + INTERVAL
        held = list(self._holdings)
        for holding in held:
            # Most are far from their limit, and whether they still run need not be asked.
            if holding.started and holding.has_taken(now - holding.started):
                self._time_out(holding, now)
        due = [holding for holding in held if holding.until - now < holding.half]
        if due:
            self._keep(due, now)

    def _keep(self, due: Sequence[Holding], now: float) -> None:
        """Renew what runs at half its lease; what has waited that long unstarted goes back."""
        self._executors.give_back(due)
        ids = self._backlog.ids
        running = {h.message.id: h for h in due if h.is_running or h.message.id in ids}
        if self._busy:
            self._busy = {id: at for id, at in self._busy.items() if id in running and at > now}
            running = {id: h for id, h in running.items() if id not in self._busy}
        if running:
            self._renew(running, now)

    def _renew(self, running: dict[int, Holding], now: float) -> None:
        """Renew leases; one whose row somebody has locked keeps its end, and is tried again."""
        tokens = {id: holding.message.token for id, holding in running.items()}
        try:
            lost, busy = in_transaction(
                lambda tx: renewing_free(tx, tokens, lease=self._options.lease),
                using=self._options.using,
                wait=SHORT_WAIT,
            )
        except LockNotAvailable:
            # The table itself is locked, by a migration for example: that is no outage.
            lost, busy = [], sorted(running)
        self._busy |= dict.fromkeys(busy, now + BUSY_PAUSE)
        for id, holding in running.items():
            if id in busy:
                continue
            holding.until = now + 2 * holding.half
            if id in lost:
                # The handler cannot be called back; its report will be refused by the fence.
                holding.until = math.inf
                if not holding.is_running:
                    continue
                event(
                    logging.WARNING,
                    "lease_lost",
                    "the lease of message {name} {message_id} ran out while its handler runs",
                    name=holding.message.name,
                    message_id=id,
                )

    def settle_debts(self, now: float) -> None:
        """
        Give back, uncharged, what was never started and may no longer be ours.

        Must come before the next claim: that would charge an expired lease, or quarantine a message
        that was never handled. What somebody has locked is kept, and nobody can claim it meanwhile.
        """
        if self.doubtful:
            self.owed |= claimed_under(self.doubtful, using=self._options.using)
            self.doubtful = set()
            self._debts_at = 0.0
        if self.owed and now >= self._debts_at:
            # Kept, and tried again, when the database is away.
            released, self.owed = give_back(self.owed, using=self._options.using)
            self._tally.released += released
            self._debts_at = now + BUSY_PAUSE if self.owed else 0.0

    def _time_out(self, holding: Holding, now: float) -> None:
        """End an attempt that takes too long: the slot comes back, the late result is refused."""
        deadline = holding.deadline
        if deadline is None or now < deadline:
            return
        is_async = holding.handler is not None and holding.handler.is_async
        if is_async and now < deadline + CANCELLATION:
            return
        message, handler = holding.message, holding.handler
        seconds = handler.seconds if handler else None
        with tracing.resume_span(message):
            report = failure(message, handler, TookTooLong(seconds), holding.before)
        if not self._executors.give_up(holding, report):
            return
        self.stuck += 1
        event(
            logging.WARNING,
            "message_timed_out",
            "message {name} {message_id} of queue {queue} took longer than {seconds} s and does "
            "not end: its slot is replaced, the process will recycle",
            name=message.name,
            message_id=message.id,
            queue=message.queue,
            seconds=seconds,
        )


def claimed_under(tokens: Iterable[str], *, using: str) -> dict[int, str]:
    """Find what claims took whose answer never came: token by id. Rare, so without an index."""
    rows = Message.objects.using(using).filter(lease_token__in=list(tokens))
    return {id: token for id, token in rows.values_list("pk", "lease_token") if token}
