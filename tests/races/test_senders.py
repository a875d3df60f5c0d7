"""Two senders with one key: one message, whichever commits."""

from __future__ import annotations

import pytest
from django.db import transaction

from deadletter import Outgoing, send, send_many
from deadletter.lifecycle import claim, complete
from deadletter.models import Message

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]


def one() -> int:
    return send("m", queue="q", key="k").id


def many() -> int:
    return send_many([Outgoing("m", key="k")], queue="q")[0]


WAYS = {"send": (one, "insert"), "send_many": (many, "insert_many")}


class Regret(Exception):
    pass


def undone(call):
    with transaction.atomic():
        call()
        raise Regret


@pytest.mark.parametrize("second", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_the_second_sender_of_a_key_is_given_the_first_ones_message(queue, stage, first, second):
    winner = stage(transaction.atomic(WAYS[first][0]), after=WAYS[first][1])
    loser = stage(WAYS[second][0])
    event = loser.wait_blocked(by=winner)

    id = winner.result()

    assert event == "transactionid"
    assert loser.result() == id
    assert Message.objects.get().id == id


@pytest.mark.parametrize("second", WAYS)
@pytest.mark.parametrize("first", WAYS)
def test_the_second_sender_goes_ahead_when_the_first_one_is_rolled_back(
    queue, stage, first, second
):
    winner = stage(lambda: undone(WAYS[first][0]), after=WAYS[first][1])
    loser = stage(WAYS[second][0])
    loser.wait_blocked(by=winner)

    with pytest.raises(Regret):
        winner.result()

    id = loser.result()
    assert Message.objects.get().id == id


@pytest.mark.parametrize("way", WAYS)
def test_a_key_whose_message_is_just_being_finished_is_free_afterwards(queue, stage, way):
    old = one()
    batch = claim(["q"])
    worker = stage(lambda: complete(batch.token, batch.ids), after="complete")
    sender = stage(WAYS[way][0])
    sender.wait_blocked(by=worker)

    worker.result()

    new = sender.result()
    assert new != old
    assert Message.objects.get().id == new
