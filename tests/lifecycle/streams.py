"""Helpers for tests of streams."""

from __future__ import annotations

from deadletter import send
from deadletter.lifecycle import Batch, Failure, claim, fail, process_batch
from deadletter.models import Message

WAYS_THROUGH = ("m1", "m2", "m3")


def run_of_three(stream: str = "a", **options) -> tuple[int, int, int]:
    """Send M1, M2, M3 into a stream; return their ids."""
    m1, m2, m3 = (send(name, stream=stream, **options).id for name in WAYS_THROUGH)
    return m1, m2, m3


def cascade(batch: Batch, **failure) -> None:
    """What a worker does when the first message of its run fails: fail it, give the rest back."""
    first, *rest = batch.ids
    process_batch(
        worker="w1", token=batch.token, failures=[Failure(first, **failure)], releases=rest
    )


def fail_head(**failure) -> None:
    """Claim one message of the stream and fail it."""
    batch = claim(limit=1)
    fail(batch.token, [Failure(batch.ids[0], **failure)])


def attempts() -> dict[str, int]:
    return dict(Message.objects.order_by("id").values_list("name", "attempts"))
