"""Long acts: piece by piece, resumable, nothing twice, nothing loaded that is not needed."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deadletter import UnknownQueue, operations, send
from deadletter.models import AuditedMessage, AuditEntry, Message, PoisonRecord
from deadletter.operations import PoisonFilter, acts

from .records import dead, entries, many_dead, pks


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(acts, "PIECE", 10)


def test_everything_that_matches_is_retried_in_pieces(clock, counts, small_pieces):
    many_dead(25)
    other = dead("bill")
    heard: list[int] = []

    total = operations.retry_matching(
        PoisonFilter(name="mail"), by="ann", why="fixed", progress=heard.append
    )

    assert (total.done, total.refused, total.missing, total.reasons) == (25, 0, 0, {})
    assert heard == [10, 20, 25]
    assert counts() == {"pending": 25, "dead": 1}
    assert PoisonRecord.objects.get() == other
    (entry,) = AuditEntry.objects.all()
    assert (entry.pk, entry.act, entry.by, entry.done) == (total.entry_id, "retry", "ann", 25)
    assert entry.selection == {"name": "mail", "up_to": other.pk}
    assert AuditedMessage.objects.filter(entry=entry, is_open=True).count() == 25


def test_a_refusal_does_not_stop_the_others(clock, counts, small_pieces):  # demand 23
    many_dead(15)
    blocked = dead(key="k")
    send("mail", key="k")

    total = operations.retry_matching(PoisonFilter())

    assert (total.done, total.refused, list(total.reasons)) == (15, 1, [blocked.pk])
    assert entries() == [("retry", "", "", 15, 0, 1)]
    assert counts() == {"pending": 16, "dead": 1}


def test_a_limit_retries_the_first_few_to_try_the_fix(clock, counts, small_pieces):
    many_dead(30)
    first = pks(PoisonRecord.objects.order_by("pk"))[:12]

    total = operations.retry_matching(PoisonFilter(name="mail"), limit=12)

    assert total.done == 12
    assert not PoisonRecord.objects.filter(pk__in=first).exists()
    assert counts() == {"pending": 12, "dead": 18}


def test_a_rate_goes_on_over_the_pieces(clock, small_pieces):
    many_dead(25)

    operations.retry_matching(PoisonFilter(), rate=2)

    waits = [row.available_at - clock.now for row in Message.objects.order_by("pk")]
    assert waits == [timedelta(seconds=n / 2) for n in range(25)]


def test_ids_go_in_pieces_too_under_one_entry(clock, counts, small_pieces):
    many_dead(25)
    ids = pks(PoisonRecord.objects.order_by("pk"))

    outcome = operations.retry_poison([*ids, 10**15, 10**15 + 1], by="ann", rate=1)

    assert (outcome.retried, outcome.missing) == (ids, [10**15, 10**15 + 1])
    assert entries() == [("retry", "ann", "", 25, 2, 0)]
    assert counts() == {"pending": 1, "scheduled": 24}
    assert len({row.available_at for row in Message.objects.all()}) == 25


def test_missing_ids_of_earlier_pieces_are_counted(clock, small_pieces):
    record = dead()

    outcome = operations.remove_poison([*range(10**15, 10**15 + 12), record.pk])

    assert len(outcome.missing) == 12
    assert entries() == [("remove", "", "", 1, 12, 0)]


def test_an_act_that_touches_nothing_leaves_no_entry(clock):
    assert operations.retry_matching(PoisonFilter(name="none")).entry_id == 0
    assert operations.remove_matching(PoisonFilter(name="none")).entry_id == 0
    assert operations.retry_poison([10**15]).entry_id == 0
    assert operations.purge(60).done == 0
    assert operations.retry_now([10**15]).entry_id == 0

    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("rate", [0, -1, 0.0001, float("nan"), float("inf"), 10**400])
def test_an_absurd_rate_is_refused_before_anything_is_touched(clock, counts, rate):
    dead()

    with pytest.raises(ValueError, match="rate"):
        operations.retry_matching(PoisonFilter(), rate=rate)

    assert counts() == {"dead": 1}


@pytest.mark.parametrize("queue", ["nowhere", "a\x00b", "x" * 300])
def test_a_queue_that_cannot_be_is_refused_once_for_all(clock, counts, queue):
    many_dead(3)

    with pytest.raises((UnknownQueue, ValueError)):
        operations.retry_matching(PoisonFilter(), queue=queue)

    assert counts() == {"dead": 3}
    assert not AuditEntry.objects.exists()


def test_no_payload_is_read_and_the_number_of_queries_is_the_same_for_any_piece(clock):
    def queries(count: int) -> list[str]:
        many_dead(count, payload={"big": "x" * 1_000})
        with CaptureQueriesContext(connection) as asked:
            assert operations.retry_matching(PoisonFilter(name="mail")).done == count
        Message.objects.all().delete()
        return [query["sql"] for query in asked]

    few, more = queries(3), queries(150)

    assert len(few) == len(more)
    for text in more:
        if text.lstrip().upper().startswith("SELECT"):
            assert "payload" not in text.split(" FROM ")[0]
            assert "COUNT(" not in text


def test_purge_removes_what_is_old_and_says_so(clock, counts):
    old = dead()
    clock.advance(timedelta(days=31))
    young = dead()

    total = operations.purge(timedelta(days=30), by="ann", why="retention")

    assert (total.done, PoisonRecord.objects.get()) == (1, young)
    assert entries() == [("purge", "ann", "retention", 1, 0, 0)]
    assert AuditedMessage.objects.get().message_id == old.message_id


def test_purge_of_one_queue_leaves_the_others(clock, counts, policy):
    policy("other")
    dead(queue="other")
    kept = dead()
    clock.advance(60)

    assert operations.purge(60, queue="other").done == 0
    clock.advance(1)
    assert operations.purge(60, queue="other").done == 1
    assert PoisonRecord.objects.get() == kept
