"""Queues named by patterns on the command line: what they match is shown before it is touched."""

from __future__ import annotations

import pytest

from deadletter import send
from deadletter.models import Message, PoisonRecord, Queue
from tests.operations.records import dead, entries, failed


@pytest.fixture
def tenants(clock, policy) -> None:
    for name in ("tenant-a/mail", "tenant-a/sms", "tenant-b/mail"):
        policy(name)


def test_lists_and_counts_take_patterns(cli, tenants):
    for name in ("tenant-a/mail", "tenant-b/mail"):
        dead(queue=name)
        send("mail", queue=name)

    assert [
        row["queue"] for row in cli("list", "--queue", "tenant-a/*", "--format", "json").json
    ] == ["tenant-a/mail"]
    pending = cli("list", "--state", "pending", "--queue", "*/mail", "--format", "json").json
    assert [row["queue"] for row in pending] == ["tenant-a/mail", "tenant-b/mail"]
    counted = cli("stats", "--queue", "tenant-a/*", "--format", "json").json
    assert list(counted["queues"]) == ["tenant-a/mail", "tenant-a/sms"]
    assert list(cli("queues", "list", "tenant-b/*", "--format", "json").json) == ["tenant-b/mail"]


def test_a_pattern_that_matches_nothing_is_a_typing_error(cli, tenants):
    for command in (
        ["list"],
        ["retry", "--yes"],
        ["stats"],
        ["purge", "--older-than", "1d", "--yes"],
    ):
        result = cli(*command, "--queue", "nobody/*")
        assert result.code == 2
        assert "no queue matches 'nobody/*'" in result.err
    assert cli("queues", "pause", "nobody/*", "--yes").code == 2


def test_pausing_by_pattern_shows_what_it_matched_and_asks(cli, tenants):
    looked = cli("queues", "pause", "tenant-a/*", "--dry-run", "--format", "json")
    assert looked.json["queues"] == ["tenant-a/mail", "tenant-a/sms"]
    assert "tenant-a/* matches 2: tenant-a/mail, tenant-a/sms" in looked.err
    assert cli("queues", "pause", "tenant-a/*").code == 2
    assert not Queue.objects.filter(paused=True).exists()

    done = cli("queues", "pause", "tenant-a/*", "--yes", "--by", "ann")

    assert done.lines == ["paused tenant-a/mail, tenant-a/sms"]
    paused = Queue.objects.filter(paused=True).order_by("name").values_list("name", flat=True)
    assert list(paused) == ["tenant-a/mail", "tenant-a/sms"]
    assert [entry[:2] for entry in entries()] == [("pause", "ann"), ("pause", "ann")]
    assert cli("queues", "resume", "*", "--yes").code == 0
    assert not Queue.objects.filter(paused=True).exists()


def test_retrying_by_pattern_shows_what_it_matched(cli, tenants):
    dead(queue="tenant-a/mail")
    left = dead(queue="tenant-b/mail")

    looked = cli("retry", "--queue", "tenant-a/*", "--dry-run")
    done = cli("retry", "--queue", "tenant-a/*", "--yes")

    for result in (looked, done):
        assert "tenant-a/* matches 2: tenant-a/mail, tenant-a/sms" in result.err
    assert done.lines[0] == "retried 1 of 1"
    assert PoisonRecord.objects.get() == left


def test_failed_messages_are_retried_by_pattern(cli, tenants):
    retried = failed(queue="tenant-a/mail")
    waiting = failed(queue="tenant-b/mail")

    result = cli("retry", "--failed", "--queue", "tenant-a/*", "--yes")

    assert "tenant-a/* matches 2" in result.err
    assert (result.code, result.lines[0]) == (0, "retried 1 of 1")
    assert Message.objects.get(pk=retried.pk).attempts == 0
    assert Message.objects.get(pk=waiting.pk).attempts == 1


def test_purging_by_pattern_shows_what_it_matched(cli, clock, tenants):
    dead(queue="tenant-a/mail")
    left = dead(queue="tenant-b/mail")
    clock.advance(3600)

    result = cli("purge", "--older-than", "10m", "--queue", "tenant-a/*", "--yes")

    assert "tenant-a/* matches 2" in result.err
    assert PoisonRecord.objects.get() == left


def test_a_destination_is_named_exactly(cli, tenants):
    dead(queue="tenant-a/mail")

    result = cli("retry", "--all", "--to-queue", "tenant-*", "--yes")

    assert result.code == 2
    assert PoisonRecord.objects.count() == 1
