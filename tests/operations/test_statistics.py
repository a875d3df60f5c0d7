"""How much is where: A20, C16, C19."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deadletter import operations, send
from deadletter.lifecycle import claim
from deadletter.models import Message, PoisonRecord, Queue
from deadletter.operations import groups

from .records import dead, failed, many_dead


def test_every_state_is_counted_where_it_is(clock, policy):
    policy("other")
    oldest = clock.now
    active = send("mail", stream="s")
    blocked = send("mail", stream="s")
    assert claim(limit=1).ids == [active.id]
    assert claim(limit=5).ids == []  # parks the second
    clock.advance(5)
    failed(queue="other")
    send("mail", queue="other", delay=100)
    send("mail", queue="other")
    dead(queue="default")

    found = operations.stats()

    default, other = found.queues["default"], found.queues["other"]
    assert Message.objects.get(pk=blocked.id).available_at is None
    assert (default.active, default.blocked, default.dead, default.pending) == (1, 1, 1, 0)
    assert (other.failed, other.scheduled, other.pending, other.dead) == (1, 1, 1, 0)
    assert (default.oldest, other.next_retry) == (oldest, clock.now + timedelta(seconds=60))
    assert found.total.oldest == oldest
    assert (found.backlog.count, found.backlog.first, found.backlog.last) == (
        2,
        clock.now + timedelta(seconds=60),
        clock.now + timedelta(seconds=100),
    )
    assert found.as_dict()["queues"]["other"]["failed"] == 1


def test_kinds_are_counted_in_queues_and_among_the_dead(clock):  # A20
    record = dead()
    send("a")
    PoisonRecord.objects.filter(pk=record.pk).update(kind="orchestration")

    assert operations.stats().kinds == {
        "message": {"waiting": 1, "dead": 0},
        "orchestration": {"waiting": 0, "dead": 1},
    }


def test_a_bit_of_a_newer_version_is_not_a_failure(clock):
    send("mail", delay=60)
    Message.objects.update(status=65536 | 1)

    found = operations.stats()

    assert (found.total.scheduled, found.total.failed, found.retries) == (1, 0, {})


def test_what_outlived_its_queue_still_counts(clock, policy):  # E20
    gone = policy("gone")
    dead(queue="gone")
    send("mail", queue="gone")
    Queue.objects.filter(pk=gone.pk)._raw_delete("default")

    found = operations.stats()

    assert (found.queues["gone"].dead, found.queues[f"#{gone.pk}"].pending) == (1, 1)
    assert (found.total.dead, found.total.pending) == (1, 1)


def test_poison_of_a_removed_queue_can_be_listed_retried_elsewhere_and_removed(clock, policy):
    gone = policy("gone")
    first, second = dead(queue="gone"), dead(queue="gone")
    Queue.objects.filter(pk=gone.pk)._raw_delete("default")

    assert len(operations.list_poison(queue="gone")) == 2
    refused = operations.retry_poison([first.pk]).refused[first.pk]
    assert "queue 'gone' does not exist" in refused
    assert operations.retry_poison([first.pk], queue="default").retried == [first.pk]
    assert operations.remove_poison([second.pk]).removed == [second.pk]


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(operations.list_groups, id="groups"),
        pytest.param(lambda: operations.get_group("0" * 16), id="group"),
        pytest.param(lambda: operations.matrix("name"), id="names"),
        pytest.param(lambda: operations.matrix("exception"), id="exceptions"),
        pytest.param(operations.list_streams, id="streams"),
    ],
)
def test_no_page_counts_a_whole_table_or_reads_payloads(clock, read, policy):
    policy(stream_policy="halt")
    dead(stream="a")
    send("mail", stream="a")
    many_dead(30)

    with CaptureQueriesContext(connection) as asked:
        assert read()

    for query in asked:
        text = query["sql"]
        assert "payload" not in text.split(" FROM ")[0]
        if "COUNT(" in text:
            assert "LIMIT" in text, text


def test_groups_count_what_they_have_up_to_a_bound(clock, monkeypatch):
    monkeypatch.setattr(groups, "COUNTED", 20)
    many_dead(30)
    clock.advance(3_600)
    dead()

    newest, large = operations.list_groups()

    assert (newest.count, large.count, large.fingerprint) == (1, 21, "0" * 16)
    assert operations.matrix("exception")[0].counts[-1] == 30
