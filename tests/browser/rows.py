"""Messages that died, as workers leave them."""

from __future__ import annotations

from typing import Any

from deadletter import FailureReason, Outgoing, lifecycle, send, send_many
from deadletter.lifecycle import Failure
from deadletter.models import PoisonRecord


def die(name: str, payload: Any, *, error: str = "ValueError: no address", **given: Any) -> Any:
    """Send a message and let it fail for good."""
    message = send(name, payload, **given)
    batch = lifecycle.claim(limit=1, worker="w1")
    failure = Failure(
        message.pk, error=error, reason=FailureReason.HANDLER_EXCEPTION, permanent=True
    )
    lifecycle.fail(batch.token, [failure])
    return PoisonRecord.objects.get(message_id=message.pk)


def die_many(count: int) -> None:
    send_many([Outgoing("sample.work", {"n": n}) for n in range(count)])
    while batch := lifecycle.claim(limit=500, worker="w1"):
        failures = [
            Failure(id, error="RuntimeError: the deploy was bad", permanent=True)
            for id in batch.ids
        ]
        lifecycle.fail(batch.token, failures)
