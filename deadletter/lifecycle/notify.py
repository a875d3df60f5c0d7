"""Who tells an idle worker that there is work? PostgreSQL does, after the sender's commit."""

from __future__ import annotations

import threading
import time
from functools import partial

from django.db import connections, transaction

CHANNEL = "deadletter"
#: Seconds between two notifications of one process. A worker that was woken looks again at least
#: this often for a while, so what is sent in between needs no notification of its own.
INTERVAL = 0.005

_last: dict[str, float] = {}
_lock = threading.Lock()


def notify_after_commit(using: str) -> None:
    """
    Wake listening workers once the caller's transaction has committed.

    Not inside it: NOTIFY takes a lock on the whole database until the commit is done, so busy
    senders would wait for each other (eight of them ran at half their speed).
    """
    if connections[using].vendor == "postgresql":
        transaction.on_commit(partial(_notify, using), using=using, robust=True)


def _notify(using: str) -> None:
    with _lock:
        now = time.monotonic()
        if now - _last.get(using, -INTERVAL) < INTERVAL:
            return
        _last[using] = now
    with connections[using].cursor() as cursor:
        cursor.execute(f"NOTIFY {CHANNEL}")
