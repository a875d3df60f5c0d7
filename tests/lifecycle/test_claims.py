from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from deadletter import Outgoing, Status, send, send_many
from deadletter.lifecycle import Failure, claim, complete, fail, release
from deadletter.models import Message, Queue


def test_a_claim_takes_a_lease_and_counts_the_attempt_at_once(clock, counts):  # A24, D1
    message = send("mail", {"to": 1}, headers={"trace": "t1"})

    batch = claim(queues=["default"], limit=100, worker="w1", lease=60)

    row = Message.objects.get()
    assert batch.ids == [message.id]
    assert (row.attempts, row.fence, row.worker) == (1, 1, "w1")
    assert row.lease_token == batch.token == batch.messages[0].token
    assert row.available_at == clock.now + timedelta(seconds=60)
    assert counts() == {"active": 1}


def test_a_claimed_message_shows_what_was_sent(clock):
    message = send("mail", {"to": 1}, headers={"trace": "t1"}, stream="a")

    claimed = claim().messages[0]

    assert (claimed.id, claimed.name, claimed.queue, claimed.stream) == (
        message.id,
        "mail",
        "default",
        "a",
    )
    assert (claimed.payload, claimed.headers) == ({"to": 1}, {"trace": "t1"})
    assert (claimed.attempt, claimed.max_attempts, claimed.status) == (1, 5, Status.STORED)
    assert (claimed.fence, claimed.kind, claimed.created_at) == (1, "message", clock.now)


def test_a_message_without_headers_shows_an_empty_dict(clock):
    send("mail")

    assert claim().messages[0].headers == {}


def test_a_leased_message_is_nobody_elses(clock, counts):
    send("mail")
    claim(worker="w1", lease=60)
    clock.advance(59)

    assert claim(worker="w2").ids == []
    assert counts() == {"active": 1}


def test_a_lease_that_ran_out_is_due_again_without_any_reaper(clock, counts):
    message = send("mail")
    first = claim(worker="w1", lease=60)
    clock.advance(60)
    assert counts() == {"pending": 1}

    second = claim(worker="w2", lease=60)

    assert second.ids == [message.id]
    assert second.messages[0].attempt == 2
    assert second.token != first.token  # A31
    assert Message.objects.get().worker == "w2"


def test_the_lease_defaults_to_the_queues_own(clock, policy):
    policy(lease_timeout=300)
    policy("mail", lease_timeout=10)
    send("a")
    send("b", queue="mail")

    claim()

    ends = {row.name: row.available_at - clock.now for row in Message.objects.all()}
    assert ends == {"a": timedelta(seconds=300), "b": timedelta(seconds=10)}


def test_a_running_lease_keeps_its_end_when_the_policy_is_edited(clock, policy):  # B22
    send("mail")
    claim()

    policy(lease_timeout=5)

    assert Message.objects.get().available_at == clock.now + timedelta(seconds=60)


def test_no_more_than_the_limit_is_taken(clock, counts):
    ids = send_many([Outgoing("mail", n) for n in range(5)])

    batch = claim(limit=3)

    assert batch.ids == ids[:3]
    assert counts() == {"active": 3, "pending": 2}


def test_a_limit_of_nothing_takes_nothing(clock, counts):
    send("mail")

    assert claim(limit=0).ids == []
    assert counts() == {"pending": 1}


@pytest.mark.parametrize("limit", [-1, 10_001])
def test_a_limit_out_of_range_is_refused(clock, limit):
    with pytest.raises(ValueError, match="limit: expected 0 to 10,000"):
        claim(limit=limit)


@pytest.mark.parametrize("lease", [0, -1, float("nan"), "-60", "soon"])
def test_a_lease_of_nothing_is_refused(clock, counts, lease):
    send("mail")

    with pytest.raises(ValueError, match="lease"):
        claim(lease=lease)

    assert counts() == {"pending": 1}


def test_messages_come_in_order_of_their_ids_when_sent_at_one_moment(clock):  # trap 7
    ids = send_many([Outgoing("mail", n) for n in range(20)])

    assert claim().ids == ids


