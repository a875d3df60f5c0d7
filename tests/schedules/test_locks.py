"""Other transactions hold a schedule or a key: the others are fired, and nobody waits for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.urls import reverse

from deadletter import operations
from deadletter.exceptions import LockNotAvailable
from deadletter.models import Message, Schedule, ScheduleRun
from deadletter.schedules import create_declared_schedules, declarations, fire_due
from deadletter.worker.scheduler import Scheduler

from .conftest import NOON

pytestmark = [
    pytest.mark.postgresql_only(reason="SQLite has one writer and locks no rows"),
    pytest.mark.django_db(transaction=True),
]

HOUR = timedelta(hours=1)


@pytest.fixture
def hold() -> Iterator[Callable[..., Any]]:
    """Execute a statement in the transaction of another connection, which stays open."""
    import psycopg

    held = []

    def execute(statement: str, *values: object) -> psycopg.Connection:
        parameters = connections["default"].get_connection_params()
        known = {key: parameters[key] for key in ("dbname", "user", "password", "host", "port")
                 if parameters.get(key)}  # fmt: skip
        other = psycopg.connect(**known)
        held.append(other)
        other.execute(statement, values)
        return other

    yield execute
    for other in held:
        other.close()


def lock_row(hold: Callable[..., Any], name: str) -> Any:
    return hold("SELECT 1 FROM deadletter_schedule WHERE name = %s FOR UPDATE", name)


def test_a_schedule_that_another_transaction_holds_is_left_to_it_and_the_others_are_fired(
    make, fire_at, hold
):
    make("edited")
    make("free")
    other = lock_row(hold, "edited")

    assert fire_at(NOON + HOUR) == 1
    assert Message.objects.get().headers["schedule"] == "free"
    # Late, but fired: its moment waited for the other transaction.
    other.commit()
    assert fire_due().sent == 1
    assert set(ScheduleRun.objects.values_list("moment", "outcome")) == {(NOON + HOUR, "sent")}


def test_an_edit_of_a_schedule_waits_a_bounded_time_and_names_the_holder(make, hold, monkeypatch):
    monkeypatch.setattr("deadletter.lifecycle.transaction.LOCK_WAIT", 0.2)
    make()
    other = lock_row(hold, "hourly")
    pid = other.info.backend_pid

    for verb in (
        lambda: operations.set_schedule("hourly", cron="0 4 * * *"),
        lambda: operations.pause_schedule("hourly"),
        lambda: operations.run_schedule("hourly"),
        lambda: operations.delete_schedule("hourly"),
    ):
        with pytest.raises(LockNotAvailable, match=str(pid)):
            verb()

    row = Schedule.objects.get()
    assert (row.cron, row.paused, Message.objects.count()) == ("0 * * * *", False, 0)


def test_the_admin_answers_with_the_holder_of_a_locked_schedule(
    make, hold, monkeypatch, admin_client
):
    monkeypatch.setattr("deadletter.lifecycle.transaction.LOCK_WAIT", 0.2)
    row = make()
    pid = lock_row(hold, "hourly").info.backend_pid
    form = {"kind": "message", "target": "report", "cron": "0 4 * * *", "time_zone": "UTC",
            "overlap": "skip", "missed": "once", "grace": "1m", "jitter": "0"}  # fmt: skip

    answers = [
        admin_client.post(reverse(f"admin:deadletter_schedule_{act}", args=[row.pk]), given)
        for act, given in [("edit", form), ("pause", {}), ("run", {}), ("delete", {"post": "yes"})]
    ]

    assert [answer.status_code for answer in answers] == [409] * 4
    for answer in answers:
        answer.render()
        assert f"pid {pid}" in answer.content.decode()
    assert Schedule.objects.get().cron == "0 * * * *"


def test_an_open_transaction_that_sends_with_the_key_delays_this_schedule_only(make, fire_at, hold):
    make("keyed", key="k")
    make("free")
    other = hold(
        "INSERT INTO deadletter_message (queue_id, name, kind, payload, key, priority, status,"
        " attempts, fence, available_at, created_at, poison_count, unregistered_count, history)"
        " SELECT id, 'report', 'message', NULL, 'k', 0, 1, 0, 0, now(), now(), 0, 0, '[]'"
        " FROM deadletter_queue WHERE name = 'default'"
    )

    assert fire_at(NOON + HOUR) == 1

    keyed = Schedule.objects.get(name="keyed")
    assert (keyed.next_at, keyed.last_error) == (NOON + HOUR, "")
    assert keyed.due_at == NOON + HOUR + timedelta(seconds=2)
    other.rollback()
    assert fire_at(keyed.due_at) == 1
    assert set(ScheduleRun.objects.values_list("moment", "outcome")) == {(NOON + HOUR, "sent")}


def test_a_locked_table_stops_the_scheduler_for_one_turn_only(make, clock, hold):
    make()
    clock.set(NOON + HOUR)
    other = hold("LOCK TABLE deadletter_schedule_run IN ACCESS EXCLUSIVE MODE")

    Scheduler("default").turn()

    assert Message.objects.count() == 0
    other.rollback()
    clock.advance(2)
    assert fire_due().sent == 1


def test_migrate_waits_for_no_schedule_that_it_does_not_change(make, hold, settings, monkeypatch):
    monkeypatch.setattr(declarations, "_decorated", [])
    monkeypatch.setattr("deadletter.lifecycle.transaction.LOCK_WAIT", 0.2)
    options = {"message": "report", "interval": "1h"}
    settings.DEADLETTER = {**settings.DEADLETTER, "SCHEDULES": {"a": options, "b": options}}
    make("by hand")
    create_declared_schedules(using="default")
    for name in ("a", "b", "by hand"):
        lock_row(hold, name)

    assert not create_declared_schedules(using="default")
    assert not operations.sync_schedules()

    settings.DEADLETTER = {**settings.DEADLETTER, "SCHEDULES": {"a": options}}
    with pytest.raises(LockNotAvailable):
        create_declared_schedules(using="default")
    assert Schedule.objects.get(name="b").orphaned_at is None
