"""manage.py deadletter queues."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import send
from deadletter.models import AuditEntry, Queue
from tests.operations.records import dead, entries


def test_queues_are_listed_with_policy_and_counts(cli, clock, policy):
    policy("slow", cooldown=7_200, max_attempts=None, poison_retention=864_000)
    send("mail")
    dead(queue="slow")
    gone = policy("gone")
    dead(queue="gone")
    Queue.objects.filter(pk=gone.pk)._raw_delete("default")

    result = cli("queues")

    lines = {line.split()[0]: line for line in result.lines}
    assert result.code == 0
    assert lines["default"].split()[1:8] == ["open", "1", "0", "0", "0", "0", "0"]
    assert lines["default"].endswith(
        "5 attempts, backoff 30 s to 60 min, lease 60 s, quarantine, strict"
    )
    assert lines["slow"].endswith(
        "no limit, cooldown 2 h, lease 60 s, quarantine, strict, kept 10 d"
    )
    assert lines["gone"].split()[1] == "gone"
    found = cli("queues", "--format", "json").json
    assert (found["slow"]["policy"]["cooldown"], found["slow"]["dead"]) == (7200.0, 1)
    assert found["gone"]["policy"] is None


def test_a_dead_queue_that_is_named_is_used_and_the_summary_says_what_is(cli, clock):
    cli("queues", "create", "dead")
    created = cli("queues", "create", "mail", "dead_queue=dead", "--format", "json").json
    assert created["on_poison"] == "dead_queue"
    cli("queues", "create", "kept", "dead_queue=dead", "on_poison=quarantine")

    lines = {line.split()[0]: line for line in cli("queues").lines[1:]}

    assert ", to dead, strict" in lines["mail"]
    assert ", quarantine, strict" in lines["kept"]


def test_a_queue_is_created_changed_paused_and_resumed(cli, clock):
    created = cli("queues", "create", "mail", "max_attempts=3", "backoff_base=90", "cooldown=2h")
    assert created.code == 0
    assert cli("queues", "create", "mail.dead").code == 0
    assert cli(
        "queues", "set", "mail", "cooldown=none", "dead_queue=mail.dead", "on_poison=dead_queue",
        "jitter=0.5", "--by", "ann", "--why", "busy",
    ).code == 0  # fmt: skip
    assert cli("queues", "pause", "mail").lines[2] == "paused                 True"

    queue = Queue.objects.get(name="mail")
    assert (queue.max_attempts, queue.cooldown, queue.paused) == (3, None, True)
    assert (queue.backoff_base, queue.jitter) == (timedelta(seconds=90), 0.5)
    assert queue.dead_queue.name == "mail.dead"
    assert cli("queues", "resume", "mail", "--format", "json").json["paused"] is False
    assert [entry[0] for entry in entries()] == [
        "edit_queue",
        "edit_queue",
        "edit_queue",
        "pause",
        "resume",
    ]
    assert entries()[2][1:3] == ("ann", "busy")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["create"], "queues create: which queue?"),
        (["create", "default"], "name: Queue with this Name already exists."),
        (["create", "a b"], "name: Letters, digits"),
        (["create", "\x1b[31m"], "name: Letters, digits"),
        (["set", "defalt", "max_attempts=1"], "did you mean default?"),
        (["pause", "defalt"], "did you mean default?"),
        (["set", "default", "max_attempts"], "expected field=value, got 'max_attempts'"),
        (["set", "default", "max_atempts=1"], "a queue has no field 'max_atempts'"),
        (["set", "default", "max_attempts=many"], "max_attempts: invalid literal"),
        (["set", "default", "max_attempts=-1"], "max_attempts: "),
        (["set", "default", "unregistered_attempts=-1"], "unregistered_attempts: "),
        (["set", "default", "reason_policies={"], "reason_policies: Expecting"),
        (["set", "default", "reason_policies=[1]"], "reason_policies: expected an object"),
        (
            ["set", "default", 'reason_policies={"OUTAGE": {}}'],
            "reason_policies: 'OUTAGE' is not a failure reason (there are: TRANSPORT_UNAVAILABLE",
        ),
        (
            ["set", "default", 'reason_policies={"UNKNOWN": {"max_attempts": "3"}}'],
            "reason_policies: UNKNOWN: max_attempts: expected a whole number",
        ),
        (["set", "default", "jitter=2"], "jitter: "),
        (["set", "default", "jitter=nan"], "jitter: Must be a number from 0 to 1"),
        (["set", "default", "cooldown=soon"], "cooldown: expected a duration"),
        (["set", "default", "backoff_base=none"], "backoff_base: This field cannot be null."),
        (["set", "default", "lease_timeout=0"], "lease_timeout: Must be longer than 0"),
        (["set", "default", "on_poison=explode"], "on_poison: "),
        (["set", "default", "dead_queue=default"], "dead_queue: A queue cannot be its own"),
        (["create", "new", "dead_queue=new"], "dead_queue: A queue cannot be its own"),
        (["set", "default", "on_poison=discard", "stream_policy=halt"], "halt needs on_poison"),
        (["set", "default", "dead_queue=nowhere"], "there is no queue 'nowhere'"),
        (["set", "default", "jitter=0", "jitter=1"], "jitter is given twice"),
        (["pause", "default", "jitter=0"], "queues pause takes no fields"),
        (["list", "default"], "list takes no name"),
        (["explode", "default"], "invalid choice"),
    ],
)
def test_a_bad_policy_is_refused_with_words(cli, clock, arguments, problem):
    before = list(Queue.objects.values())

    result = cli("queues", *arguments)

    assert (result.code, result.out) == (2, "")
    assert problem in result.err
    assert "\x1b" not in result.err
    assert list(Queue.objects.values()) == before
    assert entries() == []


def test_policies_by_reason_are_set_shown_and_taken_away(cli, clock):
    policies = '{"TRANSPORT_UNAVAILABLE": {"max_attempts": 20}}'

    result = cli("queues", "set", "default", f"reason_policies={policies}")
    assert f"reason_policies        {policies}" in result.lines
    assert cli("queues", "set", "default", "unregistered_attempts=none").code == 0

    queue = Queue.objects.get()
    assert queue.reason_policies == {"TRANSPORT_UNAVAILABLE": {"max_attempts": 20}}
    assert queue.unregistered_attempts is None
    assert cli("queues").lines[-1].endswith("strict, differs by reason (1)")
    assert [entry.detail for entry in AuditEntry.objects.order_by("pk")] == [
        {"reason_policies": f"{{}} → {policies}"},
        {"unregistered_attempts": "10 → None"},
    ]
    result = cli("queues", "set", "default", "reason_policies=none", "--format", "json")
    assert result.json["reason_policies"] == {}


def test_a_queue_is_deleted_and_leaves_an_entry(cli, clock, policy):
    policy("spare", max_attempts=7)

    result = cli("queues", "delete", "spare", "--yes", "--by", "ann", "--why", "unused")

    assert (result.code, result.lines) == (0, ["deleted queue spare"])
    assert not Queue.objects.filter(name="spare").exists()
    assert entries() == [("edit_queue", "ann", "unused", 1, 0, 0)]
    detail = AuditEntry.objects.get().detail
    assert (detail["deleted"], detail["max_attempts"]) == ("True", "7")


@pytest.mark.parametrize("use", ["messages", "source"])
def test_a_queue_in_use_is_not_deleted_and_leaves_no_entry(cli, clock, policy, use):
    queue = policy("spare")
    if use == "messages":
        send("mail", queue="spare")
    else:
        policy("source", on_poison="dead_queue", dead_queue=queue)

    result = cli("queues", "delete", "spare", "--yes")

    assert result.code == 1
    assert "CommandError" in result.err
    assert Queue.objects.filter(name="spare").exists()
    assert entries() == []


def test_nobody_deletes_a_queue_without_being_asked(cli, clock, policy):
    policy("spare")

    result = cli("queues", "delete", "spare")

    assert (result.code, Queue.objects.filter(name="spare").exists()) == (2, True)
    assert "Delete queue spare?" in result.err
    assert cli("queues", "delete", "spar", "--yes").code == 2


@pytest.mark.slow
def test_durations_are_taken_and_shown_as_people_write_them(cli, clock):
    created = cli(
        "queues", "create", "mail", "backoff_base=1h30m", "cooldown=0.5h", "lease_timeout=90"
    )

    assert created.code == 0
    assert {line.split()[0]: line.split()[1] for line in created.lines}["backoff_base"] == "1h30m"
    queue = Queue.objects.get(name="mail")
    assert (queue.cooldown, queue.lease_timeout) == (timedelta(minutes=30), timedelta(seconds=90))
    for bad in ("-30", "-30s", "-1:00:00", "1y"):
        result = cli("queues", "set", "mail", f"cooldown={bad}")
        assert (result.code, "cooldown: expected a duration" in result.err) == (2, True)
