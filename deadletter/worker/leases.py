"""
Leases of in-flight messages: renewed while handlers run, given back where they only wait.

Attempts that exceed their timeout are ended here, too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

from .. import tracing
from ..exceptions import LockNotAvailable
from ..lifecycle import give_back, renew_unlocked_in
from ..lifecycle.transaction import SHORT_WAIT, in_transaction
from ..logs import event
from ..models import Message
from .busy_reports import BusyReports
from .execute import TookTooLong
from .executors import Executors
from .failure import handler_failure
from .in_flight import InFlight, InFlightMessage
from .options import Options
from .reports import Reports, Tally

#: Seconds between two checks of all in-flight messages.
INTERVAL = 0.05
#: Seconds until a row that another transaction has locked is tried again.
BUSY_PAUSE = 0.25
#: Seconds that an async handler has to end after its timeout, or a stop, cancelled it.
CANCELLATION = 1.0


class Leases:
    """Called by the pump, in its thread."""

    def __init__(
        self,
        *,
        options: Options,
        in_flight: InFlight,
        executors: Executors,
        busy: BusyReports,
        tally: Tally,
    ) -> None:
        self._options = options
        self._in_flight = in_flight
        self._executors = executors
        self._busy_reports = busy
        self._tally = tally
        self._next = 0.0
        #: When to renew leases whose rows were locked, by id.
        self._busy: dict[int, float] = {}
        self._next_release = 0.0
        #: Messages that were never started and whose lease may be over: token by id. They are to
        #: be released without charging an attempt.
        self.expired: dict[int, str] = {}
        #: Tokens of claims whose transaction broke; it may have been committed nevertheless.
        self.unconfirmed: set[str] = set()
        #: Number of threads that were given up on and may never return.
        self.stuck = 0

    def check(self, now: float) -> None:
        """End attempts that exceed their timeout; renew or give back leases half way through."""
        if now < self._next:
            return
        self._next = now + INTERVAL
        items = list(self._in_flight)
        for item in items:
            # A cheap test first: most attempts are far from their timeout.
            if item.started and item.has_taken(now - item.started):
                self._time_out(item, now)
        due = [item for item in items if item.until - now < item.half]
        if due:
            self._keep(due, now)

    def _keep(self, due: Sequence[InFlightMessage], now: float) -> None:
        """Renew the leases of running handlers; give back messages that were not started."""
        self._executors.outcomes.give_back(due)
        ids = self._busy_reports.ids
        running = {
            item.message.id: item for item in due if item.is_running or item.message.id in ids
        }
        if self._busy:
            self._busy = {id: at for id, at in self._busy.items() if id in running and at > now}
            running = {id: item for id, item in running.items() if id not in self._busy}
        if running:
            self._renew(running, now)

    def _renew(self, running: dict[int, InFlightMessage], now: float) -> None:
        """Renew leases. If a row is locked, its lease keeps its end and is tried again."""
        tokens = {id: item.message.token for id, item in running.items()}
        try:
            lost, busy = in_transaction(
                lambda tx: renew_unlocked_in(tx, tokens, lease=self._options.lease),
                using=self._options.using,
                wait=SHORT_WAIT,
            )
        except LockNotAvailable:
            # The table itself is locked, for example by a migration. That is no outage.
            lost, busy = [], sorted(running)
        self._busy |= dict.fromkeys(busy, now + BUSY_PAUSE)
        for id, item in running.items():
            if id in busy:
                continue
            item.until = now + 2 * item.half
            if id in lost:
                # The handler cannot be stopped; the fence will refuse its report.
                item.until = math.inf
                if not item.is_running:
                    continue
                event(
                    logging.WARNING,
                    "lease_lost",
                    "the lease of message {name} {message_id} ran out while its handler runs",
                    name=item.message.name,
                    message_id=id,
                )

    def release_expired(self, pending: Reports, now: float) -> None:
        """
        Release, without charging an attempt, unstarted messages whose lease may be over.

        An ordinary release would be refused after the end of the lease, and the attempt would stay
        charged. This must come before the next claim: that would charge the expired lease, or
        quarantine a message that was never handled. Rows that another transaction has locked are
        kept for the next try; they cannot be claimed meanwhile.
        """
        for release in list(pending.releases):
            if self._set_apart(release.id, now):
                pending.discard(release)
        for release in list(self._busy_reports.reports.releases):
            if self._set_apart(release.id, now):
                self._busy_reports.discard(release.id)
        if self.unconfirmed:
            self.expired |= claimed_under(self.unconfirmed, using=self._options.using)
            self.unconfirmed = set()
            self._next_release = 0.0
        if self.expired and now >= self._next_release:
            # If the database is away, this raises, and `expired` is kept for the next try.
            released, self.expired = give_back(self.expired, using=self._options.using)
            self._tally.released += released
            self._next_release = now + BUSY_PAUSE if self.expired else 0.0

    def _set_apart(self, id: int, now: float) -> bool:
        """Move a message whose lease may be over from in flight to `expired`."""
        item = self._in_flight.get(id)
        if item is None or item.until > now:
            return False
        self._in_flight.remove(id)
        self.expired[id] = item.message.token
        return True

    def _time_out(self, item: InFlightMessage, now: float) -> None:
        """End an attempt that exceeds its timeout; its slot is replaced, its result refused."""
        deadline = item.deadline
        if deadline is None or now < deadline:
            return
        if item.is_async and now < deadline + CANCELLATION:
            return
        message, handler = item.message, item.handler
        seconds = handler.seconds if handler else None
        with tracing.resume_span(message):
            report = handler_failure(message, handler, TookTooLong(seconds), item.before)
        if not self._executors.give_up(item, report):
            return
        self.stuck += 1
        event(
            logging.WARNING,
            "message_timed_out",
            "message {name} {message_id} of queue {queue} took longer than {seconds} s and does "
            "not end: another slot replaces it, and this process will be replaced",
            name=message.name,
            message_id=message.id,
            queue=message.queue,
            seconds=seconds,
        )


def claimed_under(tokens: Iterable[str], *, using: str) -> dict[int, str]:
    """
    Return the messages of claims whose answers were lost: token by id.

    Rare, so there is no index for it.
    """
    rows = Message.objects.using(using).filter(lease_token__in=list(tokens))
    return {id: token for id, token in rows.values_list("pk", "lease_token") if token}
