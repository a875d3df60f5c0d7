"""A running instance that waits for a lost message is marked, shown and logged; no other is."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deadletter import (
    ActivityCompleted,
    ActivityFailed,
    ChildCompleted,
    Raised,
    Started,
    TimerFired,
    operations,
    raise_event,
    start,
    testing,
)
from deadletter.alerts import decide
from deadletter.lifecycle import sweep
from deadletter.lifecycle.instances import stuck
from deadletter.models import Alert, Instance, Message, PoisonRecord

pytestmark = [pytest.mark.slow, pytest.mark.django_db]


def order(run, event):
    """Wait for what its input names."""
    match event:
        case Started(input="activity"):
            run.call("step", delay=3600)
        case Started(input="dying"):
            run.call("dies")
        case Started(input="timer"):
            run.timer(3600)
        case Started(input="child"):
            run.start_child("order", "outside")
        case Started(input="outside"):
            pass
        case ActivityFailed():
            run.call("step", delay=3600)
        case ActivityCompleted() | ChildCompleted() | TimerFired() | Raised():
            run.complete("at the end")


@pytest.fixture(autouse=True)
def _flows(flow, handles, clock, policy):
    def die(message):
        raise RuntimeError("every time")

    flow("order", order)
    handles("step", lambda message: "done")
    handles("dies", die)
    policy(max_attempts=1)


def begin(instance: str, waits_for: str) -> None:
    start("order", instance=instance, input=waits_for)
    testing.drain()


def lose(*ids: str) -> None:
    """Delete messages as a worker does that takes an activity for a plain message."""
    Message.objects.filter(instance__in=ids).delete()


def marked() -> list[str]:
    return sorted(Instance.objects.stuck().values_list("pk", flat=True))


@pytest.mark.parametrize("waits_for", ["activity", "timer"])
def test_what_waits_for_a_lost_message_is_found_by_the_sweep(
    clock, waits_for, caplog, django_capture_on_commit_callbacks
):
    begin("a", waits_for)
    begin("b", waits_for)
    lose("a")
    clock.advance(61)

    with django_capture_on_commit_callbacks(execute=True):
        found = sweep()

    assert (found.stuck, marked()) == (1, ["a"])
    [line] = [r for r in caplog.records if "is running and nothing of it" in r.message]
    assert line.levelname == "ERROR"
    assert sweep().stuck == 0


def test_an_instance_whose_start_was_lost_is_found(clock):
    start("order", instance="a", input="activity")
    lose("a")
    clock.advance(61)

    assert (sweep().stuck, marked()) == (1, ["a"])


def test_a_parent_is_found_when_its_child_ended_without_a_word(clock):
    begin("a", "child")
    clock.advance(61)
    assert sweep().stuck == 0  # the child waits for an event from outside, and the parent for it

    Instance.objects.filter(parent="a").update(status="completed")

    assert (sweep().stuck, marked()) == (1, ["a"])


@pytest.mark.parametrize("waits_for", ["activity", "timer", "child", "outside", "dying"])
def test_what_can_still_go_on_is_not_stuck(clock, waits_for):
    begin("a", waits_for)
    clock.advance(86_400)

    assert (sweep().stuck, marked()) == (0, [])


def test_one_that_took_a_turn_a_moment_ago_is_left_alone(clock):
    begin("a", "activity")
    lose("a")
    clock.advance(59)
    assert sweep().stuck == 0

    clock.advance(2)

    assert sweep().stuck == 1


def test_poison_of_what_it_waits_for_is_not_lost(clock):
    begin("a", "activity")
    begin("b", "dying")  # its poison is of an activity whose failure the flow has answered
    record = PoisonRecord.objects.get(instance="b")
    lose("a", "b")
    # As an event that died while the instance was failed: somebody can retry it.
    record.pk, record.message_id, record.instance, record.activity_id = None, 10**9, "a", 1
    record.save(force_insert=True)
    clock.advance(61)

    assert (sweep().stuck, marked()) == (1, ["b"])


def test_the_mark_goes_when_the_instance_goes_on(clock):
    for id in ("a", "b", "c"):
        begin(id, "activity")
    lose("a", "b", "c")
    clock.advance(61)
    sweep()
    assert marked() == ["a", "b", "c"]

    raise_event("a", "on")  # a message again; its turn ends the instance
    assert (sweep().stuck, marked()) == (0, ["b", "c"])
    testing.drain()
    operations.cancel_instance("b", why="lost")

    assert (sweep().stuck, marked()) == (0, ["c"])
    assert Instance.objects.get(pk="a").status == "completed"
    assert set(Instance.objects.exclude(pk="c").values_list("stuck_since", flat=True)) == {None}


def test_the_sweep_goes_on_where_it_ended_and_begins_again(clock, monkeypatch):
    monkeypatch.setattr(stuck, "REACH", 2)
    for n in range(5):
        begin(f"order-{n}", "outside" if n < 4 else "activity")
        clock.advance(1)
    lose("order-4")
    clock.advance(61)

    assert [sweep().stuck for _ in range(3)] == [0, 0, 1]
    assert [sweep().stuck for _ in range(3)] == [0, 0, 0]
    assert marked() == ["order-4"]


def test_a_damaged_row_does_not_hide_the_others(clock):
    begin("a", "activity")
    begin("b", "activity")
    lose("a", "b")
    with connection.cursor() as cursor:
        # What is no JSON at all, the database refuses itself.
        cursor.execute("UPDATE deadletter_instance SET pending = '{\"x\": 1}' WHERE id = 'a'")
    clock.advance(61)

    assert (sweep().stuck, marked()) == (1, ["b"])


def test_a_look_costs_the_same_however_many_instances_wait(clock):
    def look() -> int:
        with CaptureQueriesContext(
            connection,
        ) as seen:
            stuck.mark_stuck()
        return len(seen)

    begin("order-0", "outside")
    clock.advance(61)
    few = look()
    for n in range(1, 30):
        begin(f"order-{n}", "outside")
    clock.advance(61)

    assert look() == few <= 8


def test_stats_the_command_line_and_the_admin_show_it(clock, client):
    for id in ("a", "b"):
        begin(id, "activity")
    lose("a")
    clock.advance(61)
    sweep()
    out = StringIO()
    call_command("deadletter", "instances", "--status", "stuck", "--format", "json", stdout=out)
    client.force_login(User.objects.create_superuser("root"))

    listed = client.get("/admin/deadletter/instance/?status=stuck").content.decode()
    page = client.get("/admin/deadletter/instance/a/change/").content.decode()
    other = client.get("/admin/deadletter/instance/b/change/").content.decode()

    assert (operations.stats().stuck, operations.stats().instances) == (1, {"running": 2})
    assert [row["id"] for row in json.loads(out.getvalue())] == ["a"]
    assert [i.pk for i in operations.list_instances(status="stuck", name="order")] == ["a"]
    assert 'is-stuck">stuck<' in listed
    assert "instance/b/" not in listed
    assert "what it waits for was lost" in page
    assert "what it waits for was lost" not in other


def test_an_alert_is_raised_grows_and_recovers(clock, settings):
    settings.DEADLETTER = {
        **settings.DEADLETTER,
        "ALERTS": {"rules": {"stuck_instance": True}, "channels": {}, "recover_after": 60},
    }
    for id in ("a", "b"):
        begin(id, "activity")
    lose("a")
    clock.advance(61)
    assert decide().raised == []

    sweep()
    assert decide().raised == ["stuck_instance:order"]
    lose("b")
    sweep()
    assert decide().raised == []
    alert = Alert.objects.get()
    assert (alert.count, alert.detail["instances"]) == (2, ["a", "b"])

    for id in ("a", "b"):
        operations.cancel_instance(id, why="lost")
    decide()
    clock.advance(61)
    assert decide().recovered == ["stuck_instance:order"]
