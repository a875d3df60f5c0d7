"""manage.py deadletter remove, purge, release, poison."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deadletter import FailureReason, send
from deadletter.lifecycle import claim
from deadletter.models import Message, PoisonRecord
from tests.operations.records import dead, entries, failed


@pytest.mark.slow
def test_poison_is_removed_by_id_and_by_filter(cli, clock, counts):
    first, second, third = dead(), dead("bill"), dead("bill")

    assert cli("remove", first.pk, "--yes").lines[0] == "removed 1 of 1"
    dry = cli("remove", "--name", "bill", "--dry-run", "--format", "json").json
    assert (dry["matched"], dry["done"], counts()) == (2, 0, {"dead": 2})
    assert cli("remove", "--name", "bill", "--limit", 1, "--yes", "--by", "ann").code == 0

    assert PoisonRecord.objects.get() == third
    assert entries()[1] == ("remove", "ann", "", 1, 0, 0)
    assert second.pk < third.pk


def test_removing_a_second_time_is_exit_code_1(cli, clock):  # A18
    record = dead()
    assert cli("remove", record.pk, "--yes").code == 0

    again = cli("remove", record.pk, "--yes")

    assert again.code == 1
    assert "there is no such poison record" in again.out


def test_a_waiting_message_is_removed_an_active_one_is_not(cli, clock, counts):
    active = send("mail")
    claim()
    waiting = send("mail", delay=60)

    result = cli("remove", "--message", active.id, waiting.id, "--yes")

    assert (result.code, result.lines[0]) == (1, "removed 1 of 2")
    assert f"{active.id}: refused: message {active.id} is active" in result.out
    assert counts() == {"active": 1}


def test_removing_a_dead_message_by_its_own_id_says_where_it_is(cli, clock, counts):
    record = dead()

    result = cli("remove", "--message", record.message_id, "--yes")

    assert (result.code, counts()) == (1, {"dead": 1})
    assert f"{record.message_id}: is dead; its poison record is {record.pk}" in result.out


def test_the_question_says_that_a_halted_stream_will_go_on(cli, clock, policy, answers):
    policy(stream_policy="halt")
    dead(stream="a")
    follower = send("mail", stream="a")
    assert claim().ids == []
    answers("y")

    result = cli("remove", "--queue", "default")

    assert "1 of them halt a stream, which will go on" in result.err
    assert "Remove for good 1 poison record? [y/N]" in result.err
    assert claim().ids == [follower.id]


@pytest.mark.slow
def test_purge_goes_by_age(cli, clock, counts, policy):
    policy("other")
    dead()
    dead(queue="other")
    clock.advance(timedelta(days=31))
    young = dead()

    assert cli("purge", "--older-than", "30d", "--dry-run").lines[-1].startswith("2 would be")
    assert cli("purge", "--older-than", "30d", "--queue", "other", "--yes").code == 0
    assert cli("purge", "--older-than", "4w2d", "--yes", "--why", "old").code == 0
    assert cli("purge", "--older-than", "30d", "--yes").code == 1

    assert PoisonRecord.objects.get() == young
    assert [(entry[0], entry[2], entry[3]) for entry in entries()] == [
        ("purge", "", 1),
        ("purge", "old", 1),
    ]


@pytest.mark.parametrize("age", ["30", "30y", "", "-1d", "1d-", "999999999w", "d"])
def test_an_age_needs_a_unit(cli, clock, age):
    assert cli("purge", f"--older-than={age}", "--yes").code == 2


def test_release_lets_a_message_pass(cli, clock, counts):
    failed(stream="a")
    follower = send("mail", stream="a")
    assert claim().ids == []

    result = cli("release", follower.id, "--yes", "--by", "ann")

    assert (result.code, result.lines[0]) == (0, "released 1 of 1")
    assert claim().ids == [follower.id]
    assert entries() == [("release", "ann", "", 1, 0, 0)]


def test_releasing_what_belongs_to_no_stream_is_refused(cli, clock):
    message = send("mail")

    result = cli("release", message.id, "--yes")

    assert (result.code, "belongs to no stream" in result.out) == (1, True)


def test_poison_by_hand_wants_a_reason(cli, clock, counts):
    message = send("mail", {"a": 1})

    assert cli("poison", message.id, "--yes").code == 2
    assert counts() == {"pending": 1}
    assert cli("poison", message.id, "--why", "wrong customer", "--by", "ann", "--yes").code == 0

    record = PoisonRecord.objects.get()
    assert (record.reason, record.verdict) == (FailureReason.OPERATOR, "wrong customer")
    assert record.poisoned_by == "ann"
    assert not Message.objects.exists()


def test_a_dry_run_on_messages_changes_nothing(cli, clock, counts):
    message = send("mail", stream="a")

    for part in (["release"], ["poison", "--why", "x"], ["remove", "--message"]):
        result = cli(*part, message.id, "--dry-run")
        assert (result.code, result.column("state")[0]) == (0, "pending")

    assert counts() == {"pending": 1}
    assert entries() == []


def test_another_database_is_left_alone(cli, clock, counts, django_db_blocker):
    dead()

    assert cli("remove", "--all", "--database", "default", "--yes").code == 0
    assert counts() == {}
