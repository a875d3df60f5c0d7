"""What may a handler leave behind in its thread? No transaction, and no connection past its age."""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import Any

from django.conf import settings
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from ..logs import event

#: Seconds for which a connection that was looked at after a message is good for the next one.
FRESH = 1.0


class _Thread(threading.local):
    """What is known of the connections of a thread. At first nothing, so they are looked at."""

    #: None of its connections is open: nothing to look at, which spares 15 µs a message.
    is_clean = False
    #: When its connections were last looked at, on the monotonic clock.
    tidied = 0.0


_thread = _Thread()


def _connected(**event: Any) -> None:
    _thread.is_clean = False


# In the thread that connects, every time that Django connects.
connection_created.connect(_connected, dispatch_uid="deadletter.worker.connections")


def prepare(now: float) -> None:
    """Before a message: close connections that grew too old while their thread had no work."""
    if not _thread.is_clean and now - _thread.tidied > FRESH:
        close_old_connections()


def tidy() -> list[str]:
    """After a message: roll back and close what was left open in this thread; say where."""
    if _thread.is_clean:
        return []
    left = []
    for connection in connections.all(initialized_only=True):
        if _is_lost(connection):
            # Closed behind Django's back, or by the server: nothing is left to roll back.
            _discard(connection)
        elif _is_open(connection):
            left.append(connection.alias)
            _forget(connection)
        else:
            connection.close_if_unusable_or_obsolete()
    if settings.DEBUG:
        reset_queries()
    _thread.is_clean = all(
        connection.connection is None for connection in connections.all(initialized_only=True)
    )
    _thread.tidied = monotonic()
    return left


def _is_lost(connection: BaseDatabaseWrapper) -> bool:
    raw = connection.connection
    if raw is None:
        return False
    if connection.vendor == "postgresql":
        return bool(raw.closed)
    try:
        raw.in_transaction  # noqa: B018 - the cheapest question a closed connection refuses
    except Exception:  # noqa: BLE001 - of whatever driver this is
        return True
    return False


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    raw = connection.connection
    if raw is None or connection.in_atomic_block:
        return connection.in_atomic_block
    if connection.autocommit != connection.settings_dict["AUTOCOMMIT"]:
        return True
    if connection.vendor == "postgresql":
        return bool(raw.info.transaction_status)  # 0 is idle
    return bool(getattr(raw, "in_transaction", False))


def _forget(connection: BaseDatabaseWrapper) -> None:
    event(
        logging.WARNING,
        "transaction_left_open",
        "a handler left a transaction open on database {alias}; rolled back and closed",
        alias=connection.alias,
    )
    _discard(connection)


def _discard(connection: BaseDatabaseWrapper) -> None:
    # The wrapper refuses to close inside atomic(): it is thrown away, with its session.
    connection.in_atomic_block = False
    connection.savepoint_ids = []
    connection.needs_rollback = False
    connection.run_on_commit = []
    connection.close()
    del connections[connection.alias]
