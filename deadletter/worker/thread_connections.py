"""
The database connections of an executor thread, before and after each message.

A handler leaves no transaction open, and no connection outlives CONN_MAX_AGE.
"""

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

#: Seconds for which a connection that was checked after a message needs no check before the next.
FRESH = 1.0


class _Thread(threading.local):
    """What is known of the connections of this thread. At first nothing, so they are checked."""

    #: No connection is open: the check is skipped, which saves 15 µs a message.
    is_clean = False
    #: When the connections were last checked, on the monotonic clock.
    checked = 0.0


_thread = _Thread()


def _connected(**event: Any) -> None:
    _thread.is_clean = False


# Called in the thread that connects, each time Django connects.
connection_created.connect(_connected, dispatch_uid="deadletter.worker.connections")


def before_message(now: float) -> None:
    """Close connections that exceeded CONN_MAX_AGE while the thread was idle."""
    if not _thread.is_clean and now - _thread.checked > FRESH:
        close_old_connections()


def after_message() -> list[str]:
    """Roll back and close what the handler left open; return the aliases of those databases."""
    if _thread.is_clean:
        return []
    left = []
    for connection in connections.all(initialized_only=True):
        if _is_lost(connection):
            # Closed by the driver or by the server: nothing is left to roll back.
            _discard(connection)
        elif _is_open(connection):
            left.append(connection.alias)
            _roll_back(connection)
        else:
            connection.close_if_unusable_or_obsolete()
    if settings.DEBUG:
        reset_queries()
    _thread.is_clean = all(
        connection.connection is None for connection in connections.all(initialized_only=True)
    )
    _thread.checked = monotonic()
    return left


def _is_lost(connection: BaseDatabaseWrapper) -> bool:
    raw = connection.connection
    if raw is None:
        return False
    if connection.vendor == "postgresql":
        return bool(raw.closed)
    try:
        raw.in_transaction  # noqa: B018 - the cheapest access that raises on a closed connection
    except Exception:  # noqa: BLE001 - drivers differ
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


def _roll_back(connection: BaseDatabaseWrapper) -> None:
    event(
        logging.WARNING,
        "transaction_left_open",
        "a handler left a transaction open on database {alias}; rolled back and closed",
        alias=connection.alias,
    )
    _discard(connection)


def _discard(connection: BaseDatabaseWrapper) -> None:
    # The wrapper refuses to close inside atomic(): discard it together with its session.
    connection.in_atomic_block = False
    connection.savepoint_ids = []
    connection.needs_rollback = False
    connection.run_on_commit = []
    connection.close()
    del connections[connection.alias]
