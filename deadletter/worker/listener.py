"""The listener wakes an idle worker through NOTIFY (PostgreSQL). Elsewhere the worker polls."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import Error as DatabaseError

from ..lifecycle import CHANNEL
from ..logs import event
from . import thread_connections

#: Seconds between two checks for a stop on a silent connection.
_PATIENCE = 5.0
#: Seconds until a lost connection is replaced; doubled while that fails.
FIRST_DELAY = 0.2
#: Seconds within which our own test notification must arrive through a pooler.
PROBE = 5.0


class NotNotified(Exception):
    """Notifications do not arrive on this connection."""


class Listener(threading.Thread):
    """
    A thread with a connection of its own that waits for NOTIFY. A lost connection is replaced.

    A pooler in transaction mode accepts LISTEN and delivers nothing. The listener tests that, logs
    it once and ends. The worker polls anyway.
    """

    def __init__(
        self, using: str, wake: Callable[[], None], *, worker: str, channel: str = CHANNEL
    ) -> None:
        super().__init__(name="deadletter-listener", daemon=True)
        self._channel = channel
        self._using = using
        self._worker = worker
        self._wake = wake
        self._stopping = threading.Event()
        self.is_listening = False

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        delay = FIRST_DELAY
        thread_connections.leave_pools()
        while not self._stopping.is_set():
            try:
                self._listen()
            except NotNotified:
                self._give_up()
                return
            except DatabaseError:
                pass  # the pump logs what is wrong with the database; polling covers the gap
            except Exception as error:
                if not _is_lost_connection(error):
                    raise
            # After a connection that did listen, the series of delays starts anew.
            delay = FIRST_DELAY if self.is_listening else min(delay * 2, 30.0)
            self.is_listening = False
            connections[self._using].close()
            self._stopping.wait(delay * random.uniform(0.5, 1.5))  # noqa: S311 - no secret

    def _listen(self) -> None:
        connection = connections[self._using]
        is_pooled = _is_pooled(connection)
        # The last statement of the session: pg_stat_activity shows what the session is for.
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {self._channel}")
        if is_pooled:
            self._try_out(connection)
        self.is_listening = True
        self._wake()  # for messages that were sent before LISTEN
        while not self._stopping.is_set():
            for _ in connection.connection.notifies(timeout=_PATIENCE, stop_after=1):
                self._wake()

    def _try_out(self, connection: BaseDatabaseWrapper) -> None:
        """
        Raises: NotNotified if a notification from another connection does not arrive.

        From another one: the answer to a NOTIFY on this connection may bring its notification along
        even where none would arrive later.
        """
        other = thread_connections.unpooled(self._using)
        try:
            with other.cursor() as cursor:
                cursor.execute(f"NOTIFY {self._channel}")
        finally:
            other.close()
        if not list(connection.connection.notifies(timeout=PROBE, stop_after=1)):
            raise NotNotified

    def _give_up(self) -> None:
        connections[self._using].close()
        event(
            logging.WARNING,
            "worker_not_notified",
            "worker {worker} is not notified of new messages and polls instead: LISTEN does "
            "not work through a pooler in transaction mode",
            worker=self._worker,
        )


def _is_pooled(connection: BaseDatabaseWrapper) -> bool:
    """True if a pooler is between: it invents the process id that it reports at connect."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return bool(cursor.fetchone()[0] != connection.connection.info.backend_pid)


def _is_lost_connection(error: Exception) -> bool:
    """True for errors of psycopg itself, which no Django cursor has translated."""
    return type(error).__module__.partition(".")[0] == "psycopg"
