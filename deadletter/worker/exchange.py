"""One exchange with the database: outcomes go, messages come, and both are entered in the books."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from django.db import DataError, IntegrityError
from django.db.utils import Error as DatabaseError

from .. import crash_points
from ..lifecycle import (
    ClaimRequest,
    Completion,
    Failure,
    Floor,
    Levels,
    Progress,
    Release,
    WorkBatch,
    process_batch,
)
from ..logs import event
from .busy_reports import REMINDER, who_holds
from .courier import Courier
from .in_flight import Holdings
from .intake import Intake
from .leases import Leases
from .options import Options
from .registry import Registry
from .reports import Reporting
from .stage_recorder import Recorder
from .tally import Reports, Tally

#: Seconds after which a busy worker looks at all that is due again, not only where it left off.
WHOLE_LOOK = 1.0
#: A worker that finds too little looks for other levels only after so many times as long as that
#: took the last time. A few levels take a fraction of a millisecond; a thousand take several.
REST = 10.0


@dataclass(frozen=True)
class Answered:
    """An exchange that is in the database, and in the books of this process not yet."""

    reports: Reports
    batch: WorkBatch
    #: How many messages it asked for, and when.
    room: int
    asked: float
    took: float
    #: It did not look at all that is due.
    is_partial: bool = False

    @property
    def done(self) -> int:
        """How many messages it has settled."""
        return len(self.reports) - len(self.batch.busy)

    @property
    def change(self) -> int:
        """By how many it changes what is held."""
        return len(self.batch.messages) - self.done


class Exchange:
    """
    Called by the pump, in its thread. An exchange may be left unentered until the next one is under
    way: then the database and the books are busy at the same time.
    """

    def __init__(
        self,
        *,
        options: Options,
        handlers: Registry,
        holdings: Holdings,
        leases: Leases,
        reporting: Reporting,
        intake: Intake,
        tally: Tally,
        queues: Callable[[], Sequence[str] | None],
    ) -> None:
        self.unentered: Answered | None = None
        self._options = options
        self._handlers = handlers
        self._holdings = holdings
        self._leases = leases
        self._reporting = reporting
        self._intake = intake
        self._tally = tally
        self._queues = queues
        self._recorder = Recorder(holdings)
        self._courier: Courier[WorkBatch] = Courier(options.using)
        #: The token of the last claim.
        self._asked_under = ""
        #: Where the next claim begins in a queue.
        self._floors: dict[str, Floor] = {}
        #: The levels with messages, found by the last claim at the beginning of all.
        self._levels: Levels | None = None
        #: How many notifications have come, and how many had come before the levels were found.
        self.heard = 0
        self._heard_before = 0
        #: How many candidates a message took in the last claim that found enough.
        self._candidates = 1.0
        #: When it was last said that nothing can be claimed.
        self._reminded = -REMINDER

    def stop(self) -> None:
        self._courier.stop()

    def put(self, room: int) -> Answered | None:
        """
        Report and claim in one transaction; the report is kept until it is known to be in.

        None: there was nothing to say; or a report could not be stored, and each was settled alone.
        """
        asked, heard = monotonic(), self.heard
        request = self._request(room) if room else None
        reports = self._reporting.take()
        progress = self._progress(reports) if self._recorder.is_due(asked) else []
        if not (reports or room or progress):
            # The handlers that recorded something have ended, and say it in their reports.
            self._reporting.restore(reports)
            return None
        crash_points.reach("pump.exchanging")
        try:
            batch = self._carry(reports, request, progress)
        except (DataError, IntegrityError) as error:
            self._reporting.restore(reports)
            if not reports:
                raise
            self._settle_singly(error)
            return None
        except BaseException as error:
            self._reporting.restore(reports)
            if isinstance(error, DatabaseError):
                self._reporting.is_unsure(reports)
                if request is not None and request.token:
                    self._leases.doubtful.add(request.token)
            raise
        crash_points.reach("pump.exchanged")
        if progress:
            self._recorder.written(progress, batch.recorded)
        if room and not batch.token:
            self._tell_held_up(asked)
        if room:
            if batch.levels is not None:
                self._levels, self._heard_before = batch.levels, heard
            self._note_floor(batch, room)
            self._candidates = batch.candidates if len(batch.messages) >= room else 1.0
        is_partial = request is not None and bool(request.floors) and batch.levels is None
        return Answered(reports, batch, room, asked, monotonic() - asked, is_partial)

    def has_progress(self, now: float) -> bool:
        """Return whether handlers have recorded stages that are not on their rows yet."""
        return self._recorder.is_due(now)

    def _progress(self, reports: Reports) -> list[Progress]:
        ended = {release.id for release in reports.releases}
        return self._recorder.take(given_back=ended | self._reporting.backlog.ids)

    def _tell_held_up(self, now: float) -> None:
        """Say, once a minute, why a worker that seems idle claims nothing."""
        if now - self._reminded < REMINDER:
            return
        self._reminded = now
        event(
            logging.WARNING,
            "claims_postponed",
            "worker {worker} cannot claim: another transaction has locked a table of deadletter, "
            "or a statement_timeout ends the claim. It tries again until it can. Who may hold the "
            "lock: {holders}",
            worker=self._options.name,
            holders=who_holds(self._options.using),
        )

    def enter(self, answered: Answered, *, later: bool) -> None:
        """Enter an exchange, or leave that for the time of the next one, where it can be left."""
        if later and self._may_wait(answered):
            self.unentered = answered
        else:
            self._enter(answered)

    def catch_up(self) -> None:
        """Enter what was left."""
        if self.unentered is not None:
            answered, self.unentered = self.unentered, None
            self._enter(answered)

    def try_backlog(self) -> None:
        """Report again, by themselves, what somebody was in the way of."""
        self.catch_up()
        backlog = self._reporting.backlog
        reports = backlog.take()
        try:
            batch = self._process(reports, careful=True)
        except (DataError, IntegrityError):
            # Found among the others: see `_settle_singly`.
            self._reporting.restore(reports)
            return
        except BaseException as error:
            backlog.restore(reports)
            if isinstance(error, DatabaseError):
                self._reporting.is_unsure(reports)
            raise
        self._reporting.settled(reports, batch)

    def _carry(
        self, reports: Reports, request: ClaimRequest | None, progress: Sequence[Progress]
    ) -> WorkBatch:
        """Put an exchange to the database; meanwhile enter the one before, where that is left."""
        if self.unentered is None:
            return self._process(reports, request, progress)
        self._courier.send(partial(self._process, reports, request, progress))
        try:
            self.catch_up()
        finally:
            batch = self._courier.wait()
        return batch

    def _may_wait(self, answered: Answered) -> bool:
        """
        Whether it can be entered while the next one is under way.

        Not what was lost: saying so may be a statement of its own on the connection. And not a new
        holding of a message that is still held: the report of the old one would remove it.
        """
        batch = answered.batch
        is_lost = batch.lost or batch.busy or answered.reports.overtaken
        return not (is_lost or self._holdings.holds_any(batch.messages))

    def _enter(self, answered: Answered) -> None:
        """Let go of what was reported, and hold what was claimed. Asks the database nothing."""
        self._reporting.settled(answered.reports, answered.batch)
        observer = self._reporting.observer
        if observer is not None and (answered.reports or answered.room):
            observer.exchanged(answered.took, answered.reports, answered.batch, self._tally)
        if answered.room:
            self._reporting.forget_claimed_anew(answered.batch)
            self._intake.take_in(answered.batch, asked=answered.asked)
            if self._asked_under == answered.batch.token:
                self._holdings.ledger.announce()
            else:
                self._holdings.ledger.announce(self._asked_under)
            crash_points.reach("pump.taken_in")

    def _request(self, room: int) -> ClaimRequest:
        token = secrets.token_hex(8)
        # Known before the messages are: if this process dies now, they can be found.
        before = [self.unentered.batch.token] if self.unentered and self.unentered.room else []
        self._holdings.ledger.announce(*before, token)
        self._asked_under = token
        now = monotonic()
        levels = self._levels
        if levels is not None and now - levels.read > WHOLE_LOOK:
            levels, self._floors = None, {}
        return ClaimRequest(
            self._intake.open_queues(self._queues()),
            room,
            self._options.lease,
            token=token,
            floors=dict(self._floors),
            candidates=self._candidates,
            levels=levels,
            policies=self._handlers.policies(),
            knows=self._handlers.knows,
            rediscover=levels is None or self._may_rediscover(levels, now),
            shuffle=self._options.queues is None,
        )

    def _may_rediscover(self, levels: Levels, now: float) -> bool:
        """Whether levels that do not fill the batch are looked for again, in the same claim."""
        is_notified = self.heard != self._heard_before
        is_rested = now - levels.read >= REST * levels.seconds
        return is_notified or is_rested or self._options.drain

    def _note_floor(self, batch: WorkBatch, room: int) -> None:
        """
        While a queue has more than can be taken, the next claim need not begin at its beginning.

        Not after a claim from several queues: whose place it was is not known.
        """
        if len(batch.messages) < room:
            self._floors = {}
        elif batch.floor and len({message.queue for message in batch.messages}) == 1:
            self._floors[batch.messages[0].queue] = batch.floor

    def _process(
        self,
        reports: Reports,
        request: ClaimRequest | None = None,
        progress: Sequence[Progress] = (),
        *,
        careful: bool = False,
    ) -> WorkBatch:
        return process_batch(
            worker=self._options.name,
            completions=reports.completions,
            failures=reports.failures,
            releases=reports.releases,
            claim=request,
            progress=progress,
            careful=careful,
            using=self._options.using,
        )

    def _settle_singly(self, error: DatabaseError) -> None:
        """One report cannot be stored: find it, and let neither the others nor the loop suffer."""
        event(logging.ERROR, "report_refused", "a report was refused: {error}", error=str(error))
        reports = self._reporting.reports
        for report in reports.all():
            # A database that goes away meanwhile ends this, and the rest is reported later.
            if not self._settle_alone(report):
                plain = Failure(report.id, "its outcome could not be stored", token=report.token)
                if not self._settle_alone(plain):
                    # Nothing can be said of it: its lease runs out, and the claim judges it.
                    self._holdings.remove(report.id)
            reports.discard(report)

    def _settle_alone(self, report: Completion | Failure | Release) -> bool:
        alone = Reports()
        alone.add(report)
        try:
            batch = self._process(alone)
        except (DataError, IntegrityError):
            return False
        self._reporting.settled(alone, batch)
        return True
