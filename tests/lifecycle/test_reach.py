"""A claim that knows how many messages a candidate yields locks no more candidates than needed."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from deadletter import Outgoing, send_many, sql
from deadletter.lifecycle import ClaimRequest, Completion, WorkBatch, process_batch

pytestmark = pytest.mark.django_db(transaction=True)


def take(limit: int, *, candidates: float = 1.0, done: WorkBatch | None = None) -> WorkBatch:
    reports = [Completion(message.id, 4, message.token) for message in done or ()]
    return process_batch(
        worker="w", completions=reports, claim=ClaimRequest(limit=limit, candidates=candidates)
    )


def fill(streams: int, each: int) -> list[int]:
    """Send messages of many streams by turns, so that the first ones are of different streams."""
    turns = range(streams * each)
    return send_many([Outgoing("job", stream=f"s{n % streams}") for n in turns])


@pytest.fixture
def looks(monkeypatch) -> list[int]:
    """How many candidates each look of a claim was at."""
    seen: list[int] = []
    real = sql.run

    def noting(connection, name, params, **options):
        if name == "claim":
            seen.append(params["limit"])
        return real(connection, name, params, **options)

    monkeypatch.setattr(sql, "run", noting)
    return seen


def test_a_claim_says_how_many_candidates_a_message_took():
    fill(streams=100, each=10)
    first = take(50)
    second = take(50, candidates=first.candidates)
    assert len(first) == len(second) == 50
    assert first.candidates == pytest.approx(0.1)
    assert second.candidates == pytest.approx(0.1)


def test_without_streams_a_message_takes_one():
    send_many([Outgoing("job") for _ in range(50)])
    assert take(20).candidates == 1


def test_who_has_nothing_to_go_by_looks_at_as_many_as_it_has_room_for(looks):
    fill(streams=20, each=10)
    take(50)
    assert looks[0] == 50


def test_only_as_many_streams_are_looked_at_as_will_do(looks):
    fill(streams=100, each=10)

    batch = take(50, candidates=0.1)

    assert len(batch) == 50
    assert len({message.stream for message in batch}) == 5
    assert looks == [8]  # five, a quarter more, and one


@pytest.mark.postgresql_only(reason="SQLite locks no streams")
def test_the_other_streams_are_not_locked():
    fill(streams=100, each=10)

    with transaction.atomic():
        take(50, candidates=0.1)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_locks"
                " WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            )
            [locked] = cursor.fetchone()

    assert locked <= 8


def test_where_a_candidate_brings_less_than_before_the_claim_is_filled_all_the_same(looks):
    ids = send_many([Outgoing("job") for _ in range(100)])

    batch = take(60, candidates=0.1)

    assert batch.ids == ids[:60]
    assert looks == [9, 51]
    assert batch.candidates == 1


def test_after_a_look_that_did_not_do_the_next_is_at_all_there_is_room_for(looks):
    fill(streams=60, each=1)
    assert len(take(60)) == 60
    fill(streams=60, each=1)  # behind what is held
    plain = send_many([Outgoing("job") for _ in range(20)])
    looks.clear()

    batch = take(20, candidates=0.01)

    assert batch.ids == plain
    assert looks == [2, 20, 20, 20, 18]  # the fourth met two that were not of a stream


@pytest.mark.parametrize("candidates", [0, -1, 2, float("nan"), float("inf")])
def test_an_expectation_that_makes_no_sense_is_none(looks, candidates: float):
    fill(streams=20, each=10)
    assert len(take(50, candidates=candidates)) == 50
    assert looks[0] == 50


def test_nothing_is_missed_whatever_is_expected():
    ids = fill(streams=7, each=9) + send_many([Outgoing("job") for _ in range(20)])
    expected = iter([1.0, 0.0, 0.05, 0.5, 2.0, -1.0] * 20)
    handled: list[int] = []
    batch = take(10, candidates=next(expected))
    while batch.messages:
        handled += batch.ids
        batch = take(10, candidates=next(expected), done=batch)
    assert sorted(handled) == ids
    by_stream: dict[int, list[int]] = {}
    for id in handled:
        if id in ids[:63]:
            by_stream.setdefault(ids.index(id) % 7, []).append(id)
    assert all(run == sorted(run) for run in by_stream.values())
