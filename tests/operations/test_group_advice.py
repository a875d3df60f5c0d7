"""What is said before a retry: releases, names, queues, breakers and the last retry."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import translation

from deadletter import operations
from deadletter.models import AuditedMessage, AuditEntry, Breaker, PoisonRecord, Queue

from .groups import group, hour, record, worker


def texts(*args, **kwargs) -> list[str]:
    return [one.text for one in operations.retry_advice(*args, **kwargs)]


@pytest.fixture
def failed(clock):
    """A group that failed in 2.7.0, four times, with one record."""
    Queue.objects.get_or_create(name="default")
    group("a", clock)
    hour("a", clock.now, "2.7.0", failures=4)
    return record("a", clock, 1, release="2.7.0")


def workers(clock, *releases: str) -> None:
    for number, name in enumerate(releases):
        worker(f"w{number}", clock, release=name)


def test_it_says_how_many_workers_run_a_release_that_did_not_fail(clock, failed):
    workers(clock, "2.7.1", "2.7.1", "2.7.0", "2.7.1")

    (advice,) = operations.retry_advice("a")

    assert advice.text == "Failed only in 2.7.0; 3 of 4 workers run 2.7.1."
    assert (advice.kind, advice.is_warning) == ("release", True)


def test_when_all_workers_run_another_release_nothing_speaks_against_it(clock, failed):
    workers(clock, "2.7.1", "2.7.2")

    (advice,) = operations.retry_advice("a")

    assert advice.text == "Failed only in 2.7.0; 2 of 2 workers run 2.7.1, 2.7.2."
    assert not advice.is_warning


def test_workers_that_still_run_what_failed_are_a_warning(clock, failed):
    workers(clock, "2.7.0")

    assert texts("a") == ["Failed in 2.7.0; the workers still run that."]


def test_failures_without_a_release_are_not_forgotten(clock, failed):
    failed.delete()
    group("b", clock, failures=9, merged_into="a")
    workers(clock, "2.7.1")

    assert texts("a") == ["Failed in 2.7.0 and others; 1 of 1 workers run 2.7.1."]


def test_workers_without_the_name_do_not_count(clock, failed):
    workers(clock, "2.7.1")
    worker("other", clock, release="2.7.0", handlers=[["message", "mail.send"]])

    assert texts("a") == ["Failed only in 2.7.0; 1 of 1 workers run 2.7.1."]


def test_no_live_worker_and_no_worker_with_the_name_are_named(clock, failed):
    worker("lost", clock, seen_at=clock.now - timedelta(minutes=5))
    assert texts("a") == ["No worker is alive."]

    worker("other", clock, handlers=[["message", "mail.send"], 7, ["x"]])

    assert texts("a") == ["No live worker knows the name orders.ship."]


def test_queues_that_nobody_serves_or_that_are_paused_are_named(clock, failed):
    worker("w", clock, queues=["mail"])
    Queue.objects.filter(name="default").update(paused=True)

    assert texts("a") == [
        "No live worker serves the queue default.", "The queue default is paused.",
    ]  # fmt: skip


def test_open_breakers_are_named_and_those_that_try_are_not(clock, failed):
    worker("w", clock)
    operations.hold_breaker("orders.ship")
    assert texts("a") == ["A circuit breaker holds messages named orders.ship."]

    Breaker.objects.update(until=clock.now)

    assert texts("a") == []


def test_the_release_with_the_repair_is_compared_with_the_workers(clock, failed):
    operations.resolve_group("a", in_release="2.7.2")
    workers(clock, "2.7.1")
    assert texts("a")[-1] == "Resolved in 2.7.2, which no live worker runs."

    worker("new", clock, release="2.7.2")

    (advice,) = [one for one in operations.retry_advice("a") if one.kind == "resolved"]
    assert advice.text == "Resolved in 2.7.2, which 1 of 2 workers run."
    assert advice.is_warning


def test_the_end_of_the_last_retry_is_told(clock, failed):
    worker("w", clock)
    entry = AuditEntry.objects.create(at=clock.now, act="retry", done=3, died_same=2, succeeded=1)
    for number, outcome in enumerate((2, 2, 1)):
        AuditedMessage.objects.create(
            entry=entry, message_id=number + 1, fingerprint="a", outcome=outcome
        )

    assert texts("a") == ["Of the last retry, 2 of 3 died again of the same cause."]


def test_given_records_are_asked_for_their_own_names_and_releases(clock, failed):
    other = record("b", clock, 2, name="mail.send", queue="mail", release="")
    workers(clock, "2.7.1")

    assert texts(records=[failed.pk, other.pk, 10**9]) == [
        "No live worker knows the name mail.send.",
        "Failed in 2.7.0 and others; 1 of 1 workers run 2.7.1.",
    ]
    assert texts(records=failed.pk) == ["Failed only in 2.7.0; 1 of 1 workers run 2.7.1."]


def test_nothing_is_said_of_what_does_not_exist(clock):
    worker("w", clock)

    assert texts("gone") == []
    assert texts(records=[7]) == []
    assert texts() == []


def test_hostile_names_are_made_safe_and_long_lists_are_cut(clock, failed):
    for number in range(7):
        record("a", clock, 10 + number, name=f"n{number}\u202e")
    PoisonRecord.objects.filter(pk=failed.pk).delete()
    worker("w", clock)

    (text,) = texts("a")

    assert text == (
        "No live worker knows the names n0[U+202E], n1[U+202E], n2[U+202E], n3[U+202E], "
        "n4[U+202E], …."
    )


def test_it_is_said_in_the_language_of_the_reader(clock, failed):
    workers(clock, "2.7.1")

    with translation.override("de"):
        assert texts("a") == ["Nur in 2.7.0 fehlgeschlagen; 1 von 1 Workern führen 2.7.1 aus."]
