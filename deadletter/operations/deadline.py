"""What if the database does not even refuse? Ask it from a thread, and wait no longer than told."""

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

#: Questions under way at a time. Those that hang keep their place, so that a probe every few
#: seconds cannot pile up threads and connections; the others wait for a place as for an answer.
_PLACES = threading.BoundedSemaphore(4)


def within(seconds: float, ask: Callable[[], T]) -> T:
    """
    Return what `ask` returns, or raise what it raises; TimeoutError after so many seconds.

    It runs in a thread, on connections of its own that are closed before the answer is given. A
    connection through a dead network may take minutes to notice; only its thread waits for that.
    Inside a transaction the question is asked here and without a limit: nobody else can see what
    the transaction did.
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
    """Let a site with ATOMIC_REQUESTS begin none before this view: it would stop `within`."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def _work(ask: Callable[[], Any], answers: SimpleQueue[tuple[Any, BaseException | None]]) -> None:
    answer, problem = None, None
    try:
        answer = ask()
    except BaseException as error:  # noqa: BLE001 - raised again where it was asked
        problem = error
    finally:
        with suppress(DatabaseError):
            connections.close_all()
        _PLACES.release()
    answers.put((answer, problem))
