"""
A time limit for a whole delivery. The timeout of a socket starts anew with every byte.

A thread of its own makes the delivery, and the caller stops waiting in time. The abandoned thread
is made to stop where that is possible; their number is limited for each channel.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from django.db import connections

from ..exceptions import DeadletterError
from ..text import notice_line

T = TypeVar("T")

#: Deliveries of one channel that may run at a time, abandoned ones included.
MOST = 4

_lock = threading.Lock()
_under_way: Counter[str] = Counter()


class DeliveryFailed(DeadletterError):
    """A channel did not accept a notice; the delivery is tried again. Its text has no secret."""

    def __init__(self, channel: str, problem: str) -> None:
        super().__init__(f"channel {notice_line(channel)}: {notice_line(problem, 500)}")


def call_within(
    seconds: float, work: Callable[[], T], *, channel: str, cut: Callable[[], None] | None = None
) -> T:
    """
    Return the result of `work`, or raise its error, within so many seconds.

    Raises: DeliveryFailed when the time is over, after a call of `cut`, which should end the work.
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
        except BaseException as error:  # noqa: BLE001 - raised again by the waiting thread
            errors.append(error)
        finally:
            connections.close_all()
            with _lock:
                _under_way[channel] -= 1

    thread = threading.Thread(target=serve, name="deadletter-delivery", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # The system can start no thread now; it may later.
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
