"""
Circuit breakers: a message name that keeps failing is not tried for a while.

Each process counts failures in a row by itself. An open breaker is a row that all workers read, so
the first one to trip protects the others. Messages that are claimed meanwhile are released
uncounted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic

from .. import clock
from ..backoff import BreakerPolicy
from ..logs import event
from ..models import Breaker
from .registry import Handler, Registry

#: Seconds that a message waits while another one of its name is tried as the probe.
PROBE_WAIT = 1.0


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
        self._lock = threading.Lock()

    @property
    def are_closed(self) -> bool:
        """True if no circuit exists: nothing is held, and no failures are counted."""
        return not self._circuits

    def hold(self, *run: Handler | None) -> float | None:
        """
        Return the seconds that a run must wait, or None if it may start (maybe as the probe).

        A run is held as a whole: its messages must keep their order.
        """
        if not self._circuits:
            return None
        # A flow has no circuit, but may have the name of a handler that has one.
        names = {handler.name for handler in run if handler is not None and handler.circuit}
        with self._lock:
            now = self._time()
            circuits = [circuit for name, circuit in self._circuits.items() if name in names]
            tripped = [circuit for circuit in circuits if circuit.until is not None]
            waits = [wait for circuit in tripped if (wait := circuit.wait(now))]
            if waits:
                return max(waits)
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
        return [name for name, circuit in self._circuits.items() if circuit.until is not None]

    def exchange(self) -> None:
        """Write changes of this process to the table and read those of other workers."""
        if not self._handlers.has_circuits:
            return
        with self._lock:
            changed = dict(self._changed)
        for name, error in changed.items():
            if error is None:
                Breaker.objects.using(self._using).filter(name=name).delete()
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
        Breaker.objects.using(self._using).update_or_create(
            name=name,
            defaults={
                "error": error,
                "until": until,
                "failures": len(circuit.failures),
                "opened_by": self._worker,
            },
            create_defaults={
                "error": error,
                "until": until,
                "failures": len(circuit.failures),
                "opened_by": self._worker,
                "opened_at": now,
            },
        )

    def _read(self, own: dict[str, str | None]) -> None:
        now = clock.now(self._using)
        stored = dict(Breaker.objects.using(self._using).values_list("name", "until"))
        with self._lock:
            for name, until in stored.items():
                handler = self._handlers.get(name)
                if handler is None or handler.circuit is None or name in self._changed:
                    continue
                circuit = self._circuits.setdefault(name, _Circuit(handler.circuit))
                end = self._time() + (until - now).total_seconds()
                if not circuit.probing and (circuit.until is None or circuit.until < end - 0.5):
                    # Opened by another worker, or its probe failed there: do not try it here, too.
                    circuit.until = end
            for name, circuit in self._circuits.items():
                gone = name not in stored and name not in self._changed and name not in own
                if gone and circuit.until is not None and not circuit.probing:
                    circuit.until = None
                    circuit.failures.clear()
