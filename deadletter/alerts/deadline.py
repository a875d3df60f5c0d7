"""
How long may a delivery take in all? A time limit of a socket starts anew with every byte.

The delivery is done by a thread of its own, and who waits for it stops waiting in time. A thread
that is left behind is told to stop where that is possible; a channel has only so many of them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from django.db import connections

from .failing import DeliveryFailed

T = TypeVar("T")

#: Deliveries of one channel that may be under way, those included that nobody waits for any more.
MOST = 4

_lock = threading.Lock()
_under_way: Counter[str] = Counter()


def call_within(
    seconds: float, work: Callable[[], T], *, channel: str, cut: Callable[[], None] | None = None
) -> T:
    """
    Return what `work` returns, or raise what it raises, within so many seconds.

    Raises DeliveryFailed when the time is over, after `cut`, which should make the work end.
    """
    with _lock:
        if _under_way[channel] >= MOST:
            raise DeliveryFailed(channel, "earlier deliveries have not ended yet")
        _under_way[channel] += 1
    answers: list[T] = []
    errors: list[BaseException] = []

    def serve() -> None:
        try:
            answers.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            errors.append(error)
        finally:
            connections.close_all()
            with _lock:
                _under_way[channel] -= 1

    thread = threading.Thread(target=serve, name="deadletter-delivery", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # The system has no thread left; it may have later.
        with _lock:
            _under_way[channel] -= 1
        raise
    thread.join(seconds)
    if errors:
        raise errors[0]
    if answers:
        return answers[0]
    if cut is not None:
        cut()
    raise DeliveryFailed(channel, f"was not done within {seconds:g} s")