def test_a_scheduled_message_is_skipped_and_the_next_is_served(clock, counts):  # A29
    later = send("mail", delay=60)
    now = send("mail")

    assert claim().ids == [now.id]
    assert counts() == {"active": 1, "scheduled": 1}
    clock.advance(59)
    assert claim(queues=["default"]).ids == []
    clock.advance(1)
    assert later.id in claim().ids


def test_a_failed_message_goes_to_the_tail(clock):  # B19, D13
    a, b, c = (send("mail") for _ in "abc")
    batch = claim(limit=1)
    clock.advance(1)
    fail(batch.token, [Failure(a.id, delay=0)])

    assert claim().ids == [b.id, c.id, a.id]


def test_a_message_whose_lease_ran_out_goes_to_the_tail(clock):  # B18
    a, b, c = (send("mail") for _ in "abc")
    claim(limit=1, lease=5)
    clock.advance(5)

    assert claim(limit=2).ids == [b.id, c.id]
    assert claim().ids == [a.id]


def test_the_lowest_priority_number_comes_first(clock):
    numbers = (9, 100, -1, 5, 0, -100, 1, 99, -99)
    ids = {priority: send("mail", priority=priority).id for priority in numbers}

    assert claim().ids == [ids[priority] for priority in sorted(numbers)]


def test_the_order_holds_whatever_plan_is_chosen(clock):
    """In a caller's transaction, as here, the planner is free: it joined a small table by hash."""
    send_many([Outgoing("later", delay=3600) for _ in range(10)])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    numbers = (9, 100, -1, 5, 0, -100, 1, 99, -99)
    ids = {priority: send("mail", priority=priority).id for priority in numbers}

    assert claim(limit=4).ids == [ids[priority] for priority in sorted(numbers)[:4]]
    assert claim().ids == [ids[priority] for priority in sorted(numbers)[4:]]


def test_queues_come_in_order_of_preference(clock, policy):
    policy("low")
    policy("high")
    low, high = send("mail", queue="low"), send("mail", queue="high", priority=9)

    assert claim(queues=["high", "low"], limit=1).ids == [high.id]
    assert claim(queues=["high", "low"], limit=1).ids == [low.id]


def test_only_the_queues_asked_for_are_looked_at(clock, counts, policy):
    policy("other")
    send("mail", queue="other")

    assert claim(queues=["default"]).ids == []
    assert claim(queues=[]).ids == []
    assert claim(queues=["missing"]).ids == []
    assert counts() == {"pending": 1}


def test_a_paused_queue_hands_out_nothing_until_it_goes_on(clock, counts, policy):
    policy(paused=True)
    message = send("mail")

    assert claim().ids == []
    assert claim(queues=["default"]).ids == []
    assert counts() == {"pending": 1}
    policy(paused=False)
    assert claim().ids == [message.id]


def test_the_failed_bit_does_not_gate_claiming(clock):  # trap 3
    message = send("mail")
    Message.objects.update(status=Status.STORED | Status.FAILED)

    assert claim().ids == [message.id]


def test_no_bit_gates_claiming(clock):  # C1
    ids = [send("mail").id for _ in range(3)]
    for id, status in zip(ids, (0, 7, 65535), strict=True):
        Message.objects.filter(pk=id).update(status=status)

    assert claim().ids == ids


def test_the_fence_grows_with_every_claim(clock):
    message = send("mail")
    fences = []

    for _ in range(3):
        batch = claim()
        fences.append(batch.messages[0].fence)
        release(batch.token, [message.id])

    assert fences == [1, 2, 3]
    assert Message.objects.get().attempts == 0


def test_nothing_is_taken_when_nothing_is_due(clock):
    batch = claim()

    assert (batch.ids, list(batch.messages), list(batch.dead), len(batch)) == ([], [], [], 0)


def test_every_queue_but_the_dead_ones_is_looked_at_by_default(clock, policy):
    policy("dead")
    policy(on_poison="dead_queue", dead_queue=Queue.objects.get(name="dead"))
    policy("other")
    ids = [send("mail", queue=name).id for name in ("default", "other", "dead")]

    assert sorted(claim().ids) == sorted(ids[:2])
    assert claim(queues=["dead"]).ids == ids[2:]


def test_a_finished_message_is_gone(clock, counts):
    message = send("mail")
    batch = claim()

    complete(batch.token, [message.id])

    assert counts() == {}
    assert claim().ids == []
