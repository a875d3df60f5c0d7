"""Groups count exactly the failures and deaths that happened, once, and describe the latest."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from deadletter import FailureReason, operations, send, testing
from deadletter.exceptions import LockNotAvailable
from deadletter.fingerprints import fingerprint
from deadletter.lifecycle import (
    Failure,
    abandon,
    claim,
    complete,
    fail,
    process_batch,
    sweep,
)
from deadletter.lifecycle.groups import fold_all_groups, fold_groups, has_changes
from deadletter.lifecycle.transaction import in_transaction
from deadletter.models import (
    FailureGroup,
    GroupChange,
    GroupHour,
    GroupState,
    Message,
    OnPoison,
    PoisonRecord,
    WorkerProcess,
)

from .conftest import CAUSE

BOOM = fingerprint("mail", CAUSE["exception"], CAUSE["frame"])
LOST = fingerprint("mail", "WORKER_LOST")


def numbers() -> dict[str, tuple[int, int]]:
    """Failures and deaths by group, after a fold."""
    fold_all_groups()
    rows = FailureGroup.objects.order_by("pk")
    return {row.fingerprint: (row.failures, row.deaths) for row in rows}


def statements(queries: CaptureQueriesContext, table: str) -> list[str]:
    return [query["sql"] for query in queries.captured_queries if table in query["sql"]]


def test_a_failure_is_counted_in_a_new_group_that_describes_it(clock, failed, group):
    failed(release="2.7.0")

    found = group()
    assert found.fingerprint == BOOM
    assert (found.name, found.queue) == ("mail", "default")
    assert (found.exception, found.frame, found.error) == (
        "shop.Boom",
        "shop/mail.py in send",
        "boom",
    )
    assert found.reason == FailureReason.HANDLER_EXCEPTION
    assert (found.failures, found.deaths) == (1, 0)
    assert found.first_failed_at == found.last_failed_at == clock.now
    assert (found.first_died_at, found.last_died_at) == (None, None)
    assert (found.first_release, found.last_release) == ("2.7.0", "2.7.0")
    assert (found.state, found.state_at, found.state_by) == (GroupState.NEW, clock.now, "")
    assert (found.owner, found.ticket, found.merged_into) == ("", "", "")


def test_failures_of_one_settle_are_one_change(failed):
    failed(times=3)

    row = GroupChange.objects.get()
    assert (row.failures, row.deaths, row.queue) == (3, 0, "default")
    assert numbers() == {BOOM: (3, 0)}
    assert not has_changes()


def test_failures_of_other_causes_queues_and_releases_are_other_changes(failed, policy):
    policy("other")
    failed(release="1")
    failed(release="2")
    failed(queue="other", release="2")
    failed(exception="shop.Other", release="2")

    assert GroupChange.objects.count() == 4
    other = fingerprint("mail", "shop.Other", CAUSE["frame"])
    assert numbers() == {BOOM: (3, 0), other: (1, 0)}
    hours = GroupHour.objects.filter(fingerprint=BOOM).order_by("release")
    assert [(row.release, row.failures) for row in hours] == [("1", 1), ("2", 2)]


def test_the_last_failure_is_also_a_death(clock, failed, group, policy):
    policy(max_attempts=1)
    failed()

    assert GroupChange.objects.count() == 1
    found = group()
    assert (found.failures, found.deaths) == (1, 1)
    assert found.first_died_at == found.last_died_at == clock.now
    assert PoisonRecord.objects.get().fingerprint == found.fingerprint


def test_the_group_describes_its_latest_failure(clock, failed, group, policy):
    policy("other")
    failed(error="first", release="2.7.0")
    started = clock.now
    clock.advance(3600)
    failed(error="second", release="2.7.1", queue="other")
    fold_all_groups()
    clock.advance(60)
    failed(error="third", release="")

    found = group()
    assert (found.failures, found.error, found.queue) == (3, "third", "default")
    assert (found.first_failed_at, found.last_failed_at) == (started, clock.now)
    assert (found.first_release, found.last_release) == ("2.7.0", "2.7.1")


def test_changes_that_are_folded_out_of_order_leave_the_same_group(clock, failed, group):
    failed(error="first", release="2.7.0")
    first = clock.now
    clock.advance(60)
    failed(error="second", release="2.7.1")
    early = GroupChange.objects.order_by("pk").first()
    GroupChange.objects.filter(pk=early.pk).delete()
    fold_all_groups()
    early.save(force_insert=True)

    found = group()
    assert (found.failures, found.error) == (2, "second")
    assert (found.first_failed_at, found.last_failed_at) == (first, clock.now)
    assert (found.first_release, found.last_release) == ("2.7.0", "2.7.1")


def test_failures_are_counted_by_the_hour_in_which_they_happened(clock, failed):
    hour = clock.now.replace(minute=0, second=0)
    clock.set(hour + timedelta(minutes=59))
    failed(times=2)
    clock.advance(120)
    failed()
    fold_all_groups()
    failed()
    fold_all_groups()

    rows = [(row.at, row.failures, row.deaths) for row in GroupHour.objects.order_by("at")]
    assert rows == [(hour, 2, 0), (hour + timedelta(hours=1), 2, 0)]


def test_a_settle_that_is_rolled_back_leaves_no_change(clock):
    send("mail", {})
    batch = claim()
    with transaction.atomic():
        fail(batch.token, [Failure(batch.ids[0], **CAUSE)])
        transaction.set_rollback(True)

    assert GroupChange.objects.count() == 0


def test_a_savepoint_that_is_kept_is_counted_and_one_that_meets_a_lock_is_not(clock):
    from deadletter.lifecycle.group_changes import GroupKey, cause_and_group

    cause, found = cause_and_group("mail", FailureReason.UNKNOWN, "shop.Boom", "", error="boom")

    def one(tx):
        tx.groups.add_failure(GroupKey(found, "default", ""), cause, [("tenant", "a")])

    def locked(tx):
        one(tx)
        raise LockNotAvailable

    def work(tx):
        one(tx)
        tx.attempt(one)
        if not tx.is_sqlite:
            with pytest.raises(LockNotAvailable):
                tx.attempt(locked)

    in_transaction(work)

    row = GroupChange.objects.get()
    assert (row.failures, row.tags) == (2, [["tenant", "a", 2]])


def test_what_succeeds_pays_nothing_and_what_fails_one_insert(clock):
    send("mail", {})
    send("mail", {})
    done, broken = claim().messages
    with CaptureQueriesContext(connection) as queries:
        complete(done.token, [done.id])
    assert statements(queries, "deadletter_group") == []

    with CaptureQueriesContext(connection) as queries:
        fail(broken.token, [Failure(broken.id, **CAUSE)])
    (insert,) = statements(queries, "deadletter_group")
    assert "INSERT INTO deadletter_group_change" in insert


def test_a_death_without_tags_pays_no_more_than_a_failure(clock, policy):
    policy(max_attempts=1)
    send("mail", {})
    batch = claim()
    with CaptureQueriesContext(connection) as queries:
        fail(batch.token, [Failure(batch.ids[0], **CAUSE)])

    assert len(statements(queries, "deadletter_group")) == 1
    assert statements(queries, "deadletter_message_tag") == []


def test_a_death_in_a_dead_queue_is_not_a_second_death(clock, failed, policy):
    policy("dead", max_attempts=1)
    policy(
        max_attempts=1, on_poison=OnPoison.DEAD_QUEUE, dead_queue=policy("dead"), retry_limit=None
    )
    failed()
    assert numbers() == {BOOM: (1, 1)}

    batch = claim(queues=["dead"])
    fail(batch.token, [Failure(batch.ids[0], **CAUSE | {"exception": "shop.Other"})])

    other = fingerprint("mail", "shop.Other", CAUSE["frame"])
    assert numbers() == {BOOM: (1, 1), other: (1, 0)}
    assert PoisonRecord.objects.get().fingerprint == BOOM


def test_a_discarded_message_is_a_death(failed, policy):
    policy(max_attempts=1, on_poison=OnPoison.DISCARD)
    failed()

    assert numbers() == {BOOM: (1, 1)}


def test_a_lost_worker_is_a_failure_of_its_release(clock, group):
    WorkerProcess.objects.create(
        name="gone",
        host="a",
        pid=1,
        version="1",
        release="2.7.0",
        concurrency=1,
        started_at=clock.now,
        seen_at=clock.now,
    )
    send("mail", {})
    claim(worker="gone")
    clock.advance(timedelta(days=1))
    claim(worker="other")

    found = group()
    assert (found.fingerprint, found.failures, found.deaths) == (LOST, 1, 0)
    assert found.reason == FailureReason.WORKER_LOST
    assert found.error == "worker gone did not report before its lease ran out"
    assert found.last_release == "2.7.0"


def test_a_lost_worker_whose_message_dies_of_it_is_one_failure_and_one_death(clock, group, policy):
    policy(max_attempts=1)
    send("mail", {})
    claim(worker="gone")
    clock.advance(timedelta(days=1))
    claim(worker="other")

    found = group()
    assert (found.fingerprint, found.failures, found.deaths) == (LOST, 1, 1)
    assert (found.last_release, PoisonRecord.objects.get().release) == ("", "")


def test_an_expired_message_is_a_death_by_its_reason(clock, group):
    send("mail", {}, expires_in=60)
    clock.advance(61)
    sweep()

    found = group()
    assert found.fingerprint == fingerprint("mail", "EXPIRED")
    assert (found.failures, found.deaths, found.reason) == (0, 1, FailureReason.EXPIRED)
    assert found.first_failed_at == found.first_died_at == clock.now


def test_a_message_that_expires_after_a_failure_dies_in_the_group_of_that(clock, failed, group):
    failed(delay=10)
    at = clock.now
    fold_all_groups()
    clock.advance(60)
    id = Message.objects.get().pk
    operations.poison([id], why="a test")

    found = group()
    assert (found.fingerprint, found.failures, found.deaths) == (BOOM, 1, 1)
    # The death is later than the failure.
    assert (found.last_failed_at, found.last_died_at) == (at, clock.now)


def test_an_unregistered_name_is_no_failure_until_it_dies_of_it(clock, group, policy):
    policy(max_attempts=1, unregistered_attempts=None)
    send("mail", {})
    batch = claim()
    reason = FailureReason.UNREGISTERED
    fail(batch.token, [Failure(batch.ids[0], reason=reason, deferred=True, delay=1)])
    assert GroupChange.objects.count() == 0

    clock.advance(1)
    assert claim().dead == batch.ids
    found = group()
    assert found.fingerprint == fingerprint("mail", "UNREGISTERED")
    assert (found.failures, found.deaths) == (0, 1)


def test_a_retried_message_that_dies_again_is_a_second_death(clock, failed, policy):
    policy(max_attempts=1)
    failed()
    operations.retry_poison(list(PoisonRecord.objects.values_list("pk", flat=True)))
    batch = claim()
    fail(batch.token, [Failure(batch.ids[0], **CAUSE, reason=FailureReason.HANDLER_EXCEPTION)])

    assert numbers() == {BOOM: (2, 2)}


def test_an_abandoned_attempt_counts_if_it_says_why(clock):
    for error in (None, "gave up"):
        send("mail", {})
        batch = claim()
        abandon(batch.token, batch.ids[0], error=error, delay=3600)

    assert numbers() == {fingerprint("mail", "UNKNOWN"): (1, 0)}


def test_one_settle_of_many_outcomes_counts_each(clock, policy):
    policy(max_attempts=2)
    for _ in range(3):
        send("mail", {})
    batch = claim()
    failures = [Failure(id, **CAUSE, permanent=id == batch.ids[0]) for id in batch.ids[:2]]
    process_batch(worker="w", token=batch.token, failures=failures, releases=batch.ids[2:])

    assert numbers() == {BOOM: (2, 1)}


def test_drain_leaves_complete_groups(clock, handles):
    def broken(message):
        raise ValueError("boom")

    handles("mail", broken)
    send("mail", {})
    testing.drain()

    assert not has_changes()
    assert FailureGroup.objects.get().failures == 1


def test_a_sweep_adds_what_nobody_has_added(failed):
    failed()
    sweep()

    assert not has_changes()
    assert FailureGroup.objects.get().failures == 1


def test_a_fold_adds_no_more_than_a_piece(failed, monkeypatch):
    monkeypatch.setattr("deadletter.lifecycle.groups.PIECE", 2)
    for _ in range(3):
        failed()

    assert [fold_groups(), fold_groups(), fold_groups()] == [2, 1, 0]
    assert numbers() == {BOOM: (3, 0)}


def test_a_long_error_is_cut_and_a_hostile_one_stored(failed, group):
    failed(error="a\x00\ud800" + "x" * 1_000_000)

    assert len(group().error) == 1_000
    assert group().error.startswith("a\N{REPLACEMENT CHARACTER}?")
