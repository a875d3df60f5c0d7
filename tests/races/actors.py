"""Actors: threads with their own connection that stop at a named statement until released."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import connection, transaction

from deadletter import sql
from tests.patience import PATIENCE


class Actor:
    """Does one thing in a thread. `before` and `after` name the statement it stops at, once."""

    def __init__(
        self,
        call: Callable[[], Any],
        *,
        before: str | None = None,
        after: str | None = None,
        deadlock_timeout: str = "10s",
    ) -> None:
        self.pid = 0
        self.statements: list[str] = []
        self.rows: list[tuple[str, list[sql.Row]]] = []
        self._call = call
        self._deadlock_timeout = deadlock_timeout
        self._stops = {stop for stop in (("before", before), ("after", after)) if stop[1]}
        self._ready = threading.Event()
        self._reached = threading.Event()
        self._go = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Actor:
        self.thread.start()
        assert self._ready.wait(PATIENCE)
        if self._stops:
            self.wait_reached()
        return self

    def wait_reached(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self._reached.wait(0.05):
            assert self.thread.is_alive(), f"never came to {self._stops}: {self.statements}"
            assert time.monotonic() < deadline

    def go(self) -> Actor:
        """Let it go on from where it stopped."""
        self._go.set()
        return self

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised."""
        self.go()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), f"still running after {self.statements}"
        if self._error is not None:
            raise self._error
        return self._result

    def is_running(self) -> bool:
        return self.thread.is_alive()

    def wait_blocked(self, by: Actor) -> str:
        """Wait until the database says that `by` holds what this one waits for; return what."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT wait_event, pg_blocking_pids(pid) FROM pg_stat_activity"
                    " WHERE pid = %s AND wait_event_type = 'Lock'",
                    [self.pid],
                )
                for event, pids in cursor.fetchall():
                    if by.pid in pids:
                        return event
            assert self.is_running(), f"ended without waiting: {self.statements}"
            time.sleep(0.005)
        raise AssertionError(f"never waited: {self.statements}")

    def holds_stream_locks(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_locks"
                " WHERE locktype = 'advisory' AND granted AND pid = %s",
                [self.pid],
            )
            return cursor.fetchone()[0]

    def step(self, connection: Any, name: str, params: Any, run: Callable[..., Any]) -> Any:
        self._stop("before", name)
        rows = run(connection, name, params)
        self.statements.append(name)
        self.rows.append((name, rows))
        self._stop("after", name)
        return rows

    def _stop(self, when: str, name: str) -> None:
        if (when, name) in self._stops and not self._reached.is_set():
            self._reached.set()
            assert self._go.wait(PATIENCE)

    def _run(self) -> None:
        try:
            _local.actor = self
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("SELECT pg_backend_pid()")
                    self.pid = cursor.fetchone()[0]
                    cursor.execute(
                        "SELECT set_config('deadlock_timeout', %s, false)", [self._deadlock_timeout]
                    )
            self._ready.set()
            self._result = self._call()
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            self._error = error
        finally:
            self._ready.set()
            connection.close()


_local = threading.local()
_run = sql.run


def run(connection: Any, name: str, params: Any, **options: Any) -> Any:
    """Stands in for `deadletter.sql.run` while a race is staged."""
    actor = getattr(_local, "actor", None)
    if actor is None:
        return _run(connection, name, params, **options)
    return actor.step(connection, name, params, partial(_run, **options))


def in_one_transaction(*calls: Callable[[], Any]) -> Callable[[], list[Any]]:
    def together() -> list[Any]:
        with transaction.atomic():
            return [call() for call in calls]

    return together
