"""
The database connections of a worker's threads.

An executor thread is checked before and after each message: a handler leaves no transaction open,
and no connection outlives CONN_MAX_AGE. Django's connection pools (`"OPTIONS": {"pool": …}`) are
left to the handlers. The worker's other threads keep a connection for as long as they live, so they
connect outside the pool. No pool crosses a fork: parent and child would use the same sockets.
"""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.utils import load_backend

from ..logs import event

#: Seconds for which a connection that was checked after a message needs no check before the next.
FRESH = 1.0

#: Connections and pools that a forked process inherited. Kept, because collecting them could wait
#: for a lock or a thread that exists in the parent only. psycopg closes no socket of another
#: process.
_inherited: list[Any] = []


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


class PoolTooSmall(Exception):
    """Handlers would wait for each other's connections, and fail when they wait too long."""


def leave_pools() -> None:
    """Let the calling thread connect outside the pools, to every database."""
    for alias in connections:
        if connections.settings[alias]["OPTIONS"].get("pool"):
            connections[alias].close()
            connections[alias] = unpooled(alias)


def unpooled(alias: str) -> BaseDatabaseWrapper:
    """Return a new connection to a database that does not come from its pool."""
    settings = connections.settings[alias]
    options = {key: value for key, value in settings["OPTIONS"].items() if key != "pool"}
    wrapper: BaseDatabaseWrapper = load_backend(settings["ENGINE"]).DatabaseWrapper(
        {**settings, "OPTIONS": options}, alias
    )
    return wrapper


def check_size(alias: str, *, concurrency: int, is_async: bool) -> None:
    """
    Check that a pool has as many connections as handlers may hold at the same time.

    Each executor thread holds one, atomic or not. All `async def` handlers share one thread for
    Django's ORM, and so one more connection. Raises: PoolTooSmall.
    """
    if not connections.settings[alias]["OPTIONS"].get("pool"):
        return
    try:
        # The pool has its own defaults. It connects on first use, not here.
        size = int(connections.create_connection(alias).pool.max_size)  # type: ignore[attr-defined]
    except ImproperlyConfigured as error:
        raise PoolTooSmall(f"DATABASES[{alias!r}]['OPTIONS']['pool']: {error}") from error
    needed = concurrency + is_async
    if size < needed:
        asynchronous = " and one for async def handlers" if is_async else ""
        less = f", or --concurrency {size - is_async}" if size > is_async else ""
        raise PoolTooSmall(
            f"the pool of database {alias!r} has {size} connections (max_size), and handlers need "
            f"{needed}: one each of --concurrency {concurrency}{asynchronous}. Set "
            f"DATABASES[{alias!r}]['OPTIONS']['pool'] = {{'max_size': {needed}}}{less}."
        )


def close_all() -> None:
    """Close the connections of this thread and all pools: before a fork, or at exit."""
    connections.close_all()
    for alias in connections:
        wrapper = connections.create_connection(alias)
        if alias in _pools_of(wrapper):
            wrapper.close_pool()  # type: ignore[attr-defined]


def discard_inherited() -> None:
    """In a forked child: stop using the parent's connections and pools, without closing them."""
    for connection in connections.all(initialized_only=True):
        _inherited.append(connection.connection)
        connection.connection = None
        del connections[connection.alias]
    # Threads of the parent may have opened a pool again since all were closed.
    wrappers = [connections.create_connection(alias) for alias in connections]
    _inherited.extend(_pools_of(wrapper).pop(wrapper.alias, None) for wrapper in wrappers)


def _pools_of(wrapper: BaseDatabaseWrapper) -> dict[str, Any]:
    """Return the pools that Django keeps for all connections of a backend, by alias."""
    return getattr(wrapper, "_connection_pools", {})
