"""
Reports that another transaction is in the way of: kept here, and tried again by themselves.

It has locked the message, its stream, or something that the report would change. All reports of a
stream stay together, so that they are settled together; those of other messages go on meanwhile.
"""

from __future__ import annotations

import logging

from django.db import connections
from django.db.utils import Error as DatabaseError

from ..lifecycle.transaction import holders
from ..logs import event
from .in_flight import Holdings
from .tally import Reports

#: Seconds until the first new try; doubled up to the longest pause.
SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
#: Seconds between two lines of the log about it.
REMINDER = 60.0

Stream = tuple[str, str]


class Backlog:
    """Called by the pump, in its thread. The messages stay held, and their leases are renewed."""

    def __init__(self, *, holdings: Holdings, using: str) -> None:
        self.reports = Reports()
        #: The messages of these reports.
        self.ids: set[int] = set()
        self._holdings = holdings
        self._using = using
        self._streams: set[Stream] = set()
        self._pause = 0.0
        self._next = 0.0
        self._reminded = -REMINDER

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, reports: Reports, now: float) -> None:
        """Take in reports that were busy; try them again after a pause, longer each time."""
        if not self.ids:
            self._pause = 0.0
        self._pause = min(max(2 * self._pause, SHORTEST_PAUSE), LONGEST_PAUSE)
        self._next = now + self._pause
        self._keep(reports)
        self._tell(now)

    def divert(self, reports: Reports) -> Reports:
        """Take in the reports of streams that are here already; return the others."""
        mine = {report.id for report in reports.all() if self._stream(report.id) in self._streams}
        if not mine:
            return reports
        others, late = reports.split(mine)
        self._keep(late)
        return others

    def is_due(self, now: float) -> bool:
        return bool(self.ids) and now >= self._next

    def take(self) -> Reports:
        """Hand over everything, to be tried."""
        taken, self.reports = self.reports, Reports()
        self.ids, self._streams = set(), set()
        return taken

    def restore(self, reports: Reports) -> None:
        """The try came to nothing: the database is away."""
        self._keep(reports)

    def discard(self, id: int) -> None:
        """Forget a report that is settled in another way."""
        self.reports = self.reports.split({id})[0]
        self.ids.discard(id)

    def _keep(self, reports: Reports) -> None:
        self.reports.absorb(reports)
        self.ids |= reports.ids
        self._streams |= {stream for id in reports.ids if (stream := self._stream(id)) is not None}

    def _stream(self, id: int) -> Stream | None:
        holding = self._holdings.get(id)
        if holding is None or holding.message.stream is None:
            return None
        return holding.message.queue, holding.message.stream

    def _tell(self, now: float) -> None:
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
            holders=who_holds(self._using),
        )


def who_holds(using: str) -> str:
    """
    Describe the transactions that may be in the way, for a line of the log.

    Never raises for the sake of that line: the caller is about to enter what was settled and
    claimed in the books, and a database that went away meanwhile is met by the next exchange.
    """
    try:
        found = holders(connections[using])
    except DatabaseError as error:
        return f"not known ({error})"
    return "; ".join(found) or "its session is not visible"
