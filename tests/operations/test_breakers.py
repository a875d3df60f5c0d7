"""Hold a message name and reset a breaker: what is stored, what is counted, what is audited."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import operations, send
from deadletter.models import UNTIL_RESET, AuditEntry, Breaker, Message, WorkerProcess
from deadletter.operations import breakers as breakers_module
from deadletter.operations.breakers import known_names


def opened(name: str, clock, *, failures: int = 10, seconds: int = 30) -> Breaker:
    return Breaker.objects.create(
        name=name, failures=failures, error="refused", opened_by="w1",
        opened_at=clock.now, until=clock.now + timedelta(seconds=seconds),
    )  # fmt: skip


def test_a_name_is_held_until_it_is_reset_and_both_acts_are_audited(clock):
    held = operations.hold_breaker("mail", by="ann", why="the provider asked")

    row = Breaker.objects.get()
    assert (row, row.is_held, row.until, row.held_until) == (held, True, UNTIL_RESET, None)
    assert (row.opened_by, row.opened_at, row.why) == ("ann", clock.now, "the provider asked")

    clock.advance(60)
    was = operations.reset_breaker("mail", by="bob", why="they are back")

    assert (was.name, was.opened_by) == ("mail", "ann")
    assert not Breaker.objects.exists()
    hold, reset = AuditEntry.objects.order_by("id")
    assert (hold.act, hold.by, hold.why, hold.done) == (
        "hold_breaker", "ann", "the provider asked", 1,
    )  # fmt: skip
    assert (hold.selection, hold.detail) == ({"name": "mail"}, {"until": "reset"})
    assert (reset.act, reset.by, reset.selection) == ("reset_breaker", "bob", {"name": "mail"})
    assert (reset.detail["was"], reset.detail["by"]) == ("held", "ann")


def test_a_hold_for_a_time_has_its_end(clock):
    operations.hold_breaker("mail", duration="90m", by="ann")

    row = Breaker.objects.get()
    assert row.held_until == clock.now + timedelta(minutes=90)
    assert AuditEntry.objects.get().detail["duration"] == "1h30m"
    clock.advance(5_401)
    assert operations.list_breakers() == []


def test_a_held_breaker_keeps_the_failures_that_opened_it_and_a_new_hold_replaces_the_old(clock):
    opened("mail", clock)
    clock.advance(5)

    operations.hold_breaker("mail", duration=60, by="ann", why="wait")
    operations.hold_breaker("mail", by="bob")

    row = Breaker.objects.get()
    assert (row.failures, row.error, row.opened_at) == (10, "refused", clock.now)
    assert (row.is_held, row.opened_by, row.why, row.held_until) == (True, "bob", "", None)


def test_a_reset_of_a_name_that_is_not_held_changes_nothing_and_is_not_audited(clock):
    opened("other", clock)

    assert operations.reset_breaker("mail", by="ann") is None

    assert Breaker.objects.count() == 1
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("name", ["", "two words", "x" * 201, "'; DROP", "deadletter.notice"])
def test_what_is_no_name_and_internal_names_are_refused(clock, name):
    with pytest.raises(ValueError, match=r"cannot be (a message name|held)"):
        operations.hold_breaker(name)

    assert not Breaker.objects.exists()


@pytest.mark.parametrize("duration", [0, -1, "367d", "soon"])
def test_a_hold_lasts_more_than_nothing_and_a_year_at_most(clock, duration):
    with pytest.raises(ValueError, match="duration"):
        operations.hold_breaker("mail", duration=duration)

    assert not Breaker.objects.exists()


def test_the_list_counts_what_would_run_now(clock, policy):
    """Due messages and those put aside; none that run, wait for longer, are parked or dead."""
    policy("later")
    due, leased = send("mail"), send("mail")
    send("mail", queue="later", delay=30)
    send("mail", queue="later", delay=3_600)
    send("mail", stream="s")
    parked = send("mail", stream="s")
    Message.objects.filter(pk=parked.pk).update(available_at=None)
    send("other")
    Message.objects.filter(pk=leased.pk).update(
        lease_token="t", available_at=clock.now + timedelta(seconds=20)
    )
    operations.hold_breaker("mail", by="ann")
    opened("other", clock)
    opened("probed", clock, seconds=-1)

    mail, other, probed = operations.list_breakers()

    assert (mail.name, mail.state, mail.waiting, mail.waiting_more) == ("mail", "held", 3, False)
    assert (mail.by, mail.since, mail.until) == ("ann", clock.now, None)
    assert (other.state, other.waiting, other.failures, other.error) == ("open", 1, 10, "refused")
    assert (probed.state, probed.waiting) == ("probe", 0)
    assert Message.objects.get(pk=due.pk).lease_token is None
    assert [found.name for found in operations.list_breakers(names=["other"])] == ["other"]
    assert [found.name for found in operations.list_breakers(limit=1)] == ["mail"]


def test_a_count_stops_at_the_oldest_messages_and_says_so(clock, monkeypatch):
    monkeypatch.setattr(breakers_module, "COUNTED", 3)
    for name in ("mail", "other", "mail", "mail", "mail"):
        send(name)
    operations.hold_breaker("mail")

    (found,) = operations.list_breakers()

    assert (found.waiting, found.waiting_more) == (2, True)


def test_without_breakers_no_message_is_read(clock, django_assert_num_queries):
    send("mail")

    with django_assert_num_queries(1):  # the breakers; the clock of the test is asked without one
        assert operations.list_breakers() == []


def test_names_are_those_of_handlers_and_tasks_of_live_workers(clock):
    handlers = [
        ["message", "mail"], ["message", "deadletter.job"], ["orchestration", "order", "1"],
        ["task", "shop.tasks.bill"], 7, ["message"],
    ]  # fmt: skip
    made = {"host": "h", "pid": 1, "version": "1", "concurrency": 1, "started_at": clock.now}
    WorkerProcess.objects.create(name="w1", handlers=handlers, seen_at=clock.now, **made)
    lost = clock.now - timedelta(minutes=5)
    WorkerProcess.objects.create(name="w2", handlers=[["message", "old"]], seen_at=lost, **made)

    assert known_names() == ["mail", "shop.tasks.bill"]
