"""
Signals for applications, sent after commit with `send_robust`.

A receiver that raises is logged and undoes nothing. A crash between commit and signal loses the
signal, never the state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.db import transaction
from django.dispatch import Signal

from .descriptions import describe
from .logs import event

#: A message was stored. Arguments: message_id, queue, name, kind, using.
message_sent = Signal()
#: A message was completed and its row deleted. Arguments: message_id, queue, name, kind, seconds
#: (how long its handler took, or None), using.
message_completed = Signal()
#: An attempt failed. Arguments: message_id, queue, name, kind, attempts, reason, error, retry_at
#: (None: that was the last one), using.
message_failed = Signal()
#: A message was quarantined. Arguments: poison (a Poisoning; no payload), using.
message_poisoned = Signal()
#: A poison record was put back into its queue by an operator. Arguments: message_id, by, using.
poison_retried = Signal()
#: A poison record was removed for good. Arguments: message_id, by, using.
poison_removed = Signal()
#: An alert began. Arguments: alert (a dict: rule, subject, since, count, …; see docs/alerts.md),
#: using.
alert_raised = Signal()
#: The condition of an alert has ended. Arguments: alert (as above), using.
alert_recovered = Signal()
#: An instance completed. Arguments: instance (its id), name, execution_id, using.
instance_completed = Signal()
#: An instance failed; a retry of the message that failed it reopens it. Arguments: instance (its
#: id), name, execution_id, error (an ErrorDetails), using.
instance_failed = Signal()


def announce(
    using: str,
    name: str,
    signal: Signal,
    *,
    sender: Any,
    each: Callable[[], Iterable[Mapping[str, Any]]],
) -> None:
    """
    Send the signal once for each of these arguments when the transaction has committed.

    `each` is called only if the signal has receivers. A receiver that raises is logged.
    """
    if not signal.has_listeners(sender):
        return
    events = list(each())

    def send() -> None:
        for arguments in events:
            answers = signal.send_robust(sender=sender, using=using, **arguments)
            for receiver, answer in answers:
                if isinstance(answer, Exception):
                    event(
                        logging.ERROR,
                        "receiver_failed",
                        "receiver {receiver} of {signal} raised {error}",
                        receiver=repr(receiver),
                        signal=name,
                        error=describe(answer).text,
                        exc_info=answer,
                    )

    if events:
        transaction.on_commit(send, using=using, robust=True)
