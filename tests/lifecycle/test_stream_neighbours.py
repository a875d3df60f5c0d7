"""A stream is read between two bounds; its neighbours in the index are not part of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection

from deadletter import send
from deadletter.lifecycle import Failure, claim, complete, fail
from deadletter.models import Message

from .streams import fail_head

#: Names that are near "a" in some collation, before and after it.
NEIGHBOURS = ["A", "a!", "a-", "a\u0301", "aa", "aA", "Aa", "b", "ä", "á", "\uff41", "0", "_a"]
#: What an operator may have chosen for the database. By letters: case and accents count for
#: nothing, and what is equal then is told apart by its bytes.
COLLATIONS = {"as it is": "", "unicode": "und-x-icu", "English": "en_US.utf8", "letters": "letters"}


@pytest.fixture(params=COLLATIONS)
def collation(request, db) -> str:
    """Let streams be compared by these rules, until the test is undone."""
    if request.param == "as it is":
        return "default"
    if connection.vendor != "postgresql":
        pytest.skip("SQLite compares bytes")
    name = COLLATIONS[request.param]
    needed = "und-x-icu" if name == "letters" else name
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_collation WHERE collname = %s", [needed])
        if not cursor.fetchone():
            pytest.skip(f"postgresql: this server has no {needed}")
        if name == "letters":
            cursor.execute("CREATE COLLATION letters (provider = icu, locale = 'und-u-ks-level1')")
        for table in ("deadletter_message", "deadletter_poison"):
            cursor.execute(f'ALTER TABLE {table} ALTER stream TYPE varchar(255) COLLATE "{name}"')
    return name


def around(verb: Callable[[str], object]) -> None:
    """Do something once for each stream beside "a"."""
    for stream in NEIGHBOURS:
        verb(stream)


@pytest.mark.parametrize("stream_policy", ["strict", "release", "halt"])
def test_a_claim_reads_the_stream_and_no_neighbour(clock, policy, collation, stream_policy):
    """Neighbours are held, so a reader that took them for its own would find the stream busy."""
    policy(stream_policy=stream_policy)
    around(lambda stream: send("held", stream=stream))
    held = claim()
    around(lambda stream: send("behind", stream=stream))
    ids = [send("mail", stream="a").id for _ in range(3)]

    batch = claim()

    assert len(held) == len(NEIGHBOURS)
    assert batch.ids == ids
    assert {message.stream for message in batch} == {"a"}


def test_a_run_ends_where_the_stream_ends(clock, collation):
    """Later neighbours that are not due yet must neither stop the run nor come with it."""
    around(lambda stream: send("later", stream=stream, delay=60))
    ids = [send("mail", stream="a").id for _ in range(3)]

    assert claim().ids == ids


@pytest.mark.parametrize("stream_policy", ["strict", "release", "halt"])
def test_whoever_finishes_wakes_his_own_stream(clock, policy, collation, stream_policy):
    """Neighbours are held and have parked messages: nothing of theirs may be woken."""
    policy(stream_policy=stream_policy)
    around(lambda stream: send("held", stream=stream))
    held = claim()
    first = send("mail", stream="a")
    mine = claim()
    around(lambda stream: send("behind", stream=stream))
    second = send("mail", stream="a")
    assert claim().ids == []  # parks all of them
    assert Message.objects.filter(available_at=None).count() == len(NEIGHBOURS) + 1

    complete(mine.token, [first.id])

    assert list(Message.objects.filter(available_at=clock.now).values_list("id")) == [(second.id,)]
    assert claim().ids == [second.id]
    assert len(held) == len(NEIGHBOURS)


def test_a_parked_neighbour_is_not_woken_instead(clock, collation):
    """The stream has nothing parked, and its neighbours wait behind a failed head."""
    around(lambda stream: send("fails", stream=stream))
    batch = claim()
    fail(batch.token, [Failure(id, delay=60) for id in batch.ids])
    around(lambda stream: send("behind", stream=stream))
    assert claim().ids == []
    parked = set(Message.objects.filter(available_at=None).values_list("id", flat=True))
    assert len(parked) == len(NEIGHBOURS)
    first = send("mail", stream="a")

    complete(claim().token, [first.id])

    assert set(Message.objects.filter(available_at=None).values_list("id", flat=True)) == parked


def test_a_blocked_stream_parks_nothing_of_its_neighbours(clock, collation):
    send("fails", stream="a")
    fail_head(delay=60)
    blocked = [send("mail", stream="a").id for _ in range(2)]
    free: list[int] = []
    around(lambda stream: free.append(send("mail", stream=stream).id))

    # One at a time: what is claimed along with a blocked stream could not be parked with it.
    batches = [claim(limit=1) for _ in free]

    assert sorted(id for batch in batches for id in batch.ids) == sorted(free)
    parked = Message.objects.filter(available_at=None).order_by("id")
    assert list(parked.values_list("id", flat=True)) == blocked


def test_leases_of_neighbours_that_ran_out_are_left_alone(clock, collation):
    """A new holder disowns what was held of his stream, and of no other."""
    around(lambda stream: send("lost", stream=stream))
    claim(worker="dead", lease=60)
    clock.advance(60)
    send("mail", stream="a", priority=-1)

    batch = claim(limit=1)

    assert [message.stream for message in batch] == ["a"]
    assert Message.objects.filter(worker="dead").count() == len(NEIGHBOURS)
