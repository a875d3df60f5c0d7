"""An edit of a queue's stream policy wakes the streams that it unblocks, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from deadletter import operations
from deadletter.lifecycle import Failure, claim, complete, fail, sweep
from deadletter.lifecycle.policy_edits import wake_released
from deadletter.lifecycle.transaction import in_transaction
from deadletter.models import Message, PoisonRecord, Queue

from .streams import cascade, run_of_three


def by_save(policy: str) -> None:
    queue = Queue.objects.get(name="default")
    queue.stream_policy = policy
    queue.save()


def by_fields(policy: str) -> None:
    queue = Queue.objects.get(name="default")
    queue.stream_policy = policy
    queue.save(update_fields=["stream_policy"])


def by_update(policy: str) -> None:
    Queue.objects.filter(name="default").update(stream_policy=policy)


def by_bulk_update(policy: str) -> None:
    queue = Queue.objects.get(name="default")
    queue.stream_policy = policy
    Queue.objects.bulk_update([queue], ["stream_policy"])


def by_operation(policy: str) -> None:
    operations.set_queue("default", stream_policy=policy)


def by_command(policy: str) -> None:
    call_command("deadletter", "queues", "set", "default", f"stream_policy={policy}")


EDITS = [by_save, by_fields, by_update, by_bulk_update, by_operation, by_command]


def parked() -> set[str]:
    return set(Message.objects.filter(available_at=None).values_list("name", flat=True))


def blocked_stream() -> list[int]:
    """Let the head of a stream fail: its followers are parked, and wait for its retry."""
    ids = run_of_three()
    cascade(claim())
    assert claim().ids == []
    assert parked() == {"m2", "m3"}
    return ids


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("before", ["strict", "halt"])
def test_a_queue_that_becomes_release_lets_blocked_followers_run(clock, policy, before, edit):
    policy(stream_policy=before)
    _m1, m2, m3 = blocked_stream()

    edit("release")

    batch = claim()
    assert batch.ids == [m2, m3]
    complete(batch.token, batch.ids)
    assert set(Message.objects.values_list("name", flat=True)) == {"m1"}
    assert sweep().repaired == 0


@pytest.mark.parametrize(
    ("before", "after"), [("strict", "halt"), ("halt", "strict"), ("strict", "strict")]
)
def test_no_other_edit_frees_what_waits_for_a_retry(clock, policy, before, after):
    policy(stream_policy=before)
    blocked_stream()

    by_save(after)

    assert claim().ids == []
    assert parked() == {"m2", "m3"}
    assert sweep().repaired == 0


@pytest.mark.parametrize("after", ["strict", "halt"])
def test_a_queue_that_was_release_blocks_from_the_next_claim_on(clock, policy, after):
    policy(stream_policy="release")
    run_of_three()
    cascade(claim())

    by_save(after)

    assert claim().ids == []
    assert sweep().repaired == 0


@pytest.mark.parametrize("after", ["strict", "release"])
def test_what_poison_has_halted_stays_halted_until_a_person_decides(clock, policy, after):
    policy(stream_policy="halt", max_attempts=1)
    _m1, m2, m3 = run_of_three()
    cascade(claim())
    assert claim().ids == []

    by_save(after)

    assert claim().ids == []
    record = PoisonRecord.objects.get()
    assert record.halts
    operations.remove_poison([record.pk])
    assert claim().ids == [m2, m3]


def test_a_stream_that_is_being_worked_on_is_left_alone(clock, policy):
    policy(stream_policy="strict")
    _m1, m2, m3 = run_of_three()
    held = claim(limit=1)
    assert claim().ids == []

    by_save("release")

    assert parked() == {"m2", "m3"}
    complete(held.token, held.ids)
    assert claim().ids == [m2, m3]


def test_an_edit_that_is_rolled_back_frees_nothing(clock, policy):
    policy(stream_policy="strict")
    blocked_stream()

    with transaction.atomic():
        by_save("release")
        transaction.set_rollback(True)

    assert parked() == {"m2", "m3"}
    assert claim().ids == []


@pytest.mark.slow
def test_many_streams_are_freed_by_one_statement(clock, policy, django_assert_max_num_queries):
    policy(stream_policy="strict")
    for n in range(30):
        run_of_three(stream=f"s{n}")
        batch = claim()
        fail(batch.token, [Failure(batch.ids[0], error="x", delay=60)])
        release_rest(batch)
    assert claim().ids == []
    assert Message.objects.filter(available_at=None).count() == 60

    with django_assert_max_num_queries(20):
        by_save("release")

    assert Message.objects.filter(available_at=None).count() == 30
    assert len(claim().ids) == 60


def release_rest(batch: Any) -> None:
    from deadletter.lifecycle import release

    release(batch.token, batch.ids[1:])


def test_the_sweep_wakes_what_a_claim_parked_by_the_policy_as_it_was(clock, policy):
    policy(stream_policy="strict")
    _m1, m2, m3 = blocked_stream()
    # As a claim would that had read the policy just before the edit was committed.
    with connection.cursor() as cursor:
        cursor.execute("UPDATE deadletter_queue SET stream_policy = 'release'")
    assert claim().ids == []

    assert sweep().repaired == 0

    assert claim().ids == [m2, m3]


def test_nothing_is_woken_where_nothing_waits(clock, policy):
    policy(stream_policy="release")
    run_of_three()

    assert in_transaction(wake_released) == 0
