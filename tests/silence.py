"""A database server that takes connections and never says a word."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tests.patience import PATIENCE


@contextmanager
def silent_database(alias: str = "silent") -> Iterator[str]:
    """Add a PostgreSQL that hangs to the connections; what waits for it is let go at the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                held.append(listener.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    connections.settings[alias] = {
        **connections.settings["default"],
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "silent",
        "USER": "nobody",
        "PASSWORD": "of the tests",
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "OPTIONS": {},
    }
    ensure = BaseDatabaseWrapper.ensure_connection

    def allow(self: BaseDatabaseWrapper) -> None:
        # Django's tests refuse databases that were not there when they began.
        if self.alias != alias:
            ensure(self)
        elif self.connection is None:
            with self.wrap_database_errors:
                self.connect()

    BaseDatabaseWrapper.ensure_connection = allow  # type: ignore[method-assign]
    try:
        yield alias
    finally:
        BaseDatabaseWrapper.ensure_connection = ensure  # type: ignore[method-assign]
        del connections.settings[alias]
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE)
        for client in held:
            client.close()
