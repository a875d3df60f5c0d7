"""`instances` and `instance`: found, shown and cancelled on the command line."""

from __future__ import annotations

from typing import Any

import pytest

from deadletter import Permanent, Started, operations, start, testing
from deadletter.instances import Flow, flows
from deadletter.models import Act, AuditEntry, Instance, PoisonRecord


def order(run: Any, event: Any) -> None:
    if isinstance(event, Started):
        run.state = {"token": "tok_1"}
        run.call("charge", {"amount": 5}, delay=60 if run.input == "later" else 0)


@pytest.fixture
def orders(clock, handles):
    """order-1 failed of its charge; order-2 is running."""

    def charge(message: Any) -> None:
        raise Permanent("the card has expired")

    flows.add(Flow(name="order", version="1.0.0", function=order))
    handles("charge", charge)
    start("order", instance="order-1", input={"sku": "A1"})
    testing.drain()
    clock.advance(1)
    start("order", instance="order-2", input="later")
    testing.drain()
    yield
    flows.remove("order")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], ["order-2", "order-1"]),
        (["--status", "failed"], ["order-1"]),
        (["--name", "order", "--status", "running"], ["order-2"]),
        (["--limit", "1"], ["order-2"]),
    ],
)
def test_instances_are_listed_with_the_latest_activity_first(cli, orders, options, found) -> None:
    shown = cli("instances", *options)
    listed = cli("instances", *options, "--format", "json")

    assert shown.code == listed.code == 0
    assert shown.column("id") == [one["id"] for one in listed.json] == found


@pytest.mark.slow
def test_nothing_found_is_exit_code_1(cli, orders) -> None:
    assert cli("instances", "--name", "other").code == 1
    assert cli("instances", "--status", "completed", "--format", "json").json == []
    assert cli("instances", "--status", "nonsense").code == 2
    assert cli("instances", "--name", "").code == 2
    assert cli("instance", "show", "nobody").code == 1
    assert cli("instance", "cancel", "nobody", "--why", "x", "--yes").code == 1


def test_one_is_shown_with_its_error_its_log_and_its_poison(cli, orders) -> None:
    record = PoisonRecord.objects.get()

    shown = cli("instance", "show", "order-1")
    found = cli("instance", "show", "order-1", "--format", "json").json

    assert "poison: activity charge#1 failed permanently at attempt 1 (max 5)" in shown.out
    assert "the card has expired" in shown.out
    assert "tok_1" not in shown.out
    assert [event["event"] for event in found["events"]] == [
        "failed",
        "activity_failed",
        "called",
        "started",
    ]
    assert found["poison"] == [{"id": record.pk, "message_id": record.message_id, "name": "charge"}]
    assert (found["status"], found["failed_by"]) == ("failed", record.message_id)
    assert found["state"] == {"token": "[redacted]"}
    assert "tok_1" in cli("instance", "show", "order-1", "--reveal").out


@pytest.mark.slow
def test_cancelling_is_tried_first_then_done_under_a_name(cli, orders) -> None:
    dry = cli("instance", "cancel", "order-2", "--why", "withdrawn", "--dry-run")
    silent = cli("instance", "cancel", "order-2", "--yes")
    nobody = cli("instance", "cancel", "order-2", "--why", "withdrawn")
    assert (dry.code, silent.code, nobody.code) == (0, 2, 2)
    assert "nothing was changed" in dry.out
    assert Instance.objects.get(pk="order-2").is_running

    done = cli("instance", "cancel", "order-2", "--why", "withdrawn", "--by", "ann", "--yes")
    again = cli(
        "instance", "cancel", "order-2", "--why", "x", "--yes", "--format", "json", "--by", "ann"
    )

    assert done.code == 0
    row = Instance.objects.get(pk="order-2")
    assert (row.status, row.error_details.text) == ("failed", "cancelled: withdrawn (ann)")
    entry = AuditEntry.objects.get()
    assert (entry.act, entry.by, entry.why, entry.done) == (Act.CANCEL, "ann", "withdrawn", 1)
    assert (again.code, again.json["refused"]) == (1, "it has failed")


def test_poison_is_listed_by_instance_and_kind(cli, orders) -> None:
    for options in (["--instance", "order-1"], ["--kind", "activity"]):
        assert [one["name"] for one in cli("list", *options, "--format", "json").json] == ["charge"]
    assert cli("list", "--instance", "order-2").code == 1


@pytest.mark.slow
def test_stats_tell_kinds_and_instances_apart(cli, orders) -> None:
    start("order", instance="order-3")

    found = operations.stats()

    assert found.kinds == {
        "activity": {"waiting": 1, "dead": 1},
        "orchestration": {"waiting": 1, "dead": 0},
    }
    assert found.instances == {"failed": 1, "running": 2}
    shown = cli("stats")
    assert "orchestration" in shown.out
    assert cli("stats", "--format", "json").json["instances"] == {"failed": 1, "running": 2}


@pytest.mark.slow
def test_hostile_names_are_spelled_out(cli, orders) -> None:
    Instance.objects.filter(pk="order-2").update(name="\x1b[2Jevil", parent="\u202e")

    assert "\x1b" not in cli("instances").out + cli("instance", "show", "order-2").out
