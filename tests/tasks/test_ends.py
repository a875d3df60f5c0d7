"""How tasks end: many at once, with and without results, twice, too late, over an old result."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from deadletter import Outgoing, lifecycle, sql
from deadletter.lifecycle import Completed, Completion, KeptResult, results, sweeps
from deadletter.lifecycle.enqueue import TASK, store_messages
from deadletter.models import Message, Result
from tests.sample import tasks

pytestmark = pytest.mark.django_db

KEPT = KeptResult("5", timedelta(days=1))


def enqueue(*streams: str | None) -> list[int]:
    items = [Outgoing("tests.sample.tasks.add", {"args": [1]}, stream=stream) for stream in streams]
    return store_messages(items, queue="default", kind=TASK).ids


def complete(batch: Any, **how: Any) -> lifecycle.WorkBatch:
    """Complete a batch; `kept` says which positions have results, `known` which messages."""
    kept = how.get("kept", range(len(batch)))
    known = how.get("known", range(len(batch)))
    return lifecycle.process_batch(
        worker="w1",
        token=batch.token,
        completions=[
            Completion(
                message.id,
                seconds=1.5,
                message=message if n in known else None,
                result=KEPT if n in kept else None,
            )
            for n, message in enumerate(batch)
        ],
    )


@pytest.mark.parametrize("kept", [(0, 1, 2, 3, 4, 5), (0, 2, 4), (1, 3, 5), (5,), ()])
@pytest.mark.parametrize("known", [(0, 1, 2, 3, 4, 5), (0, 1, 4), ()])
def test_a_batch_may_end_in_every_way_at_once(clock, counts, kept, known):
    ids = enqueue(None, "a", "b", None, "a", "b")
    batch = lifecycle.claim(worker="w1")
    behind = enqueue("a", "b")
    assert lifecycle.claim(worker="w2").ids == []
    assert sorted(batch.ids) == ids
    expected = sorted(batch.ids[n] for n in kept)

    done = complete(batch, kept=kept, known=known)

    assert done.lost == []
    assert done.outcomes == dict.fromkeys(batch.ids, Completed())
    assert sorted(Result.objects.values_list("pk", flat=True)) == expected
    # The streams go on.
    assert sorted(lifecycle.claim(worker="w2").ids) == behind
    assert counts() == {"active": 2}


def test_a_result_says_when_the_attempt_began_and_when_it_may_go(clock):
    enqueue(None)
    batch = lifecycle.claim(worker="w1")

    complete(batch)

    row = Result.objects.get()
    assert row.attempted_at == clock.now - timedelta(seconds=1.5)
    assert (row.finished_at, row.expires_at) == (clock.now, clock.now + timedelta(days=1))


def test_of_two_reports_the_second_stores_nothing(clock):
    enqueue(None)
    batch = lifecycle.claim(worker="w1")
    complete(batch)
    Result.objects.all().delete()

    second = complete(batch)

    assert second.lost == batch.ids
    assert Result.objects.count() == 0


def test_a_message_that_is_reported_twice_in_one_batch_has_one_result(clock):
    enqueue(None)
    batch = lifecycle.claim(worker="w1")
    message = batch.messages[0]

    done = lifecycle.process_batch(
        worker="w1",
        token=batch.token,
        completions=[Completion(message.id, message=message, result=KEPT)] * 2,
    )

    assert done.outcomes == {message.id: Completed()}
    assert Result.objects.count() == 1


@pytest.mark.parametrize("stream", [None, "a"])
def test_only_what_is_still_held_gets_a_result(clock, stream, counts):
    held, lost = enqueue(stream, None)
    batch = lifecycle.claim(worker="w1")
    Message.objects.filter(pk=lost).update(lease_token="another")

    done = complete(batch)

    assert done.lost == [lost]
    assert [row.pk for row in Result.objects.all()] == [held]
    assert counts() == {"active": 1}


def test_a_result_replaces_what_an_earlier_life_of_the_id_left(clock):
    (id,) = enqueue(None)
    long_ago = clock.now - timedelta(days=100)
    Result.objects.create(
        message_id=id,
        queue="gone",
        name="other",
        kind="message",
        outcome="cancelled",
        payload={"old": 1},
        headers={"old": "1"},
        priority=5,
        history=[{"reason": 2}],
        created_at=long_ago,
        finished_at=long_ago,
    )

    complete(lifecycle.claim(worker="w1"))

    row = Result.objects.get()
    assert (row.queue, row.name, row.kind, row.outcome) == (
        "default",
        "tests.sample.tasks.add",
        "task",
        "successful",
    )
    assert (row.payload, row.headers, row.priority, row.value) == ({"args": [1]}, None, 0, 5)
    assert (row.history, row.workers, row.created_at) == (None, ["w1"], clock.now)


def test_large_results_are_stored_in_pieces(clock, monkeypatch):
    stored: list[int] = []
    run = sql.run

    def count(connection: Any, name: str, params: Any, **options: Any) -> Any:
        if name == "complete_with_results":
            stored.append(len(params["ids"]))
        return run(connection, name, params, **options)

    monkeypatch.setattr(sql, "run", count)
    monkeypatch.setattr(results, "PIECE_SIZE", 10)
    ids = enqueue(*[None] * 5)
    batch = lifecycle.claim(worker="w1")
    large = KeptResult('"1234"', None)

    lifecycle.process_batch(
        worker="w1",
        token=batch.token,
        completions=[Completion(m.id, message=m, result=large) for m in reversed(list(batch))],
    )

    assert stored == [1, 1, 1, 1, 1]
    assert sorted(Result.objects.values_list("pk", flat=True)) == ids


@pytest.mark.parametrize("kept", [None, timedelta(0), timedelta(days=36_500)])
def test_a_result_may_be_kept_for_any_duration(clock, kept):
    enqueue(None)
    batch = lifecycle.claim(worker="w1")
    message = batch.messages[0]

    lifecycle.process_batch(
        worker="w1",
        token=batch.token,
        completions=[Completion(message.id, message=message, result=KeptResult("1", kept))],
    )

    assert Result.objects.get().expires_at == (None if kept is None else clock.now + kept)


def test_results_are_swept_in_the_moment_their_time_is_over(clock):
    enqueue(None, None)
    complete(lifecycle.claim(worker="w1"))
    clock.advance(86_400 - 1)
    before = sweeps.sweep().results

    clock.advance(1)

    assert (before, sweeps.sweep().results, Result.objects.count()) == (0, 2, 0)


def test_a_clock_that_is_set_back_keeps_results_and_deletes_them_later(clock):
    result = tasks.add.enqueue(1)
    complete(lifecycle.claim(worker="w1"))
    clock.advance(-7_200)

    result.refresh()

    assert sweeps.sweep().results == 0
    assert result.status == "SUCCESSFUL"
    assert result.finished_at > clock.now
    clock.advance(7_200 + 86_400)
    assert sweeps.sweep().results == 1
