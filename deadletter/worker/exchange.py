"""
The exchange: one transaction that reports outcomes and claims messages.

A busy worker runs it in a thread of its own. Meanwhile the pump applies the result of the exchange
before it to the in-flight messages.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Generic, TypeVar

from django.db import DataError, IntegrityError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import Error as DatabaseError

from .. import crash_points
from ..lifecycle import (
    ClaimRequest,
    Completion,
    Failure,
    Progress,
    Release,
    WorkBatch,
    process_batch,
)
from ..logs import event
from . import thread_connections
from .busy_reports import REMINDER, BusyReports, describe_holders
from .in_flight import InFlight, ProgressRecorder
from .intake import Intake
from .leases import Leases
from .observer import Observer
from .options import Options
from .reports import Reporter, Reports, Tally

T = TypeVar("T")


@dataclass(frozen=True)
class CommittedExchange:
    """The result of an exchange that is committed; not yet applied to the in-flight messages."""

    reports: Reports
    batch: WorkBatch
    #: How many messages it asked for, and when.
    room: int
    asked: float
    took: float
    #: True if it did not look at all due messages.
    is_partial: bool = False

    @property
    def done(self) -> int:
        """The number of messages it has settled."""
        return len(self.reports) - len(self.batch.busy)

    @property
    def change(self) -> int:
        """By how many it changes the number of in-flight messages."""
        return len(self.batch.messages) - self.done


class Exchange:
    """
    Called by the pump, in its thread.

    The result of an exchange may be left unapplied until the next one is under way. Then the
    database and this process are busy at the same time.
    """

    def __init__(
        self,
        *,
        options: Options,
        in_flight: InFlight,
        busy: BusyReports,
        leases: Leases,
        reporter: Reporter,
        intake: Intake,
        tally: Tally,
        observer: Observer | None,
    ) -> None:
        #: The exchange that is to be applied while the next one is under way.
        self.unapplied: CommittedExchange | None = None
        self.thread: ExchangeThread[WorkBatch] = ExchangeThread(options.using)
        self._options = options
        self._in_flight = in_flight
        self._busy = busy
        self._leases = leases
        self._reporter = reporter
        self._intake = intake
        self._tally = tally
        self._observer = observer
        self._recorder = ProgressRecorder(in_flight)
        #: The token of the last claim.
        self._token = ""
        #: When it was last logged that nothing can be claimed.
        self._reminded = -REMINDER

    def has_progress(self, now: float) -> bool:
        """True if handlers have recorded something that is not on their rows yet."""
        return self._recorder.is_due(now)

    def put(self, room: int) -> CommittedExchange | None:
        """
        Report and claim in one transaction. Reports are kept until they are known to be stored.

        Return None if there was nothing to do, or if a report could not be stored and each report
        was settled alone.
        """
        asked, heard = monotonic(), self._intake.heard
        request = self._request(room) if room else None
        reports = self._reporter.take()
        if self._busy:
            reports = self._busy.divert(reports)
        released = [release.id for release in reports.releases]
        progress = self._recorder.take(asked, released=released, busy=self._busy.ids)
        if not (reports or room or progress):
            # The handlers that recorded something have ended, and their reports carry it; or it is
            # too early for another report of progress.
            self._reporter.restore(reports)
            return None
        crash_points.reach("pump.exchanging")
        try:
            batch = self._process(reports, request, progress)
        except (DataError, IntegrityError) as error:
            self._reporter.restore(reports)
            if not reports:
                raise
            self._settle_singly(error)
            return None
        except BaseException as error:
            self._reporter.restore(reports)
            if isinstance(error, DatabaseError):
                self._reporter.mark_unsure(reports)
                if request is not None and request.token:
                    self._leases.unconfirmed.add(request.token)
            raise
        crash_points.reach("pump.exchanged")
        if progress:
            self._recorder.written(progress, batch.recorded)
        if room and not batch.token:
            self._log_postponed(asked)
        if room:
            self._intake.claimed(batch, room=room, heard=heard)
        is_partial = request is not None and bool(request.floors) and batch.levels is None
        return CommittedExchange(reports, batch, room, asked, monotonic() - asked, is_partial)

    def may_wait(self, exchange: CommittedExchange) -> bool:
        """
        True if an exchange can be applied while the next one is under way.

        Not if leases were lost: logging that may need a query on the same connection. And not if a
        claimed message is still in flight: the report of its old lease would remove the new one.
        """
        batch = exchange.batch
        is_lost = batch.lost or batch.busy or exchange.reports.overtaken
        return not (is_lost or self._in_flight.has_any(batch.messages))

    def apply(self, exchange: CommittedExchange) -> None:
        """Remove the reported messages from those in flight, and add the claimed ones."""
        reports, batch = exchange.reports, exchange.batch
        self._settled(reports, batch)
        if self._observer is not None and (reports or exchange.room):
            self._observer.exchanged(exchange.took, reports, batch, self._tally)
        if exchange.room:
            if self._busy:
                self._busy.discard_claimed(batch)
            self._intake.take_in(batch, asked=exchange.asked)
            if self._token == batch.token:
                self._in_flight.ledger.announce()
            else:
                self._in_flight.ledger.announce(self._token)
            crash_points.reach("pump.taken_in")

    def catch_up(self) -> None:
        """Apply the exchange that was left."""
        if self.unapplied is not None:
            exchange, self.unapplied = self.unapplied, None
            self.apply(exchange)

    def try_busy(self) -> None:
        """Report again, in a transaction of their own, the reports that were busy."""
        self.catch_up()
        reports = self._busy.take()
        try:
            batch = self._process(reports, careful=True)
        except (DataError, IntegrityError):
            # The next exchange finds the culprit among all reports: see `_settle_singly`.
            self._reporter.restore(reports)
            return
        except BaseException as error:
            self._busy.restore(reports)
            if isinstance(error, DatabaseError):
                self._reporter.mark_unsure(reports)
            raise
        self._settled(reports, batch)

    def _request(self, room: int) -> ClaimRequest:
        token = secrets.token_hex(8)
        # Announced before the claim: if this process dies now, the supervisor finds the messages.
        before = [self.unapplied.batch.token] if self.unapplied and self.unapplied.room else []
        self._in_flight.ledger.announce(*before, token)
        self._token = token
        return self._intake.request(room, token)

    def _process(
        self,
        reports: Reports,
        request: ClaimRequest | None = None,
        progress: Sequence[Progress] = (),
        *,
        careful: bool = False,
    ) -> WorkBatch:
        """Run the transaction; meanwhile apply the exchange before it, if that is left."""
        call = partial(
            process_batch,
            worker=self._options.name,
            completions=reports.completions,
            failures=reports.failures,
            releases=reports.releases,
            claim=request,
            progress=progress,
            careful=careful,
            using=self._options.using,
        )
        if self.unapplied is None:
            return call()
        self.thread.begin(call)
        try:
            self.catch_up()
        finally:
            batch = self.thread.wait()
        return batch

    def _settled(self, reports: Reports, batch: WorkBatch) -> None:
        """Apply reports that were stored; keep those whose rows were busy."""
        if batch.busy:
            reports, busy = reports.split(set(batch.busy))
            self._busy.add(busy, monotonic())
        self._reporter.apply(reports, batch)

    def _settle_singly(self, error: DatabaseError) -> None:
        """Settle each pending report alone, since one of them cannot be stored."""
        event(logging.ERROR, "report_refused", "a report was refused: {error}", error=str(error))
        reports = self._reporter.pending
        for report in reports.all():
            # If the database goes away meanwhile, this raises, and the rest is reported later.
            if not self._settle_alone(report):
                plain = Failure(report.id, "its outcome could not be stored", token=report.token)
                if not self._settle_alone(plain):
                    # Nothing can be stored for it: its lease runs out, and the claim judges it.
                    self._in_flight.remove(report.id)
            reports.discard(report)

    def _settle_alone(self, report: Completion | Failure | Release) -> bool:
        alone = Reports()
        alone.add(report)
        try:
            batch = self._process(alone)
        except (DataError, IntegrityError):
            return False
        self._settled(alone, batch)
        return True

    def _log_postponed(self, now: float) -> None:
        """Log, once a minute, why a worker that seems idle claims nothing."""
        if now - self._reminded < REMINDER:
            return
        self._reminded = now
        event(
            logging.WARNING,
            "claims_postponed",
            "worker {worker} cannot claim: another transaction has locked a table of deadletter, "
            "or a statement_timeout ends the claim. It tries again until it can. Transactions that "
            "may hold the lock: {holders}",
            worker=self._options.name,
            holders=describe_holders(self._options.using),
        )


class ExchangeThread(Generic[T]):
    """
    Runs one call at a time on the pump's connection, while the pump does other work.

    The two threads never use the connection at the same time. The first call starts the thread;
    `stop` ends it.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._calls: SimpleQueue[tuple[Callable[[], T], BaseDatabaseWrapper] | None]
        self._calls = SimpleQueue()
        self._results: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, call: Callable[[], T]) -> None:
        """Begin a call. The caller leaves its connection alone until `wait` returns."""
        connection = connections[self._using]
        if self._thread is None:
            connection.inc_thread_sharing()
            self._thread = threading.Thread(
                target=self._serve, name="deadletter-exchange", daemon=True
            )
            self._thread.start()
        self._calls.put((call, connection))

    def wait(self) -> T:
        """Wait for the call; return its result, or raise its exception."""
        result, error = self._results.get()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def stop(self) -> None:
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None
            connections[self._using].dec_thread_sharing()

    def _serve(self) -> None:
        thread_connections.leave_pools()
        while (given := self._calls.get()) is not None:
            call, connection = given
            connections[self._using] = connection
            try:
                self._results.put((call(), None))
            except BaseException as error:  # noqa: BLE001 - raised again by `wait`
                self._results.put((None, error))
        # The pump closes its own connection; signal receivers may have opened others here.
        del connections[self._using]
        connections.close_all()
