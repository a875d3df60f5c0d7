"""The database's clock jumps: at worst a message runs early again, it is never settled twice."""

from __future__ import annotations

import pytest

from deadletter import Outgoing, send, send_many
from deadletter.lifecycle import Failure, LeaseLost, claim, complete, fail, sweep
from deadletter.models import Message

HOURS = 2 * 3600


def test_a_clock_set_back_keeps_a_lease_and_hands_out_nothing_twice(clock, counts):
    send_many([Outgoing("mail", stream="a"), Outgoing("mail")])
    batch = claim(lease=60)
    clock.advance(-HOURS)

    assert claim().ids == []
    complete(batch.token, batch.ids)
    assert counts() == {}


def test_a_clock_set_forward_ends_a_lease_and_the_late_report_is_refused(clock, counts):
    send_many([Outgoing("mail", stream="a"), Outgoing("mail")])
    early = claim(worker="early", lease=60)
    clock.advance(HOURS)
    again = claim(worker="again", lease=60)

    with pytest.raises(LeaseLost):
        complete(early.token, early.ids)

    assert sorted(again.ids) == sorted(early.ids)
    complete(again.token, again.ids)
    assert counts() == {}


def test_a_lease_that_was_taken_over_does_not_come_alive_when_the_clock_is_set_back(clock, counts):
    message = send("mail", stream="a")
    early = claim(worker="early", lease=60)
    clock.advance(61)
    again = claim(worker="again", lease=60)
    clock.advance(-HOURS)

    with pytest.raises(LeaseLost):
        fail(early.token, [Failure(message.id)])

    complete(again.token, again.ids)
    assert counts() == {}


def test_what_waits_is_held_up_by_a_jump_back_and_by_no_more(clock, counts):
    ids = send_many([Outgoing("mail", stream="a")] * 3)
    batch = claim(lease=60)
    fail(batch.token, [Failure(ids[0], delay=30)])
    clock.advance(-HOURS)
    early = claim().ids
    clock.advance(HOURS + 61)

    assert early == []
    assert claim().ids == ids
    assert sweep().repaired == 0


def test_order_is_by_id_whatever_the_clock_said_when_a_message_was_sent(clock):
    first = send("mail", stream="a")
    clock.advance(-HOURS)
    second = send("mail", stream="a")
    clock.advance(2 * HOURS)
    third = send("mail", stream="a")

    assert claim().ids == [first.id, second.id, third.id]
    assert list(Message.objects.values_list("attempts", flat=True)) == [1, 1, 1]
