"""Reads that a router sends to a replica: the queue decides by what is written, never by that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connections
from django.test import Client

from deadletter import Outgoing, lifecycle, operations, send, send_many, testing
from deadletter import clock as clocks
from deadletter.lifecycle import ClaimRequest, Completion, Failure
from deadletter.lifecycle.groups import fold_all_groups
from deadletter.models import FailureGroup, Message, PoisonRecord, Queue
from deadletter.operations import GroupFilter, PoisonFilter

from .admin.every_page import every_page, hostile_rows

pytestmark = pytest.mark.django_db(databases=["default", "second"], transaction=True)


class StaleReplica:
    """Reads go to an old copy, as with a replica that lags behind."""

    is_behind = True

    def db_for_read(self, model, **hints):
        is_ours = model._meta.app_label == "deadletter"
        return "second" if is_ours and self.is_behind else None

    def db_for_write(self, model, **hints):
        return "default"

    def allow_relation(self, one, other, **hints):
        return True


@pytest.fixture
def asked(settings) -> Iterator[list[str]]:
    """What the replica is asked about the queue while the router is in place."""
    seen: list[str] = []

    def note(execute, sql, params, many, context):
        if "deadletter_" in sql:
            seen.append(sql)
        return execute(sql, params, many, context)

    Queue.objects.using("second").filter(name="default").update(max_attempts=1, paused=True)
    settings.DATABASE_ROUTERS = ["tests.test_routing.StaleReplica"]
    with connections["second"].execute_wrapper(note):
        yield seen


def test_the_router_of_these_tests_does_send_reads_to_the_copy(asked):
    """The proof can fail: whoever asks without saying where is noted."""
    assert Queue.objects.get(name="default").paused
    assert len(asked) == 1


def test_every_verb_decides_by_what_is_written(asked):
    ids = send_many([Outgoing("mail", stream="a") for _ in range(4)])
    send("mail", key="once")
    send("mail", key="once")
    batch = lifecycle.claim(limit=4, worker="w")
    assert batch.ids == ids
    lifecycle.renew(batch.token, batch.ids)
    lifecycle.complete(batch.token, ids[:1])
    lifecycle.fail(batch.token, [Failure(ids[1], error="x", delay=0)])
    lifecycle.release(batch.token, ids[2:3])
    done = lifecycle.process_batch(
        worker="w",
        token=batch.token,
        completions=[Completion(ids[3])],
        claim=ClaimRequest(["default"], 10),
    )
    lifecycle.abandon(done.token, done.ids[0], force_poison=True)
    lifecycle.sweep()

    assert testing.drain().completed == 0
    assert asked == []


def test_the_verbs_of_people_decide_by_what_is_written(asked):
    (one, two, three) = send_many([Outgoing("mail") for _ in range(3)])
    operations.poison([one, two], why="bad")
    (first, second) = [record.pk for record in operations.list_poison()]
    operations.get_poison(first)
    operations.retry_poison([first])
    operations.remove_poison([second])
    operations.retry_now([three])
    operations.release([three])
    operations.remove([three])
    operations.stats()
    operations.health()
    operations.poison_candidates()
    operations.pause("default")
    operations.resume("default")
    operations.list_groups()
    operations.list_streams()
    operations.list_messages("pending")

    assert asked == []


def test_failure_groups_are_read_and_changed_where_they_are_written(asked, admin_user):
    send("mail", {"customer": 1})
    batch = lifecycle.claim(limit=1, queues=["default"])
    died = Failure(batch.ids[0], permanent=True, tags=(("customer", "1"),), release="2.7.0")
    lifecycle.fail(batch.token, [died])
    fold_all_groups()
    group = FailureGroup.objects.using("default").get().fingerprint
    FailureGroup.objects.using("default").create(
        fingerprint="other", name="m", first_failed_at=clocks.now("default"),
        last_failed_at=clocks.now("default"), state_at=clocks.now("default"),
    )  # fmt: skip

    operations.acknowledge_group(group)
    operations.mute_group(group, grows_by=1)
    operations.mute_group(group)
    operations.resolve_group(group, in_release="2.7.1")
    operations.reopen_group(group)
    operations.assign_group(group, admin_user.username)
    operations.link_ticket(group, "https://example.com/1")
    note = operations.write_note(group, "text")
    operations.write_note(group, "answer", answers=note.note_id)
    operations.merge_groups(group, "other")
    operations.split_group("other")
    for wanted in (GroupFilter(text="x", name="y", queue="z", release="r", tag="k=v"), None):
        operations.list_failure_groups(wanted)
        operations.count_failure_groups(wanted)
    operations.get_failure_group(group)
    operations.compare_records(group)
    operations.retry_advice(group)
    operations.retry_poison(PoisonRecord.objects.using("default").get().pk)
    operations.timeline(group)
    operations.tag_page("customer", "1")
    operations.preview(PoisonFilter(tag="customer=1"))
    for entry in operations.list_audit():
        assert entry.by == ""
    operations.list_jobs()
    for words in (["groups"], ["group", "show", group, "--compare"], ["audit"], ["jobs"]):
        with suppress(SystemExit):
            call_command("deadletter", *words, stdout=StringIO(), stderr=StringIO())

    assert asked == []


def test_the_command_line_shows_what_is_written(asked):
    send("mail")
    operations.poison(list(Message.objects.using("default").values_list("pk", flat=True)), why="x")

    for words in (["stats"], ["list"], ["queues"], ["retry", "--all", "--dry-run"], ["health"]):
        # Without a worker it is unhealthy, and says so by its exit.
        with suppress(SystemExit):
            call_command("deadletter", *words, stdout=StringIO(), stderr=StringIO())

    assert asked == []


@pytest.mark.slow
def test_every_page_of_the_admin_shows_what_is_written(asked, admin_user, monkeypatch):
    browser = Client()
    browser.force_login(admin_user)
    with monkeypatch.context() as written:
        written.setattr(StaleReplica, "is_behind", False)
        pages = every_page(hostile_rows(clocks.now("default")))

    answers = {browser.get(page).status_code for page in pages}

    assert answers <= {200, 302, 403, 404, 405}
    assert asked == []


def test_an_act_of_the_admin_is_done_to_what_is_written(asked, admin_user):
    send("mail")
    operations.poison(list(Message.objects.using("default").values_list("pk", flat=True)), why="x")
    record = PoisonRecord.objects.using("default").get()
    browser = Client()
    browser.force_login(admin_user)

    answer = browser.post(f"/admin/deadletter/poisonrecord/{record.pk}/retry/")

    assert answer.status_code == 302
    assert Message.objects.using("default").count() == 1
    assert PoisonRecord.objects.using("default").count() == 0
    assert asked == []
