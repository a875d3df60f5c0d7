"""Senders of many keys insert in the order of the keys, and so do not deadlock."""

from __future__ import annotations

import random
import threading

import pytest
from django.db import OperationalError, connection, transaction

from deadletter import Outgoing, send_many
from deadletter.lifecycle import insert
from deadletter.models import Count, Message

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]

CALLS = 30
KEYS = [f"k{n:03}" for n in range(200)]
#: Seconds; every wait ends at its event.
PATIENCE = 180


def keyed(keys: list[str]) -> list[int]:
    return send_many([Outgoing("m", key=key) for key in keys], queue="q")


def test_two_senders_of_the_same_keys_in_another_order_wait_in_one_order(queue, stage, repeated):
    """The first has stored a, and its second statement stores b; the other one gave b first."""
    first = stage(
        transaction.atomic(lambda: keyed(["a"]) + keyed(["b"])),
        after="insert_many",
        deadlock_timeout="100ms",
    )
    second = stage(lambda: keyed(["b", "a"]), deadlock_timeout="100ms")
    second.wait_blocked(by=first)

    a, b = first.result()

    assert second.result() == [b, a]
    assert repeated == []
    assert Message.objects.count() == 2


def test_chunks_are_stored_in_the_order_of_the_keys_too(queue, stage, repeated, monkeypatch):
    monkeypatch.setattr(insert, "CHUNK", 1)
    first = stage(
        transaction.atomic(lambda: keyed(["a", "b"])), after="insert_many", deadlock_timeout="1s"
    )
    second = stage(lambda: keyed(["b", "a"]), deadlock_timeout="1s")
    second.wait_blocked(by=first)

    a, b = first.result()

    assert second.result() == [b, a]
    assert repeated == []


def test_ids_are_in_the_order_given_whatever_the_keys(queue):
    given = [
        Outgoing("m", {"n": n}, key=key, stream="s")
        for n, key in enumerate(["z", None, "a", "m", "z", None, "b"])
    ]

    ids = send_many(given, queue="q")

    stored = list(Message.objects.order_by("id").values_list("id", "payload", "key"))
    assert [payload["n"] for _, payload, _ in stored] == [0, 1, 2, 3, 5, 6]
    assert ids[4] == ids[0]  # the first that was given holds the key
    assert [id for id, _, _ in stored] == [id for n, id in enumerate(ids) if n != 4]
    assert Count.objects.get().sent == 6


def test_our_own_transaction_is_repeated_when_the_database_ends_it_for_a_deadlock(
    queue, stage, repeated, monkeypatch
):
    """Against somebody who keeps another order: one of the two is undone, and both get through."""
    monkeypatch.setattr(insert, "CHUNK", 1)
    other = stage(
        transaction.atomic(lambda: keyed(["b"]) + keyed(["a"])),
        after="insert_many",
        deadlock_timeout="60s",
    )
    # Stopped between two chunks: it has a and wants b.
    mine = stage(lambda: keyed(["a", "b"]), deadlock_timeout="100ms")
    mine.wait_blocked(by=other)

    b, a = other.result()

    assert mine.result() == [a, b]
    assert ["deadlock" in error for error in repeated] == [True]
    assert Message.objects.count() == 2


def test_a_callers_transaction_is_not_repeated(queue, stage):
    other = stage(
        transaction.atomic(lambda: keyed(["b"]) + keyed(["a"])),
        after="insert_many",
        deadlock_timeout="60s",
    )
    mine = stage(transaction.atomic(lambda: keyed(["a"]) + keyed(["b"])), deadlock_timeout="100ms")
    mine.wait_blocked(by=other)

    b, a = other.result()

    with pytest.raises(OperationalError, match="deadlock"):
        mine.result()
    assert sorted(Message.objects.values_list("id", flat=True)) == sorted([a, b])


@pytest.mark.parametrize("deleting", [False, True], ids=["senders", "senders and a deleter"])
def test_senders_of_the_same_keys_in_random_order_all_get_through(queue, deleting, repeated):
    errors: list[str] = []
    done: list[int] = []
    is_over = threading.Event()

    def sender(seed: int) -> None:
        dice = random.Random(seed)
        try:
            for _ in range(CALLS):
                keys = dice.sample(KEYS, len(KEYS))
                done.append(len(keyed(keys)))
        except Exception as error:  # noqa: BLE001 - shown by the test
            errors.append(f"{type(error).__name__}: {error}")
        finally:
            connection.close()

    def deleter() -> None:
        try:
            while not is_over.is_set():
                some = Message.objects.order_by("?").values_list("id", flat=True)[:50]
                Message.objects.filter(id__in=sorted(some)).delete()
        except Exception as error:  # noqa: BLE001 - shown by the test
            errors.append(f"deleter: {type(error).__name__}: {error}")
        finally:
            connection.close()

    senders = [threading.Thread(target=sender, args=[seed]) for seed in range(2)]
    others = [threading.Thread(target=deleter)] if deleting else []
    for thread in [*senders, *others]:
        thread.start()
    for thread in senders:
        thread.join(PATIENCE)
    is_over.set()
    for thread in others:
        thread.join(PATIENCE)

    assert errors == []
    assert done == [len(KEYS)] * CALLS * 2
    keys = list(Message.objects.values_list("key", flat=True))
    assert len(keys) == len(set(keys))
    if not deleting:
        assert repeated == []
        assert sorted(keys) == KEYS
