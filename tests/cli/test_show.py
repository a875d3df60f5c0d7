"""manage.py deadletter list, show, stats."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deadletter import FailureReason, operations, send
from deadletter.lifecycle import Failure, claim, fail, sweep
from deadletter.models import Message, PoisonRecord
from deadletter.testing import drain
from tests.operations.records import dead, failed, many_dead


def test_the_newest_poison_comes_first_with_both_ids(cli, clock, policy):  # A16, A17, E13
    policy("other")
    first, second = dead(), dead("bill", queue="other", stream="s")

    result = cli("list")

    assert result.code == 0
    assert result.column("id") == [str(second.pk), str(first.pk)]
    assert result.column("message") == [str(second.message_id), str(first.message_id)]
    assert result.column("queue") == ["other", "default"]
    assert result.column("tried") == ["1/5", "1/5"]
    assert result.column("error") != []


def test_a_list_as_json_has_every_field_but_the_payload(cli, clock):
    record = dead("mail", {"password": "s3cret"})

    (row,) = cli("list", "--format", "json").json

    assert (row["id"], row["message_id"], row["last_error"]) == (
        record.pk,
        record.message_id,
        "boom",
    )
    assert (row["reason"], row["last_failure_reason"]) == ("POISON_MESSAGE", "UNKNOWN")
    assert row["poisoned_at"] == clock.now.isoformat()
    assert "payload" not in row


def test_a_long_list_is_cut_and_says_so(cli, clock):
    many_dead(60)

    result = cli("list")

    assert len(result.lines) == 51
    assert "there are more than 50" in result.err
    assert len(cli("list", "--limit", 60, "--format", "json").json) == 60


def test_a_list_reads_no_payload_and_counts_nothing(cli, clock):
    many_dead(30)

    with CaptureQueriesContext(connection) as asked:
        cli("list", "--name", "mail")

    assert len(asked) <= 2  # the time, the records
    for query in asked:
        assert "payload" not in query["sql"]
        assert "COUNT(" not in query["sql"]


@pytest.mark.parametrize("state", ["pending", "scheduled", "failed", "active", "blocked"])
def test_messages_are_listed_by_state(cli, clock, state):
    failed_one = failed(stream="s")
    ids = {"failed": failed_one.pk, "blocked": send("mail", stream="s").id}
    ids["active"] = send("bill").id
    assert claim().ids == [ids["active"]]
    ids["pending"] = send("mail").id
    ids["scheduled"] = send("mail", delay=60).id

    result = cli("list", "--state", state, "--queue", "default")

    assert (result.code, result.column("message")) == (0, [str(ids[state])])
    assert result.column("state") == [state]
    (row,) = cli("list", "--state", state, "--format", "json").json
    assert (row["message_id"], row["state"]) == (ids[state], state)
    assert cli("list", "--state", state, "--text", "x").code == 2


def test_nothing_is_exit_code_1(cli, clock):
    result = cli("list", "--format", "json")

    assert (result.code, result.json, result.err) == (1, [], "nothing matches\n")


def test_a_record_is_shown_with_all_there_is(cli, clock):
    record = dead("mail", {"to": "ann", "password": "s3cret"}, headers={"token": "t0p"}, stream="s")
    operations.retry_poison(record.pk, by="ann", why="try again", payload={"to": "bob"})
    operations.poison([record.message_id], why="still bad", by="bob")
    sweep()
    record = PoisonRecord.objects.get()

    result = cli("show", record.pk)

    text = result.out
    assert result.code == 0
    assert f"poison record {record.pk}: message {record.message_id} mail" in text
    assert "death number 2" in text
    assert '"to": "bob"' in text
    assert "unknown: boom" in text
    assert "payload edited by ann" in text
    assert '"to": "ann"' in text  # the payload before the edit
    assert "retry by ann: try again → died" in text
    assert "poison by bob: still bad" in text
    assert f"manage.py deadletter retry {record.pk}\n" in text
    assert "s3cret" not in text
    assert "t0p" not in text
    revealed = cli("show", record.pk, "--reveal").out
    assert "s3cret" in revealed
    assert "t0p" in revealed


def test_show_as_json_is_the_same_for_scripts(cli, clock):
    record = dead("mail", {"to": "ann", "password": "s3cret"})

    (row,) = cli("show", record.pk, "--format", "json").json
    (bare,) = cli("show", record.pk, "--format", "json", "--reveal").json

    assert row["payload"] == {"to": "ann", "password": "[redacted]"}
    assert bare["payload"]["password"] == "s3cret"
    assert (row["state"], row["history"][0]["error"], row["audit"]) == ("dead", "boom", [])
    assert row["commands"][0] == f"manage.py deadletter retry {record.pk}"


def test_a_message_is_shown_with_what_it_waits_for(cli, clock):
    head = failed(stream="s")
    follower = send("mail", {"n": 2}, stream="s")
    assert claim().ids == []

    waiting = cli("show", "--message", head.pk).out
    blocked = cli("show", "--message", follower.id).out

    assert f"message {head.pk} mail is failed" in waiting
    assert f"manage.py deadletter retry --message {head.pk}" in waiting
    assert f"message {follower.id} mail is blocked" in blocked
    assert f"1 wait in its stream; message {head.pk} holds it: waiting" in blocked
    assert f"manage.py deadletter release {follower.id}" in blocked


def test_show_finds_a_dead_message_by_its_own_id_and_says_what_is_not_there(cli, clock):
    record = dead()

    result = cli("show", "--message", record.message_id, 999_999)

    assert result.code == 1
    assert f"poison record {record.pk}: message {record.message_id}" in result.out
    assert "999999: is in no queue" in result.err
    assert cli("show", 999_999).code == 1
    assert cli("show").code == 2


def test_show_says_what_became_of_a_message_that_was_retried(cli, clock, handles):
    record = dead()
    handles(record.name, lambda message: None)
    operations.retry_poison([record.pk], by="ada", why="fixed")
    drain()

    result = cli("show", "--message", record.message_id)

    assert result.code == 1
    assert f"{record.message_id}: succeeded; the last act was retry by ada, " in result.err
    assert result.err.strip().endswith(": fixed")


def test_what_nobody_knew_is_shown_as_put_off(cli, clock):
    record = dead()
    PoisonRecord.objects.update(reason=FailureReason.UNREGISTERED, attempts=3, max_attempts=3)

    shown = cli("show", record.pk).out

    assert re.search(r"deferred: +3/3", shown)
    assert "attempts:" not in shown


def test_a_damaged_row_is_shown_as_far_as_it_can_be(cli, clock):
    record = dead()
    history = '"not a list"'
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE deadletter_poison SET payload = %s, headers = %s, history = %s",
            ['{"password": "s3', "{{", history],
        )

    result = cli("show", record.pk)

    assert (result.code, "s3" in result.out) == (0, False)
    assert "cannot be decoded: " in result.out
    assert cli("show", record.pk, "--format", "json").code == 0


def test_stats_as_table_and_json(cli, clock, policy):
    policy("other")
    failed()
    dead(queue="other")

    result = cli("stats")

    rows = {line.split()[0]: line.split()[1:7] for line in result.lines[1:4]}
    assert rows == {
        "default": ["0", "0", "1", "0", "0", "0"],
        "other": ["0", "0", "0", "0", "0", "1"],
        "total": ["0", "0", "1", "0", "0", "1"],
    }
    assert "waiting for a time: 1 (the first in 60 s, the last in 60 s)" in result.out
    found = json.loads(cli("stats", "--format", "json").out)
    assert (found["total"]["dead"], found["retries"], found["candidates"]) == (1, {"1": 1}, 0)
    assert found["kinds"] == {"message": {"waiting": 1, "dead": 1}}


def move_to_dead_queue(policy, *, again: bool = False) -> tuple[int, Message]:
    """Let a message die into a dead queue, and there once more; return its first id and itself."""
    policy(on_poison="dead_queue", dead_queue=policy("dead"))
    message = send("mail", {"to": 1}, key="k")
    batch = claim()
    fail(batch.token, [Failure(message.id, error="boom", permanent=True)])
    moved = Message.objects.get(source_id=message.id)
    if again:
        operations.poison([moved.pk], why="looked at")
    return message.id, moved


def test_a_message_that_was_moved_is_shown_by_the_id_it_had(cli, clock, policy):
    id, moved = move_to_dead_queue(policy)

    result = cli("show", "--message", id)

    assert result.code == 0
    now = f"message {moved.pk} of queue dead now"
    assert result.lines[0] == f"message {id} died in queue default and is {now}"
    assert "  died in:   queue default" in result.lines
    assert "  its error: boom" in result.lines
    assert f"  manage.py deadletter retry --message {moved.pk}" in result.lines
    (row,) = cli("show", "--message", id, "--format", "json").json
    assert (row["message_id"], row["death"]["message_id"], row["death"]["queue"]) == (
        moved.pk,
        id,
        "default",
    )
    assert row["death"]["error"] == "boom"


def test_a_message_that_died_again_in_its_dead_queue_is_shown_by_the_id_it_had(cli, clock, policy):
    id, _moved = move_to_dead_queue(policy, again=True)
    record = PoisonRecord.objects.get()

    result = cli("show", "--message", id)

    now = f"poison record {record.pk} now: it died again in queue dead"
    assert result.lines[0] == f"message {id} died in queue default and is {now}"
    assert "  died in:   queue default" in result.lines
    assert cli("release", id, "--yes").lines[-1] == f"{id}: died, and is {now}"


def test_the_last_progress_is_shown(cli, clock):
    record, message = dead(), send("mail")
    report = {"done": 1_234, "total": 10_000, "note": "a\u202eb", "at": clock.now.isoformat()}
    Message.objects.update(progress=report)
    PoisonRecord.objects.update(progress=report | {"total": None, "note": ""})
    clock.advance(60)

    when = f"{clock.now - timedelta(minutes=1):%Y-%m-%d %H:%M:%S} UTC, 60 s ago"
    shown = cli("show", "--message", message.pk)
    assert f"  progress:  1,234 of 10,000 (12 %), a\\u202eb, {when}" in shown.lines
    assert f"  progress:  1,234 done, {when}" in cli("show", record.pk).lines
    (row,) = cli("show", "--message", message.pk, "--format", "json").json
    assert row["progress"] == report


def test_without_a_report_no_progress_is_shown(cli, clock):
    message = send("mail")

    assert "progress" not in cli("show", "--message", message.pk).out
    (row,) = cli("show", "--message", message.pk, "--format", "json").json
    assert row["progress"] is None
