"""Another transaction has locked a row or a stream: only the reports that need it are busy."""

from __future__ import annotations

import importlib
from itertools import cycle

import pytest
from django.db import connection, transaction

from deadletter import LockNotAvailable, operations, send
from deadletter.lifecycle import (
    ClaimRequest,
    Completion,
    Failure,
    KeptResult,
    Release,
    claim,
    complete,
    process_batch,
    renew,
    sweep,
)
from deadletter.lifecycle.releases import give_back
from deadletter.lifecycle.renewals import renew_unlocked_in
from deadletter.lifecycle.transaction import in_transaction
from deadletter.models import Message, PoisonRecord, Queue, Result
from deadletter.testing import frozen_clock

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def hold(stage):
    """Hold something in a transaction of its own: `hold(lambda: …).result()` ends it."""

    def start(act):
        def work() -> None:
            with transaction.atomic():
                act()
                # Stops here until the test lets it go on.
                importlib.import_module("deadletter.sql").run(
                    connection, "reserve_ids", {"count": 0}
                )

        return stage(work, before="reserve_ids")

    return start


def row(id: int):
    return lambda: Message.objects.select_for_update().get(pk=id)


def stream(name: str, queue_id: int):
    def lock() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))", [name, queue_id]
            )

    return lock


KEPT = KeptResult("1", None)


def reports(batch, how: str):
    if how == "complete":
        return {"completions": [Completion(m.id, message=m) for m in batch.messages]}
    if how == "keep":
        return {"completions": [Completion(m.id, message=m, result=KEPT) for m in batch.messages]}
    if how == "keep some":
        halves = zip(batch.messages, cycle([KEPT, None]))
        return {"completions": [Completion(m.id, message=m, result=kept) for m, kept in halves]}
    if how == "keep by id":
        return {"completions": [Completion(id, result=KEPT) for id in batch.ids]}
    if how == "complete by id":
        return {"completions": [Completion(id) for id in batch.ids]}
    if how == "fail":
        return {"failures": [Failure(id, error="x", delay=0) for id in batch.ids]}
    if how == "die":
        return {"failures": [Failure(id, error="x", permanent=True) for id in batch.ids]}
    return {"releases": batch.ids}


every_report = pytest.mark.parametrize(
    "how",
    [
        *("complete", "complete by id", "fail", "die", "release"),
        *("keep", "keep some", "keep by id"),
    ],
)


@every_report
@pytest.mark.parametrize("careful", [False, True])
def test_a_locked_row_is_busy_and_its_neighbours_are_settled(queue, hold, how, careful):
    ids = [send("m", queue="q").id for _ in range(5)]
    batch = claim(["q"])
    holder = hold(row(ids[2]))

    answer = process_batch(worker="w", token=batch.token, careful=careful, **reports(batch, how))

    assert answer.busy == [ids[2]]
    assert answer.lost == []
    assert not Result.objects.filter(pk=ids[2]).exists()
    assert sorted(answer.outcomes) == [id for id in ids if id != ids[2]]
    assert Message.objects.get(pk=ids[2]).lease_token == batch.token
    holder.result()
    left = {"token": batch.token, "careful": True, "completions": [Completion(ids[2])]}
    assert process_batch(worker="w", **left).busy == []


@every_report
def test_a_locked_row_makes_the_reports_of_its_stream_busy(queue, hold, how):
    first, second = (send("m", queue="q", stream="s").id for _ in range(2))
    other = send("m", queue="q", stream="other").id
    batch = claim(["q"])
    holder = hold(row(second))

    answer = process_batch(worker="w", token=batch.token, **reports(batch, how))

    assert answer.busy == [first, second]
    assert list(answer.outcomes) == [other]
    holder.result()
    again = process_batch(worker="w", token=batch.token, completions=[Completion(first)])
    assert list(again.outcomes) == [first]


@every_report
def test_a_stream_that_somebody_holds_is_busy_and_the_others_are_settled(queue, hold, how):
    held = send("m", queue="q", stream="s").id
    others = [send("m", queue="q", stream=f"s{n}").id for n in range(3)]
    others.append(send("m", queue="q").id)
    batch = claim(["q"])
    hold(stream("s", queue.pk))

    answer = process_batch(worker="w", token=batch.token, **reports(batch, how))

    assert answer.busy == [held]
    assert sorted(answer.outcomes) == others


@every_report
def test_a_parked_row_that_somebody_holds_makes_its_stream_busy(queue, hold, how):
    heads = [send("m", queue="q", stream=f"s{n}").id for n in range(4)]
    batch = claim(["q"])
    parked = [send("m", queue="q", stream=f"s{n}").id for n in range(4)]
    assert claim(["q"]).ids == []
    hold(row(parked[1]))

    answer = process_batch(worker="w", token=batch.token, **reports(batch, how))

    # What is failed or given back comes before the parked one again: nothing is woken.
    waits = how not in ("fail", "release")
    assert answer.busy == ([heads[1]] if waits else [])
    assert sorted(answer.outcomes) == [id for id in heads if id not in answer.busy]
    assert sweep().repaired == 0


def test_new_messages_are_claimed_beside_busy_reports(queue, hold):
    held = send("m", queue="q").id
    batch = claim(["q"])
    new = [send("m", queue="q").id for _ in range(3)]
    hold(row(held))

    answer = process_batch(
        worker="w",
        token=batch.token,
        completions=[Completion(held)],
        claim=ClaimRequest(["q"], 10, 60),
    )

    assert answer.busy == [held]
    assert answer.ids == new


