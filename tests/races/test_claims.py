"""Concurrent claims of one stream: never two holders, nothing out of order, no deadlock."""

from __future__ import annotations

import random
import threading

import pytest
from django.db import connection, transaction

from deadletter import Outgoing, operations, send, send_many, sql
from deadletter.lifecycle import (
    ClaimRequest,
    Completion,
    Failure,
    LeaseLost,
    claim,
    complete,
    fail,
    process_batch,
    release,
    renew,
    sweep,
)
from deadletter.models import Message, PoisonRecord, StreamPolicy
from deadletter.testing import frozen_clock

from .actors import PATIENCE, Actor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]


def drained(queue="q") -> list[int]:
    """Complete everything that is due, one claim after the other; return the ids in order."""
    done: list[int] = []
    while batch := claim([queue], worker="drain"):
        complete(batch.token, batch.ids)
        done += batch.ids
    return done


def test_two_claims_of_one_stream_at_the_same_instant_have_one_holder_in_200_rounds(
    queue, monkeypatch
):
    rounds, size = 200, 6
    meeting = threading.Barrier(2, timeout=PATIENCE)
    met = threading.local()
    held: list[list[list[int]]] = [[] for _ in range(rounds)]
    sent: list[list[int]] = []
    run = sql.run

    def meet_after_claim(connection, name, params, **options):
        rows = run(connection, name, params, **options)
        if name == "claim" and not getattr(met, "now", True):
            met.now = True
            meeting.wait()  # both transactions are open, with their candidates locked
        return rows

    def claimer() -> None:
        try:
            for number in range(rounds):
                meeting.wait()
                met.now = False
                batch = claim(["q"], limit=3)
                held[number].append(batch.ids)
                met.now = True
                meeting.wait()
                complete(batch.token, batch.ids)
                if meeting.wait() == 0:  # one of them clears the table for the next round
                    held[number].append(drained())
                    sent.append(
                        send_many([Outgoing("m", stream=f"s{number + 1}")] * size, queue="q")
                    )
        finally:
            connection.close()

    monkeypatch.setattr(sql, "run", meet_after_claim)
    sent.append(send_many([Outgoing("m", stream="s0")] * size, queue="q"))
    threads = [threading.Thread(target=claimer, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE * 3)

    assert not meeting.broken
    assert [len(three) for three in held] == [3] * rounds
    for (one, other, rest), ids in zip(held, sent, strict=False):
        assert not (one and other), "two holders of one stream"
        assert one + other + rest == ids
    assert sum(bool(one or other) for one, other, _ in held) > rounds // 10


def test_a_message_that_became_visible_late_waits_for_the_follower_somebody_holds(queue, stage):
    sender = stage(lambda: send_late(), after="insert")
    follower = send("m", queue="q", stream="s")

    holder = stage(lambda: claim(["q"], worker="one"), after="lease_runs")
    late = sender.result()
    other = claim(["q"], worker="two")

    assert holder.holds_stream_locks() == 1
    assert late.id < follower.id
    assert other.ids == []
    batch = holder.result()
    assert batch.ids == [follower.id]
    assert claim(["q"], worker="two").ids == []
    complete(batch.token, batch.ids)
    assert drained() == [late.id]


def send_late():
    with transaction.atomic():
        return send("m", queue="q", stream="s")


def test_a_lease_that_was_renewed_at_the_last_moment_is_not_taken_away(queue, stage):
    with frozen_clock() as clock:
        head = send("m", queue="q", stream="s", priority=9)
        mine = claim(["q"], worker="one")
        follower = send("m", queue="q", stream="s", priority=0)
        renewal = stage(lambda: renew(mine.token, mine.ids, lease=600), before="renew")
        clock.advance(61)
        thief = stage(lambda: claim(["q"], limit=1, worker="two"), before="lease_runs")
        renewal.result()

        batch = thief.result()

        row = Message.objects.get(pk=head.id)
        first_look = next(rows for name, rows in thief.rows if name == "claim")
        assert [row[3] for row in first_look] == [follower.id]
        assert batch.ids == []
        assert (row.worker, row.lease_token, row.attempts) == ("one", mine.token, 1)
        complete(mine.token, mine.ids)
        assert drained() == [follower.id]


def test_a_stream_left_to_somebody_else_is_not_entered_further_back_by_the_same_claim(queue, stage):
    queue.stream_policy = StreamPolicy.RELEASE
    queue.save()
    ids = send_many([Outgoing("m", stream="s")] * 6, queue="q")
    operator = stage(lambda: operations.release([ids[5]]), after="lock_streams")
    claimer = stage(lambda: claim(["q"], limit=2), after="claim")
    operator.result()

    batch = claimer.result()

    first_look = next(rows for name, rows in claimer.rows if name == "claim")
    assert [(row[3], row[2]) for row in first_look] == [(ids[0], False), (ids[1], False)]
    assert batch.ids == []
    assert drained() == ids


def test_a_head_locked_by_another_claim_stops_the_run_and_is_not_passed(queue, stage):
    queue.stream_policy = StreamPolicy.RELEASE
    queue.save()
    ids = send_many([Outgoing("m", stream="s")] * 8, queue="q")
    holder = stage(lambda: hold_row(ids[0]), after="read_levels_of")

    batch = claim(["q"], limit=3)

    assert holder.is_running()
    assert batch.ids == []
    holder.result()
    assert drained() == ids


def hold_row(id: int):
    """Lock one row as a claim does, and look at it for as long as the stage wants."""
    with transaction.atomic():
        list(Message.objects.select_for_update().filter(pk=id))
        return claim(["elsewhere"])


def test_a_claim_waits_for_nobody(queue, stage):
    plain, streamed, last = (
        send("m", queue="q"),
        send("m", queue="q", stream="s"),
        send("m", queue="q"),
    )
    holder = stage(lambda: operations.remove([plain.id, streamed.id]), after="delete")

    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '1ms'")
    batch = claim(["q"])
    with connection.cursor() as cursor:
        cursor.execute("RESET lock_timeout")

    assert holder.is_running()
    assert batch.ids == [last.id]
    holder.result()
    assert list(Message.objects.values_list("id", flat=True)) == [last.id]


def test_a_claim_that_meets_many_blocked_streams_takes_a_bounded_number_of_locks(
    queue, stage, monkeypatch
):
    monkeypatch.setattr("deadletter.lifecycle.candidates.REACH", 50)
    send_many([Outgoing("m", stream=f"s{n}", delay=3600) for n in range(400)], queue="q")
    send_many([Outgoing("m", stream=f"s{n}") for n in range(400)], queue="q")
    reachable = send("m", queue="q")

    claims = []
    for _ in range(10):
        claimer = stage(lambda: claim(["q"], limit=40))
        claims.append(claimer.result().ids)
        seen = {row[3] for name, rows in claimer.rows if name == "claim" for row in rows}
        assert len(seen) <= 100
        if claims[-1]:
            break

    assert claims[-1] == [reachable.id]
    assert len(claims) == 6
    assert Message.objects.filter(available_at=None).count() == 400


def test_several_workers_on_many_streams_drain_everything_in_order(queue, monkeypatch, repeated):
    # The workers here do not repeat reports that were busy: let none be, on a slow machine either.
    monkeypatch.setattr("deadletter.lifecycle.batch.SHORT_WAIT", 60.0)
    queue.max_attempts = None
    queue.save()
    streams, each, workers = 12, 25, 4
    ids: dict[str, list[int]] = {}
    for number in range(streams):
        ids[f"s{number}"] = []
    for _ in range(each):
        for stream, known in ids.items():
            known.append(send("m", queue="q", stream=stream).id)
    plain = send_many([Outgoing("m")] * 100, queue="q")
    holders: dict[str, str] = {}
    done: dict[str | None, list[int]] = {stream: [] for stream in [None, *ids]}
    problems: list[str] = []
    contended = []
    run = sql.run

    def watch(connection, name, params, **options):
        rows = run(connection, name, params, **options)
        if name == "claim":
            contended.extend(row[3] for row in rows if row[0] == "stream" and not row[2])
        return rows

    def worker(name: str) -> None:
        chance = random.Random(name)
        report: dict = {}
        idle = 0
        try:
            while idle < 40:
                # Forget before reporting: from its commit on anybody may hold the stream.
                for stream in [stream for stream, who in holders.items() if who == name]:
                    del holders[stream]
                batch = process_batch(worker=name, claim=ClaimRequest(["q"], 7), **report)
                if batch.lost:
                    problems.append(f"{name} lost {batch.lost}")
                report = {"token": batch.token, "completions": [], "failures": [], "releases": []}
                idle = 0 if batch else idle + 1
                for members in batch.runs():
                    stream = members[0].stream
                    if stream is not None and holders.setdefault(stream, name) != name:
                        problems.append(f"{stream} held by {holders[stream]} and {name}")
                    stop = chance.choice([len(members)] * 3 + list(range(len(members) + 1)))
                    for message in members[:stop]:
                        done[stream].append(message.id)
                        report["completions"].append(Completion(message.id))
                    if stop < len(members):
                        report["failures"].append(Failure(members[stop].id, error="x", delay=0))
                        report["releases"] += [message.id for message in members[stop + 1 :]]
        except BaseException as error:  # noqa: BLE001 - looked at below
            problems.append(f"{name}: {error!r}")
        finally:
            connection.close()

    monkeypatch.setattr(sql, "run", watch)
    threads = [
        threading.Thread(target=worker, args=(f"w{n}",), daemon=True) for n in range(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE * 3)

    assert problems == []
    assert repeated == []
    assert contended, "the workers never met"
    assert Message.objects.count() == 0
    assert PoisonRecord.objects.count() == 0
    assert {stream: done[stream] for stream in ids} == ids
    assert sorted(done[None]) == plain
    assert sweep().repaired == 0


def test_a_worker_that_was_away_too_long_settles_nothing_while_another_claims(queue, stage):
    with frozen_clock() as clock:
        for stream in (None, "s"):
            message = send("m", queue="q", stream=stream)
            mine = claim(["q"], worker="slow", lease=60)
            slow = stage(lambda mine=mine: complete(mine.token, mine.ids), before="complete")
            clock.advance(61)
            taking = "lease_runs"
            quick = stage(lambda: claim(["q"], worker="quick", lease=60), after=taking)

            slow.go()
            event = slow.wait_blocked(by=quick)
            theirs = quick.result()

            with pytest.raises(LeaseLost) as lost:
                slow.result()
            assert event == ("advisory" if stream else "transactionid")
            assert lost.value.ids == [message.id]
            row = Message.objects.get()
            assert (row.lease_token, row.attempts, row.fence) == (theirs.token, 2, 2)
            complete(theirs.token, theirs.ids)


def test_reports_of_a_lease_that_is_over_change_nothing_even_if_nobody_claimed(queue):
    with frozen_clock() as clock:
        send("m", queue="q", stream="s")
        mine = claim(["q"], worker="slow", lease=60)
        clock.advance(60)
        before = Message.objects.values().get()

        for report in (
            lambda: complete(mine.token, mine.ids),
            lambda: fail(mine.token, [Failure(id) for id in mine.ids]),
            lambda: release(mine.token, mine.ids),
            lambda: renew(mine.token, mine.ids),
        ):
            with pytest.raises(LeaseLost):
                report()

        assert Message.objects.values().get() == before


def test_the_stage_sees_a_lock_only_where_there_is_one(queue, stage):
    """The proof the other tests rest on can fail."""
    holder: Actor = stage(lambda: claim(["q"]), after="read_levels_of")

    with pytest.raises(AssertionError, match="without waiting"):
        stage(lambda: send("m", queue="q")).wait_blocked(by=holder)
