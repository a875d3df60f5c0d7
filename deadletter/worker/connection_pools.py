"""
Django's connection pools (`"OPTIONS": {"pool": …}`) are left to the handlers.

The worker's own threads keep a connection for as long as they live, so they connect outside the
pool. No pool crosses a fork: parent and child would use the same sockets.
"""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

#: Connections and pools that a forked process inherited. Kept, because collecting them could wait
#: for a lock or a thread that exists in the parent only. psycopg closes no socket of another
#: process.
_inherited: list[Any] = []


class PoolTooSmall(Exception):
    """Handlers would wait for each other's connections, and fail when they wait too long."""


def leave_pools() -> None:
    """Let the calling thread connect outside the pools, to every database."""
    for alias in connections:
        if _has_pool(alias):
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
    if not _has_pool(alias):
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


def _has_pool(alias: str) -> bool:
    return bool(connections.settings[alias]["OPTIONS"].get("pool"))


def _pools_of(wrapper: BaseDatabaseWrapper) -> dict[str, Any]:
    """Return the pools that Django keeps for all connections of a backend, by alias."""
    return getattr(wrapper, "_connection_pools", {})
