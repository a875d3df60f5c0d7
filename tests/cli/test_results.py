"""manage.py deadletter results, cancel."""

from __future__ import annotations

import pytest
from django.db import connection

from deadletter import lifecycle, operations, testing
from deadletter.models import AuditEntry, Message, PoisonRecord, Result
from tests.sample import tasks


@pytest.fixture
def done(clock):
    ids = [int(tasks.add.enqueue(1, b=2).id), int(tasks.answer.enqueue({"password": "x"}).id)]
    testing.drain()
    return ids


def test_the_newest_results_come_first(cli, done):
    found = cli("results")

    assert found.code == 0
    assert found.column("message") == [str(done[1]), str(done[0])]
    assert found.column("outcome") == ["successful", "successful"]


def test_results_are_narrowed(cli, done):
    by_name = cli("results", "--name", "tests.sample.tasks.add", "--format", "json")
    nothing = cli("results", "--outcome", "cancelled")

    assert [row["message_id"] for row in by_name.json] == [done[0]]
    assert (nothing.code, nothing.err) == (1, "nothing matches\n")


def test_one_result_is_shown_as_a_call(cli, done):
    found = cli("results", done[0])

    assert found.lines[0] == f"result of task {done[0]} tests.sample.tasks.add: successful"
    assert "  call:      add(1, b=2)" in found.lines
    assert found.lines[found.lines.index("return value") + 1] == "  3"
    (line,) = (line for line in found.lines if line.startswith("  deleted:"))
    assert line.endswith(" UTC, in 7 d")


def test_a_list_shows_calls_with_their_modules(cli, done):
    found = cli("results")

    calls = [line.rpartition("  ")[2] for line in found.lines[1:]]
    assert calls == [
        "tests.sample.tasks.answer({'password': '[redacted]'})",
        "tests.sample.tasks.add(1, b=2)",
    ]


def test_the_message_of_an_ended_task_shows_its_result(cli, done):
    shown, as_json = (
        cli("show", "--message", done[0]),
        cli("show", "--message", done[0], "--format", "json"),
    )

    assert shown.code == 0
    assert shown.lines == cli("results", done[0]).lines
    assert [(row["call"], row["value"]) for row in as_json.json] == [("add(1, b=2)", 3)]


def test_attempts_workers_progress_and_acts_are_shown(cli, clock):
    result = tasks.fail_for_good.enqueue()
    testing.drain()
    operations.remove_poison(PoisonRecord.objects.get().pk, by="ada", why="known bug")
    Result.objects.update(progress={"done": 3, "total": 4, "note": "nearly"})

    found = cli("results", result.id)

    assert found.lines[0].endswith("tests.sample.tasks.fail_for_good: removed")
    assert "  attempts:  1" in found.lines
    assert "  workers:   drain" in found.lines
    assert "  progress:  3 of 4 (75 %), nearly" in found.lines
    assert "Permanent: never" in found.out
    assert "return value" not in found.out
    assert "what people did (newest first)" in found.lines
    assert "known bug" in found.out


def test_the_result_of_a_handler_shows_its_payload(cli, clock):
    now = clock.now
    Result.objects.create(
        message_id=7, queue="default", name="orders.ship", kind="message", outcome="successful",
        payload={"order": 17, "token": "x"}, value=None, created_at=now, finished_at=now,
    )  # fmt: skip

    found = cli("results", 7)

    assert '  payload:   {"order": 17, "token": "[redacted]"}' in found.lines
    assert "  took:      -" in found.lines
    assert "  deleted:   never" in found.lines


def test_a_call_is_shown_wherever_a_task_is(cli, clock):
    dead = tasks.sign_in.enqueue(user="ada", password="s3cret")
    waiting = tasks.sign_in.enqueue(user="bob", password="s3cret")
    operations.poison(int(dead.id), why="test")
    bob = "sign_in(user='bob', password=[redacted])"

    poison, messages = cli("list"), cli("list", "--state", "pending")
    shown = cli("show", "--message", waiting.id)
    revealed = cli("show", "--message", waiting.id, "--reveal")
    (row,) = cli("show", "--message", waiting.id, "--format", "json").json

    assert "  tests.sample.tasks.sign_in(user='ada', password=[redacted])  " in poison.lines[1]
    assert f"  tests.sample.tasks.{bob}  " in messages.lines[1]
    assert shown.lines[shown.lines.index("call") + 1] == f"  {bob}"
    assert "  sign_in(user='bob', password='s3cret')" in revealed.lines
    assert row["call"] == bob


def test_an_ended_task_cannot_be_cancelled_or_retried(cli, done):
    for command in ("cancel", "release"):
        found = cli(command, done[0], "--yes")
        assert found.code == 1
        assert f"{done[0]}: has ended at" in found.out
        assert f"successful (see results {done[0]})" in found.out


def test_secrets_are_hidden_unless_asked_for(cli, done):
    hidden, shown = cli("results", done[1]), cli("results", done[1], "--reveal")

    assert "call:      answer({'password': '[redacted]'})" in hidden.out
    assert '"password": "x"' not in hidden.out
    assert '"password": "x"' in shown.out


def test_a_result_as_json_has_everything(cli, done):
    (row,) = cli("results", done[0], "--format", "json").json

    assert row["payload"] == {"args": [1], "kwargs": {"b": 2}}
    assert (row["value"], row["workers"], row["history"]) == (3, ["drain"], [])


def test_an_id_without_a_result_says_where_the_message_is(cli, clock):
    waiting = tasks.add.enqueue(1)

    found = cli("results", waiting.id, "999")

    assert found.code == 1
    assert found.err.splitlines() == [
        f"{waiting.id}: has no result yet: it is pending (see show --message {waiting.id})",
        "999: is in no queue: completed, removed, or never sent",
    ]


def test_ids_and_filters_exclude_each_other(cli, done):
    assert cli("results", done[0], "--name", "x").code == 2


def test_a_damaged_result_can_be_listed_and_shown(cli, done):
    for damage in ("x", 7, {"a": 1}, [None, 1]):
        Result.objects.filter(pk=done[0]).update(history=damage, workers=damage, progress=damage)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE deadletter_task_result SET payload = '{', value = '{'")

        found = cli("results", done[0])
        revealed = cli("results", done[0], "--reveal")
        assert (cli("results").code, found.code, revealed.code) == (0, 0, 0)
        assert "add(…)" in found.out
        assert cli("results", done[0], "--format", "json", "--reveal").json[0]["value"] == "{"


def test_a_waiting_task_is_cancelled(cli, clock, counts):
    result = tasks.add.enqueue(1)

    dry = cli("cancel", result.id, "--dry-run")
    before = counts()
    done = cli("cancel", result.id, "--yes", "--why", "wrong user")

    assert "1 would be cancelled; nothing was changed" in dry.out
    assert before == {"pending": 1}
    assert done.code == 0
    assert counts() == {}
    result.refresh()
    assert (result.status, result.state) == ("FAILED", "cancelled")
    assert AuditEntry.objects.get().why == "wrong user"


def test_a_dead_task_is_not_cancelled(cli, clock, counts):
    result = tasks.fail_for_good.enqueue()
    testing.drain()
    record = PoisonRecord.objects.get()

    found = cli("cancel", result.id, "--yes")

    assert found.code == 1
    assert f"{result.id}: is dead; its poison record is {record.pk}" in found.out
    assert counts() == {"dead": 1}


def test_a_running_task_is_not_cancelled(cli, clock):
    result = tasks.add.enqueue(1)
    lifecycle.claim(worker="w")

    done = cli("cancel", result.id, "--yes")

    assert done.code == 1
    assert Message.objects.count() == 1
