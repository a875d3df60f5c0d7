"""Sweeps: expiry, retention, and stranded streams."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from deadletter import FailureReason, Outgoing, operations, send, send_many
from deadletter.lifecycle import Failure, Sweep, claim, complete, fail, release, sweep
from deadletter.models import Message, PoisonRecord

from .streams import cascade, run_of_three

NOTHING = Sweep(expired=0, forgotten=0, repaired=0)


def test_an_expired_message_is_dead_with_that_reason(clock, counts):  # rule 7, B7
    message, neighbour = send("mail", expires_in=60), send("mail", expires_in=61)
    clock.advance(59)
    assert sweep() == NOTHING
    clock.advance(1)

    assert sweep() == Sweep(expired=1, forgotten=0, repaired=0)

    record = PoisonRecord.objects.get()
    assert (record.message_id, record.reason) == (message.id, FailureReason.EXPIRED)
    assert (record.attempts, record.last_failure_reason, record.last_error) == (0, None, None)
    assert Message.objects.get().id == neighbour.id
    assert counts() == {"pending": 1, "dead": 1}


@pytest.mark.parametrize("stream", [None, "a"])
def test_an_expired_message_is_not_handed_out_even_before_a_sweep(clock, counts, stream):
    message = send("mail", expires_in=60, stream=stream)
    clock.advance(60)

    batch = claim()

    assert (batch.ids, list(batch.dead)) == ([], [message.id])
    assert PoisonRecord.objects.get().reason == FailureReason.EXPIRED
    assert counts() == {"dead": 1}


def test_nothing_expires_under_a_live_lease(clock, counts):  # rule 7, B15
    message = send("mail", expires_in=60)
    batch = claim(lease=600)
    clock.advance(599)

    assert sweep() == NOTHING
    assert counts() == {"active": 1}
    complete(batch.token, [message.id])
    assert counts() == {}


def test_nothing_expires_while_it_is_scheduled(clock, counts):  # rule 7, B24
    send("mail", expires_in=60, delay=600)
    clock.advance(599)

    assert sweep() == NOTHING
    assert counts() == {"scheduled": 1}
    clock.advance(1)
    assert sweep().expired == 1


def test_nothing_expires_while_it_waits_for_its_retry(clock, counts):
    message = send("mail", expires_in=60)
    batch = claim()
    fail(batch.token, [Failure(message.id, error="boom", delay=600)])
    clock.advance(599)

    assert sweep() == NOTHING
    assert counts() == {"failed": 1}
    clock.advance(1)
    assert sweep().expired == 1
    assert PoisonRecord.objects.get().last_error == "boom"


def test_parked_messages_expire_too(clock, counts):
    m1, m2, m3 = run_of_three(expires_in=60)
    claim(limit=1, lease=600)
    claim()
    assert counts() == {"active": 1, "blocked": 2}
    clock.advance(60)

    assert sweep() == Sweep(expired=2, forgotten=0, repaired=0)

    assert set(PoisonRecord.objects.values_list("message_id", flat=True)) == {m2, m3}
    assert Message.objects.get().id == m1
    assert counts() == {"active": 1, "dead": 2}


def test_an_expired_head_wakes_the_stream(clock, counts):
    first = send("mail", stream="a", delay=60, expires_in=60)
    second = send("mail", stream="a")
    assert claim().ids == []
    assert counts() == {"scheduled": 1, "blocked": 1}
    clock.advance(60)

    sweep()

    assert PoisonRecord.objects.get().message_id == first.id
    assert claim().ids == [second.id]


def test_the_queues_expiry_is_given_to_messages_when_they_are_sent(clock, policy):  # B22
    before = send("mail")
    policy(expire_timeout=100)
    after, own = send("mail"), send("mail", expires_in=7)
    policy(expire_timeout=500)

    ends = {row.id: row.expires_at for row in Message.objects.all()}

    assert ends == {
        before.id: None,
        after.id: clock.now + timedelta(seconds=100),
        own.id: clock.now + timedelta(seconds=7),
    }


@pytest.mark.slow
def test_a_sweep_takes_more_than_one_chunk(clock, counts):
    send_many([Outgoing("mail", n, expires_in=1) for n in range(1100)])
    clock.advance(1)

    assert sweep().expired == 1100
    assert counts() == {"dead": 1100}


def poison_at(clock, count: int, **options) -> None:
    send_many([Outgoing("mail", **options) for _ in range(count)])
    batch = claim(limit=count)
    fail(batch.token, [Failure(id, permanent=True) for id in batch.ids])


def test_poison_past_its_queues_retention_is_removed(clock, counts, policy):
    policy(poison_retention=3600)
    poison_at(clock, 2)
    clock.advance(1800)
    poison_at(clock, 1)
    clock.advance(1799)
    assert sweep() == NOTHING
    clock.advance(1)

    assert sweep() == Sweep(expired=0, forgotten=2, repaired=0)
    assert counts() == {"dead": 1}


def test_poison_is_kept_for_ever_without_a_retention(clock, counts):
    poison_at(clock, 2)
    clock.advance(timedelta(days=10_000))

    assert sweep() == NOTHING
    assert counts() == {"dead": 2}


def test_a_record_that_halts_a_stream_outlives_its_retention(clock, counts, policy):
    policy(stream_policy="halt", poison_retention=60)
    _m1, m2, m3 = run_of_three()
    cascade(claim(), permanent=True)
    claim()
    clock.advance(1_000_000)

    assert sweep() == NOTHING

    assert claim().ids == []
    assert counts() == {"blocked": 2, "dead": 1}
    operations.remove_poison(PoisonRecord.objects.get().pk)
    assert claim().ids == [m2, m3]


def test_a_stranded_stream_is_repaired_counted_and_complained_about(clock, counts, caplog):
    m1, m2, m3 = run_of_three()
    Message.objects.update(available_at=None)
    caplog.set_level(logging.ERROR, logger="deadletter")

    assert sweep() == Sweep(expired=0, forgotten=0, repaired=1)

    assert counts() == {"pending": 1, "blocked": 2}
    assert claim().ids == [m1, m2, m3]
    assert "had parked messages and nothing to wake them" in caplog.text
    assert sweep() == NOTHING


def test_every_stranded_stream_is_repaired(clock, counts):
    for stream in "abc":
        send("mail", stream=stream)
    Message.objects.filter(stream__in="ab").update(available_at=None)

    assert sweep().repaired == 2
    assert counts() == {"pending": 3}


def test_a_stream_with_a_companion_is_not_stranded(clock, counts):
    m1, m2, m3 = run_of_three()
    holder = claim(limit=1, lease=600)
    claim()
    leased = sweep()
    fail(holder.token, [Failure(m1)])
    waiting = sweep()
    clock.advance(60)
    due = sweep()

    assert (leased, waiting, due) == (NOTHING, NOTHING, NOTHING)
    assert claim().ids == [m1, m2, m3]


def test_a_halted_stream_is_not_stranded(clock, counts, policy):
    policy(stream_policy="halt")
    run_of_three()
    cascade(claim(), permanent=True)
    claim()

    assert sweep() == NOTHING
    assert counts() == {"blocked": 2, "dead": 1}


def test_a_released_run_leaves_nothing_to_repair(clock, counts):
    run_of_three()
    batch = claim()

    release(batch.token, batch.ids)

    assert sweep() == NOTHING
    assert counts() == {"pending": 3}
