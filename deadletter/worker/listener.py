"""How does an idle worker learn of new work at once? It listens, on PostgreSQL; else it polls."""

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
from . import pools

#: Seconds after which a silent connection is looked at for a stop.
_PATIENCE = 5.0
#: Seconds after which a lost connection is replaced; doubled while that fails.
FIRST_DELAY = 0.2
#: Seconds in which a notification of our own must come back through a pooler.
PROBE = 5.0


class Deaf(Exception):
    """Notifications do not arrive on this connection."""


class Listener(threading.Thread):
    """
    A connection of its own that does nothing but wait for NOTIFY. Lost, it comes back.

    A pooler that hands out connections by the transaction takes LISTEN and delivers nothing: the
    listener tries that out, says so once and ends. The worker looks for work by itself anyway.
    """

    def __init__(self, using: str, wake: Callable[[], None], *, worker: str) -> None:
        super().__init__(name="deadletter-listener", daemon=True)
        self._using = using
        self._worker = worker
        self._wake = wake
        self._stopping = threading.Event()
        self.is_listening = False

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        delay = FIRST_DELAY
        pools.leave_pools()
        while not self._stopping.is_set():
            try:
                self._listen()
            except Deaf:
                self._give_up()
                return
            except DatabaseError:
                pass  # the pump says what is wrong with the database; polling covers the gap
            except Exception as error:
                if not _is_lost_connection(error):
                    raise
            # A connection that did listen starts the series anew.
            delay = FIRST_DELAY if self.is_listening else min(delay * 2, 30.0)
            self.is_listening = False
            connections[self._using].close()
            self._stopping.wait(delay * random.uniform(0.5, 1.5))  # noqa: S311 - no secret

    def _listen(self) -> None:
        connection = connections[self._using]
        is_pooled = _is_pooled(connection)
        # The last it says: whoever looks at the server's sessions sees what this one is for.
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        if is_pooled:
            self._try_out(connection)
        self.is_listening = True
        self._wake()  # for what was sent before we listened
        while not self._stopping.is_set():
            for _ in connection.connection.notifies(timeout=_PATIENCE, stop_after=1):
                self._wake()

    def _try_out(self, connection: BaseDatabaseWrapper) -> None:
        """
        Raises: Deaf when what another connection notifies of does not come.

        Another one: the answer to a NOTIFY of our own may bring its notification along even where
        nothing would come later.
        """
        other = pools.unpooled(self._using)
        try:
            with other.cursor() as cursor:
                cursor.execute(f"NOTIFY {CHANNEL}")
        finally:
            other.close()
        if not list(connection.connection.notifies(timeout=PROBE, stop_after=1)):
            raise Deaf

    def _give_up(self) -> None:
        connections[self._using].close()
        event(
            logging.WARNING,
            "worker_not_notified",
            "worker {worker} is not told of new messages and looks for them instead: LISTEN does "
            "not work through a pooler in transaction mode",
            worker=self._worker,
        )


def _is_pooled(connection: BaseDatabaseWrapper) -> bool:
    """A pooler makes up the number of the process that it says it has connected us to."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return bool(cursor.fetchone()[0] != connection.connection.info.backend_pid)


def _is_lost_connection(error: Exception) -> bool:
    """psycopg raises its own errors where no Django cursor translates them."""
    return type(error).__module__.partition(".")[0] == "psycopg"
