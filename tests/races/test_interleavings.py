"""
Seeded schedules of workers, a sender and an operator, a statement at a time, on PostgreSQL.

INTERLEAVINGS says how many seeds, INTERLEAVINGS_FROM the first (`make interleavings SEEDS=5000`).
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable

import pytest

from deadletter import Outgoing, operations, send_many, sql
from deadletter.lifecycle import claim, complete, sweep
from deadletter.lifecycle.enqueue import store_messages
from deadletter.models import Kind, Message, PoisonRecord, Queue, Result
from deadletter.testing import frozen_clock
from tests.processes import database_url

from . import interleaver
from .interleaver import Player, Schedule
from .parts import QUEUE, STREAMS, Operator, Sender, Story, Worker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql_only(reason="SQLite has one writer at a time"),
    pytest.mark.django_db(transaction=True),
]

FIRST = int(os.environ.get("INTERLEAVINGS_FROM", "1"))
SEEDS = int(os.environ.get("INTERLEAVINGS", "50"))
#: Seeds of one test: between two tests every table is emptied, which takes longer than a schedule.
BLOCK = 10
WORKERS = 3


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A seed names a schedule: who waits for a lock goes on when it is free, not earlier."""
    monkeypatch.setattr("deadletter.lifecycle.batch.SHORT_WAIT", 60.0)
    monkeypatch.setattr("deadletter.lifecycle.transaction.LOCK_WAIT", 60.0)


def check_rows(story: Story) -> None:
    """What holds whenever somebody has committed."""
    now = story.clock.now
    streams = defaultdict(list)
    found = Message.objects.order_by("pk").values_list(
        "pk", "stream", "lease_token", "available_at", "released_at"
    )
    for row in found:
        if row[1] is not None:
            streams[row[1]].append(row)
    there = {row[0] for row in found} | set(
        PoisonRecord.objects.values_list("message_id", flat=True)
    )
    early = there & set(Result.objects.values_list("pk", flat=True))
    assert early == set(), f"{early} have results and are still there"
    for stream, rows in streams.items():
        holders = {token for _, _, token, until, _ in rows if token and until and until > now}
        assert len(holders) <= 1, f"{stream} has holders {holders}"
        if any(until is not None for _, _, _, until, _ in rows):
            continue
        halts = PoisonRecord.objects.filter(halts=True, stream=stream)
        halt = halts.order_by("message_id").values_list("message_id", flat=True).first()
        stranded = [id for id, _, _, _, released in rows if halt is None or id < halt or released]
        assert stranded == [], f"{stream} is parked and nobody will wake it"


def check_places(story: Story) -> None:
    """Every message that was sent is in exactly one place."""
    places = [
        *Message.objects.values_list("pk", flat=True),
        *PoisonRecord.objects.values_list("message_id", flat=True),
        *story.completed,
        *story.removed,
    ]
    assert sorted(places) == sorted(story.sent)


def check_attempts(story: Story) -> None:
    rows = dict(Message.objects.values_list("pk", "attempts"))
    assert rows == {id: story.attempts[id] for id in rows}


def check_results(story: Story) -> None:
    """What was completed with a result has one, and what was removed, if it was a task."""
    rows = dict(Result.objects.values_list("pk", "outcome"))
    successful = {id for id, outcome in rows.items() if outcome == "successful"}
    removed = {id for id, outcome in rows.items() if outcome == "removed"}
    assert successful == story.kept
    assert removed == (story.removed if story.kind == Kind.TASK else set())
    assert len(rows) == len(successful) + len(removed)


