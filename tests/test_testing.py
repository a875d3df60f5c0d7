"""What applications get for their own test suites."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deadletter import send, testing
from deadletter.lifecycle import claim
from deadletter.models import Message
from deadletter.worker.registry import Handler, Registry

pytestmark = pytest.mark.django_db


def test_a_frozen_clock_is_the_databases_clock():
    with testing.frozen_clock(datetime(2030, 1, 1, tzinfo=UTC)) as clock:
        message = send("mail", delay=60)
        clock.advance(59)
        early = claim().ids
        clock.advance(timedelta(seconds=1))
        due = claim().ids

    assert message.created_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert (early, due) == ([], [message.id])


def test_a_frozen_clock_may_be_set_and_turned_back():
    with testing.frozen_clock() as clock:
        clock.set(datetime(2030, 1, 1, tzinfo=UTC))
        clock.advance(-60)

        assert clock.now == datetime(2029, 12, 31, 23, 59, tzinfo=UTC)


def test_the_clock_runs_again_afterwards():
    with testing.frozen_clock(datetime(2030, 1, 1, tzinfo=UTC)):
        pass

    message = send("mail")

    assert abs(message.created_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_frozen_clocks_nest():
    with testing.frozen_clock(datetime(2030, 1, 1, tzinfo=UTC)):
        with testing.frozen_clock(datetime(2040, 1, 1, tzinfo=UTC)):
            inner = send("mail").created_at
        outer = send("mail").created_at

    assert (inner.year, outer.year) == (2040, 2030)


def test_what_was_sent_is_listed_oldest_first():
    for name in ("a", "b", "a"):
        send(name, {"n": name})

    assert [message.name for message in testing.sent()] == ["a", "b", "a"]
    assert [message.payload for message in testing.sent("b")] == [{"n": "b"}]
    assert testing.sent("c") == []


def test_draining_runs_everything_due_and_counts_it(clock, counts, handles):
    def function(message):
        if message.payload == "bad":
            raise ValueError

    handles("mail", function)
    for payload in ("good", "bad", "good"):
        send("mail", payload)
    send("mail", delay=60)
    send("nobody.knows")

    tally = testing.drain()

    assert (tally.completed, tally.failed, tally.poisoned) == (2, 1, 0)
    assert (tally.released, tally.deferred) == (0, 1)
    assert counts() == {"failed": 1, "scheduled": 2}


def test_draining_follows_what_handlers_send(clock, counts, handles):
    handles("first", lambda message: send("second"))
    handles("second", lambda message: None)
    send("first")

    assert testing.drain().completed == 2
    assert counts() == {}


def test_draining_may_be_limited_to_queues(clock, counts, handles, policy):
    policy("other")
    handles("mail", lambda message: None)
    send("mail")
    send("mail", queue="other")

    assert testing.drain(queues=["other"]).completed == 1
    assert Message.objects.get().queue.name == "default"


def test_draining_may_use_handlers_of_its_own(clock, counts):
    seen = []
    own = Registry()
    own.add(Handler(name="mail", function=seen.append))
    send("mail")

    assert testing.drain(handlers=own).completed == 1
    assert [message.name for message in seen] == ["mail"]


def test_draining_nothing_is_nothing(clock):
    assert testing.drain().total == 0
