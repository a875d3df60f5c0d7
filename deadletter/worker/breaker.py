"""
Circuit breakers: a message name that keeps failing is not tried for a while.

Each process counts failures in a row by itself. An open breaker is a row that all workers read, so
the first one to trip protects the others. Messages that are claimed meanwhile are released
uncounted. A row of a person holds any name, with and without a breaker, until it is reset.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from .. import clock
from ..backoff import HOLD_WAIT, BreakerPolicy
from ..logs import event
from ..models import Breaker
from ..models.worker import BreakerQuerySet
from .registry import Handler, Registry

#: Seconds that a message waits while another one of its name is tried as the probe.
PROBE_WAIT = 1.0
#: Seconds between two reads of the table where no handler has a breaker: a person may hold a name.
HOLDS = 2.0


@dataclass
class _Circuit:
    policy: BreakerPolicy
    failures: deque[float] = field(default_factory=deque)
    #: End of the cool-down on the monotonic clock; None if closed.
    until: float | None = None
    probing: bool = False

    def wait(self, now: float) -> float:
        """Return the seconds until a message may be tried; 0: at once, as the probe."""
        left = (self.until or 0.0) - now
        if left > 0:
            return left
        return PROBE_WAIT if self.probing else 0.0


@dataclass(frozen=True)
class _Hold:
    """A name that a person holds, on the monotonic clock."""

    since: float
    until: float

    def wait(self, now: float) -> float:
        """
        Return the seconds until a message may be looked at again; 0: the hold is over.

        They grow with the age of the hold: a short one is over at once, and the messages of a long
        one are not claimed and released all the time.
        """
        aside = min(HOLD_WAIT, max((now - self.since) / 2, PROBE_WAIT))
        return max(min(self.until - now, aside), 0.0)


class Breakers:
    """The circuits of one process. The pump uses them; the housekeeper syncs them to the table."""

    def __init__(
        self,
        *,
        worker: str,
        using: str,
        handlers: Registry,
        time: Callable[[], float] = monotonic,
    ) -> None:
        self._worker = worker
        self._handlers = handlers
        self._using = using
        self._time = time
        self._circuits: dict[str, _Circuit] = {}
        self._changed: dict[str, str | None] = {}
        #: The names that people hold. Replaced as a whole.
        self._holds: dict[str, _Hold] = {}
        self._read_at: float | None = None
        self._lock = threading.Lock()

    @property
    def are_closed(self) -> bool:
        """True if no circuit exists: nothing is held, and no failures are counted."""
        return not (self._circuits or self._holds)

    def hold(self, *run: Handler | None) -> float | None:
        """
        Return the seconds that a run must wait, or None if it may start (maybe as the probe).

        A run is held as a whole: its messages must keep their order.
        """
        if self.are_closed:
            return None
        if self._holds and (held := self._wait_of_hold(run)):
            return held
        # A flow has no circuit, but may have the name of a handler that has one.
        names = {handler.name for handler in run if handler is not None and handler.circuit}
        with self._lock:
            now = self._time()
            circuits = [circuit for name, circuit in self._circuits.items() if name in names]
            tripped = [circuit for circuit in circuits if circuit.until is not None]
            waits = [wait for circuit in tripped if (wait := circuit.wait(now))]
            if waits:
                # Not until the end of a long cool-down: a person may reset the breaker before.
                return min(max(waits), HOLD_WAIT)
            for circuit in tripped:
                circuit.probing = True
            return None

    def report(self, handler: Handler | None, *, failed: bool, error: str = "") -> float | None:
        """Count an outcome; return the seconds for which its name is held from now on, or None."""
        if handler is None or handler.circuit is None:
            return None
        with self._lock:
            circuit = self._circuits.setdefault(handler.name, _Circuit(handler.circuit))
            if not failed:
                self._succeeded(handler.name, circuit)
                return None
            before = circuit.until
            self._failed(handler.name, circuit, error)
            return None if circuit.until == before else circuit.policy.cooldown

    def cancel_probe(self, handler: Handler | None) -> None:
        """Note that the probe was released unprocessed: the next message is the probe."""
        if handler is None or handler.circuit is None:
            return
        if circuit := self._circuits.get(handler.name):
            circuit.probing = False

    def open_names(self) -> list[str]:
        opened = [name for name, circuit in self._circuits.items() if circuit.until is not None]
        return [*opened, *(name for name in self._holds if name not in opened)]

    def exchange(self) -> None:
        """Write changes of this process to the table and read those of other workers."""
        if not (self._handlers.has_circuits or self._may_be_held()):
            return
        self._read_at = self._time()
        with self._lock:
            changed = dict(self._changed)
        for name, error in changed.items():
            if error is None:
                self._rows().filter(name=name, is_held=False).delete()
            else:
                self._store(name, error)
            with self._lock:
                # Only now: a change that could not be written must be written later.
                if self._changed.get(name, ...) == error:
                    del self._changed[name]
        self._read(changed)

    def _failed(self, name: str, circuit: _Circuit, error: str) -> None:
        now = self._time()
        circuit.failures.append(now)
        while circuit.failures[0] < now - circuit.policy.window:
            circuit.failures.popleft()
        tripped = len(circuit.failures) >= circuit.policy.failures
        if not tripped and not circuit.probing:
            return
        again = circuit.until is not None
        if again and not circuit.probing:
            return  # a message that was already running when the breaker opened
        circuit.until = now + circuit.policy.cooldown
        circuit.probing = False
        self._changed[name] = error or "failed"
        event(
            logging.ERROR,
            "breaker_opened",
            "{what} message name {name} for {cooldown} s after {failures} failures in a row: "
            "{error}",
            what="still holding" if again else "holding",
            name=name,
            cooldown=circuit.policy.cooldown,
            failures=len(circuit.failures),
            error=error,
        )

    def _succeeded(self, name: str, circuit: _Circuit) -> None:
        circuit.failures.clear()
        if circuit.until is None or not circuit.probing:
            return
        circuit.until = None
        circuit.probing = False
        self._changed[name] = None
        event(
            logging.WARNING,
            "breaker_closed",
            "message name {name} is released: the probe completed",
            name=name,
        )

    def _store(self, name: str, error: str) -> None:
        circuit = self._circuits[name]
        now = clock.now(self._using)
        until = now + timedelta(seconds=max(0.0, (circuit.until or 0.0) - self._time()))
        found: dict[str, Any] = {
            "error": error,
            "until": until,
            "failures": len(circuit.failures),
            "opened_by": self._worker,
        }
        # The row of a person stays as it is.
        if not self._rows().filter(name=name, is_held=False).update(**found):
            row = Breaker(name=name, opened_at=now, **found)
            self._rows().bulk_create([row], ignore_conflicts=True)

    def _read(self, own: dict[str, str | None]) -> None:
        rows = list(self._rows().values_list("name", "until", "is_held", "opened_at"))
        now = clock.now(self._using) if rows else None
        held = {name: (since, until) for name, until, is_held, since in rows if is_held}
        self._read_holds(held, now)
        stored = {name: until for name, until, is_held, _since in rows if not is_held}
        with self._lock:
            for name, until in stored.items():
                handler = self._handlers.get(name)
                if handler is None or handler.circuit is None or name in self._changed:
                    continue
                circuit = self._circuits.setdefault(name, _Circuit(handler.circuit))
                end = self._monotonic(until, now)
                if not circuit.probing and (circuit.until is None or circuit.until < end - 0.5):
                    # Opened by another worker, or its probe failed there: do not try it here, too.
                    circuit.until = end
            for name, circuit in self._circuits.items():
                is_stored = name in stored or name in held
                gone = not is_stored and name not in self._changed and name not in own
                if gone and circuit.until is not None and not circuit.probing:
                    circuit.until = None
                    circuit.failures.clear()

    def _read_holds(self, held: dict[str, tuple[datetime, datetime]], now: datetime | None) -> None:
        before = self._holds
        self._holds = {
            name: _Hold(self._monotonic(since, now), self._monotonic(until, now))
            for name, (since, until) in held.items()
            if now is None or until > now
        }
        if len(self._holds) < len(held):
            # A hold for a time is over. Whichever worker sees that first deletes its row.
            self._rows().filter(is_held=True, until__lte=now).delete()
        for name in self._holds.keys() - before.keys():
            event(
                logging.WARNING, "name_held", "message name {name} is held by a person", name=name
            )
        for name in before.keys() - self._holds.keys():
            event(
                logging.WARNING, "name_released", "message name {name} is held no more", name=name
            )

    def _wait_of_hold(self, run: Iterable[Handler | None]) -> float:
        now, holds = self._time(), self._holds
        # A flow may have the name of a handler; it calls no service and is not held.
        names = {handler.name for handler in run if handler is not None and not handler.versions}
        return max((holds[name].wait(now) for name in names & holds.keys()), default=0.0)

    def _may_be_held(self) -> bool:
        return self._read_at is None or self._time() - self._read_at >= HOLDS

    def _monotonic(self, at: datetime, now: datetime | None) -> float:
        return self._time() + (0.0 if now is None else (at - now).total_seconds())

    def _rows(self) -> BreakerQuerySet:
        return Breaker.objects.using(self._using)
