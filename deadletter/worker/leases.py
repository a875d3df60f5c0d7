"""Whose time is up? Renew what runs, give back what only waits, give up on what takes too long."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from ..lifecycle import Failure
from ..lifecycle.settle import refunding, renewing
from ..lifecycle.transaction import in_transaction
from ..logs import event
from ..status import FailureReason
from .executors import Executors
from .holding import Holding, Holdings
from .options import Options
from .tally import Reports, Tally

#: Seconds between two looks at everything held.
INTERVAL = 0.05
#: Seconds an async handler has to end after its own time limit cancelled it.
CANCELLATION = 1.0


class Leases:
    """Called by the pump, in its thread."""

    def __init__(
        self, *, options: Options, holdings: Holdings, executors: Executors, tally: Tally
    ) -> None:
        self._options = options
        self._holdings = holdings
        self._executors = executors
        self._tally = tally
        self._next = 0.0
        #: Threads that were given up on and may never come back.
        self.stuck = 0

    def check(self, now: float, reports: Reports) -> None:
        if now < self._next:
            return
        self._next = now + INTERVAL
        held = list(self._holdings)
        for holding in held:
            self._time_out(holding, now, reports)
        due = [h for h in held if h.until - now < h.message.lease.total_seconds() / 2]
        if due:
            self._keep(due, now)

    def _keep(self, due: Sequence[Holding], now: float) -> None:
        """Renew what runs at half its lease; what has waited that long unstarted goes back."""
        waiting = [h for h in due if h.is_waiting]
        self._refund([h for h in waiting if h.until <= now and h.take()])
        self._executors.give_back(h for h in waiting if h.until > now)
        running = {h.message.id: h for h in due if h.is_running}
        if running:
            self._renew(running, now)

    def _renew(self, running: dict[int, Holding], now: float) -> None:
        tokens = {id: holding.message.token for id, holding in running.items()}
        lost = in_transaction(
            lambda tx: renewing(tx, tokens, lease=self._options.lease), using=self._options.using
        )
        for id, holding in running.items():
            holding.until = now + holding.message.lease.total_seconds()
            if id in lost:
                # The handler cannot be called back; its report will be refused by the fence.
                holding.until = math.inf
                event(
                    logging.WARNING,
                    "lease_lost",
                    "the lease of message {name} {message_id} ran out while its handler runs",
                    name=holding.message.name,
                    message_id=id,
                )

    def _refund(self, over: Sequence[Holding]) -> None:
        """Take the charge off what was never started although its lease ran out."""
        if not over:
            return
        tokens = {h.message.id: h.message.token for h in over}
        in_transaction(lambda tx: refunding(tx, tokens), using=self._options.using)
        for holding in over:
            holding.decide()
            self._holdings.remove(holding.message.id)
        self._tally.released += len(over)

    def _time_out(self, holding: Holding, now: float, reports: Reports) -> None:
        """End an attempt that takes too long: the slot comes back, the late result is refused."""
        deadline = holding.deadline
        if deadline is None or now < deadline:
            return
        is_async = holding.handler is not None and holding.handler.is_async
        if is_async and now < deadline + CANCELLATION:
            return
        if not holding.decide():
            return
        message, handler = holding.message, holding.handler
        seconds = handler.seconds if handler else None
        event(
            logging.WARNING,
            "message_timed_out",
            "message {name} {message_id} of queue {queue} took longer than {seconds} s; its "
            "attempt failed, its slot is replaced and the process will recycle",
            name=message.name,
            message_id=message.id,
            queue=message.queue,
            seconds=seconds,
        )
        self.stuck += 1
        self._executors.replace(holding)
        reports.add(
            Failure(
                message.id,
                error=f"TimeoutError: took longer than {seconds} s",
                reason=FailureReason.TIMEOUT_EXCEEDED,
                exception="TimeoutError",
                max_attempts=handler.max_attempts if handler and handler.has_own_limit else None,
                unlimited=bool(handler and handler.max_attempts is None),
                token=message.token,
            )
        )
        self._executors.give_back(holding.behind)