@pytest.mark.parametrize("careful", [False, True])
def test_a_lease_that_is_over_is_lost_and_not_busy(queue, hold, careful):
    with frozen_clock() as clock:
        held = send("m", queue="q", stream="s").id
        batch = claim(["q"], lease=10)
        hold(row(held))
        clock.advance(11)

        done = [Completion(held)]
        answer = process_batch(worker="w", token=batch.token, completions=done, careful=careful)

    assert (answer.busy, answer.lost) == ([], [held])


def test_a_message_that_must_die_but_is_in_use_does_not_stop_a_claim(queue, hold):
    """Its death would wake a parked row that somebody holds."""
    Queue.objects.filter(name="q").update(max_attempts=1)
    with frozen_clock() as clock:
        dying = send("m", queue="q", stream="s").id
        claim(["q"], worker="gone", lease=10)
        parked = send("m", queue="q", stream="s").id
        assert claim(["q"]).ids == []
        clock.advance(11)
        plain = send("m", queue="q").id
        holder = hold(row(parked))

        batch = claim(["q"])

        assert (batch.ids, batch.dead) == ([plain], [])
        assert not PoisonRecord.objects.exists()
        holder.result()
        assert claim(["q"]).dead == [dying]


def test_renewals_pass_over_what_somebody_holds(queue, hold):
    ids = [send("m", queue="q").id for _ in range(3)]
    batch = claim(["q"])
    hold(row(ids[1]))
    tokens = {**dict.fromkeys(ids, batch.token), 10**9: batch.token}

    lost, busy = in_transaction(lambda tx: renew_unlocked_in(tx, tokens, lease=600))

    assert (lost, busy) == ([10**9], [ids[1]])
    ends = dict(Message.objects.values_list("pk", "available_at"))
    assert ends[ids[0]] == ends[ids[2]] > ends[ids[1]]


def test_what_was_never_started_is_given_back_as_far_as_it_is_free(queue, hold):
    ids = [send("m", queue="q", stream=name).id for name in (None, "s", None, "t")]
    batch = claim(["q"])
    holder = hold(stream("s", queue.pk))
    tokens = dict.fromkeys(ids, batch.token)

    assert give_back(tokens) == (3, {ids[1]: batch.token})
    holder.result()
    assert give_back({ids[1]: batch.token}) == (1, {})
    assert set(Message.objects.values_list("attempts", flat=True)) == {0}


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr("deadletter.lifecycle.transaction.LOCK_WAIT", 0.2)


VERBS = {
    "complete": lambda batch: complete(batch.token, batch.ids),
    "renew": lambda batch: renew(batch.token, batch.ids),
    "poison": lambda batch: operations.poison(batch.ids, why="bad"),
    "release": lambda batch: operations.release(batch.ids),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_waits_a_bounded_time_and_then_says_who_is_in_the_way(queue, hold, hasty, verb):
    id = send("m", queue="q", stream="s").id
    batch = claim(["q"])
    holder = hold(row(id))

    with pytest.raises(LockNotAvailable) as refused:
        VERBS[verb](batch)

    assert f"pid {holder.pid} " in str(refused.value)
    assert "idle in transaction" in str(refused.value)
    assert Message.objects.get(pk=id).lease_token == batch.token


def setting() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return cursor.fetchone()[0]


def locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        )
        return cursor.fetchone()[0]


def test_a_verb_inside_a_callers_transaction_leaves_its_lock_timeout_as_it_was(queue, hold, hasty):
    mine, held = (send("m", queue="q", stream=name, delay=60).id for name in ("s", "t"))
    hold(row(held))

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '1234ms'")
        assert operations.release([mine]).done == [mine]
        assert setting() == "1234ms"
        with pytest.raises(LockNotAvailable):
            operations.release([held])
        assert setting() == "1234ms"
        assert operations.retry_now([mine]).refused
        assert setting() == "1234ms"

    assert setting() == "0"


def test_a_refused_verb_inside_a_callers_transaction_leaves_no_lock(queue):
    id = send("m", queue="q", stream="s").id
    claim(["q"])

    with transaction.atomic():
        outcome = operations.poison([id], why="bad")
        assert list(outcome.refused) == [id]
        assert locks() == 0
    with transaction.atomic():
        waiting = send("m", queue="q", stream="t").id
        assert operations.release([waiting]).done == [waiting]
        assert locks() == 1


def test_a_lock_timeout_or_statement_timeout_of_the_session_changes_nothing(
    queue, hold, monkeypatch
):
    # So that the wait is ended by the statement_timeout, and not by ours.
    monkeypatch.setattr("deadletter.lifecycle.transaction.SHORT_WAIT", 60.0)
    monkeypatch.setattr("deadletter.lifecycle.batch.SHORT_WAIT", 60.0)
    ids = [send("m", queue="q").id for _ in range(3)]
    batch = claim(["q"])
    hold(row(ids[0]))
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '1ms'")
        cursor.execute("SET statement_timeout = '2s'")
    try:
        answer = process_batch(worker="w", token=batch.token, releases=[Release(i) for i in ids])
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")
            cursor.execute("RESET statement_timeout")

    assert answer.busy == [ids[0]]
    assert sorted(answer.outcomes) == ids[1:]
