"""How does an idle worker learn of new work at once? It listens, on PostgreSQL; else it polls."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from django.db import connections
from django.db.utils import Error as DatabaseError

from ..lifecycle.notify import CHANNEL

#: Seconds after which a silent connection is looked at for a stop.
_PATIENCE = 5.0
#: Seconds after which a lost connection is replaced; doubled while that fails.
FIRST_DELAY = 0.2


class Listener(threading.Thread):
    """A connection of its own that does nothing but wait for NOTIFY. Lost, it comes back."""

    def __init__(self, using: str, wake: Callable[[], None]) -> None:
        super().__init__(name="deadletter-listener", daemon=True)
        self._using = using
        self._wake = wake
        self._stopping = threading.Event()
        self.is_listening = False

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        delay = FIRST_DELAY
        while not self._stopping.is_set():
            try:
                self._listen()
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
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        self.is_listening = True
        self._wake()  # for what was sent before we listened
        while not self._stopping.is_set():
            for _ in connection.connection.notifies(timeout=_PATIENCE, stop_after=1):
                self._wake()


def _is_lost_connection(error: Exception) -> bool:
    """psycopg raises its own errors where no Django cursor translates them."""
    return type(error).__module__.partition(".")[0] == "psycopg"
