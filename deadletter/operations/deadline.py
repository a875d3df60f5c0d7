"""Queries with a deadline, for a database that does not answer at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from django.db import connections, transaction
from django.db.utils import Error as DatabaseError

T = TypeVar("T")

#: Calls that run at a time. A call that hangs keeps its place, so that a probe every few seconds
#: cannot pile up threads and connections; further calls wait for a place within their deadline.
_PLACES = threading.BoundedSemaphore(4)


def within(seconds: float, ask: Callable[[], T]) -> T:
    """
    Return what `ask` returns, or raise what it raises; raise TimeoutError after so many seconds.

    `ask` runs in a thread, on connections of its own that are closed before the answer is returned.
    A connection through a dead network may take minutes to fail; only the thread waits for that.
    Inside a transaction `ask` runs in the caller's thread, without a limit: no other connection can
    see what the transaction did.
    """
    if any(connection.in_atomic_block for connection in connections.all(initialized_only=True)):
        return ask()
    deadline = monotonic() + seconds
    answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    if not _PLACES.acquire(timeout=seconds):
        raise TimeoutError
    try:
        work = threading.Thread(target=_work, args=(ask, answers), name="deadletter-asks")
        work.daemon = True
        work.start()
    except RuntimeError:  # no more threads
        _PLACES.release()
        raise
    try:
        answer, error = answers.get(timeout=max(0.0, deadline - monotonic()))
    except Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return answer  # type: ignore[no-any-return]


def without_transaction(view: Callable[..., T]) -> Callable[..., T]:
    """Exempt a view from ATOMIC_REQUESTS: inside a transaction `within` has no limit."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def _work(ask: Callable[[], Any], answers: SimpleQueue[tuple[Any, BaseException | None]]) -> None:
    answer, problem = None, None
    try:
        answer = ask()
    except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
        problem = error
    finally:
        with suppress(DatabaseError):
            connections.close_all()
        _PLACES.release()
    answers.put((answer, problem))
