"""Notify idle workers of new messages: NOTIFY on PostgreSQL, after the sender's commit."""

from __future__ import annotations

import threading
import time

from django.db import connections, transaction

from .. import crash_points

CHANNEL = "deadletter"
#: Of the relays: a message for a broker wakes no worker that waits for messages of queues.
OUTBOX_CHANNEL = "deadletter_outbox"
#: Seconds between two notifications of one process. A worker that was woken polls at least this
#: often for a while, so messages sent in between need no notification of their own.
INTERVAL = 0.005

#: By database and channel.
_last: dict[tuple[str, str], float] = {}
_lock = threading.Lock()


def notify_after_commit(using: str, channel: str = CHANNEL) -> None:
    """
    Wake the listeners of a channel once the caller's transaction has committed.

    Not inside it: NOTIFY takes a lock on the whole database until the commit is done, so busy
    senders would wait for each other (eight senders ran at half their speed).
    """
    if connections[using].vendor == "postgresql":
        # A lambda, not a partial: if the call raises, Django logs its __qualname__, which a partial
        # does not have. The sender would get an AttributeError for a message that is stored.
        transaction.on_commit(lambda: _notify(using, channel), using=using, robust=True)


def _notify(using: str, channel: str) -> None:
    with _lock:
        now = time.monotonic()
        if now - _last.get((using, channel), -INTERVAL) < INTERVAL:
            return
        _last[using, channel] = now
    crash_points.reach("notify.sending")
    with connections[using].cursor() as cursor:
        cursor.execute(f"NOTIFY {channel}")
