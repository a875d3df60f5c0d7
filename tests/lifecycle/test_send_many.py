from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from deadletter import MessageRejected, Outgoing, UnknownQueue, send, send_many
from deadletter.lifecycle import claim, insert
from deadletter.models import Message


def test_many_messages_come_back_as_ids_in_order(clock, counts):
    ids = send_many([Outgoing("mail", {"n": n}) for n in range(100)])

    assert ids == sorted(set(ids))
    assert [Message.objects.get(pk=id).payload["n"] for id in ids[::33]] == [0, 33, 66, 99]
    assert counts() == {"pending": 100}


def test_every_field_of_send_is_a_field_of_outgoing(clock, policy):
    policy(expire_timeout=1000)
    at = datetime(2999, 1, 1, tzinfo=UTC)

    first, second = send_many(
        [
            Outgoing("a", {"é": "☃"}, stream="s", key="k", priority=3, headers={"h": [1]}, delay=5),
            Outgoing("b", at=at, expires_in=9),
        ]
    )

    a, b = Message.objects.get(pk=first), Message.objects.get(pk=second)
    assert (a.name, a.payload, a.headers, a.stream, a.key, a.priority) == (
        "a",
        {"é": "☃"},
        {"h": [1]},
        "s",
        "k",
        3,
    )
    assert (a.available_at - clock.now, a.expires_at - clock.now) == (
        timedelta(seconds=5),
        timedelta(seconds=1000),
    )
    assert (b.name, b.payload, b.headers, b.stream, b.key) == ("b", None, None, None, None)
    assert (b.available_at, b.expires_at) == (at, clock.now + timedelta(seconds=9))


def test_one_by_one_and_together_store_the_same(clock):
    options = {"payload": {"a": 1}, "stream": "s", "priority": 1, "delay": 5, "expires_in": 9}
    one = send("mail", **options).id
    (other,) = send_many([Outgoing("mail", **options)])

    rows = [Message.objects.values().get(pk=id) for id in (one, other)]

    assert {k: v for k, v in rows[0].items() if k != "id"} == {
        k: v for k, v in rows[1].items() if k != "id"
    }


def test_one_bad_message_stores_none(clock, counts):
    with pytest.raises(MessageRejected, match="priority"):
        send_many([Outgoing("mail"), Outgoing("mail", priority=101)])

    assert counts() == {}


@pytest.mark.parametrize("what", ["ninechars", ("mail", {}), {"name": "mail"}, None])
def test_what_is_no_outgoing_is_refused(clock, counts, what):
    with pytest.raises(MessageRejected, match="messages: expected an Outgoing"):
        send_many([Outgoing("mail"), what])
    assert counts() == {}


def test_many_messages_join_the_callers_transaction(clock, counts):
    with transaction.atomic():
        send_many([Outgoing("mail") for _ in range(3)])
        transaction.set_rollback(True)

    assert counts() == {}


def test_an_unknown_queue_is_refused(clock, counts):
    with pytest.raises(UnknownQueue):
        send_many([Outgoing("mail")], queue="nowhere")

    assert counts() == {}


def test_no_messages_are_no_messages(clock, counts):
    assert send_many([]) == []
    assert counts() == {}


def test_any_iterable_will_do(clock, counts):
    assert len(send_many(Outgoing("mail", n) for n in range(3))) == 3
    assert counts() == {"pending": 3}


def test_a_key_that_is_taken_yields_the_id_that_holds_it(clock, counts):
    holder = send("mail", key="k")

    a, b, c = send_many([Outgoing("mail"), Outgoing("mail", key="k"), Outgoing("mail")])

    assert b == holder.id
    assert holder.id < a < c
    assert counts() == {"pending": 3}


def test_a_key_given_twice_in_one_call_is_stored_once(clock, counts):
    a, b, c = send_many([Outgoing("mail", n, key=key) for n, key in enumerate("kkx")])

    assert a == b != c
    assert Message.objects.get(pk=a).payload == 0
    assert counts() == {"pending": 2}


def test_the_order_of_a_stream_is_the_order_given(clock, settings):
    settings.DEADLETTER = {"STREAM_CAP": 1000}

    ids = send_many([Outgoing("mail", n, stream="s") for n in range(200)])

    batch = claim(limit=1000)
    assert batch.ids == ids
    assert [message.payload for message in batch] == list(range(200))


def test_no_statement_grows_with_the_size_of_the_messages(clock, counts):
    # PostgreSQL refuses 256 MiB of JSON: 1,050 of the largest messages in one statement.
    with CaptureQueriesContext(connection) as statements:
        ids = send_many([Outgoing("mail", "x" * 262_142) for _ in range(40)])

    assert len(ids) == 40
    assert max(len(statement["sql"]) for statement in statements) < 5_000_000
    assert counts() == {"pending": 40}


def test_more_than_a_chunk_is_still_one_call(clock, counts, monkeypatch):
    monkeypatch.setattr(insert, "CHUNK", 7)

    ids = send_many([Outgoing("mail", n) for n in range(20)])

    assert ids == sorted(set(ids))
    assert len(ids) == 20
    assert counts() == {"pending": 20}


@pytest.mark.parametrize("key", [None, "k"])
def test_what_has_a_meaning_on_the_way_in_is_stored_as_it_is(clock, key):
    """Many go in as lines of text, those with keys as JSON: neither may read its own marks."""
    awkward = {
        "a": "\\N",
        "b": "tab\there",
        "c": "line\nend\r\n",
        "d": "\\.",
        "e": "'\"\\\\",
        "f": "ü€🦀",
    }

    ids = send_many([Outgoing("m", awkward, stream="\\N", headers=awkward, key=key), Outgoing("m")])

    first, second = (Message.objects.get(pk=id) for id in ids)
    assert (first.payload, first.headers, first.stream) == (awkward, awkward, "\\N")
    assert (second.payload, second.headers, second.stream) == (None, None, None)
