"""What became of retried messages is known when somebody asks, whatever the sweep has seen."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deadletter import lifecycle, operations
from deadletter.lifecycle import Failure, sweep
from deadletter.models import AuditedMessage, AuditEntry, Message, PoisonRecord
from deadletter.operations import retry_outcomes
from deadletter.operations.retry_outcomes import Outcomes, attach_outcomes, outcomes_of

from .records import dead


def retried(count: int) -> tuple[int, list[int]]:
    """Let so many die and retry them; return the entry and the ids of the messages."""
    records = [dead() for _ in range(count)]
    ids = [record.message_id for record in records]
    return operations.retry_poison([record.pk for record in records]).entry_id, ids


def ended(ids: list[int]) -> None:
    """One succeeds, one dies of the same, one of another cause, one is removed, the rest runs."""
    claimed = lifecycle.claim(limit=3, worker="w")
    assert claimed.ids == ids[:3]
    lifecycle.complete(claimed.token, ids[:1])
    lifecycle.fail(claimed.token, [Failure(ids[1], error="boom", permanent=True)])
    lifecycle.fail(claimed.token, [Failure(ids[2], error="x", permanent=True, reason=4)])
    operations.remove([ids[3]], by="bob")
    lifecycle.claim(limit=1, worker="w")


def now_of(entry: int) -> Outcomes:
    return outcomes_of(AuditEntry.objects.get(pk=entry))


@pytest.mark.slow
@pytest.mark.parametrize("swept", [0, 1, 2])
def test_outcomes_are_those_of_now_whatever_the_sweep_has_seen(clock, swept):
    entry, ids = retried(6)
    ended(ids)
    for _ in range(swept):
        sweep()

    found = now_of(entry)

    assert found == Outcomes(succeeded=1, died_same=1, died_other=1, removed=1, open=2)
    # The entry itself is only written by the sweep.
    assert AuditEntry.objects.get(pk=entry).succeeded == (1 if swept else 0)


@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize(("look", "small"), [(10_000, 1_000), (2, 1_000), (2, 0)])
def test_more_open_rows_than_are_looked_at_are_bounded(clock, monkeypatch, look, small, swept):
    monkeypatch.setattr(retry_outcomes, "LOOK", look)
    monkeypatch.setattr(retry_outcomes, "SMALL", small)
    entry, ids = retried(6)
    ended(ids)
    if swept:
        sweep()

    found = now_of(entry)

    # A large entry behind a truncated look counts as open what it does not know.
    exact = Outcomes(succeeded=1, died_same=1, died_other=1, removed=1, open=2)
    assert sum(vars(found).values()) == 6
    if (look, small) == (2, 0) and not swept:
        assert found == Outcomes(succeeded=1, died_same=1, open=4)
    elif (look, small) != (2, 0):
        assert found == exact


def test_a_sweep_between_the_reads_moves_no_number_twice(clock, monkeypatch):
    entry, ids = retried(6)
    ended(ids)
    stale = AuditEntry.objects.get(pk=entry)

    # The entry was read before the sweep, its rows are read after it.
    sweep()
    attach_outcomes([stale])

    expected = Outcomes(succeeded=1, died_same=1, died_other=1, removed=1, open=2)
    assert stale.outcomes == expected


@pytest.mark.slow
def test_looking_writes_nothing_and_asks_a_bounded_number_of_questions(clock):
    records = [dead().pk for _ in range(15)]
    for start in range(0, 15, 3):
        operations.retry_poison(records[start : start + 3])
    claimed = lifecycle.claim(limit=10, worker="w")
    lifecycle.complete(claimed.token, claimed.ids)
    entries = list(AuditEntry.objects.all())

    with CaptureQueriesContext(connection) as queries:
        attach_outcomes(entries)

    assert sum(entry.outcomes.succeeded for entry in entries) == 10
    asked = [q["sql"] for q in queries if "deadletter_" in q["sql"]]
    assert len(asked) == 3
    assert all(text.startswith("SELECT") for text in asked)


def test_the_trail_of_a_message_says_what_became_of_it(clock):
    _entry, ids = retried(2)
    claimed = lifecycle.claim(limit=1, worker="w")
    lifecycle.complete(claimed.token, claimed.ids)

    done, waiting = (operations.trail(id)[0] for id in ids)

    assert (done.outcome, waiting.outcome) == (AuditedMessage.Outcome.SUCCEEDED, None)
    assert AuditedMessage.objects.filter(outcome=None).count() == 2
    assert Message.objects.count() == 1
    assert not PoisonRecord.objects.exists()


@pytest.mark.slow
def test_the_pages_of_an_entry_agree_with_its_messages(clock, admin_client):
    entry, ids = retried(5)
    claimed = lifecycle.claim(limit=5, worker="w")
    lifecycle.fail(claimed.token, [Failure(id, error="boom", permanent=True) for id in ids])

    page = admin_client.get(f"/admin/deadletter/auditentry/{entry}/change/").content.decode()
    listed = admin_client.get("/admin/deadletter/auditentry/").content.decode()

    assert len(re.findall(r"<td>\s*died again of the same\s*</td>", page)) == 5
    for html in (page, listed):
        assert "5 died again of the same" in html
        assert "wait or run" not in html
