"""
The lost wake-up: a claim parks a message while the one in front leaves.

Whichever comes first, the message must be due afterwards. Both orders are forced: the parking
stands still with its decision made, or the unblocking does with its change not yet committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from deadletter import Status, operations, send
from deadletter.lifecycle import (
    Completion,
    Failure,
    claim,
    complete,
    fail,
    process_batch,
    release,
    sweep,
)
from deadletter.models import Message, PoisonRecord, StreamPolicy
from deadletter.testing import frozen_clock

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]


@dataclass
class Scene:
    """A message at the head of a stream, in a state that blocks, and how that ends."""

    policy: str
    block: Callable[[Any, Any], Any]
    unblock: Callable[[Any, Any], Any]


def leased(head, clock):
    return claim(["q"], limit=1, worker="holder")


def waiting(head, clock):
    batch = leased(head, clock)
    fail(batch.token, [Failure(head.id, delay=3600)])


def halted(head, clock):
    batch = leased(head, clock)
    fail(batch.token, [Failure(head.id, permanent=True)])


def finish(messages):
    done = [Completion(item.id, Status.PUBLISHED, item.token, None, item) for item in messages]
    process_batch(worker="w", completions=done)


SCENES = {
    "completed": Scene("strict", leased, lambda batch, head: complete(batch.token, [head.id])),
    "finished by a worker": Scene("strict", leased, lambda batch, _: finish(batch.messages)),
    "given back": Scene("strict", leased, lambda batch, head: release(batch.token, [head.id])),
    "failed, and others may pass": Scene(
        "release", leased, lambda batch, head: fail(batch.token, [Failure(head.id, delay=3600)])
    ),
    "poisoned": Scene(
        "strict", leased, lambda batch, head: fail(batch.token, [Failure(head.id, permanent=True)])
    ),
    "removed by hand": Scene("strict", waiting, lambda _, head: operations.remove([head.id])),
    "poisoned by hand": Scene(
        "strict", waiting, lambda _, head: operations.poison([head.id], why="bad")
    ),
    "halting poison removed": Scene(
        "halt",
        halted,
        lambda _, head: operations.remove_poison([PoisonRecord.objects.get().id]),
    ),
    "halting poison retried": Scene(
        "halt",
        halted,
        lambda _, head: operations.retry_poison([PoisonRecord.objects.get().id]),
    ),
}


@pytest.fixture(params=SCENES)
def scene(request, queue):
    found = SCENES[request.param]
    queue.stream_policy = StreamPolicy(found.policy)
    queue.save()
    return found


def remaining(head, follower) -> list[int]:
    """What the next claims bring, after the wait of the head is over."""
    return sorted({head.id, follower.id} & set(Message.objects.values_list("id", flat=True)))


def drained() -> list[int]:
    done: list[int] = []
    while batch := claim(["q"]):
        complete(batch.token, batch.ids)
        done += batch.ids
    return done


def test_who_unblocks_waits_for_the_one_who_parks_and_wakes_what_was_parked(queue, scene, stage):
    with frozen_clock() as clock:
        head = send("m", queue="q", stream="s")
        held = scene.block(head, clock)
        follower = send("m", queue="q", stream="s")
        parker = stage(lambda: claim(["q"], worker="other"), before="park")

        opener = stage(lambda: scene.unblock(held, head))
        event = opener.wait_blocked(by=parker)
        assert parker.result().ids == []
        opener.result()

        assert event == "advisory"
        assert "park" in parker.statements
        assert "wake" in opener.statements
        assert Message.objects.filter(pk=follower.id, available_at=None).count() == 0 or (
            Message.objects.filter(pk=head.id, available_at__lte=clock.now).exists()
        ), "parked, and nothing in front of it is due"
        expected = remaining(head, follower)
        clock.advance(3601)
        assert drained() == expected
        assert sweep().repaired == 0


def test_who_would_park_while_the_stream_is_being_unblocked_leaves_the_message_due(
    queue, scene, stage
):
    with frozen_clock() as clock:
        head = send("m", queue="q", stream="s")
        held = scene.block(head, clock)
        follower = send("m", queue="q", stream="s")
        opener = stage(lambda: scene.unblock(held, head), after="wake")

        parker = stage(lambda: claim(["q"], worker="other"))
        batch = parker.result()
        assert opener.is_running()
        assert opener.holds_stream_locks() == 1
        opener.result()

        seen = [(row[3], row[2]) for name, rows in parker.rows if name == "claim" for row in rows]
        assert seen == [(follower.id, False)]  # met the stream, and did not get its lock
        assert batch.ids == []
        assert Message.objects.get(pk=follower.id).available_at <= clock.now
        expected = remaining(head, follower)
        clock.advance(3601)
        assert drained() == expected
        assert sweep().repaired == 0


def test_the_sweep_that_expires_the_head_wakes_what_is_parked_meanwhile(queue, stage):
    with frozen_clock() as clock:
        head = send("m", queue="q", stream="s", expires_in=10)
        passing = send("m", queue="q", stream="s")
        operations.release([passing.id])
        first = claim(["q"], limit=2, worker="holder")
        release(first.token, [head.id])
        follower = send("m", queue="q", stream="s")
        # Only `passing` is held now. It blocks everything else, and the head is past its time.
        clock.advance(11)
        parker = stage(lambda: claim(["q"], worker="other"), before="park")
        # The sweep waits for nobody: it leaves the stream alone, and comes back.
        assert stage(lambda: sweep()).result().expired == 0

        parker.result()
        swept = sweep()

        assert swept.expired == 1
        assert swept.repaired == 0
        assert PoisonRecord.objects.get().message_id == head.id
        complete(first.token, [passing.id])
        assert drained() == [follower.id]


def test_a_sweep_leaves_alone_what_a_settle_is_about_to_wake(queue, stage):
    with frozen_clock():
        head = send("m", queue="q", stream="s")
        held = claim(["q"], limit=1)
        follower = send("m", queue="q", stream="s")
        assert claim(["q"]).ids == []  # parks the follower
        opener = stage(lambda: complete(held.token, [head.id]), before="wake")

        swept = sweep()

        assert opener.is_running()
        assert swept.repaired == 0
        opener.result()
        assert drained() == [follower.id]
