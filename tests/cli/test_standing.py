"""manage.py deadletter streams, candidates and workers."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import send
from deadletter.lifecycle import Failure, claim, fail
from deadletter.models import Message, PoisonRecord, StreamPolicy, WorkerProcess
from tests.operations.records import failed


@pytest.mark.parametrize("command", ["streams", "candidates", "workers"])
def test_nothing_is_said_and_exits_1(cli, clock, command):
    result = cli(command)
    as_json = cli(command, "--format", "json")

    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("no ")
    assert (as_json.code, as_json.json) == (1, [])


def test_streams_that_stand_still_are_listed_with_what_holds_them(cli, clock, policy):
    policy("other", stream_policy=StreamPolicy.HALT)
    doomed, behind = send("a", stream="s", queue="other"), send("b", stream="s", queue="other")
    token = claim(queues=["other"], limit=1).token
    fail(token, [Failure(doomed.pk, permanent=True)])
    claim(queues=["other"])
    record = PoisonRecord.objects.get()
    head = failed(name="c", stream="t")
    waits = [send("d", stream="t"), send("e", stream="t")]
    claim()
    clock.advance(10)

    result = cli("streams")
    found = cli("streams", "--format", "json").json

    assert result.code == 0
    assert result.lines[0].split()[0] == "queue"
    assert f"poison record {record.pk} halts it: retry or remove it" in result.lines[1]
    assert result.lines[2].endswith("its head failed and is tried again in 50 s")
    assert [(s["queue"], s["stream"], s["why"], s["message_id"]) for s in found] == [
        ("other", "s", "halted", doomed.pk),
        ("default", "t", "waiting", head.pk),
    ]
    assert [s["waiting"] for s in found] == [1, len(waits)]
    assert (found[0]["next_id"], found[0]["poison_id"]) == (behind.pk, record.pk)


def test_one_stream_is_asked_for_by_its_name(cli, clock):
    head = failed(stream="t")
    send("d", stream="t")
    claim()

    [found] = cli("streams", "--queue", "default", "--stream", "t", "--format", "json").json

    assert found["message_id"] == head.pk
    assert cli("streams", "--queue", "default", "--stream", "u").code == 1
    assert cli("streams", "--queue", "nowhere", "--stream", "u").code == 2
    assert cli("streams", "--queue", "default").code == 2


def test_candidates_are_listed_worst_first(cli, clock):
    messages = [failed(error=f"boom {n}") for n in range(3)]
    for message, attempts in zip(messages, (12, 9, 30), strict=True):
        Message.objects.filter(pk=message.pk).update(attempts=attempts)

    result = cli("candidates")

    assert (result.code, result.column("message")) == (0, [str(messages[n].pk) for n in (2, 0)])
    assert result.lines[1].endswith("handler_exception  boom 2")
    assert len(cli("candidates", "--attempts", 9).lines) == 4
    few = cli("candidates", "--limit", 1, "--format", "json")
    assert [(row["attempts"], row["error"]) for row in few.json] == [(30, "boom 2")]
    assert "there are more than 1" in few.err
    assert cli("candidates", "--attempts", 31).code == 1


def test_workers_are_listed_alive_or_lost(cli, clock):
    for name, ago in (("w1", 5), ("w2", 600)):
        WorkerProcess.objects.create(
            name=name,
            host="h1",
            pid=1,
            version="1",
            queues=["default", "mail"],
            concurrency=8,
            running=[{"id": 7, "name": "mail.send", "queue": "mail", "seconds": 3}],
            held=4,
            completed=100,
            failed=2,
            release="2.7.0",
            started_at=clock.now,
            seen_at=clock.now - timedelta(seconds=ago),
        )

    result = cli("workers")
    found = cli("workers", "--format", "json").json

    assert (result.code, result.column("is")) == (0, ["alive", "lost"])
    assert "2.7.0" in result.lines[1]
    assert {worker["release"] for worker in found} == {"2.7.0"}
    assert result.lines[1].split("  ")[0] == "w1"
    assert "default, mail" in result.lines[1]
    assert result.lines[1].endswith("mail.send #7")
    assert [(w["name"], w["alive"], w["held"]) for w in found] == [
        ("w1", True, 4),
        ("w2", False, 4),
    ]
    assert found[0]["queues"] == ["default", "mail"]
    assert [w["name"] for w in cli("workers", "--alive", "--format", "json").json] == ["w1"]


@pytest.mark.parametrize("value", [None, 3, "x", {"a": 1}, [1, None]])
def test_what_a_worker_told_may_be_anything(cli, clock, value):
    WorkerProcess.objects.create(
        name="w\x1b[2J",
        host="h",
        pid=1,
        version="1",
        queues=[] if value is None else value,
        running=[] if value is None else value,
        concurrency=1,
        started_at=clock.now,
        seen_at=clock.now,
    )

    result = cli("workers")

    assert result.code == 0
    assert "\x1b" not in result.out
    assert cli("workers", "--format", "json").code == 0
