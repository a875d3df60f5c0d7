"""A row whose numbers cannot grow fails alone; the rest of its claim goes on."""

from __future__ import annotations

import pytest

from deadletter import Outgoing, send_many
from deadletter.lifecycle import claim, complete
from deadletter.models import Message, PoisonRecord
from deadletter.status import FailureReason

pytestmark = pytest.mark.django_db

LARGEST = {"attempts": 2**31 - 1, "fence": 2**63 - 1}

full = pytest.mark.parametrize("column", LARGEST)


def assert_dead(id: int) -> None:
    record = PoisonRecord.objects.get()
    assert record.message_id == id
    assert record.reason == FailureReason.POISON_MESSAGE
    assert "its attempts or its fence is the largest number" in record.verdict


@full
@pytest.mark.parametrize("limit", [None, 5])
def test_a_plain_message_that_cannot_be_counted_dies_alone(policy, counts, column, limit):
    policy(max_attempts=limit)
    first, second, third = send_many([Outgoing("job") for _ in range(3)])
    Message.objects.filter(id=second).update(**{column: LARGEST[column]})

    batch = claim(worker="w")

    assert batch.ids == [first, third]
    assert [(m.attempt, m.fence) for m in batch.messages] == [(1, 1), (1, 1)]
    assert_dead(second)
    assert counts() == {"active": 2, "dead": 1}


@full
@pytest.mark.parametrize("stream_policy", ["strict", "release"])
def test_a_message_of_a_stream_that_cannot_be_counted_dies_alone(
    policy, counts, column, stream_policy
):
    policy(max_attempts=None, stream_policy=stream_policy)
    ids = send_many([Outgoing("job", stream="s") for _ in range(3)])
    (other,) = send_many([Outgoing("job", stream="t")])
    Message.objects.filter(id=ids[0]).update(**{column: LARGEST[column]})

    taken = []
    while (batch := claim(worker="w")).ids:
        taken += batch.ids
        complete(batch.token, batch.ids)

    assert sorted(taken) == [*ids[1:], other]
    assert_dead(ids[0])
    assert counts() == {"dead": 1}


@full
def test_a_message_whose_lease_ran_out_and_that_cannot_be_counted_dies_alone(
    policy, counts, clock, column
):
    policy(max_attempts=None)
    first, second = send_many([Outgoing("job") for _ in range(2)])
    claim(worker="lost", lease=10)
    Message.objects.filter(id=first).update(**{column: LARGEST[column]})
    clock.advance(11)

    batch = claim(worker="w")

    assert batch.ids == [second]
    assert PoisonRecord.objects.get().message_id == first
    assert counts() == {"active": 1, "dead": 1}