def drain(story: Story) -> None:
    """Nothing is stuck: once poison is out of the way, all that is left runs."""
    for _ in range(20):
        story.removed |= set(PoisonRecord.objects.values_list("message_id", flat=True))
        operations.remove_poison(list(PoisonRecord.objects.values_list("pk", flat=True)))
        story.clock.advance(3600)
        while batch := claim([QUEUE], worker="last"):
            complete(batch.token, batch.ids)
            story.completed += batch.ids
        if not Message.objects.exists() and not PoisonRecord.objects.exists():
            return
    raise AssertionError(f"stuck: {list(Message.objects.values())}")


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, BLOCK))
def test_whoever_moves_when_every_stream_has_one_holder_and_nothing_is_lost(
    first, monkeypatch, repeated
):
    monkeypatch.setattr(sql, "run", interleaver.run)
    for seed in range(first, min(first + BLOCK, FIRST + SEEDS)):
        play(seed)
        assert repeated == [], f"a deadlock in seed {seed}"


def play(seed: int) -> None:
    """Play one schedule to its end, and see that everything is where it belongs."""
    chance = random.Random(seed)
    policy = {
        "stream_policy": chance.choice(["strict", "strict", "release", "halt"]),
        "max_attempts": chance.choice([1, 2, 3]),
    }
    # The order of the streams' locks depends on this id.
    queue = Queue.objects.create(pk=1_000_000, name=QUEUE, **policy)
    with frozen_clock() as clock:
        story = Story(clock, kind=chance.choice([Kind.MESSAGE, Kind.TASK]).value)
        outgoing = [Outgoing("m", stream=chance.choice(STREAMS)) for _ in range(6)]
        story.sent |= set(store_messages(outgoing, queue=QUEUE, kind=story.kind).ids)
        schedule = Schedule(
            seed, cast(seed, story), observer=database_url(), after=lambda: check_rows(story)
        )
        try:
            schedule.play()
            assert story.problems == []
            check_places(story)
            check_attempts(story)
            check_results(story)
            assert sweep().repaired == 0
            drain(story)
            check_places(story)
            check_results(story)
        except BaseException:
            print(f"seed {seed}, {policy}:", *schedule.trace, sep="\n  ")
            raise
    queue.delete()
    Result.objects.all().delete()


def cast(seed: int, story: Story) -> list[Player]:
    parts: dict[str, Callable[[], None]] = {
        f"worker {n}": Worker(f"worker {n}", story, random.Random(f"{seed}/{n}"), turns=6)
        for n in range(WORKERS)
    }
    parts["sender"] = Sender(story, random.Random(f"{seed}/sender"), turns=3)
    parts["operator"] = Operator(story, random.Random(f"{seed}/operator"), turns=2)
    return [Player(name, part) for name, part in parts.items()]


def test_two_players_who_want_one_row_wait_for_each_other_in_turn(monkeypatch):
    """The proof can fail: a lock is seen, and it is seen only where there is one."""
    monkeypatch.setattr(sql, "run", interleaver.run)
    Queue.objects.create(pk=1_000_000, name=QUEUE)
    with frozen_clock() as clock:
        story = Story(clock, sent=set(send_many([Outgoing("m", stream="a")] * 2, queue=QUEUE)))
        batch = claim([QUEUE], limit=2)
        players = [
            Player(f"worker {n}", lambda n=n: complete(batch.token, [batch.ids[n]])) for n in (0, 1)
        ]
        schedules = Schedule(3, players, observer=database_url(), after=lambda: check_rows(story))
        schedules.play()

    assert schedules.waits == 1
    assert Message.objects.count() == 0


def test_two_holders_of_one_stream_are_noticed():
    queue = Queue.objects.create(name=QUEUE)
    with frozen_clock() as clock:
        ids = send_many([Outgoing("m", stream="a")] * 2, queue=QUEUE)
        claim([QUEUE], limit=2)
        Message.objects.filter(pk=ids[1]).update(lease_token="another")

        with pytest.raises(AssertionError, match="a has holders"):
            check_rows(Story(clock))

        Message.objects.filter(queue=queue).update(lease_token=None, available_at=None)
        with pytest.raises(AssertionError, match="a is parked and nobody will wake it"):
            check_rows(Story(clock))
