"""Who is told? Listeners, after the commit; one that raises is logged and undoes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.db import transaction
from django.dispatch import Signal

from ..descriptions import describe
from ..logs import event


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

    Nothing is done when nobody listens: `each` is called only for somebody.
    """
    if not signal.has_listeners(sender):
        return
    events = list(each())

    def tell() -> None:
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
        transaction.on_commit(tell, using=using, robust=True)
