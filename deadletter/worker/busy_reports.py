"""
Busy reports: reports whose rows another transaction has locked, kept and tried again.

That transaction has locked the message, its stream, or another row that the report would change.
All reports of a stream stay together, so that they are settled together. Reports of other messages
are not held up.
"""

from __future__ import annotations

import logging

from django.db import connections
from django.db.utils import Error as DatabaseError

from ..lifecycle import WorkBatch
from ..lifecycle.transaction import holders
from ..logs import event
from .in_flight import InFlight
from .reports import Reports, Tally, log_lost

#: Seconds until the first new try; doubled up to the longest pause.
SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
#: Seconds between two log lines about it.
REMINDER = 60.0

Stream = tuple[str, str]


class BusyReports:
    """Called by the pump, in its thread. The messages stay in flight; their leases are renewed."""

    def __init__(self, *, in_flight: InFlight, tally: Tally, using: str) -> None:
        self.reports = Reports()
        #: The messages of these reports.
        self.ids: set[int] = set()
        self._in_flight = in_flight
        self._tally = tally
        self._using = using
        self._streams: set[Stream] = set()
        #: When they are tried again.
        self.next_try = 0.0
        self._pause = 0.0
        self._reminded = -REMINDER

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, reports: Reports, now: float) -> None:
        """Take in reports that were busy; the pause before the next try grows each time."""
        if not self.ids:
            self._pause = 0.0
        self._pause = min(max(2 * self._pause, SHORTEST_PAUSE), LONGEST_PAUSE)
        self.next_try = now + self._pause
        self.restore(reports)
        self._remind(now)

    def divert(self, reports: Reports) -> Reports:
        """Take in the reports of streams that have busy reports already; return the others."""
        busy = {report.id for report in reports.all() if self._stream(report.id) in self._streams}
        if not busy:
            return reports
        others, diverted = reports.split(busy)
        self.restore(diverted)
        return others

    def take(self) -> Reports:
        """Return all reports, for the next try."""
        taken, self.reports = self.reports, Reports()
        self.ids, self._streams = set(), set()
        return taken

    def restore(self, reports: Reports) -> None:
        """Take in reports without a pause: the try did not reach the database."""
        self.reports.absorb(reports)
        self.ids |= reports.ids
        self._streams |= {stream for id in reports.ids if (stream := self._stream(id)) is not None}

    def discard(self, id: int) -> None:
        """Drop the report of a message that is settled in another way."""
        self.reports = self.reports.split({id})[0]
        self.ids.discard(id)

    def discard_claimed(self, batch: WorkBatch) -> None:
        """Drop reports whose lease was lost: this very process has claimed the message again."""
        for id in self.ids.intersection(batch.ids):
            log_lost(id, self._in_flight.get(id))
            self.discard(id)
            self._in_flight.remove(id)
            self._tally.lost += 1

    def _stream(self, id: int) -> Stream | None:
        item = self._in_flight.get(id)
        if item is None or item.message.stream is None:
            return None
        return item.message.queue, item.message.stream

    def _remind(self, now: float) -> None:
        if now - self._reminded < REMINDER:
            return
        self._reminded = now
        event(
            logging.WARNING,
            "reports_postponed",
            "another transaction has locked rows or streams of {count} messages that are done; "
            "they are settled when it ends: {holders}",
            count=len(self.ids),
            message_ids=sorted(self.ids)[:20],
            holders=describe_holders(self._using),
        )


def describe_holders(using: str) -> str:
    """
    Describe the transactions that may hold the locks, for a log line.

    Never raises a DatabaseError: the caller still has to apply what was settled and claimed. If
    the database went away meanwhile, the next exchange fails.
    """
    try:
        found = holders(connections[using])
    except DatabaseError as error:
        return f"not known ({error})"
    return "; ".join(found) or "its session is not visible"
